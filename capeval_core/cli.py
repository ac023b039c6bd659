"""`capeval`: the command line. Finds the command, and turns its errors into messages and exit statuses."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from capeval_core.commands.terminal import INTERRUPTED, complain, first_named, help_texts, leave
from capeval_core.errors import Note, naming

COMMANDS: dict[str, str] = help_texts()["commands"]
NO_SCORE, BAD_INPUT, PIPE_CLOSED = 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default of the process's own arguments, and return the exit status.

    0 done, 1 no score came out (every image failed, or memory ran out), 2 wrong input, 130 interrupted, 141
    the reader of the output went away.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what the terminal cannot show is escaped, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        with naming({"exif=turn": "--exif-turn"}, flags=True), warnings.catch_warnings():
            warnings.showwarning = lambda message, category, *_: _show(message, category)
            status = _run(list(sys.argv[1:] if arguments is None else arguments))
        print(end="", flush=True)  # what cannot be written shows now
        return status
    except KeyboardInterrupt as interrupt:
        complain(str(interrupt) or "interrupted")
        return INTERRUPTED
    except MemoryError as error:
        complain(str(error) or "out of memory")
        return NO_SCORE
    except OSError as error:
        closed = isinstance(error, BrokenPipeError)
        if not closed:
            complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        try:
            sys.stdout.flush()
        except OSError:  # Python flushes once more when it ends: let that go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED if closed else BAD_INPUT
    except (ValueError, TypeError, ImportError) as error:  # a package of an extra is not installed
        complain(str(error))
    return BAD_INPUT


def _show(message: Warning | str, category: type[Warning]) -> None:
    """A warning or a note, on stderr."""
    complain(f"{'note' if issubclass(category, Note) else 'warning'}: {message}")


def _run(arguments: list[str]) -> int:
    try:
        name, flags = first_named(arguments or ["--help"], "", COMMANDS)
        shows_help = not {"-h", "--help"}.isdisjoint(flags) or (not flags and name != "demo")
        slow = name != "list" and not shows_help
        if slow and sys.stderr.isatty():
            complain("loading ...")  # imports may take seconds
        status: int = import_module(f"capeval_core.commands.{name}").run(flags)
        return status
    except SystemExit as stop:  # argparse's own way out: help, version, wrong arguments
        return int(stop.code or 0) if arguments else BAD_INPUT


def _open_closed_streams() -> None:
    """Let what was closed (`2>&-`) go nowhere, else the next file that is opened takes its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def run() -> int:
    """Run the command of the process's arguments; Ctrl-C ends it before and after the command, too."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, leave)
    status = main()
    if status == INTERRUPTED:
        sys.stdout.flush()
        os._exit(status)  # without waiting for threads
    return status
