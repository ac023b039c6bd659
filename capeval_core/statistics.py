"""Intervals of a mean and paired tests, clustered by picture.

Captions of one picture are not independent, so whole pictures are resampled, never single captions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
_AT_ONCE = 4_000_000  # numbers drawn at a time, which bounds memory for any number of pictures


@dataclass(frozen=True)
class Interval:
    """A confidence interval: `low` and `high` at `level`, from `pictures` resampled pictures."""

    low: float
    high: float
    level: float
    pictures: int


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same pictures.

    means: of the first and the second, over the pictures that are compared.
    difference: mean of the first minus mean of the second.
    interval: bootstrap interval of the difference.
    p_value: two-sided, of the difference under random exchange of the systems picture by picture.
    pictures: pictures that both systems were scored on.
    left_out: pictures without a score in one of them, not part of the comparison.
    """

    means: tuple[float, float]
    difference: float
    interval: Interval
    p_value: float
    pictures: int
    left_out: int


@dataclass(frozen=True)
class Clusters:
    """Sums and counts of finite scores per picture; all re-aggregations need no more."""

    names: list[str]
    sums: Doubles
    counts: Doubles

    @staticmethod
    def of(scores: Sequence[float], groups: Sequence[str]) -> Clusters:
        values = np.asarray(scores, dtype=np.float64)
        names, members = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
        finite = np.isfinite(values)
        sums = np.bincount(members, np.where(finite, values, 0.0), len(names)).astype(np.float64)
        counts = np.bincount(members, finite, len(names)).astype(np.float64)
        return Clusters([str(name) for name in names[counts > 0]], sums[counts > 0], counts[counts > 0])


def bootstrap_interval(clusters: Clusters, *, level: float, resamples: int, seed: int) -> Interval:
    """Percentile interval of the mean score over pictures drawn with replacement.

    Raises:
        ValueError: fewer than two pictures have a score, or `level` is not in (0, 1).
    """
    _check(level, resamples)
    n = len(clusters.names)
    _need_two(n)
    means = [
        (clusters.sums[drawn].sum(axis=1)) / clusters.counts[drawn].sum(axis=1)
        for drawn in _draws(n, resamples, np.random.default_rng(seed))
    ]
    low, high = _percentiles(np.concatenate(means), level)
    return Interval(low, high, level, n)


def paired_comparison(
    first: Clusters, second: Clusters, *, level: float, resamples: int, seed: int
) -> Comparison:
    """Approximate randomisation test and bootstrap interval of a difference of means.

    Each picture's scores are exchanged between the systems with probability 1/2 (all exchanges are
    enumerated where there are no more than `resamples`); p = (1 + as extreme) / (1 + resamples),
    or the exact share where they are enumerated.
    """
    _check(level, resamples)
    _, a, b = np.intersect1d(first.names, second.names, assume_unique=True, return_indices=True)
    n = len(a)
    if not n and first.names and second.names:
        raise ValueError(
            f"the results have no picture in common ({len(first.names)} and {len(second.names)}): score both "
            "systems on the same pictures, given in the same form (files, or decoded)"
        )
    _need_two(n)
    left_out = len(first.names) + len(second.names) - 2 * n
    sums, counts = (first.sums[a], second.sums[b]), (first.counts[a], second.counts[b])
    total, size = sums[0].sum(), counts[0].sum()
    other_total, other_size = sums[1].sum(), counts[1].sum()
    means = float(total / size), float(other_total / other_size)
    difference = means[0] - means[1]

    rng = np.random.default_rng(seed)
    gain, growth = sums[1] - sums[0], counts[1] - counts[0]
    extreme = tried = 0
    exact = n < 63 and 2**n <= resamples
    for exchanged in _all_exchanges(n) if exact else _exchanges(n, resamples, rng):
        moved, moved_size = exchanged @ gain, exchanged @ growth
        drawn = (total + moved) / (size + moved_size) - (other_total - moved) / (other_size - moved_size)
        extreme += int(np.count_nonzero(np.abs(drawn) >= abs(difference) - 1e-12))
        tried += len(drawn)
    p_value = extreme / tried if exact else (1 + extreme) / (1 + tried)

    drawn_differences = [
        sums[0][drawn].sum(axis=1) / counts[0][drawn].sum(axis=1)
        - sums[1][drawn].sum(axis=1) / counts[1][drawn].sum(axis=1)
        for drawn in _draws(n, resamples, rng)
    ]
    low, high = _percentiles(np.concatenate(drawn_differences), level)
    return Comparison(means, difference, Interval(low, high, level, n), p_value, n, left_out)


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: expected a number between 0 and 1, e.g. 0.95")
    if resamples < 1:
        raise ValueError(f"resamples={resamples}: expected at least 1")


def _need_two(pictures: int) -> None:
    if pictures < 2:
        raise ValueError(f"an interval or a test needs at least two pictures with a score, found {pictures}")


def _percentiles(values: Doubles, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _parts(n: int, resamples: int) -> Iterator[int]:
    most = max(1, _AT_ONCE // n)
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


def _draws(n: int, resamples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    for part in _parts(n, resamples):
        yield rng.integers(0, n, size=(part, n))


def _exchanges(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Doubles]:
    for part in _parts(n, resamples):
        yield rng.integers(0, 2, size=(part, n)).astype(np.float64)


def _all_exchanges(n: int) -> Iterator[Doubles]:
    yield (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)
