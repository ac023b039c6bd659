"""Tables of plain texts: for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_MARKED = re.compile(r"[\\`*<|~&]|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore within a word does not."""


@dataclass(frozen=True)
class Table:
    """A table: a header, rows of as many cells, a title and notes below it.

    bold: row and column of the cells whose first word LaTeX prints in bold.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()

    def text(self) -> str:
        """Aligned columns, then the notes.

        >>> print(Table("Set", ["metric", "tau_b"], [["PAC-S", "53.92"]]).text())
        metric  tau_b
        PAC-S   53.92
        """
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*aligned, *(["", *self.notes] if self.notes else [])])

    def markdown(self) -> str:
        """A section with the table, then the notes as a list."""
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
        lines += [_latex_row(self.header), r"\midrule"]
        for place, row in enumerate(self.rows):
            lines.append(_latex_row(row, [(place, i) in self.bold for i in range(len(row))]))
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


def _latex_row(cells: Sequence[str], bold: Sequence[bool] = ()) -> str:
    texts = [_latex(cell) for cell in cells]
    for place in (place for place, is_bold in enumerate(bold) if is_bold):
        texts[place] = re.sub(r"^\S+", lambda found: rf"\textbf{{{found[0]}}}", texts[place])
    row = " & ".join(texts) + r" \\"
    return "{}" + row if row[0] in "[*" else row  # else an argument of the line break before it


def _latex(text: str) -> str:
    r"""
    >>> _latex("tau_b of 5% & more"), _latex("a~b")
    ('$\\tau_b$ of 5\\% \\& more', 'a\\textasciitilde{}b')
    """
    escaped = "".join(_LATEX.get(c, c) for c in text)
    return re.sub(r"\btau\\_([bc])\b", r"$\\tau_\1$", escaped)
