"""Packages that one integration needs, and the extra that brings each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from capeval_core.project import install_command


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
