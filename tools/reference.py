"""The API reference: a page of HTML for each public module, made from the docstrings by pdoc.

    python -m tools.reference OUT

What pdoc cannot show is an error that names it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib import import_module
from pathlib import Path

import capeval_core

PACKAGE = capeval_core.__name__
MODULES = (
    "cache",
    "demo",
    "errors",
    "integrations",
    "integrations.ray",
    "integrations.shards",
    "judgements.correlation",
    "metric",
    "options",
    "registry",
    "result",
    "rows",
    "scores.pac",
    "scores.umic",
    "scores.video",
    "scores.vilbert",
    "statistics",
)
"""The public modules: what the documents name, and what a metric of another package builds on."""


def write_reference(out: Path) -> list[Path]:
    """Write the reference into a folder, and give its pages.

    Raises:
        Warning: pdoc cannot show a module or a docstring.
    """
    import pdoc
    import pdoc.render

    names = [PACKAGE, *(f"{PACKAGE}.{name}" for name in MODULES)]
    for module in map(import_module, names):
        for name in getattr(module, "__all__", ()):  # pdoc shows no name that is imported when it is used
            setattr(module, name, getattr(module, name))
    pdoc.render.configure(docformat="google", footer_text=f"capeval {capeval_core.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Types of inherited options are names of another module: they are shown as they are written.
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        pdoc.pdoc(*names, output_directory=out)
    return sorted(out.rglob("*.html"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write to")
    pages = write_reference(parser.parse_args(arguments).out)
    print(f"{len(pages)} pages, from {pages[0].parent / 'index.html'} on")


if __name__ == "__main__":
    main(sys.argv[1:])
