"""Package metadata (version, address, licence, extras), entry points, and lazy names of modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages declare under a group.

    The metadata of all packages are files by the hundred, so they are read once, and again where a folder of
    packages has changed: installing and removing a package changes the names in its folder.
    """
    changed: list[tuple[str, int]] = []
    for folder in sys.path:
        with suppress(OSError):  # a place on the path need not exist
            changed.append((folder, Path(folder or ".").stat().st_mtime_ns))
    return _entry_points(group, tuple(changed))


@lru_cache(maxsize=8)
def _entry_points(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The entry points of a group, for these folders as of these times."""
    from importlib.metadata import entry_points  # here: `import capeval_core` does without it

    return tuple(entry_points(group=group))


def lazy_names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose names are imported when they are used."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(f"capeval_core.{homes[name]}"), name)

    return find, lambda: sorted(sys.modules[module].__all__)
