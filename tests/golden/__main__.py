"""Golden runner: ``python -m tests.golden [--device cuda] DIR [DIR ...]``.

Every folder pins the behaviour of an original implementation. The module that knows a folder is found by
the folder's name: the longest run of its leading words that is a module here, so that `pacs-vit-tiny` is run
by `pacs.py`. A module for another family needs two functions: ``run_case(folder) -> Iterator[Comparison]``,
and ``expected_quantities(folder) -> set[str]``, what a run must have compared: the outputs that the folder
pins, less what no public door shows. The tests hold runs to it: no output is passed over unnoticed.

Prints ``CASE  quantity  max_abs_error  tolerance  ok|FAIL`` and exits with 0 (all agree), 1 (some do
not) or 2 (a folder cannot be run).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.golden.comparison import UnreadableCaseError
from tests.support.device import VARIABLE, device


def find_module(case: str) -> ModuleType:
    """The module that runs cases of this name."""
    words = re.split(r"\W+", case.lower())
    for count in range(len(words), 0, -1):
        name = "_".join(words[:count])
        if name.isidentifier() and importlib.util.find_spec(f"tests.golden.{name}"):
            module = importlib.import_module(f"tests.golden.{name}")
            if hasattr(module, "run_case"):
                return module
    raise UnreadableCaseError("no module of tests/golden knows a case of this name")


def run_folder(folder: Path) -> int:
    """Print every comparison of a folder; its exit status."""
    case = folder.resolve().name
    try:
        if not folder.is_dir():
            raise UnreadableCaseError("no such folder")
        status = 0
        for found in find_module(case).run_case(folder):
            status |= not found.ok
            print(
                f"{case}  {found.quantity}  {found.error:.2e}  {found.tolerance:.0e}  {found.verdict}",
                flush=True,
            )
        return status
    except UnreadableCaseError as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # the library failed on a good case: the other folders still count
        message = " ".join(str(error).split())
        print(f"{case}  {type(error).__name__}: {message}  inf  0e+00  FAIL", flush=True)
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Run golden cases.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--skip-unknown", action="store_true", help="pass over folders that no module here knows, by name"
    )
    parser.add_argument("--device", help=f"where networks run (default: {device()})")
    options = parser.parse_args(arguments)
    if options.device:
        os.environ[VARIABLE] = options.device
    folders = [folder for folder in options.folders if not (options.skip_unknown and skip(folder))]
    return max(map(run_folder, folders), default=2)


def skip(folder: Path) -> bool:
    """Whether no module knows a folder; its name is printed."""
    try:
        find_module(folder.resolve().name)
    except UnreadableCaseError as error:
        print(f"{folder}: skipped, {error}", file=sys.stderr)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
