"""The project's address on the web, its licence and how its extras are installed, each in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

ADDRESS: str | None = None
"""Of the public repository, on GitHub or the Hub, without a slash at its end; None: there is none, and
nothing links to it. After a change: `python -m tools.documents`."""
LICENCE = "Apache-2.0"
"""SPDX name of the package's licence, as in setup.cfg."""


def address(path: str = "") -> str | None:
    """The address of the project, or of a file of its repository; None where there is none.

    Args:
        path: of a file in the repository, e.g. `docs/footguns.md`.

    >>> address("docs/footguns.md") == (ADDRESS and f"{ADDRESS}/blob/main/docs/footguns.md")
    True
    """
    if ADDRESS is None:
        return None
    return f"{ADDRESS}/blob/main/{path}" if path else ADDRESS


def install_command(extra: str) -> str:
    """What installs the packages of an extra of setup.cfg.

    >>> install_command("video")
    'pip install "capeval[video]"'
    """
    return f'pip install "capeval[{extra}]"'


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Import a package, or say which extra brings it.

    Raises:
        ModuleNotFoundError: the package is not installed.

    >>> with needs("no_such_package", "ray"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: no_such_package is not installed: pip install "capeval[ray]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        message = f"{package} is not installed: {install_command(extra)}"
        raise ModuleNotFoundError(message, name=error.name) from None
