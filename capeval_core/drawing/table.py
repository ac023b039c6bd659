"""A table: rows of text with numbers, each number with a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capeval_core.drawing.blocks import GAP, NOTHING, Block, beside
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import FAINT, INK, LINE, PAPER, Rgb
from capeval_core.drawing.marks import Mark
from capeval_core.drawing.text import Piece, lines_of, shortened

_TEXT, _LEADING = 15.0, 20.0  # size of texts, and from line to line
_BAR, _VALUE, _MARK = 72.0, 42.0, 30.0  # widths: a bar, the number behind it, the mark before a text
_COLUMN = _BAR + _VALUE + 14
_MOST_LINES = 3  # of a text
_TOP, _PADDING = 28.0, 14  # heights: of the title, and of a row beside its lines


@dataclass(frozen=True)
class Bar:
    """A number and the colour of its bar."""

    value: float
    colour: Rgb


@dataclass(frozen=True)
class Row:
    """A text with its numbers.

    lead, tail: the marks before and behind it. bars: one for each column of numbers.
    """

    lead: Mark
    text: str
    bars: Sequence[Bar]
    tail: Mark | None = None
    colour: Rgb = INK


@dataclass(frozen=True)
class Table:
    """Rows under a title; without a row there is nothing to draw.

    columns: what the numbers of each column are. threshold: the number that is marked on every bar.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    threshold: float | None = None

    def block(self, width: float) -> Block:
        """So many pixels wide; its bars share an axis from 0, to 1 or further."""
        if not self.rows:
            return NOTHING
        limit = max(1.0, 1.1 * (self.threshold or 0.0), *(bar.value for row in self.rows for bar in row.bars))
        behind = _MARK if any(row.tail is not None for row in self.rows) else 0.0
        texts = width - _MARK - len(self.columns) * _COLUMN - behind
        lines = [shortened(lines_of(row.text, _TEXT, texts), _MOST_LINES, _TEXT, texts) for row in self.rows]
        heights = [len(each) * _LEADING + _PADDING for each in lines]

        def draw(canvas: Canvas, x: float, y: float) -> None:
            self._draw_head(canvas, x, y + 14, width, behind)
            down = y + _TOP
            for row, its_lines, height in zip(self.rows, lines, heights, strict=True):
                canvas.line([(x, down), (x + width, down)], LINE, 1)
                middle = down + 7 + _LEADING / 2
                row.lead.draw(canvas, x + 11, middle)
                _draw_lines(canvas, x + _MARK, middle + 5, its_lines, row.colour)
                for place, bar in enumerate(reversed(row.bars)):
                    end = x + width - behind - place * _COLUMN
                    self._draw_bar(canvas, end - _VALUE - _BAR, middle, bar, limit)
                    canvas.text(end, middle + 5, f"{bar.value:.2f}", 14, INK, anchor="rs")
                if row.tail is not None:
                    row.tail.draw(canvas, x + width - 11, middle)
                down += height

        return Block(_TOP + sum(heights), draw)

    def in_columns(self, width: float, count: int) -> Block:
        """In `count` parts beside each other, the title on the first; each part has an axis of its own."""
        own = (width - GAP * (count - 1)) / count
        share = max(1, -(-len(self.rows) // count))
        parts = [
            replace(self, title="" if start else self.title, rows=self.rows[start : start + share])
            for start in range(0, len(self.rows), share)
        ]
        return beside([part.block(own) for part in parts], own)

    def _draw_head(self, canvas: Canvas, x: float, y: float, width: float, behind: float) -> None:
        canvas.text(x, y, self.title, 16, INK, bold=True)
        for place, name in enumerate(reversed(self.columns)):
            end = x + width - behind - place * _COLUMN if place else x + width  # the last one has more room
            canvas.text(end, y, name, 13, FAINT, anchor="rs")

    def _draw_bar(self, canvas: Canvas, x: float, y: float, bar: Bar, limit: float) -> None:
        canvas.box(x, y - 4, _BAR, 8, radius=4, fill=LINE)
        canvas.box(x, y - 4, max(_BAR * min(bar.value / limit, 1.0), 3), 8, radius=4, fill=bar.colour)
        if self.threshold is not None and self.threshold < limit:  # an infinite one is nowhere
            at = x + _BAR * (self.threshold / limit)
            canvas.line([(at, y - 7), (at, y + 7)], PAPER, 3)
            canvas.line([(at, y - 7), (at, y + 7)], INK, 1)


def _draw_lines(canvas: Canvas, x: float, y: float, lines: Sequence[Sequence[Piece]], colour: Rgb) -> None:
    for number, pieces in enumerate(lines):
        canvas.line_of_text(x, y + number * _LEADING, pieces, _TEXT, colour)
