"""Plain text in columns, for a terminal and for a pipe."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

GAP = "  "
_WIDEST = 100  # lines longer than this are hard to read
WHOLE_LINES = 10**6
"""A `width` that nothing reaches: for what is copied, such as a signature."""


def terminal_width() -> int:
    """Characters per line: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def table(rows: Sequence[Sequence[str]], *, indent: str = "", width: int | None = None) -> str:
    """Rows of cells in aligned columns; the last column is wrapped to `width` (the terminal's).

    >>> print(table([["metric", "title"], ["pacs", "PAC-S"]]))
    metric  title
    pacs    PAC-S
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    left = len(indent) + sum(widths) + len(GAP) * len(widths)
    space = max((width or terminal_width()) - left, 20)
    lines = []
    for row in rows:
        head = "".join(cell.ljust(wide) + GAP for cell, wide in zip(row, widths, strict=False))
        first, *more = textwrap.wrap(row[-1], space, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append((indent + head + first).rstrip())
        lines += [" " * left + line for line in more]
    return "\n".join(lines)


def paragraph(text: str, *, indent: str = "") -> str:
    """Text wrapped to the terminal; long addresses stay whole."""
    return textwrap.fill(
        text,
        terminal_width(),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
