"""Golden runner: ``python -m tests.golden [--device cuda] DIR [DIR ...]``.

Every folder pins the behaviour of an original implementation. The module that knows a folder is found by
the folder's name: the longest run of its leading words that is a module here, so that `pacs-vit-tiny` is run
by `pacs.py`. A module has ``run(case) -> Iterator[Comparison]``, which takes every size, seed and input from
the folder, and may have ``IGNORED``, beginnings of outputs that no public door shows.

Prints ``CASE  quantity  max_abs_error  tolerance  ok|FAIL`` and exits with 0 (all agree), 1 (some do
not) or 2 (no module knows a folder).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from tests.golden.case import Case, Comparison
from tests.support.device import VARIABLE, device


def find_module(case: str) -> ModuleType | None:
    """The module that runs cases of this name."""
    words = re.split(r"\W+", case.lower())
    for count in range(len(words), 0, -1):
        name = "_".join(words[:count])
        if name.isidentifier() and importlib.util.find_spec(f"tests.golden.{name}"):
            module = importlib.import_module(f"tests.golden.{name}")
            if hasattr(module, "run"):
                return module
    return None


def comparisons(folder: Path) -> Iterator[Comparison]:
    """Everything that a folder pins."""
    case = Case(folder)
    module = find_module(case.name)
    assert module is not None, f"no module of tests/golden knows {case.name}"
    yield from module.run(case)


def run_folder(folder: Path) -> int:
    """Print every comparison of a folder; its exit status."""
    case, status = folder.resolve().name, 0
    try:
        for found in comparisons(folder):
            status |= not found.ok
            print(
                f"{case}  {found.quantity}  {found.error:.2e}  {found.tolerance:.0e}  {found.verdict}",
                flush=True,
            )
    except Exception as error:  # the library failed on a good case: the other folders still count
        message = " ".join(str(error).split())
        print(f"{case}  {type(error).__name__}: {message}  inf  0e+00  FAIL", flush=True)
        return 1
    return status


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
    known = [folder for folder in options.folders if folder.is_dir() and find_module(folder.resolve().name)]
    for folder in options.folders:
        if folder not in known:
            skipped = "skipped, " if options.skip_unknown else ""
            print(f"{folder}: {skipped}no module of tests/golden knows such a case", file=sys.stderr)
    if len(known) < len(options.folders) and not options.skip_unknown:
        return max([2, *map(run_folder, known)])
    return max(map(run_folder, known), default=2)


if __name__ == "__main__":
    sys.exit(main())
