"""Whether one metric agrees with people better than another, on the same rows of one set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.resampling import Resamples
from capeval_core.statistics import LEAST_P, Interval


@dataclass(frozen=True)
class Difference:
    """The difference of a statistic of two metrics, first minus second.

    interval: None where there are too few images. p_value: two-sided, of no difference; NaN where undefined.
    """

    value: float
    interval: Interval | None
    p_value: float


def paired_bootstrap(
    values: tuple[float, float], draws: tuple[Doubles, Doubles], resamples: Resamples, *, level: float = 0.95
) -> Difference:
    """The difference of two metrics, both taken on the same resamples of images.

    With the percentile interval, and the p-value 2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples
    whose difference is at most 0 (those at 0 count half).
    """
    differences = draws[0] - draws[1]
    finite = differences[np.isfinite(differences)]
    interval = resamples.interval(differences, level=level)
    value = values[0] - values[1]
    if interval is None or not math.isfinite(value):
        return Difference(value, None, math.nan)
    below = float(np.count_nonzero(finite < 0) + np.count_nonzero(finite == 0) / 2)
    extreme = min(below, len(finite) - below)
    return Difference(value, interval, min(1.0, 2 * (extreme + 1) / (len(finite) + 1)))


def williams(first: float, second: float, between: float, rows: int) -> float:
    """The two-sided p-value of Williams' test that two correlations with the same ratings are equal.

    Williams, The Comparison of Regression Variables, JRSS B 21, 1959; for metrics: Graham and Baldwin,
    Testing for Significance of Increased Correlation with Human Judgment, EMNLP 2014. It is for Pearson's
    correlation of independent rows; rows of one image are not, so it is beside the bootstrap, not in its
    place. NaN with fewer than four rows, or where a correlation is undefined.

    >>> williams(0.5, 0.4, 0.6, 100)
    0.2048...
    """
    if rows < 4 or not all(map(math.isfinite, (first, second, between))):
        return math.nan
    if first == second:
        return 1.0
    from scipy.stats import t as student

    n = rows
    # The determinant of the three correlations; rounding must not make it negative.
    k = max(1 - first**2 - second**2 - between**2 + 2 * first * second * between, 0.0)
    spread = 2 * k * (n - 1) / (n - 3) + ((first + second) / 2) ** 2 * (1 - between) ** 3
    if spread <= 0:
        return math.nan
    statistic = (first - second) * math.sqrt((n - 1) * (1 + between) / spread)
    return max(float(2 * student.sf(abs(statistic), n - 3)), LEAST_P)
