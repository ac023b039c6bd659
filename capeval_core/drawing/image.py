"""The image in its frame, and below it what its outlines mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from capeval_core.drawing.blocks import Block
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import FAINT, LINE
from capeval_core.drawing.marks import Mark, RegionMark
from capeval_core.drawing.overlay import OutlinedImage
from capeval_core.drawing.text import FINER, width_of

_TALLEST = 1.1  # height of the image at most, by the width of its column
_RADIUS = 10  # of its corners
_LEGEND, _LEADING = 30.0, 22.0  # heights: of the legend, and of each further line of it
_APART = 28.0  # entries of the legend
_TEXT = 13


@dataclass(frozen=True)
class LegendEntry:
    """What outlines drawn like that of `sample`, or another mark, mean; without a sample, a remark."""

    text: str
    sample: Mark | None = None

    def width(self) -> float:
        """How much room it takes in a line."""
        return self._indent() + width_of(self.text, _TEXT)

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw it at a baseline."""
        if isinstance(self.sample, RegionMark):
            for start, end in [(0, 8), (14, 22), (28, 36)] if self.sample.unmentioned else [(0, 36)]:
                canvas.line([(x + 2 + start, y - 5), (x + 2 + end, y - 5)], self.sample.colour, 2.5)
        elif self.sample is not None:
            self.sample.draw(canvas, x + 8, y - 5)
        canvas.text(x + self._indent(), y, self.text, _TEXT, FAINT)

    def _indent(self) -> float:
        if self.sample is None:
            return 0.0
        return 48.0 if isinstance(self.sample, RegionMark) else 22.0


@dataclass(frozen=True)
class FramedImage:
    """An image with round corners, in the middle of its column, and its legend."""

    image: OutlinedImage
    legend: Sequence[LegendEntry] = ()

    def block(self, width: float) -> Block:
        """So many pixels wide; a tall image is narrower."""
        wide, high = self.image.image.size
        shown = min(width, width * _TALLEST * wide / high)
        seen = self.image.canvas(shown)
        places = self._legend_places(width)
        corners = Image.new("L", seen.image.size)
        box = (0, 0, corners.width - 1, corners.height - 1)
        ImageDraw.Draw(corners).rounded_rectangle(box, _RADIUS * FINER, fill=255)

        def draw(canvas: Canvas, x: float, y: float) -> None:
            left = x + (width - shown) / 2
            canvas.paste(seen.image, left, y, corners)
            canvas.box(left, y, seen.width, seen.height, radius=_RADIUS, edge=LINE)
            for entry, (across, line) in zip(self.legend, places, strict=True):
                entry.draw(canvas, x + across, y + seen.height + 24 + line * _LEADING)

        lines = places[-1][1] if places else 0
        return Block(seen.height + (_LEGEND + lines * _LEADING if self.legend else 0.0), draw)

    def _legend_places(self, width: float) -> list[tuple[float, int]]:
        """How far from the left, and in which line, each entry of the legend stands."""
        places: list[tuple[float, int]] = []
        across, line = 0.0, 0
        for entry in self.legend:
            if across and across + entry.width() > width:
                across, line = 0.0, line + 1
            places.append((across, line))
            across += entry.width() + _APART
        return places
