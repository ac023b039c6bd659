"""Which frames of a video are used: every one, so many a second, or so many in all."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from capeval_core.errors import InputError, ProblemsError, wrong_option
from capeval_core.limits import LIMITS
from capeval_core.values import described


@dataclass(frozen=True)
class Sampling:
    """Which frames of a video are used; every one where nothing is given, as EMScore's released code does.

    Args:
        fps: so many a second. The time since the first frame is cut into slots of 1 / fps seconds, and the
            first frame of each slot is used, so no frame is used twice: a video of fewer frames a second
            keeps all of its own. Only video files have times.
        max_frames: so many in all, at `int(numpy.linspace(0, n - 1, max_frames))` of n frames: a shorter
            video repeats some. 10 is the protocol of VATEX-EVAL.

    Raises:
        ValueError, TypeError: both are given, `fps` is no positive number, or `max_frames` no integer of at
            least 1.

    >>> str(Sampling()), str(Sampling(fps=2)), str(Sampling(max_frames=10))
    ('every', 'fps=2.0', 'max_frames=10')
    >>> Sampling(fps=0)
    Traceback (most recent call last):
    capeval_core.errors.InputError: fps=0: expected a positive number of frames a second
    """

    fps: float | None = None
    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.fps is not None:
            object.__setattr__(self, "fps", _positive(self.fps))
        if self.max_frames is not None:
            object.__setattr__(self, "max_frames", _at_least_one(self.max_frames))
        if self.fps is not None and self.max_frames is not None:
            found = f"given together with fps={self.fps:g}"
            raise wrong_option("max_frames", self.max_frames, found, "leave one of the two out")

    def __str__(self) -> str:
        if self.fps is not None:
            return f"fps={self.fps!r}"
        return "every" if self.max_frames is None else f"max_frames={self.max_frames}"

    def evenly(self, frames: int) -> list[int]:
        """The numbers of the frames that are used of so many (at least one), by `max_frames`.

        >>> Sampling(max_frames=4).evenly(10), Sampling(max_frames=4).evenly(2)
        ([0, 3, 6, 9], [0, 0, 0, 1])
        """
        assert self.max_frames is not None
        chosen: list[int] = np.linspace(0, frames - 1, self.max_frames).astype(int).tolist()
        return chosen

    def slot(self, seconds: Fraction) -> int:
        """The slot of a time since the first frame, by `fps`."""
        return math.floor(seconds * Fraction(str(self.fps)))


def _positive(value: Any) -> float:
    expected = "expected a positive number of frames a second"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _refused("fps", value, expected)
    if not 0 < float(value) < math.inf:  # NaN is not
        raise wrong_option("fps", value, "", expected, verb="")
    return float(value)


def _at_least_one(value: Any) -> int:
    expected = f"expected an integer from 1 to {LIMITS.frames:,}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _refused("max_frames", value, expected)
    if not 1 <= int(value) <= LIMITS.frames:
        raise wrong_option("max_frames", value, "", expected, verb="")
    return int(value)


def _refused(name: str, value: Any, expected: str) -> ProblemsError:
    if isinstance(value, numbers.Real):
        return wrong_option(name, value, "", expected, verb="", kind=InputError)
    return wrong_option(name, value, described(value), expected, kind=TypeError)
