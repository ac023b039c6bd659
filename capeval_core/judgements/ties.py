"""Accuracy over pairs that gives credit for ties, as in the meta-evaluation of machine translation.

Deutsch, Foster and Freitag, Ties Matter: Meta-Evaluating Modern Metrics with Pairwise Accuracy and Tie
Calibration, EMNLP 2023, https://arxiv.org/abs/2305.14324.

    acc_eq = (C + T_hm) / (C + D + T_h + T_m + T_hm)

over all pairs of captions of an image: C ordered by score as by people, D the other way round, T_h tied by
people only, T_m by scores only, T_hm by both. Scores that differ by at most epsilon are tied; here epsilon is
the one with the highest accuracy on the set itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from capeval_core.judgements.correlation import equally_many


def tie_calibrated_accuracy(
    scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str]
) -> tuple[float, float]:
    """acc_eq with the best threshold of a tie, as mean over groups, and that threshold.

    Args:
        scores, ratings: (n,) finite numbers.
        groups: of each row, e.g. its image; only rows of one group are compared.

    Returns:
        From 0 to 1, and at least 0; NaN where no group has two rows.

    >>> tie_calibrated_accuracy([0.1, 0.2, 0.5], [1, 1, 2], "aaa")
    (1.0, 0.1)
    """
    x, y = equally_many(scores, ratings)
    _, of_row = np.unique(np.asarray(list(groups), dtype=object), return_inverse=True)
    members = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row))[:-1])
    pairs = [rows[np.stack(np.triu_indices(len(rows), 1))] for rows in members if len(rows) > 1]
    if not pairs:
        return math.nan, math.nan
    (i, j), sizes = np.concatenate(pairs, axis=1), [own.shape[1] for own in pairs]
    weights = np.repeat(1.0 / np.array(sizes), sizes) / len(sizes)  # groups count alike
    steps, ratings_apart = x[i] - x[j], y[i] - y[j]
    alike, tied = steps * ratings_apart > 0, ratings_apart == 0
    order = np.argsort(np.abs(steps), kind="stable")
    gaps = np.abs(steps)[order]
    gained = (weights * (tied.astype(np.float64) - alike))[order]
    last = np.append(np.flatnonzero(np.diff(gaps)), len(gaps) - 1)  # of each distinct gap
    # Below the smallest gap nothing is tied, which a threshold of 0 means unless there are equal scores.
    without = float(np.sum(weights * alike))
    thresholds = np.append([] if gaps[0] == 0 else [0.0], gaps[last])
    accuracies = np.append([] if gaps[0] == 0 else [without], without + np.cumsum(gained)[last])
    best = int(np.argmax(accuracies))
    return float(accuracies[best]), float(thresholds[best])
