"""The process of the command line: `capeval`, and `python -m capeval_core`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from capeval_core.commands.interrupts import INTERRUPTED, leave_at_once


def run() -> int:
    """Run the command of the process's arguments; Ctrl-C ends it before and after the command, too."""
    leave_at_once()
    if sys.stderr is None:  # closed, `2>&-`: messages and bars go nowhere, scores are printed
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    from capeval_core.cli import main  # now, as Ctrl-C may come while it is imported

    try:
        status = main()
    except KeyboardInterrupt:  # between the command's end and that of its handler
        status = INTERRUPTED
    if status == INTERRUPTED:
        # Python would wait for its threads, and kill itself where the interrupt had landed in an `exec`.
        sys.stdout.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(run())
