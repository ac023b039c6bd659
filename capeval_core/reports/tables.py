"""Tables of plain texts: for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL = "&%$#_{}"
_MARKED = re.compile(r"[\\`*<|~&]|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore within a word does not."""
_TAU = re.compile(r"\btau_([bc])\b")


@dataclass(frozen=True)
class Table:
    """A table: a header, rows of as many cells, a title and notes below it.

    bold: row and column of the cells whose first word LaTeX prints in bold.

    >>> table = Table("Set", ["metric", "tau_b"], [["PAC-S", "53.92"]], ["17 rows"])
    >>> print(table.text())
    metric  tau_b
    PAC-S   53.92
    <BLANKLINE>
    17 rows
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()

    def text(self) -> str:
        """Aligned columns, then the notes."""
        lines = [list(self.header), *map(list, self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        aligned = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*aligned, *(["", *self.notes] if self.notes else [])])

    def markdown(self) -> str:
        """A section with the table, then the notes as a list.

        >>> print(Table("Set", ["a", "b"], [["1", "x|y"]]).markdown())
        ## Set
        <BLANKLINE>
        | a | b |
        | --- | --- |
        | 1 | x\\|y |
        <BLANKLINE>
        """
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        body = [f"| {' | '.join(map(_markdown, line))} |" for line in lines]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"## {self.title}", "", *body, *notes]) + "\n"

    def latex(self) -> str:
        r"""A `tabular` with booktabs' rules; the notes are comments.

        >>> print(Table("Set", ["a", "b"], [["[1]", "2 [1, 3]"]], bold={(0, 1)}).latex().splitlines()[-3])
        {}[1] & \textbf{2} [1, 3] \\
        """
        lines = [f"% {self.title}", *(f"% {note}" for note in self.notes)]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule"]
        lines += [_latex_row(map(_latex, self.header)), r"\midrule"]
        for place, row in enumerate(self.rows):
            bold = [
                _bold(_latex(cell)) if (place, i) in self.bold else _latex(cell) for i, cell in enumerate(row)
            ]
            lines.append(_latex_row(bold))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """The header and the rows."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def _markdown(text: str) -> str:
    r"""A text on one line, without anything that Markdown would not show as it is.

    >>> print(_markdown("*best*|my_run|[0.4, 0.6]|[a](b)|_x_|<b>"))
    \*best\*\|my_run\|[0.4, 0.6]\|[a]\(b)\|\_x\_\|\<b>
    """
    return _MARKED.sub(r"\\\g<0>", " ".join(text.split()))


def _bold(cell: str) -> str:
    first, *rest = cell.split(" ", 1)
    return " ".join([rf"\textbf{{{first}}}", *rest])


def _latex_row(cells: Iterable[str]) -> str:
    row = " & ".join(cells) + r" \\"
    return "{}" + row if row[0] in "[*" else row  # else an argument of the line break before it


def _latex(text: str) -> str:
    r"""
    >>> _latex("tau_b of 5% & more"), _latex("a~b")
    ('$\\tau_b$ of 5\\% \\& more', 'a\\textasciitilde{}b')
    """
    parts = _TAU.split(text)  # texts at even places, the letters of taus at odd ones
    escaped = [
        rf"$\tau_{part}$"
        if place % 2
        else "".join(_LATEX.get(c, f"\\{c}" if c in _SPECIAL else c) for c in part)
        for place, part in enumerate(parts)
    ]
    return "".join(escaped)
