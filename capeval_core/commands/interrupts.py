"""Ctrl-C: it ends the process at once until work begins that is kept, and then raises as Python does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report it."""


def leave(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT where nothing is lost: imports of C++ would not survive an exception."""
    os.write(2, b"capeval: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(how: str) -> Iterator[None]:
    """Let an interrupt of the block say how the command goes on."""
    leaves = signal.getsignal(signal.SIGINT) is leave
    try:
        if leaves:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {how}") from None
    finally:
        if leaves:
            with suppress(KeyboardInterrupt):
                signal.signal(signal.SIGINT, leave)


def resuming(rows: object) -> str:
    """How a run goes on that keeps its rows in a folder, or in none."""
    if rows is None:
        return "with --rows FOLDER a run can be resumed"
    return f"rows are kept in {rows}: run the same command again to resume"
