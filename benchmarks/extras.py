"""Packages that only some benchmarks need, and the extra of this package that brings each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Let a package that cannot be imported end the program with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SystemExit(
            f'this benchmark needs {str(error.name).partition(".")[0]}: pip install ".[{extra}]"'
        ) from None
