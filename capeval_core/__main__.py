"""`python -m capeval_core`: the command line, where the `capeval` script is not on the path."""

from __future__ import annotations

import sys

from capeval_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
