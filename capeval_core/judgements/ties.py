"""Accuracy over pairs that gives credit for ties, as in the meta-evaluation of machine translation.

Deutsch, Foster and Freitag, Ties Matter: Meta-Evaluating Modern Metrics with Pairwise Accuracy and Tie
Calibration, EMNLP 2023, https://arxiv.org/abs/2305.14324.

    acc_eq = (C + T_hm) / (C + D + T_h + T_m + T_hm)

over all pairs of captions of an image: C ordered by score as by people, D the other way round, T_h tied by
people only, T_m by scores only, T_hm by both. Scores that differ by at most epsilon are tied;
`tie_calibrated_accuracy` takes the epsilon with the highest accuracy on the set itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.judgements.correlation import Doubles, Integers, equally_many


@dataclass(frozen=True)
class TieCalibration:
    """The best accuracy over the thresholds of a tie.

    accuracy: from 0 to 1, the mean over groups; NaN where no group has two rows.
    epsilon: scores that differ by at most this are tied. pairs, groups: how many it is over.
    """

    accuracy: float
    epsilon: float
    pairs: int
    groups: int


def tie_aware_accuracy(
    scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str] | None = None, *, epsilon: float = 0.0
) -> float:
    """acc_eq: the share of pairs that scores and ratings order, or tie, alike; the mean over groups.

    Args:
        scores, ratings: (n,) finite numbers.
        groups: of each row, e.g. its image; only rows of one group are compared. None: all are one group.
        epsilon: scores that differ by at most this are tied.

    Returns:
        From 0 to 1; NaN where no group has two rows.

    >>> tie_aware_accuracy([0.1, 0.1, 0.5], [1, 1, 2]), tie_aware_accuracy([0.1, 0.2, 0.5], [1, 1, 2])
    (1.0, 0.6667)
    """
    pairs = _Pairs.of(scores, ratings, groups)
    right = np.where(pairs.gaps <= epsilon, pairs.tied, pairs.alike)
    return float(np.sum(pairs.weights * right)) if len(pairs.gaps) else math.nan


def tie_calibrated_accuracy(
    scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str] | None = None
) -> TieCalibration:
    """acc_eq with tie calibration: the best of `tie_aware_accuracy` over all thresholds.

    >>> tie_calibrated_accuracy([0.1, 0.2, 0.5], [1, 1, 2])
    TieCalibration(accuracy=1.0, epsilon=0.1, pairs=3, groups=1)
    """
    pairs = _Pairs.of(scores, ratings, groups)
    if not len(pairs.gaps):
        return TieCalibration(math.nan, math.nan, 0, 0)
    order = np.argsort(pairs.gaps, kind="stable")
    gaps = pairs.gaps[order]
    gained = (pairs.weights * (pairs.tied.astype(np.float64) - pairs.alike))[order]
    last = np.append(np.flatnonzero(np.diff(gaps)), len(gaps) - 1)  # of each distinct gap
    # Below the smallest gap nothing is tied, which a threshold of 0 means unless there are equal scores.
    thresholds = np.append([] if gaps[0] == 0 else [0.0], gaps[last])
    without = float(np.sum(pairs.weights * pairs.alike))
    accuracies = np.append([] if gaps[0] == 0 else [without], without + np.cumsum(gained)[last])
    best = int(np.argmax(accuracies))
    return TieCalibration(float(accuracies[best]), float(thresholds[best]), len(gaps), pairs.groups)


@dataclass(frozen=True)
class _Pairs:
    """All pairs of rows of one group.

    gaps: distance of their scores. alike: whether scores and ratings order them in the same direction.
    tied: whether their ratings are equal. weights: of each, so that groups count alike; their sum is 1.
    """

    gaps: Doubles
    alike: NDArray[np.bool_]
    tied: NDArray[np.bool_]
    weights: Doubles
    groups: int

    @staticmethod
    def of(scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str] | None) -> _Pairs:
        x, y = equally_many(scores, ratings)
        names = np.zeros(len(x)) if groups is None else np.asarray(groups, dtype=object)
        _, of_row = np.unique(names, return_inverse=True)
        first: list[Integers] = []
        second: list[Integers] = []
        shares: list[Doubles] = []
        members = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row))[:-1])
        for rows in members if len(x) else []:
            if len(rows) > 1:
                a, b = np.triu_indices(len(rows), 1)
                first.append(rows[a])
                second.append(rows[b])
                shares.append(np.full(len(a), 1.0 / len(a)))
        if not first:
            nothing = np.empty(0)
            return _Pairs(nothing, nothing.astype(bool), nothing.astype(bool), nothing, 0)
        i, j = np.concatenate(first), np.concatenate(second)
        steps, ratings_apart = x[i] - x[j], y[i] - y[j]
        return _Pairs(
            gaps=np.abs(steps),
            alike=steps * ratings_apart > 0,
            tied=ratings_apart == 0,
            weights=np.concatenate(shares) / len(shares),
            groups=len(shares),
        )
