"""A sheet to draw on: colours, a canvas with smooth edges, and blocks that are stacked on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from capeval_core.reports.text import FINER, Piece, font_of

Rgb = tuple[int, int, int]

PAPER: Rgb = (255, 255, 255)
INK: Rgb = (28, 32, 44)
FAINT: Rgb = (104, 112, 130)
LINE: Rgb = (228, 231, 237)
RIGHT: Rgb = (30, 138, 96)
WRONG: Rgb = (200, 48, 66)
WRONG_GROUND: Rgb = (253, 226, 228)
COMPARED: Rgb = (71, 85, 125)
UNMENTIONED: Rgb = (112, 120, 136)
REGIONS: tuple[Rgb, ...] = (
    (38, 98, 217),
    (217, 119, 6),
    (13, 148, 136),
    (134, 72, 214),
    (190, 60, 140),
    (76, 130, 40),
    (2, 132, 199),
    (146, 94, 46),
    (79, 70, 229),
    (160, 110, 10),
)
"""Colours of regions, repeated after the last. No red, which marks mistakes."""


def region_colour(index: int, unmentioned: bool) -> Rgb:
    """The colour of region `index`."""
    return UNMENTIONED if unmentioned else REGIONS[index % len(REGIONS)]


Colour = tuple[int, int, int] | tuple[int, int, int, int]
Points = NDArray[np.float64]

NARROWEST = 320
"""Least width of a drawn explanation, in pixels."""


def check_width(width: int) -> None:
    """Check the width of a drawn explanation.

    Raises:
        ValueError: the width is not a whole number, or below `NARROWEST`.
    """
    if not isinstance(width, int) or width < NARROWEST:
        raise ValueError(f"width={width!r}: expected a whole number of at least {NARROWEST} pixels")


class Canvas:
    """A sheet in pixels of the image that it becomes, drawn larger so that edges are smooth.

    Args:
        width, height: size of the result in pixels, the unit of all positions and sizes.
        colour: colour of the sheet.
        finer: how many times larger than the result it is drawn.
    """

    def __init__(self, width: float, height: float, colour: Colour, finer: float = FINER) -> None:
        self.width, self.height, self.finer = round(width), round(height), finer
        size = (round(self.width * finer), max(1, round(self.height * finer)))
        self.image = Image.new("RGB", size, colour)
        self._draw = ImageDraw.Draw(self.image, "RGBA")  # "RGBA" blends transparent colours

    def finished(self) -> Image.Image:
        """The drawn image, reduced by `FINER`; wider than `width` where `finer` is larger."""
        return self.image.reduce(FINER)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: Colour,
        *,
        bold: bool = False,
        anchor: str = "ls",
        whole: str = "",
    ) -> None:
        """Draw text at a baseline; `anchor` is Pillow's, `whole` as for `font_of`."""
        written, font = font_of(text, size * self.finer, whole)
        stroke = size / 22 if bold else 0
        self._draw.text(
            (x * self.finer, y * self.finer), written, colour, font, anchor=anchor, stroke_width=stroke
        )

    def line_of_text(self, x: float, y: float, pieces: Iterable[Piece], size: float, colour: Colour) -> None:
        """Draw a line of `lines_of` at a baseline."""
        for piece in pieces:
            self.text(x + piece.x, y, piece.text, size, colour, whole=piece.whole)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        radius: float = 0,
        fill: Colour | None = None,
        edge: Colour | None = None,
        thickness: float = 1,
    ) -> None:
        """Draw a rectangle with round corners."""
        if width <= 0 or height <= 0:
            return
        corners = (
            x * self.finer,
            y * self.finer,
            (x + width) * self.finer - 1,
            (y + height) * self.finer - 1,
        )
        radius = min(radius, width / 2, height / 2) * self.finer
        self._draw.rounded_rectangle(corners, radius, fill, edge, max(1, round(thickness * self.finer)))

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        """Draw a filled circle."""
        corners = tuple(value * self.finer for value in (x - radius, y - radius, x + radius, y + radius))
        self._draw.ellipse(corners, fill)

    def line(self, points: Points | Sequence[tuple[float, float]], colour: Colour, thickness: float) -> None:
        """Draw a line with round ends and joints."""
        wide = max(1, round(thickness * self.finer))
        scaled: list[Any] = [(float(x) * self.finer, float(y) * self.finer) for x, y in points]
        self._draw.line(scaled, colour, wide, joint="curve")
        if wide > 2 and len(colour) == 3:  # the ends of a transparent line would be blended twice
            for x, y in (scaled[0], scaled[-1]):
                self._draw.ellipse((x - wide / 2, y - wide / 2, x + wide / 2, y + wide / 2), colour)

    def paste(self, image: Image.Image, x: float, y: float, mask: Image.Image | None = None) -> None:
        """Paste an image that is as fine as this canvas; `x`, `y` is its top left corner."""
        self.image.paste(image, (round(x * self.finer), round(y * self.finer)), mask)


GAP = 40.0
"""Pixels between columns."""
_BETWEEN = 30.0  # pixels between stacked blocks


@dataclass(frozen=True)
class Block:
    """Something of known height; `draw` draws it with its top left corner at x, y."""

    height: float
    draw: Callable[[Canvas, float, float], None]


NOTHING = Block(0.0, lambda canvas, x, y: None)


def stacked(blocks: Sequence[Block]) -> Block:
    """Blocks one below the other; those of height 0 take no room."""
    shown = [block for block in blocks if block.height]
    offsets = np.cumsum([0.0, *(block.height + _BETWEEN for block in shown)]).tolist()

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for block, offset in zip(shown, offsets, strict=False):
            block.draw(canvas, x, y + offset)

    return Block(max(offsets[-1] - _BETWEEN, 0.0), draw)


def beside(blocks: Sequence[Block], column: float) -> Block:
    """Blocks side by side, each `column` pixels wide."""

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for index, block in enumerate(blocks):
            block.draw(canvas, x + index * (column + GAP), y)

    return Block(max((block.height for block in blocks), default=0.0), draw)


def sheet(block: Block, width: int, margin: float) -> Image.Image:
    """An image, `width` pixels wide, of a block with a margin around it."""
    canvas = Canvas(width, math.ceil(block.height + 2 * margin), PAPER)
    block.draw(canvas, margin, margin)
    return canvas.finished()
