"""What is drawn from lessons for one step: captions and foils, and which captions may be true of what."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capeval_core.synthetic import KINDS
from capeval_core.training.lessons import Bools, Ints, Lessons
from capeval_core.training.region_lessons import RegionLessons


def alike(members: Ints) -> Bools:
    """(B, B), true where the caption of the column may also be true of the image of the row.

    members (B,) are the bits of the kinds in each scene. A caption names every group of its scene, so it can
    be true only where all of them are.

    >>> alike(np.array([0b01, 0b11]))
    array([[ True, False],
           [ True,  True]])
    """
    may: Bools = (members[None, :] & ~members[:, None]) == 0
    return may


def choose_foils(lengths: Ints, most: int, rng: np.random.Generator, seldom: Collection[str] = ()) -> Ints:
    """(B, most) places of foils, drawn by lot for each scene; those that there are before those that are not.

    lengths (B, 1 + kinds) are those of a caption and its foils, 0 where there is none; foils of the kinds
    `seldom` come up less often.
    """
    lots = rng.random((len(lengths), len(KINDS))) + np.isin(KINDS, list(seldom)) * 0.5
    return 1 + np.argsort(lots + 2 * (lengths[:, 1:] == 0), axis=1)[:, :most]


class Captions(NamedTuple):
    """Which captions a step reads: of each of B scenes one in either wording, and F foils of the first."""

    rows: Ints
    """(B,): the scenes."""
    wording: int
    foils: Ints
    """(B, F): places of foils."""
    told: Bools
    """(B, F): which of the foils there are."""
    alike: Bools
    """(B, B): as `alike` tells."""

    @staticmethod
    def choose(
        lessons: Lessons | RegionLessons,
        rows: Ints,
        wording: int,
        most: int,
        rng: np.random.Generator,
        seldom: Collection[str] = (),
    ) -> Captions:
        """Those of some scenes, with foils as `choose_foils` draws them."""
        lengths = lessons.lengths[rows, wording]
        foils = choose_foils(lengths, most, rng, seldom)
        told = np.take_along_axis(lengths, foils, axis=1) > 0
        return Captions(rows, wording, foils, told, alike(lessons.members[rows]))

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of the lessons, (N, WORDINGS, 1 + kinds, ...), at these captions.

        (B + B + B * F, ...): those of the wording, those of the other one, the foils.
        """
        foils = values[self.rows[:, None], self.wording, self.foils]
        return np.concatenate(
            [
                values[self.rows, self.wording, 0],
                values[self.rows, 1 - self.wording, 0],
                foils.reshape(self.foils.size, *foils.shape[2:]),
            ]
        )
