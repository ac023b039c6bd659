"""An explanation as one image: what is seen, what is said, and how they fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from capeval_core.drawing.blocks import GAP, Block, beside, sheet, stacked
from capeval_core.drawing.canvas import check_width
from capeval_core.drawing.caption import Caption
from capeval_core.drawing.heading import Heading
from capeval_core.drawing.image import FramedImage
from capeval_core.drawing.table import Table

_ONE_COLUMN = 760  # below this width everything stands in one column
_ENOUGH = 1.2  # an arrangement so much higher than the lowest is still taken, if it is simpler
_NO_TABLE = Table("", (), ())


@dataclass(frozen=True)
class Card:
    """What stands on it.

    tables: those below the caption. last: the one that may be long; it stands where the card gets lowest, in
    up to three columns.

    >>> from capeval_core.drawing.marks import RegionMark, Tick
    >>> from capeval_core.drawing.overlay import OutlinedImage
    >>> from capeval_core.drawing.table import Bar, Row
    >>> from capeval_core.regions.regions import Regions
    >>> mark = RegionMark.of(0)
    >>> seen = OutlinedImage(Image.new("RGB", (2, 1)), Regions.of([[[True, False]]]), [mark])
    >>> words = Table("Words", ["cosine, region"], [Row(Tick(), "dog", [Bar(0.9, mark.colour)], mark)])
    >>> card = Card(Heading("Precision", 0.9), Caption("a dog"), FramedImage(seen), [words])
    >>> card.drawn(width=640).width
    640
    """

    heading: Heading
    caption: Caption
    image: FramedImage
    tables: Sequence[Table] = ()
    last: Table = _NO_TABLE

    def drawn(self, width: int) -> Image.Image:
        """The card as a picture of that width, in pixels, and as high as it has to be.

        Raises:
            ValueError: the width is below `NARROWEST`.
        """
        check_width(width)
        margin = 36.0 if width >= _ONE_COLUMN else 18.0
        inner = width - 2 * margin
        way = self._in_one_column(inner) if width < _ONE_COLUMN else self._in_two_columns(inner)
        return sheet(way, width, margin)

    def _in_one_column(self, inner: float) -> Block:
        said, image, tables = self._said(inner), self.image.block(inner), self._tables(inner)
        return stacked([*said, image, *tables, self.last.block(inner)])

    def _in_two_columns(self, inner: float) -> Block:
        """The image at the left, what is said at the right, the last table below either or both."""
        column = (inner - GAP) / 2
        left, right = [self.image.block(column)], [*self._said(column), *self._tables(column)]
        last = self.last.block(column)
        upper = beside([stacked(left), stacked(right)], column)
        ways = [
            beside([stacked([*left, last]), stacked(right)], column),
            beside([stacked(left), stacked([*right, last])], column),
            stacked([upper, self.last.in_columns(inner, 2)]),
            stacked([upper, self.last.in_columns(inner, 3)]),
        ]
        lowest = min(way.height for way in ways)
        return next(way for way in ways if way.height <= _ENOUGH * lowest)

    def _said(self, width: float) -> list[Block]:
        return [self.heading.block(width), self.caption.block(width)]

    def _tables(self, width: float) -> list[Block]:
        return [table.block(width) for table in self.tables]
