"""The process of the command line: `capeval`, and `python -m capeval_core`."""

from __future__ import annotations

import os
import signal
import sys

from capeval_core.commands.terminal import INTERRUPTED, leave


def run() -> int:
    """Run the command of the process's arguments; Ctrl-C ends it before and after the command, too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, leave)
    from capeval_core.cli import main  # now, as Ctrl-C may come while it is imported

    status = main()
    if status == INTERRUPTED:
        sys.stdout.flush()
        os._exit(status)  # without waiting for threads
    return status


if __name__ == "__main__":
    sys.exit(run())
