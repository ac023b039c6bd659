"""Which candidates of a pool may be chosen: ECO's filters of format and of image-text matching.

The paper's section "Consensus score" describes both; its released code has other limits and another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Filter = Literal["format", "itm"]


@dataclass(frozen=True)
class Rules:
    """What a candidate must fulfil.

    words: the fewest, parted by white space. commas, periods: the most.
    half: of an odd pool, whether the better half by ITM is rounded `up` or `down`.
    order: which filter comes first; the second one sees what the first leaves.
    """

    words: int
    commas: int
    periods: int
    half: Literal["up", "down"]
    order: tuple[Filter, Filter]


PAPER = Rules(words=5, commas=3, periods=2, half="up", order=("format", "itm"))
RELEASED = Rules(words=6, commas=2, periods=1, half="down", order=("itm", "format"))


@dataclass(frozen=True)
class Filtered:
    """What the filters make of a pool.

    dropped: per candidate why it cannot be chosen, None where it can.
    gave_way: a filter that would have left nobody, so that it was not applied; '' if there is none.
    """

    dropped: list[str | None]
    gave_way: Filter | Literal[""]

    @property
    def kept(self) -> list[int]:
        """Places of the candidates that can be chosen, at least one of a pool that has any."""
        return [place for place, reason in enumerate(self.dropped) if reason is None]


def bad_format(caption: str, rules: Rules = PAPER) -> str | None:
    """Why a caption does not look like one, None if it does.

    >>> bad_format("a dog"), bad_format("a dog runs on the beach")
    ('2 words, expected 5 or more', None)
    """
    words, commas, periods = len(caption.split()), caption.count(","), caption.count(".")
    if words < rules.words:
        return f"{words} words, expected {rules.words} or more"
    if commas > rules.commas:
        return f"{commas} commas, expected {rules.commas} or fewer"
    if periods > rules.periods:
        return f"{periods} periods, expected {rules.periods} or fewer"
    return None


def better_half(itm: Sequence[float], half: Literal["up", "down"] = "up") -> list[int]:
    """Places of the better half by probability of a match, best first; of equal ones the earlier.

    >>> better_half([0.1, 0.9, 0.5]), better_half([0.1, 0.9, 0.5], "down")
    ([1, 2], [1])
    """
    return best_first(itm)[: (len(itm) + (half == "up")) // 2]


def best_first(values: Sequence[float]) -> list[int]:
    """Places of values, the largest first; of equal ones the earlier."""
    return [int(place) for place in np.argsort(-np.asarray(values, dtype=np.float64), kind="stable")]


def filter_pool(captions: Sequence[str], itm: Sequence[float], rules: Rules = PAPER) -> Filtered:
    """Both filters over a pool. One that would leave nobody is not applied.

    >>> found = filter_pool(["a dog", "a dog runs on the beach", "a cat sits on the grass"], [0.9, 0.8, 0.1])
    >>> found.kept, found.dropped[2]
    ([1], 'match 0.100, rank 2 of 2: not in the better half')
    """
    dropped: list[str | None] = [None] * len(captions)
    gave_way: Filter | Literal[""] = ""
    for each in rules.order:
        left = [place for place, reason in enumerate(dropped) if reason is None]
        if each == "format":
            told = {place: bad_format(captions[place], rules) for place in left}
        else:
            told = _worse_half([itm[place] for place in left], left, rules)
        if told and all(reason is not None for reason in told.values()):
            gave_way = each
            continue
        for place, reason in told.items():
            dropped[place] = reason
    return Filtered(dropped, gave_way)


def _worse_half(itm: Sequence[float], places: Sequence[int], rules: Rules) -> dict[int, str | None]:
    kept = set(better_half(itm, rules.half))
    ranks = {row: rank for rank, row in enumerate(best_first(itm), 1)}
    return {
        place: None
        if row in kept
        else f"match {itm[row]:.3f}, rank {ranks[row]} of {len(itm)}: not in the better half"
        for row, place in enumerate(places)
    }
