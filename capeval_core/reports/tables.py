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
    """A title, a header, rows of as many cells, notes; bold: row and column of what is bold in LaTeX."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()

    def text(self) -> str:
        """Aligned columns, then the notes."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*aligned, *(["", *self.notes] if self.notes else [])])

    def markdown(self) -> str:
        """A section with the table, then the notes as a list."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        cells = [[_MARKED.sub(r"\\\g<0>", " ".join(cell.split())) for cell in line] for line in lines]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        body = [f"| {' | '.join(line)} |" for line in cells]
        return "\n".join([f"## {self.title}", "", *body, *notes]) + "\n"

    def latex(self) -> str:
        """A `tabular` with booktabs' rules; the notes are comments."""
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


def _latex_row(cells: Sequence[str], bold: Sequence[bool] = ()) -> str:
    """A row; the first word of a bold cell is bold, its interval is not."""
    texts = ["".join(_LATEX.get(c, c) for c in cell) for cell in cells]
    texts = [re.sub(r"\btau\\_([bc])\b", r"$\\tau_\1$", text) for text in texts]
    for place in (place for place, is_bold in enumerate(bold) if is_bold):
        texts[place] = re.sub(r"^\S+", lambda found: rf"\textbf{{{found[0]}}}", texts[place])
    row = " & ".join(texts) + r" \\"
    return "{}" + row if row[0] in "[*" else row  # else an argument of the line break before it
