"""Memory that images leave behind: given back while a long run goes on."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

_ROWS = 512
"""Between two returns: what piles up in between is some tens of megabytes."""


class FreedMemory:
    """Returns pages that hold nothing any more to the system, every so many rows.

    Decoded images of many sizes come and go in several threads, and glibc keeps the holes that they leave,
    about 30 KB for each further image. Its settings are the host program's and stay as they are. Nothing
    happens with another C library.
    """

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: int) -> None:
        """Count rows that have been made."""
        self._rows += rows
        trim = _malloc_trim()
        if self._rows >= _ROWS and trim is not None:
            trim(0)
            self._rows = 0


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
