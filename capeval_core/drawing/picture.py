"""The picture in its frame, and below it what its outlines mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from capeval_core.drawing.blocks import Block
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import FAINT, LINE
from capeval_core.drawing.marks import RegionMark
from capeval_core.drawing.overlay import OutlinedPicture
from capeval_core.drawing.text import FINER, width_of

_TALLEST = 1.1  # height of the picture at most, by the width of its column
_RADIUS = 10  # of its corners
_LEGEND = 30.0  # height
_TEXT = 13


@dataclass(frozen=True)
class LegendEntry:
    """What outlines drawn like that of `sample` mean; without a sample, a remark."""

    text: str
    sample: RegionMark | None = None

    def draw(self, canvas: Canvas, x: float, y: float) -> float:
        """Draw it at a baseline, and say where the next one begins."""
        if self.sample is not None:
            for start, end in [(0, 8), (14, 22), (28, 36)] if self.sample.unmentioned else [(0, 36)]:
                canvas.line([(x + 2 + start, y - 5), (x + 2 + end, y - 5)], self.sample.colour, 2.5)
            x += 48
        canvas.text(x, y, self.text, _TEXT, FAINT)
        return x + width_of(self.text, _TEXT) + 28


@dataclass(frozen=True)
class FramedPicture:
    """A picture with round corners, in the middle of its column, and its legend."""

    picture: OutlinedPicture
    legend: Sequence[LegendEntry] = ()

    def block(self, width: float) -> Block:
        """So many pixels wide; a tall picture is narrower."""
        wide, high = self.picture.image.size
        shown = min(width, width * _TALLEST * wide / high)
        seen = self.picture.canvas(shown)
        corners = Image.new("L", seen.image.size)
        box = (0, 0, corners.width - 1, corners.height - 1)
        ImageDraw.Draw(corners).rounded_rectangle(box, _RADIUS * FINER, fill=255)

        def draw(canvas: Canvas, x: float, y: float) -> None:
            left = x + (width - shown) / 2
            canvas.paste(seen.image, left, y, corners)
            canvas.box(left, y, seen.width, seen.height, radius=_RADIUS, edge=LINE)
            for entry in self.legend:
                x = entry.draw(canvas, x, y + seen.height + 24)

        return Block(seen.height + (_LEGEND if self.legend else 0.0), draw)
