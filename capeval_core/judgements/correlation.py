"""Agreement of scores with human ratings: correlation coefficients, and accuracies over pairs.

Coefficients are scipy's. A coefficient that does not exist (fewer than two rows, equal scores, equal ratings,
a value that is not a finite number) is NaN, and `undefined` says why; it is never a number.

Intervals are by bootstrap over images, exact and fast. Ratings of one image are not independent, so a
resample draws images with replacement, each with all its rows: it is a weight for each row, how often its
image was drawn. Kendall's tau needs only how many rows have each pair of values, without sorting:

    C(x, y)     weighted rows of score x and rating y
    P - Q       sum over x, y of C(x, y) (sum of C(x', y') over x' < x, y' < y, less that over x' < x, y' > y)

which is exact: it equals the coefficient of the rows, repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.statistics import LEAST_IMAGES, LEAST_P, Interval, check_level

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


class Coefficient(NamedTuple):
    """A correlation of scores with ratings, NaN where it is undefined. p_value: two-sided, of no association,
    for independent rows. rows: how many it is over. undefined: why there is no value."""

    value: float
    p_value: float
    rows: int
    undefined: str | None = None


def undefined(scores: ArrayLike, ratings: ArrayLike) -> str | None:
    """Why no correlation of these exists, None where one does.

    >>> undefined([0.5, 0.5], [1, 2]), undefined([0.5], [1]), undefined([0.5, 0.6], [1, 2])
    ('all 2 scores are equal', 'there is 1 row, and a correlation needs two', None)
    """
    x, y = equally_many(scores, ratings)
    if len(x) < 2:
        are = "is 1 row" if len(x) == 1 else "are no rows"
        return f"there {are}, and a correlation needs two"
    for name, values in (("score", x), ("rating", y)):
        broken = int(np.count_nonzero(~np.isfinite(values)))
        if broken:
            return f"{broken:,} of {len(x):,} {name}s {'is' if broken == 1 else 'are'} not finite"
        if (values == values[0]).all():
            return f"all {len(x):,} {name}s are equal"
    return None


def _coefficient(name: str, scores: ArrayLike, ratings: ArrayLike, **settings: str) -> Coefficient:
    """The coefficient by scipy's function of this name."""
    from scipy import stats

    x, y = equally_many(scores, ratings)
    reason = undefined(x, y)
    if reason:
        return Coefficient(math.nan, math.nan, len(x), reason)
    if name == "pearsonr":  # the only one that multiplies values, which may overflow
        x = scaled(x)
        y = scaled(y)
    result = getattr(stats, name)(x, y, **settings)
    # Values that differ in the last bits only are not equal, and have no variance all the same.
    if not math.isfinite(result.statistic):
        return Coefficient(math.nan, math.nan, len(x), "the variance of the values is 0 by rounding")
    return Coefficient(float(result.statistic), max(float(result.pvalue), LEAST_P), len(x))


Correlation = Callable[[ArrayLike, ArrayLike], Coefficient]
"""A correlation of scores with ratings."""
kendall_tau_b: Correlation = partial(_coefficient, "kendalltau")
"""Kendall's tau-b, which corrects for ties on either side."""
kendall_tau_c: Correlation = partial(_coefficient, "kendalltau", variant="c")
"""Kendall's tau-c (Stuart's), for scales with different numbers of levels."""
spearman: Correlation = partial(_coefficient, "spearmanr")
"""Spearman's rho: Pearson's correlation of mean ranks."""
pearson: Correlation = partial(_coefficient, "pearsonr")
"""Pearson's correlation, of a straight line."""
COEFFICIENTS: dict[str, Correlation] = {
    "tau_b": kendall_tau_b, "tau_c": kendall_tau_c, "spearman": spearman, "pearson": pearson,
    "ap": lambda scores, ratings: Coefficient(_precision_of_low(scores, ratings), math.nan, np.size(scores)),
}  # fmt: skip


def annotator_mean(
    coefficient: Correlation, scores: ArrayLike, ratings: ArrayLike, *, digits: int | None = 4
) -> float:
    """The mean of a coefficient of this module over annotators, the protocol of VATEX-EVAL; NaN where one is
    undefined.

    scores: (n,). ratings: (n, annotators). digits: to which scores are rounded before and the mean after, as
    the published numbers are (EMScore, Shi et al., CVPR 2022); None: nothing is rounded.

    >>> annotator_mean(kendall_tau_b, [0.1, 0.2, 0.3], [[1, 2], [2, 1], [3, 3]])
    0.6667
    """
    x = np.asarray(scores, dtype=np.float64)
    by_row = np.asarray(ratings, dtype=np.float64)
    if digits is not None:
        x = np.round(x, digits)
    values = []
    for ratings_of_annotator in by_row.T:
        values.append(coefficient(x, ratings_of_annotator).value)
    mean = float(np.mean(values))
    return mean if digits is None else round(mean, digits)


def won_pairs(better: ArrayLike, worse: ArrayLike, *, ties: Literal["wrong", "half"] = "wrong") -> Doubles:
    """The count of each pair: 1 where the caption that people prefer has the higher score, else 0, or 0.5 for
    a tie; NaN where a score is not finite.

    >>> won_pairs([0.9, 0.5, 0.3], [0.1, 0.5, 0.4], ties="half")
    array([1. , 0.5, 0. ])
    """
    high, low = equally_many(better, worse)
    with np.errstate(invalid="ignore"):
        won = (high > low) + (0.5 if ties == "half" else 0.0) * (high == low)
    return np.where(np.isfinite(high) & np.isfinite(low), won, math.nan)


def majority(votes: ArrayLike) -> Integers:
    """The sign of the sum of votes of +1 and -1 in each row: 1, -1, or 0 where they are tied."""
    return np.asarray(np.sign(np.asarray(votes).sum(axis=-1)), dtype=np.int64)


def average_precision(scores: ArrayLike, positive: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Mean of the precision at each distinct score, by the recall that it adds; high scores come first.

    Rows of equal scores are one step. From 0 to 1; NaN without a positive row.

    >>> average_precision([0.9, 0.8, 0.7], [True, False, True])
    0.8333
    """
    x, hits = equally_many(scores, positive)
    count = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(-x, kind="stable")
    hits_so_far = np.cumsum(hits[order] * count[order])
    rows_so_far = np.cumsum(count[order])
    if not len(x) or hits_so_far[-1] == 0 or np.isnan(x).any():
        return math.nan
    last = np.append(np.flatnonzero(np.diff(x[order])), len(x) - 1)  # of each distinct score
    last = last[rows_so_far[last] > 0]
    recall = hits_so_far[last] / hits_so_far[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * hits_so_far[last] / rows_so_far[last]))


def _precision_of_low(scores: ArrayLike, ratings: ArrayLike, weights: ArrayLike | None = None) -> float:
    """The average precision with which low scores find the ratings of 0, among those of 1."""
    return average_precision(np.negative(scores), np.subtract(1, ratings), weights)


def tie_calibrated_accuracy(
    scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str]
) -> tuple[float, float]:
    """acc_eq, accuracy over pairs that gives credit for ties, and the threshold of a tie that is best for it.

    Deutsch, Foster and Freitag, Ties Matter: Meta-Evaluating Modern Metrics with Pairwise Accuracy and Tie
    Calibration, EMNLP 2023, https://arxiv.org/abs/2305.14324.

        acc_eq = (C + T_hm) / (C + D + T_h + T_m + T_hm)

    over all pairs of rows of a group, e.g. of captions of an image, as mean over groups: C ordered by score
    as by people, D the other way round, T_h tied by people only, T_m by scores only, T_hm by both. Scores
    that differ by at most the threshold are tied. NaN where no group has two rows.

    >>> tie_calibrated_accuracy([0.1, 0.2, 0.5], [1, 1, 2], "aaa")
    (1.0, 0.1)
    """
    x, y = equally_many(scores, ratings)
    _, of_row = np.unique(np.asarray(list(groups), dtype=object), return_inverse=True)
    members = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row))[:-1])
    pairs = []  # of each group (2, pairs): the rows i and j of each pair
    sizes = []
    for rows in members:
        if len(rows) > 1:
            first, second = np.triu_indices(len(rows), 1)
            pairs.append(np.stack((rows[first], rows[second])))
            sizes.append(len(first))
    if not pairs:
        return math.nan, math.nan
    i, j = np.concatenate(pairs, axis=1)
    weights = np.repeat(1.0 / np.array(sizes), sizes) / len(sizes)  # groups count alike
    steps = x[i] - x[j]
    ratings_apart = y[i] - y[j]
    alike = steps * ratings_apart > 0
    tied = ratings_apart == 0
    # One pass over the pairs by their gap: a larger threshold ties the next pair, which gains where people
    # tie it and loses where the order was right, so that every threshold is tried by a cumulative sum.
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


def scaled(values: Doubles) -> Doubles:
    """Values below 1 in magnitude, by a power of two: exact, and sums of their squares do not overflow."""
    return np.ldexp(values, -np.frexp(np.abs(values).max())[1]) if len(values) else values


def equally_many(first: ArrayLike, second: ArrayLike) -> tuple[Doubles, Doubles]:
    """Two lists of equally many numbers."""
    x = np.asarray(first, dtype=np.float64)
    y = np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"expected two lists of equally many numbers, found shapes {x.shape} and {y.shape}")
    return x, y


# resamples

DRAWS = 1_000  # resamples of an interval
_CELLS = 20_000
_CELLS_PER_ROW = 16
"""Cells of a table of counts up to which it takes less time than scipy's sorting of the rows."""


class Resamples:
    """Resamples of images with replacement, the same for everything that is compared on these rows."""

    def __init__(self, groups: Sequence[str], *, draws: int = DRAWS, seed: int = 0) -> None:
        names, self._of_row = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
        self.images = len(names)
        self._counts = np.zeros((draws, self.images), dtype=np.int32)
        if self.images:  # nothing can be drawn of none
            shares = np.full(self.images, 1 / self.images)
            self._counts[:] = np.random.default_rng(seed).multinomial(self.images, shares, size=draws)

    def __len__(self) -> int:
        return len(self._counts)

    def weights(self, draw: int) -> Integers:
        """(n,) how often each row is in a resample."""
        return np.asarray(self._counts[draw][self._of_row], dtype=np.int64)

    def means(self, values: ArrayLike) -> Doubles:
        """(draws,) the mean of the finite values in each resample; NaN in one without any."""
        rows = np.asarray(values, dtype=np.float64)
        finite = np.isfinite(rows)
        total = self._counts @ np.bincount(self._of_row, np.where(finite, rows, 0.0), self.images)
        count = self._counts @ np.bincount(self._of_row, finite, self.images)
        return np.where(count > 0, total / np.maximum(count, 1), math.nan)

    def each(self, statistic: Callable[[Integers], float | Sequence[float]]) -> Doubles:
        """(draws, ...) a statistic of the rows' weights, resample by resample."""
        return np.array([statistic(self.weights(draw)) for draw in range(len(self))])

    def interval(self, values: Doubles, *, level: float = 0.95) -> Interval | None:
        """The percentile interval of a statistic's values over the resamples.

        None with too few images, and where it is undefined in more than one resample of a hundred.
        """
        check_level(level)
        finite = values[np.isfinite(values)]
        if self.images < LEAST_IMAGES or len(finite) < 0.99 * len(values):
            return None
        low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
        return Interval(float(low), float(high), level, self.images)


def centred(draws: Doubles, value: float) -> Doubles:
    """Draws of a coefficient from -1 to 1, moved so that their mean is its value on all rows.

    An image that is drawn twice makes pairs of its rows with themselves, which moves coefficients of pairs in
    every resample alike: with few images by more than an interval's width.
    """
    finite = draws[np.isfinite(draws)]
    return np.clip(draws - (finite.mean() - value if len(finite) else 0.0), -1.0, 1.0)


class WeightedRows:
    """Scores with ratings, (n,) finite numbers, for coefficients under many weights."""

    def __init__(self, scores: ArrayLike, ratings: ArrayLike) -> None:
        self.sides = equally_many(scores, ratings)
        self._scaled = (scaled(self.sides[0]), scaled(self.sides[1]))
        self._codes: list[Integers] = []  # of each row among the distinct values of a side, from 0
        self._counts: list[int] = []  # of distinct values
        for side in self.sides:
            distinct, codes = np.unique(side, return_inverse=True)
            self._codes.append(codes.astype(np.int64))
            self._counts.append(len(distinct))
        self._cells = self._codes[0] * self._counts[1] + self._codes[1]

    def coefficients(self, weights: Integers, names: Sequence[str]) -> list[float]:
        """These coefficients, of `COEFFICIENTS`, with each row repeated by its weight."""
        values: dict[str, float] = {}
        if "tau_b" in names or "tau_c" in names:
            values["tau_b"], values["tau_c"] = self._taus(weights)
        if "pearson" in names:
            values["pearson"] = _weighted_pearson(*self._scaled, weights)
        if "spearman" in names:
            values["spearman"] = _weighted_pearson(self._ranks(0, weights), self._ranks(1, weights), weights)
        if "ap" in names:
            values["ap"] = _precision_of_low(*self.sides, weights)
        # Rounding may leave the range of a correlation.
        bounded: list[float] = np.clip([values[name] for name in names], -1.0, 1.0).tolist()
        return bounded

    def _taus(self, weights: Integers) -> tuple[float, float]:
        """Kendall's tau-b and tau-c; NaN where undefined."""
        if math.prod(self._counts) > _CELLS + _CELLS_PER_ROW * len(self._cells):  # both have many values
            scores = np.repeat(self.sides[0], weights)
            ratings = np.repeat(self.sides[1], weights)
            return kendall_tau_b(scores, ratings).value, kendall_tau_c(scores, ratings).value
        # A table of counts, scores by ratings: sums over it take less time than pairs of rows.
        counts = np.bincount(self._cells, weights, math.prod(self._counts)).reshape(self._counts)
        by_score = counts.sum(axis=1)
        by_rating = counts.sum(axis=0)
        rows = float(by_score.sum())
        pairs = rows * (rows - 1) / 2
        tied_scores = float(np.sum(by_score * (by_score - 1))) / 2
        tied_ratings = float(np.sum(by_rating * (by_rating - 1))) / 2
        if pairs in (tied_scores, tied_ratings):
            return math.nan, math.nan
        below = np.cumsum(counts, axis=0) - counts  # rows of a smaller score, by the rating
        upto = np.cumsum(below, axis=1)
        surplus = float(np.sum(counts * (2 * upto - below - upto[:, -1:])))
        levels = min(np.count_nonzero(by_score), np.count_nonzero(by_rating))
        tau_b = surplus / math.sqrt(pairs - tied_scores) / math.sqrt(pairs - tied_ratings)
        return tau_b, 2 * surplus / (rows**2 * (levels - 1) / levels)

    def _ranks(self, side: int, weights: Integers) -> Doubles:
        """Each row's mean rank among the repeated rows."""
        counts = np.bincount(self._codes[side], weights, self._counts[side])
        mean_ranks: Doubles = np.cumsum(counts) - (counts - 1) / 2
        return mean_ranks[self._codes[side]]


def _weighted_pearson(x: Doubles, y: Doubles, weights: Integers) -> float:
    total = float(weights.sum())
    if total < 2:
        return math.nan
    x = x - x @ weights / total
    y = y - y @ weights / total
    # Equal values, centred by a rounded mean, would leave a variance of rounding, and a correlation of noise.
    inside = weights > 0
    if not (np.ptp(x[inside]) > 0 and np.ptp(y[inside]) > 0):
        return math.nan
    return float(x * weights @ y) / math.sqrt(float(x * weights @ x) * float(y * weights @ y))
