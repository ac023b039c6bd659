"""Places for numbered badges on regions, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

_CANDIDATES = 96


@dataclass(frozen=True)
class Place:
    """Where a badge's centre is, and the point of its region's outline that it belongs to."""

    x: float
    y: float
    anchor: tuple[float, float]

    def is_apart(self, radius: float) -> bool:
        """Whether it stands so far from its region that a line has to lead there."""
        return bool(np.hypot(self.x - self.anchor[0], self.y - self.anchor[1]) > 1.5 * radius)


def place_badges(regions: Sequence[Points], size: tuple[float, float], radius: float) -> list[Place]:
    """A place for each region, on its outline (k, 2) as far to the top left as there is room.

    Where its whole outline is taken, the nearest free place of the image (width, height). Only in a
    image too small for all of them do badges overlap.
    """
    # The smallest first: they have the least choice.
    order = np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable")
    taken = np.empty((0, 2))
    places: dict[int, Place] = {}
    for index in order.tolist():
        points = regions[index]
        step = max(1, len(points) // _CANDIDATES)
        wanted = points[::step][np.argsort(points[::step].sum(axis=1), kind="stable")]
        centre = _first_free(_inside(wanted, size, radius), taken, radius)
        anchor = wanted[0]
        if centre is None:
            grid = _grid(size, radius)
            nearest = np.argsort(np.hypot(*(grid - anchor).T), kind="stable")
            centre = _first_free(grid[nearest], taken, radius)
        if centre is None:
            centre = _inside(wanted[:1], size, radius)[0]
        distance = np.hypot(*(points - centre).T)
        anchor = points[distance.argmin()]
        places[index] = Place(float(centre[0]), float(centre[1]), (float(anchor[0]), float(anchor[1])))
        taken = np.concatenate([taken, centre[None]])
    return [places[index] for index in range(len(regions))]


def _inside(points: Points, size: tuple[float, float], radius: float) -> Points:
    edge = radius + 1
    low = np.minimum(edge, np.asarray(size) / 2)
    inside: Points = np.clip(points, low, np.asarray(size) - low)
    return inside


def _grid(size: tuple[float, float], radius: float) -> Points:
    axes = [np.arange(radius + 1, max(side - radius, radius + 2), radius / 2) for side in size]
    return np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)


def _first_free(points: Points, taken: Points, radius: float) -> Points | None:
    apart = np.hypot(*(points[:, None] - taken[None]).transpose(2, 0, 1)) >= 2 * radius + 1
    free = np.flatnonzero(apart.all(axis=1))
    return points[free[0]] if len(free) else None
