"""Marks of regions, phrases and references, and where numbered badges stand on an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from capeval_core.reports.canvas import FAINT, PAPER, RIGHT, WRONG, Canvas, Rgb, region_colour

_ROW_RADIUS = 10.0  # of badges in tables


class Mark(Protocol):
    """A small sign before or behind a row of a table."""

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw the sign centred at x, y."""


@dataclass(frozen=True)
class RegionMark:
    """The badge of a region: its label, a number of at most three digits, on its colour.

    unmentioned: whether no phrase fits the region, whose outline is then dashed.
    """

    label: str
    colour: Rgb
    unmentioned: bool = False

    @classmethod
    def of(cls, index: int, unmentioned: bool = False) -> RegionMark:
        """The mark of region `index` (from 0) of an image.

        >>> RegionMark.of(2).label
        '3'
        """
        return cls(str(index + 1), region_colour(index, unmentioned), unmentioned)

    def draw(self, canvas: Canvas, x: float, y: float, radius: float = _ROW_RADIUS) -> None:
        canvas.disc(x, y, radius + 1.5, PAPER)
        canvas.disc(x, y, radius, self.colour)
        size = radius * (1.2 if len(self.label) == 1 else 1.05)
        canvas.text(x, y + size * 0.36, self.label, size, PAPER, bold=True, anchor="ms")


@dataclass(frozen=True)
class Word:
    """A short word in place of a badge."""

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
class Strokes:
    """A sign of lines, whose points are given from its centre."""

    colour: Rgb
    lines: tuple[tuple[tuple[float, float], ...], ...]

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        for line in self.lines:
            canvas.line([(x + across, y + down) for across, down in line], self.colour, 2.5)


RIGHT_MARK = Strokes(RIGHT, (((-6, 0), (-2, 4.5), (6, -5)),))
"""A tick."""
WRONG_MARK = Strokes(WRONG, (((-5, -5), (5, 5)), ((-5, 5), (5, -5))))
"""A cross."""
UNKNOWN_MARK = Strokes(FAINT, (((-5, 0), (5, 0)),))
"""A dash: not judged."""


Points = NDArray[np.float64]

_CANDIDATES = 96  # points of an outline that are tried


class BadgePosition(NamedTuple):
    """The centre of a badge, and the point of its region's outline that it is attached to."""

    x: float
    y: float
    anchor: tuple[float, float]

    def is_apart(self, radius: float) -> bool:
        """Whether it is so far from its region that a line must connect them."""
        return math.dist((self.x, self.y), self.anchor) > 1.5 * radius


def place_badges(regions: Sequence[Points], size: tuple[float, float], radius: float) -> list[BadgePosition]:
    """A badge for each region, on its outline (k, 2), as far to the top left as there is room.

    Where the whole outline is covered by other badges, the nearest free position in the image (width,
    height). Badges overlap only in an image that is too small for all of them.
    """
    # The smallest first: they have the least choice.
    order = np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable")
    placed = np.empty((0, 2))
    positions: dict[int, BadgePosition] = {}
    for index in order.tolist():
        points = regions[index]
        step = max(1, len(points) // _CANDIDATES)
        candidates = points[::step][np.argsort(points[::step].sum(axis=1), kind="stable")]
        centre = _first_free(_inside(candidates, size, radius), placed, radius)
        anchor = candidates[0]
        if centre is None:
            grid = _grid(size, radius)
            nearest = np.argsort(np.hypot(*(grid - anchor).T), kind="stable")
            centre = _first_free(grid[nearest], placed, radius)
        if centre is None:
            centre = _inside(candidates[:1], size, radius)[0]
        distance = np.hypot(*(points - centre).T)
        anchor = points[distance.argmin()]
        (x, y), (to_x, to_y) = centre.tolist(), anchor.tolist()
        positions[index] = BadgePosition(x, y, (to_x, to_y))
        placed = np.concatenate([placed, centre[None]])
    return [positions[index] for index in range(len(regions))]


def _inside(points: Points, size: tuple[float, float], radius: float) -> Points:
    edge = radius + 1
    low = np.minimum(edge, np.asarray(size) / 2)
    inside: Points = np.clip(points, low, np.asarray(size) - low)
    return inside


def _grid(size: tuple[float, float], radius: float) -> Points:
    axes = [np.arange(radius + 1, max(side - radius, radius + 2), radius / 2) for side in size]
    return np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)


def _first_free(points: Points, placed: Points, radius: float) -> Points | None:
    apart = np.hypot(*(points[:, None] - placed[None]).transpose(2, 0, 1)) >= 2 * radius + 1
    free = np.flatnonzero(apart.all(axis=1))
    return points[free[0]] if len(free) else None
