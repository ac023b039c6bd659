"""Failed rows, counted by reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARYING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\d[\d,.]*""")
"""Differences between errors of one kind: quoted names, and numbers."""
_MOST_KINDS = 50  # that are counted apart: errors of a metric's own code may have any text
_OTHERS = "other reasons"


class FailureCounts:
    """Rows by the kind of their error, each named by its first one.

    >>> counts = FailureCounts()
    >>> for error in ("there is no file 'a.png'", "caption is empty", "there is no file 'b.png'"):
    ...     counts.add(error)
    >>> counts.rows
    {"there is no file 'a.png'": 2, 'caption is empty': 1}
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._first: dict[str, str] = {}  # error of each kind

    def add(self, error: str, rows: int = 1) -> None:
        """Count rows with an error."""
        kind = _VARYING.sub("...", error)
        # By its first error and not by its kind, which with its gaps is no sentence that helps.
        if kind not in self._first:
            self._first[kind] = error if len(self._first) < _MOST_KINDS else _OTHERS
        first = self._first[kind]
        self.rows[first] = self.rows.get(first, 0) + rows

    def add_all(self, failures: Mapping[str, int]) -> None:
        """Count what was counted elsewhere."""
        for error, rows in failures.items():
            self.add(error, rows)
