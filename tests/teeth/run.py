"""pytest in a process that was forked with the libraries imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def run_tests(tree: Path, arguments: Sequence[str]) -> None:
    """Run tests of another tree without output; this process ends with the status of pytest."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    # This module is of a package that the other tree has, too.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.exit(int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *arguments])))
