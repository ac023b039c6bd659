"""The API reference: a page of HTML for each public module, made from the docstrings by pdoc.

    python -m tools.reference OUT

What pdoc cannot show is an error that names it.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core.options import Settings, describe_options

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
    "reranking",
    "result",
    "row_store",
    "rows",
    "scores.clips",
    "scores.pac",
    "scores.umic",
    "scores.video",
    "scores.vilbert",
    "statistics",
)
"""The public modules: what the documents name, and what a metric of another package builds on."""


def with_fields(text: str, names: Iterable[str]) -> str:
    """The docstring of a dataclass with its fields as a list, which a docstring tells in sentences.

    >>> print(with_fields("A place.\\n\\nx, y: in pixels. name: of the place, or\\n''.", ["x", "y", "name"]))
    A place.
    <BLANKLINE>
    * **x, y**: in pixels.
    * **name**: of the place, or
    ''.
    """
    name = "|".join(map(re.escape, names))
    return re.sub(
        rf"(^|(?<=\.)\s)\s*((?:{name})(?:, (?:{name}))*): ", r"\n* **\2**: ", text, flags=re.M
    ).replace("\n\n\n", "\n\n")


def _explain_fields(class_: Any) -> None:
    """Let a dataclass show its fields, and options their meanings, as a list."""
    text = inspect.getdoc(class_) or ""
    if issubclass(class_, Settings):
        text += "\n\n" + "\n".join(f"* **{each.name}**: {each.help}" for each in describe_options(class_))
    else:
        text = with_fields(text, [field.name for field in fields(class_)])
    class_.__doc__ = text


def write_reference(out: Path) -> list[Path]:
    """Write the reference into a folder, and give its pages.

    Raises:
        Warning: pdoc cannot show a module or a docstring.
    """
    import pdoc
    import pdoc.render

    names = [PACKAGE, *(f"{PACKAGE}.{name}" for name in MODULES)]
    classes: set[Any] = set()
    for module in map(import_module, names):
        for name in getattr(module, "__all__", ()):
            setattr(
                module, name, getattr(module, name)
            )  # pdoc shows no name that is imported when it is used
        classes |= {each for each in vars(module).values() if isinstance(each, type) and is_dataclass(each)}
    for class_ in classes:
        if class_.__module__.startswith(PACKAGE):
            _explain_fields(class_)
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
