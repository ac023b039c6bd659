"""Small signs: what a row of a table is about, or how it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import FAINT, PAPER, RIGHT, WRONG, Rgb, region_colour

_IN_ROW = 10.0  # radius of the badges of tables


class Mark(Protocol):
    """A sign that has room before or behind a row."""

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw it around a place."""


@dataclass(frozen=True)
class RegionMark:
    """How a region is known wherever it is shown: its label, a number of at most three digits, on its colour.

    unmentioned: whether nothing that is said fits it: dashed on the image.
    """

    label: str
    colour: Rgb
    unmentioned: bool = False

    @classmethod
    def of(cls, index: int, unmentioned: bool = False) -> RegionMark:
        """That of region `index` (from 0) of an image.

        >>> RegionMark.of(2).label
        '3'
        """
        return cls(str(index + 1), region_colour(index, unmentioned), unmentioned)

    def draw(self, canvas: Canvas, x: float, y: float, radius: float = _IN_ROW) -> None:
        canvas.disc(x, y, radius + 1.5, PAPER)
        canvas.disc(x, y, radius, self.colour)
        size = radius * (1.2 if len(self.label) == 1 else 1.05)
        canvas.text(x, y + size * 0.36, self.label, size, PAPER, bold=True, anchor="ms")


@dataclass(frozen=True)
class Word:
    """A short word, for what has no badge."""

    text: str

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.text(x, y + 4, self.text, 13, FAINT, anchor="ms")


@dataclass(frozen=True)
class Dot:
    """A disc, or a ring where it is hollow."""

    colour: Rgb
    hollow: bool = False

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.disc(x, y, 5, self.colour)
        if self.hollow:
            canvas.disc(x, y, 3.5, PAPER)


@dataclass(frozen=True)
class Tick:
    """Right."""

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.line([(x - 6, y), (x - 2, y + 4.5), (x + 6, y - 5)], RIGHT, 2.5)


@dataclass(frozen=True)
class Cross:
    """Wrong."""

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.line([(x - 5, y - 5), (x + 5, y + 5)], WRONG, 2.5)
        canvas.line([(x - 5, y + 5), (x + 5, y - 5)], WRONG, 2.5)


@dataclass(frozen=True)
class Unknown:
    """Neither right nor wrong."""

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.line([(x - 5, y), (x + 5, y)], FAINT, 2.5)
