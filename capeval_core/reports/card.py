"""A card: score, caption, image and tables of an explanation, drawn as one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from capeval_core.phrases.spans import Span
from capeval_core.reports.canvas import (
    FAINT,
    GAP,
    INK,
    LINE,
    NOTHING,
    PAPER,
    WRONG,
    WRONG_GROUND,
    Block,
    Canvas,
    Rgb,
    beside,
    check_width,
    sheet,
    stacked,
)
from capeval_core.reports.marks import Mark, RegionMark
from capeval_core.reports.overlay import OutlinedImage
from capeval_core.reports.text import FINER, Piece, lines_of, shortened, width_of

_TERMS_IN_ROW = 4


@dataclass(frozen=True)
class Heading:
    """A score under its title; `terms` are the names and values of its parts, in their order."""

    title: str
    value: float
    terms: Sequence[tuple[str, float]] = ()

    def block(self, width: float) -> Block:
        """A block `width` pixels wide; more than four terms take a second row."""

        def draw(canvas: Canvas, x: float, y: float) -> None:
            canvas.text(x, y + 13, self.title, 15, FAINT)
            canvas.text(x - 2, y + 58, f"{self.value:.3f}", 46, INK, bold=True)
            first = x + max(150.0, width * 0.3)
            step = (x + width - first) / max(1, min(len(self.terms), _TERMS_IN_ROW))
            for index, (name, value) in enumerate(self.terms):
                if not index:
                    canvas.line([(first - 22, y + 22), (first - 22, y + 58)], LINE, 1)
                across, down = first + step * (index % _TERMS_IN_ROW), y + 52 * (index // _TERMS_IN_ROW)
                canvas.text(across, down + 32, name, 13, FAINT)
                canvas.text(across, down + 57, f"{value:.2f}", 19, INK)

        return Block(62.0 if len(self.terms) <= _TERMS_IN_ROW else 114.0, draw)


_LONG = 320  # characters from which a caption is set in smaller letters
_REMARK, _REMARK_LEADING = 13.0, 20.0


@dataclass(frozen=True)
class Caption:
    """The caption in large letters; `wrong` spans are marked, `remark` is a small line below."""

    text: str
    wrong: Sequence[Span] = ()
    remark: str = ""

    def block(self, width: float) -> Block:
        """A block of lines of at most `width` pixels."""
        size, leading = (21.0, 32.0) if len(self.text) < _LONG else (17.0, 26.0)
        lines = lines_of(self.text, size, width, self.wrong)
        remarks = lines_of(self.remark, _REMARK, width) if self.remark else []

        def draw(canvas: Canvas, x: float, y: float) -> None:
            for number, pieces in enumerate(lines):
                _draw_line(canvas, x, y + number * leading + size, pieces, size)
            below = y + len(lines) * leading
            for number, pieces in enumerate(remarks):
                canvas.line_of_text(x, below + (number + 1) * _REMARK_LEADING, pieces, _REMARK, WRONG)

        return Block(len(lines) * leading + len(remarks) * _REMARK_LEADING, draw)


def _draw_line(canvas: Canvas, x: float, base: float, pieces: Sequence[Piece], size: float) -> None:
    for start, end in _runs(pieces):
        top, height = base - size * 0.95, size * 1.3
        canvas.box(x + start - 4, top, end - start + 8, height, radius=5, fill=WRONG_GROUND)
        canvas.line([(x + start, base + size * 0.24), (x + end, base + size * 0.24)], WRONG, 1.5)
    for piece in pieces:
        canvas.line_of_text(x, base, [piece], size, WRONG if piece.marked else INK)


def _runs(pieces: Sequence[Piece]) -> list[tuple[float, float]]:
    """Start and end, in pixels, of each run of marked pieces in a line."""
    runs: list[tuple[float, float]] = []
    before = False
    for piece in pieces:
        if piece.marked:
            start = runs.pop()[0] if before else piece.x
            runs.append((start, piece.x + piece.width))
        before = piece.marked
    return runs


_TALLEST = 1.1  # largest height of the image, in widths of its column
_CORNER = 10  # radius of the corners of the image
_LEGEND_HEIGHT, _LEGEND_LEADING = 30.0, 22.0  # the legend, and each further line of it
_LEGEND_GAP = 28.0  # between entries of the legend
_LEGEND_TEXT = 13


@dataclass(frozen=True)
class LegendEntry:
    """The meaning of a mark or of outlines drawn like `sample`; without a sample, a remark."""

    text: str
    sample: Mark | None = None

    def width(self) -> float:
        """Width in pixels."""
        return self._indent() + width_of(self.text, _LEGEND_TEXT)

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw the entry at a baseline."""
        if isinstance(self.sample, RegionMark):
            for start, end in [(0, 8), (14, 22), (28, 36)] if self.sample.unmentioned else [(0, 36)]:
                canvas.line([(x + 2 + start, y - 5), (x + 2 + end, y - 5)], self.sample.colour, 2.5)
        elif self.sample is not None:
            self.sample.draw(canvas, x + 8, y - 5)
        canvas.text(x + self._indent(), y, self.text, _LEGEND_TEXT, FAINT)

    def _indent(self) -> float:
        if self.sample is None:
            return 0.0
        return 48.0 if isinstance(self.sample, RegionMark) else 22.0


@dataclass(frozen=True)
class FramedImage:
    """An image with round corners, centred in its column, with its legend below."""

    image: OutlinedImage
    legend: Sequence[LegendEntry] = ()

    def block(self, width: float) -> Block:
        """A block `width` pixels wide; a tall image is narrower."""
        wide, high = self.image.image.size
        shown = min(width, width * _TALLEST * wide / high)
        image = self.image.canvas(shown)
        positions = self._legend_positions(width)
        corners = Image.new("L", image.image.size)
        box = (0, 0, corners.width - 1, corners.height - 1)
        ImageDraw.Draw(corners).rounded_rectangle(box, _CORNER * FINER, fill=255)

        def draw(canvas: Canvas, x: float, y: float) -> None:
            left = x + (width - shown) / 2
            canvas.paste(image.image, left, y, corners)
            canvas.box(left, y, image.width, image.height, radius=_CORNER, edge=LINE)
            for entry, (across, line) in zip(self.legend, positions, strict=True):
                entry.draw(canvas, x + across, y + image.height + 24 + line * _LEGEND_LEADING)

        lines = positions[-1][1] if positions else 0
        return Block(image.height + (_LEGEND_HEIGHT + lines * _LEGEND_LEADING if self.legend else 0.0), draw)

    def _legend_positions(self, width: float) -> list[tuple[float, int]]:
        """Distance from the left and line number of each entry of the legend."""
        positions: list[tuple[float, int]] = []
        across, line = 0.0, 0
        for entry in self.legend:
            if across and across + entry.width() > width:
                across, line = 0.0, line + 1
            positions.append((across, line))
            across += entry.width() + _LEGEND_GAP
        return positions


_TEXT, _LEADING = 15.0, 20.0  # size of texts, and from line to line
_BAR, _VALUE, _MARK = 72.0, 42.0, 30.0  # widths: a bar, the number behind it, the mark before a text
_COLUMN = _BAR + _VALUE + 14
_MAX_LINES = 3  # of a text
_TOP, _PADDING = 28.0, 14  # heights: of the title, and of a row beside its lines


@dataclass(frozen=True)
class Bar:
    """A number and the colour of its bar."""

    value: float
    colour: Rgb


@dataclass(frozen=True)
class Row:
    """A row of a table: a text with its numbers.

    lead, tail: marks before and behind the text. bars: one per column of numbers.
    """

    lead: Mark
    text: str
    bars: Sequence[Bar]
    tail: Mark | None = None
    colour: Rgb = INK


@dataclass(frozen=True)
class Table:
    """A table of texts with numbers, each number with a bar; a table without rows takes no room.

    columns: titles of the columns of numbers. threshold: the number that is marked on every bar.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    threshold: float | None = None

    def block(self, width: float) -> Block:
        """A block `width` pixels wide; its bars share an axis from 0 to 1 or further."""
        if not self.rows:
            return NOTHING
        limit = max(1.0, 1.1 * (self.threshold or 0.0), *(bar.value for row in self.rows for bar in row.bars))
        behind = _MARK if any(row.tail is not None for row in self.rows) else 0.0
        texts = width - _MARK - len(self.columns) * _COLUMN - behind
        lines = [shortened(lines_of(row.text, _TEXT, texts), _MAX_LINES, _TEXT, texts) for row in self.rows]
        heights = [len(row_lines) * _LEADING + _PADDING for row_lines in lines]

        def draw(canvas: Canvas, x: float, y: float) -> None:
            canvas.text(x, y + 14, self.title, 16, INK, bold=True)
            for column, name in enumerate(reversed(self.columns)):
                # The title of the last column may extend over the marks behind it.
                end = x + width - behind - column * _COLUMN if column else x + width
                canvas.text(end, y + 14, name, 13, FAINT, anchor="rs")
            down = y + _TOP
            for row, row_lines, height in zip(self.rows, lines, heights, strict=True):
                canvas.line([(x, down), (x + width, down)], LINE, 1)
                middle = down + 7 + _LEADING / 2
                row.lead.draw(canvas, x + 11, middle)
                for number, pieces in enumerate(row_lines):
                    canvas.line_of_text(x + _MARK, middle + 5 + number * _LEADING, pieces, _TEXT, row.colour)
                for column, bar in enumerate(reversed(row.bars)):
                    end = x + width - behind - column * _COLUMN
                    self._draw_bar(canvas, end - _VALUE - _BAR, middle, bar, limit)
                    canvas.text(end, middle + 5, f"{bar.value:.2f}", 14, INK, anchor="rs")
                if row.tail is not None:
                    row.tail.draw(canvas, x + width - 11, middle)
                down += height

        return Block(_TOP + sum(heights), draw)

    def in_columns(self, width: float, count: int) -> Block:
        """A block of `count` parts side by side, the title on the first; each part has its own axis."""
        part_width = (width - GAP * (count - 1)) / count
        share = max(1, -(-len(self.rows) // count))
        parts = [
            replace(self, title="" if start else self.title, rows=self.rows[start : start + share])
            for start in range(0, len(self.rows), share)
        ]
        return beside([part.block(part_width) for part in parts], part_width)

    def _draw_bar(self, canvas: Canvas, x: float, y: float, bar: Bar, limit: float) -> None:
        canvas.box(x, y - 4, _BAR, 8, radius=4, fill=LINE)
        canvas.box(x, y - 4, max(_BAR * min(bar.value / limit, 1.0), 3), 8, radius=4, fill=bar.colour)
        if self.threshold is not None and self.threshold < limit:  # an infinite one is not drawn
            at = x + _BAR * (self.threshold / limit)
            canvas.line([(at, y - 7), (at, y + 7)], PAPER, 3)
            canvas.line([(at, y - 7), (at, y + 7)], INK, 1)


_ONE_COLUMN = 760  # below this width in pixels a card has one column
_TOLERATED = 1.2  # a simpler layout is taken if it is at most this many times as high as the lowest
_NO_TABLE = Table("", (), ())


@dataclass(frozen=True)
class Card:
    """An explanation as one image.

    tables: tables below the caption. last: a table that may be long, placed where the card becomes lowest, in
    up to three columns.

    >>> from capeval_core.reports.marks import RegionMark, RIGHT_MARK
    >>> from capeval_core.reports.overlay import OutlinedImage
    >>> from capeval_core.regions.regions import Regions
    >>> mark = RegionMark.of(0)
    >>> image = OutlinedImage(Image.new("RGB", (2, 1)), Regions.of([[[True, False]]]), [mark])
    >>> words = Table("Words", ["cosine, region"], [Row(RIGHT_MARK, "dog", [Bar(0.9, mark.colour)], mark)])
    >>> card = Card(Heading("Precision", 0.9), Caption("a dog"), FramedImage(image), [words])
    >>> card.drawn(width=640).width
    640
    """

    heading: Heading
    caption: Caption
    image: FramedImage
    tables: Sequence[Table] = ()
    last: Table = _NO_TABLE

    def drawn(self, width: int) -> Image.Image:
        """The card, `width` pixels wide and as high as its content.

        Raises:
            ValueError: the width is below `NARROWEST`.
        """
        check_width(width)
        margin = 36.0 if width >= _ONE_COLUMN else 18.0
        inner = width - 2 * margin
        column = inner if width < _ONE_COLUMN else (inner - GAP) / 2
        texts = [self.heading.block(column), self.caption.block(column)]
        image, last = self.image.block(column), self.last.block(column)
        tables = [table.block(column) for table in self.tables]
        if width < _ONE_COLUMN:
            return sheet(stacked([*texts, image, *tables, last]), width, margin)
        # The image on the left, texts and tables on the right, the last table below either or both.
        left, right = [image], [*texts, *tables]
        upper = beside([stacked(left), stacked(right)], column)
        layouts = [
            beside([stacked([*left, last]), stacked(right)], column),
            beside([stacked(left), stacked([*right, last])], column),
            stacked([upper, self.last.in_columns(inner, 2)]),
            stacked([upper, self.last.in_columns(inner, 3)]),
        ]
        lowest = min(layout.height for layout in layouts)
        chosen = next(layout for layout in layouts if layout.height <= _TOLERATED * lowest)
        return sheet(chosen, width, margin)
