"""`python -m capeval_core`: the command line."""

import sys

from capeval_core.cli import run

if __name__ == "__main__":
    sys.exit(run())
