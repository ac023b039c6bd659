"""Intervals of correlations and accuracies by bootstrap over images, exact and fast.

Ratings of one image are not independent, so a resample draws images with replacement, each with all its rows.
A resample is then a weight for each row: how often its image was drawn. Kendall's tau needs only how many
rows have each pair of values, so the counts of a resample give it without sorting:

    C(x, y)     weighted rows of score x and rating y
    P - Q       sum over x, y of C(x, y) (sum of C(x', y') over x' < x, y' < y, less that over x' < x, y' > y)

which is exact: it equals the coefficient of the rows, repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from capeval_core.judgements.correlation import COEFFICIENTS, Doubles, Integers, equally_many, scaled
from capeval_core.statistics import LEAST_IMAGES, Interval, check_level

DRAWS = 1_000  # resamples of an interval
_CELLS, _CELLS_PER_ROW = 20_000, 16
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
        per_image = (
            np.bincount(self._of_row, own, self.images) for own in (np.where(finite, rows, 0.0), finite)
        )
        total, count = (np.asarray(self._counts @ own, dtype=np.float64) for own in per_image)
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
    """Scores with ratings, (n,) finite numbers, whose coefficients are asked for under many weights."""

    def __init__(self, scores: ArrayLike, ratings: ArrayLike) -> None:
        self.sides = equally_many(scores, ratings)
        self._scaled = scaled(self.sides[0]), scaled(self.sides[1])
        ranked = [np.unique(side, return_inverse=True) for side in self.sides]
        self._codes = [codes.astype(np.int64) for _, codes in ranked]  # among distinct values, from 0
        self._counts = [len(distinct) for distinct, _ in ranked]
        self._many, self._few = (1, 0) if self._counts[0] < self._counts[1] else (0, 1)
        self._cells = self._codes[self._many] * self._counts[self._few] + self._codes[self._few]

    def coefficients(self, weights: Integers, names: Sequence[str]) -> list[float]:
        """These coefficients, of `COEFFICIENTS`, of rows repeated so often."""
        found: dict[str, float] = {}
        if "tau_b" in names or "tau_c" in names:
            found["tau_b"], found["tau_c"] = self._taus(weights)
        if "pearson" in names:
            found["pearson"] = _weighted_pearson(*self._scaled, weights)
        if "spearman" in names:
            found["spearman"] = _weighted_pearson(self._ranks(0, weights), self._ranks(1, weights), weights)
        return [found[name] for name in names]

    def _taus(self, weights: Integers) -> tuple[float, float]:
        """Kendall's tau-b and tau-c; NaN where undefined."""
        extent = self._counts[self._many], self._counts[self._few]
        if math.prod(extent) > _CELLS + _CELLS_PER_ROW * len(self._cells):  # both sides have many values
            repeated = [np.repeat(side, weights) for side in self.sides]
            return COEFFICIENTS["tau_b"](*repeated).value, COEFFICIENTS["tau_c"](*repeated).value
        counts = np.bincount(self._cells, weights, math.prod(extent)).reshape(extent)
        of_many, of_few = counts.sum(axis=1), counts.sum(axis=0)
        rows = float(of_few.sum())
        pairs = rows * (rows - 1) / 2
        many_tied = float(np.sum(of_many * (of_many - 1))) / 2
        few_tied = float(np.sum(of_few * (of_few - 1))) / 2
        if pairs in (many_tied, few_tied):
            return math.nan, math.nan
        below = np.cumsum(counts, axis=0) - counts  # rows of a smaller value of the many, by the few
        upto = np.cumsum(below, axis=1)
        surplus = float(np.sum(counts * (2 * upto - below - upto[:, -1:])))
        levels = int(min(np.count_nonzero(of_many), np.count_nonzero(of_few)))
        tau_b = surplus / math.sqrt(pairs - many_tied) / math.sqrt(pairs - few_tied)
        return _bounded(tau_b), _bounded(2 * surplus / (rows**2 * (levels - 1) / levels))

    def _ranks(self, side: int, weights: Integers) -> Doubles:
        """Each row's mean rank among the repeated rows."""
        counts = np.bincount(self._codes[side], weights, self._counts[side])
        mean_ranks: Doubles = np.cumsum(counts) - (counts - 1) / 2
        return mean_ranks[self._codes[side]]


def _weighted_pearson(x: Doubles, y: Doubles, weights: Integers) -> float:
    total = float(weights.sum())
    if total < 2:
        return math.nan
    x, y = x - x @ weights / total, y - y @ weights / total
    inside = weights > 0
    if not (np.ptp(x[inside]) > 0 and np.ptp(y[inside]) > 0):
        return math.nan
    return _bounded(float(x * weights @ y) / math.sqrt(float(x * weights @ x) * float(y * weights @ y)))


def _bounded(value: float) -> float:
    """A coefficient without what rounding adds beyond 1."""
    return min(1.0, max(-1.0, value))
