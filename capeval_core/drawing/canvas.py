"""A sheet to draw on, in pixels of the image that it becomes; drawn finer, so that edges are smooth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from capeval_core.drawing.text import FINER, Piece, font_of

Colour = tuple[int, int, int] | tuple[int, int, int, int]
Points = NDArray[np.float64]

NARROWEST = 320
"""Pixels of the width of a picture of an explanation at least."""


def check_width(width: int) -> None:
    """Refuse what is no width of an image.

    Raises:
        ValueError: it is no whole number, or below `NARROWEST`.
    """
    if not isinstance(width, int) or width < NARROWEST:
        raise ValueError(f"width={width!r}: expected a whole number of at least {NARROWEST} pixels")


class Canvas:
    """What is drawn later lies on top.

    Args:
        width, height: of the result, in pixels, which is what all places and sizes are given in.
        colour: of the sheet.
        finer: how much larger it is drawn.
    """

    def __init__(self, width: float, height: float, colour: Colour, finer: float = FINER) -> None:
        self.width, self.height, self.finer = round(width), round(height), finer
        size = (round(self.width * finer), max(1, round(self.height * finer)))
        self.image = Image.new("RGB", size, colour)
        self._draw = ImageDraw.Draw(self.image, "RGBA")  # blends colours that let something through

    def finished(self) -> Image.Image:
        """The image with smooth edges; larger than its width where the canvas is finer."""
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
        """Text at a baseline; `anchor` is Pillow's, `whole` as for `font_of`."""
        written, font = font_of(text, size * self.finer, whole)
        stroke = size / 22 if bold else 0
        self._draw.text(
            (x * self.finer, y * self.finer), written, colour, font, anchor=anchor, stroke_width=stroke
        )

    def line_of_text(self, x: float, y: float, pieces: Iterable[Piece], size: float, colour: Colour) -> None:
        """A line of `lines_of` at a baseline."""
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
        """A rectangle with round corners."""
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
        """A filled circle."""
        corners = tuple(value * self.finer for value in (x - radius, y - radius, x + radius, y + radius))
        self._draw.ellipse(corners, fill)

    def line(self, points: Points | Sequence[tuple[float, float]], colour: Colour, thickness: float) -> None:
        """A line with round ends and joints."""
        wide = max(1, round(thickness * self.finer))
        places: list[Any] = [(float(x) * self.finer, float(y) * self.finer) for x, y in points]
        self._draw.line(places, colour, wide, joint="curve")
        if wide > 2 and len(colour) == 3:  # where colours let something through, ends would show twice
            for x, y in (places[0], places[-1]):
                self._draw.ellipse((x - wide / 2, y - wide / 2, x + wide / 2, y + wide / 2), colour)

    def paste(self, image: Image.Image, x: float, y: float, mask: Image.Image | None = None) -> None:
        """An image of this canvas' fineness, at its top left corner."""
        self.image.paste(image, (round(x * self.finer), round(y * self.finer)), mask)
