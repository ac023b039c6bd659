"""Package metadata (version, address on the web, licence, extras), and lazy names of modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
ADDRESS: str | None = None
"""Address of the public repository, without a slash at its end, as in setup.cfg; None: it has none yet."""
LICENCE = "Apache-2.0"  # as in setup.cfg


def address(path: str = "") -> str | None:
    """The address of the project, or of a file of its repository; None where there is none."""
    return f"{ADDRESS}/blob/main/{path}" if ADDRESS and path else ADDRESS


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra of setup.cfg."""
    return f'pip install "capeval[{extra}]"'


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Import a package in the block, or say which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        message = f"{package} is not installed: {install_command(extra)}"
        raise ModuleNotFoundError(message, name=error.name) from None


def lazy_names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose names are imported when they are used."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(f"capeval_core.{homes[name]}"), name)

    return find, lambda: sorted(sys.modules[module].__all__)
