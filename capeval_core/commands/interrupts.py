"""Ctrl-C ends a command wherever it lands.

Python raises KeyboardInterrupt at whatever it executes at that moment. Where that is a callback of a weak
reference, a `__del__`, a callback from C or the import of an extension, the exception is dropped, and the
command would run on to its end. So the first Ctrl-C raises, and a timer raises again until the exception is
on its way. The second Ctrl-C kills the process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capeval_core.options import Options

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report it."""
_SECONDS = 0.2
"""Between two attempts to raise."""
_ATTEMPTS = 25
"""So many dropped exceptions in a row, and the process ends without being asked."""


class Interruption:
    """Whether Ctrl-C was pressed, and what is still to be done about it."""

    def __init__(self) -> None:
        self.pressed = False
        self._attempts = 0

    def start(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: raise, now and again until that is noticed; the next one kills the process."""
        if _is_importing("torch"):  # whose C++ aborts the process at an exception, and nothing is done yet
            leave(number, frame)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # even where C code never comes back to Python
        self.pressed = True
        self._arm(_SECONDS)
        raise KeyboardInterrupt

    def again(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGALRM: raise again, unless the exception is on its way and rows are being written."""
        if not self.pressed or _is_handled(sys.exc_info()[1]):
            return
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            leave(number, frame)
        raise KeyboardInterrupt

    def settle(self) -> None:
        """Ctrl-C has been dealt with: raise no more."""
        self.pressed, self._attempts = False, 0
        self._arm(0)

    def _arm(self, seconds: float) -> None:
        if hasattr(signal, "setitimer"):  # not on Windows, where the first exception is the only one
            signal.setitimer(signal.ITIMER_REAL, seconds, _SECONDS if seconds else 0)


CURRENT = Interruption()
"""That of the command that runs in this process."""


def leave(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT where nothing is lost: end the process, without an exception that could be dropped."""
    os.write(2, b"capeval: interrupted\n")
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """Let Ctrl-C end the process from now on, until a command handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, leave)


@contextmanager
def watched() -> Iterator[Interruption]:
    """Let Ctrl-C end what the block does, whatever drops the exception. Handlers are put back at the end.

    A process that handles or ignores SIGINT in its own way, and threads other than the main one, are left
    alone.
    """
    CURRENT.settle()
    found = _handler()
    if found not in (signal.default_int_handler, leave):
        yield CURRENT
        return
    hook = sys.unraisablehook

    def report(dropped_error: Any) -> None:
        # The next attempt raises: that this one was dropped is nothing that a user has to read.
        if not (CURRENT.pressed and issubclass(dropped_error.exc_type, KeyboardInterrupt)):
            hook(dropped_error)

    alarm = signal.signal(signal.SIGALRM, CURRENT.again) if hasattr(signal, "SIGALRM") else None
    signal.signal(signal.SIGINT, CURRENT.start)
    sys.unraisablehook = report
    try:
        yield CURRENT
    finally:
        CURRENT.settle()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, found)
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, alarm)


def _handler() -> Any:
    """The handler of SIGINT if this thread may set another one, else None."""
    found = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, found)
    except (ValueError, TypeError):  # not the main thread; a handler that is not Python's
        return None
    return found


def _is_importing(name: str) -> bool:
    """Whether a package is being imported for the first time."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _is_handled(error: BaseException | None) -> bool:
    """Whether an interrupt is what the code at hand cleans up after."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


@contextmanager
def resumable(options: Options) -> Iterator[None]:
    """Let an interrupted run say how it goes on."""
    how = "with --rows FOLDER a run can be resumed"
    if options.rows is not None:
        how = f"rows are kept in {options.rows}: run the same command again to resume"
    with interruptible(how):
        yield


@contextmanager
def interruptible(how: str) -> Iterator[None]:
    """Let an interrupt of the block say how the command goes on."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not CURRENT.pressed:
            raise
        raise KeyboardInterrupt(f"interrupted; {how}") from None
