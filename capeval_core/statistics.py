"""Intervals of a set's number and a paired test, clustered by image, for as few as five images.

Captions of one image are not independent, so the unit is the image with all its captions. The mean over
captions is then a ratio of two sums over images, and so is each mean of a difference:

    t = (estimate - truth) / error        error: the jackknife over images
    degrees of freedom: n* - 1            n*: Kish's effective number of images, 1 / (sum of squared shares)

A comparison takes interval and p-value from this t, so they cannot contradict each other; the difference of
exchangeable systems is symmetric. The interval of a mean has to bear skewed scores too:

    g(t) = t + a t^2 + a^2 t^3 / 3 + b    monotone, removes the skewness of t
    |g(t)| <= (1 + 1 / 4n) q              q: quantile of Student's t

g is Hall's transformation (JRSS B 54, 1992, "On the removal of skewness by transformation"), after Johnson's
modified t (JASA 73, 1978). With s for the skewness of the images' influence values, by Fisher's formula for
few values, and k for how they grow with an image's number of captions, which bends the ratio, an Edgeworth
expansion to the order of 1 / sqrt(n) gives a = (s / 3 - k) / sqrt(n) and b = s / 6 / sqrt(n). The factor
1 + 1 / 4n pays for s being an estimate: it is our own, chosen by simulation.

Images that all have the same score say nothing of the error of their mean, which then has no interval. If one
system has more captions of some images than another, their means over captions weigh images differently:
the comparison then also holds the one with each image counted once.

A corpus metric's number is not a mean but a formula of sums over captions, such as BLEU (`CorpusFormula`).
What each image adds to the sums is then left out, added and taken away in turn, and the formula computed
again: the same t, with the error of the delete-one jackknife. Its influence values are central differences, k
and the bias in b second differences of the formula (DiCiccio and Efron, Statistical Science 11, 1996, section
4, "ABC"), which for a ratio of two sums give the closed form above. Where a sum is 0 that the formula needs
to be more than 0, as where no caption has an n-gram of its references, there is neither interval nor test.

Intervals lie within the range of the metric. A p-value is never 0: `LEAST_P` stands for what is less.
`benchmarks/results/coverage.md` says how often the truth is covered. Nothing is drawn at random.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import p_in_words, signed

Doubles = NDArray[np.float64]
LEAST_IMAGES = 5
TEST = "paired t-test, clustered by {}"  # an image or a video
LEAST_P = sys.float_info.min  # that is given, about 2e-308: below, float64 loses digits and ends at 0
UNBOUNDED = (-math.inf, math.inf)
_EQUAL = 1e-13  # of the largest score: what rounding leaves where all values are equal


@dataclass(frozen=True)
class Interval:
    """A confidence interval: `low` and `high` at `level`, from the scores of `images` images."""

    low: float
    high: float
    level: float
    images: int


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two systems on the same images.

    means: of both, over the images that are compared. difference: the first minus the second, with interval.
    p_value: two-sided, of no difference: below 1 - level exactly where 0 lies outside the interval.
    images: (or videos, by `visual`) that both have a score on. left_out: those without one in one of them.
    by_image: the same with each image counted once, where means over captions weigh images differently, as
        one system has more captions of some; else None.
    higher_is_better: whether a higher score is a better one, for the verdict.
    """

    means: tuple[float, float]
    difference: float
    interval: Interval
    p_value: float
    images: int
    left_out: int
    visual: str = "image"
    by_image: Comparison | None = None
    higher_is_better: bool = True

    @property
    def test(self) -> str:
        return TEST.format(self.visual)

    @property
    def verdict(self) -> str:
        """The outcome of interval and p-value, in words."""
        level = f"{100 * self.interval.level:.12g}%"
        if self.interval.low > 0 or self.interval.high < 0:
            than = "higher" if self.difference > 0 else "lower"
            if not self.higher_is_better:
                than += ", which is worse" if self.difference > 0 else ", which is better"
            return f"the first system scores {than}: 0 lies outside the {level} interval"
        return f"no difference shown: 0 lies within the {level} interval"

    def in_words(self, written: Callable[[float], str] = signed) -> str:
        """Difference, interval and p-value; `written`: a difference as readers see it."""
        difference = written(self.difference)
        low = written(self.interval.low)
        high = written(self.interval.high)
        p_value = p_in_words(self.p_value, self.interval.level)
        return f"difference {difference}, interval {low} to {high}, {p_value}"

    def unevenness(self, written: Callable[[float], str] = signed) -> str:
        """The reason for `by_image`, and its outcome; "" without it."""
        if self.by_image is None:
            return ""
        reason = (
            f"one system has more captions of some {self.visual}s, which weighs them differently in its mean"
        )
        return f"{reason}; with each {self.visual} counted once: {self.by_image.in_words(written)}"

    def __str__(self) -> str:
        extent = f"{self.test}, {self.images:,} {self.visual}s, {self.left_out:,} left out"
        note = f"; {self.unevenness()}" if self.by_image else ""
        return f"{self.verdict} ({self.in_words()}, {extent}){note}"

    def __repr__(self) -> str:
        return f"Comparison({self})"


class NoTestError(ValueError):
    """Two systems cannot be tested; the error holds their means over the images that both have scored."""

    def __init__(self, message: str, means: tuple[float, float], images: int, left_out: int) -> None:
        super().__init__(message)
        self.means = means
        self.images = images
        self.left_out = left_out


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of tests, adjusted by Holm (Scandinavian Journal of Statistics 6, 1979), in order.

    The chance of one or more false differences among those below a level is at most the level, whatever the
    tests have in common.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0  # so far: an adjusted value is never below that of a smaller p-value
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class CorpusFormula:
    """The number of a set as a formula of sums over its captions, such as BLEU; most numbers are means.

    names: of its values; the first is the number to report.
    sums: names of the k sums.
    function: (..., k) sums, float64, none negative -> (..., len(names)) values. Sums twice as large, of a set
        twice as large, give the same values.
    needs: sums without which the number is 0, whatever the others are, and what a set lacks then, in words.

    >>> length = CorpusFormula(("length",), ("words", "captions"), lambda sums: sums[..., :1] / sums[..., 1:])
    >>> length.values(np.array([[8.0, 1.0], [12.0, 1.0]]))
    {'length': 10.0}
    """

    names: tuple[str, ...]
    sums: tuple[str, ...]
    function: Callable[[Doubles], Doubles]
    needs: Mapping[str, str] = field(default_factory=dict)

    def zero_reason(self, sums: Doubles) -> str | None:
        """Why a set with these (k,) sums has the number 0, in words; None if it has not."""
        for name, reason in self.needs.items():
            if not sums[self.sums.index(name)] > 0:
                return reason
        return None

    def values(self, summands: Doubles) -> dict[str, float]:
        """The values of a set; `summands` (n, k) are what each caption adds, NaN where it has no score."""
        has_score = np.isfinite(summands).all(axis=-1) if len(summands) else np.zeros(0, dtype=bool)
        if not has_score.any():
            return dict.fromkeys(self.names, math.nan)
        values = self.function(summands[has_score].sum(axis=0))
        return dict(zip(self.names, values.tolist(), strict=True))

    def __call__(self, sums: Doubles) -> Doubles:
        """(...,) the number to report, of (..., k) sums."""
        return np.asarray(self.function(sums)[..., 0], dtype=np.float64)


@dataclass(frozen=True)
class Clusters:
    """Sums and counts of finite scores per image: all that re-aggregation needs."""

    names: NDArray[Any]  # (n,) of the images that have a score
    sums: Doubles  # (n,) of scores; or (n, k) of what a formula takes
    counts: Doubles  # (n,) captions with a score
    formula: CorpusFormula | None = None
    visual: str = "image"  # what messages call an image
    range: tuple[float, float] = UNBOUNDED  # which a mean cannot leave

    @staticmethod
    def of(
        scores: Sequence[float],
        groups: Sequence[str],
        formula: CorpusFormula | None = None,
        summands: Doubles | None = None,
        visual: str = "image",
        range: tuple[float, float] = UNBOUNDED,
    ) -> Clusters:
        """The images of captions; `range` is open on a side where options have moved a score beyond it."""
        scores_of_captions: Doubles = np.asarray(scores, dtype=np.float64)
        finite = np.isfinite(scores_of_captions)
        values = scores_of_captions[finite]
        columns = values if summands is None else summands[finite]
        names, members = np.unique(np.asarray(groups, dtype=object)[finite], return_inverse=True)
        sums: Doubles = np.zeros((len(names), *columns.shape[1:]))
        np.add.at(sums, members, columns)
        counts = np.bincount(members, minlength=len(names)).astype(np.float64)
        # `compat` and scales of one's own may leave the metric's range: clipping would cut off the truth.
        low = range[0] if (values >= range[0]).all() else -math.inf
        high = range[1] if (values <= range[1]).all() else math.inf
        return Clusters(names, sums, counts, formula, visual, (low, high))

    def take(self, images: NDArray[np.int64]) -> Clusters:
        names = self.names[images]
        return replace(self, names=names, sums=self.sums[images], counts=self.counts[images])

    def evenly(self) -> Clusters:
        """The same images, each with one caption: the mean of its captions."""
        sums = (self.sums.T / self.counts).T
        return replace(self, sums=sums, counts=np.ones_like(self.counts))

    @property
    def value(self) -> float:
        """The number of all captions together."""
        total = self.sums.sum(axis=0)
        return float(self.formula(total) if self.formula else total / self.counts.sum())

    @property
    def zero_reason(self) -> str | None:
        """Why the error of the number is unknown; None where it is not."""
        return None if self.formula is None else self.formula.zero_reason(self.sums.sum(axis=0))


def mean_interval(clusters: Clusters, *, level: float) -> Interval:
    """Interval of the mean score, or of a corpus formula, over images like these with all their captions."""
    check_level(level)
    n = len(clusters.names)
    visuals = f"{clusters.visual}s"
    if n < LEAST_IMAGES:
        needs = f"needs at least {LEAST_IMAGES} {visuals} with a score, found {n}"
        raise ValueError(f"an interval {needs}: score more {visuals}")
    if clusters.formula and clusters.zero_reason:
        raise ValueError(f"{clusters.formula.names[0]} has no interval: {clusters.zero_reason}")
    statistic = _Studentised(clusters)
    if not statistic.error:
        problem = f"the {n:,} {visuals} have the same score, which says nothing of the error of their mean"
        raise ValueError(f"an interval needs {visuals} that differ: {problem}")
    low, high = np.clip(statistic.bounds(clusters.value, level), *clusters.range).tolist()
    return Interval(low, high, level, n)


def paired_comparison(first: Clusters, second: Clusters, *, level: float) -> Comparison:
    """Interval and test of a difference of numbers, over images that both systems have a score on."""
    check_level(level)
    visual = first.visual
    _, in_first, in_second = np.intersect1d(
        first.names, second.names, assume_unique=True, return_indices=True
    )
    n = len(in_first)  # images that both have
    if not n and len(first.names) and len(second.names):
        problem = f"no {visual} in common ({len(first.names)} and {len(second.names)})"
        fix = f"score both systems on the same {visual}s, given in the same form (files, or decoded)"
        raise ValueError(f"the results have {problem}: {fix}")
    left_out = len(first.names) + len(second.names) - 2 * n
    most = max(first.range[1], second.range[1]) - min(first.range[0], second.range[0])
    first = first.take(in_first)
    second = second.take(in_second)
    means = (first.value, second.value) if n else (math.nan, math.nan)
    problem = _no_test_reason(first, second, n)
    if problem:
        raise NoTestError(problem, means, n, left_out)
    difference = means[0] - means[1]
    statistic = _Studentised(first, second)
    p_value = statistic.p_value(difference)
    low, high = np.clip(statistic.bounds(difference, level), -most, most).tolist()
    # Both decide by the same inequality; where it holds to the last digit, rounding must not part them.
    if p_value >= 1 - level:
        low = min(low, 0.0)
        high = max(high, 0.0)
    elif low <= 0 <= high:
        if difference > 0:
            low = math.nextafter(0, 1)
        else:
            high = math.nextafter(0, -1)
    interval = Interval(low, high, level, n)
    by_image = None
    if not np.array_equal(first.counts * second.counts.sum(), second.counts * first.counts.sum()):
        by_image = paired_comparison(first.evenly(), second.evenly(), level=level)
    return Comparison(means, difference, interval, p_value, n, left_out, visual, by_image)


def _no_test_reason(first: Clusters, second: Clusters, n: int) -> str:
    """Why two systems on the same n images have no test; "" if they have one."""
    visual = first.visual
    if n < LEAST_IMAGES:
        needs = f"needs at least {LEAST_IMAGES} {visual}s that both systems have a score on, found {n}"
        return f"a comparison {needs}: score both systems on more {visual}s"
    if first.formula is None:
        return ""
    untested = f"{first.formula.names[0]} has no test"
    if first.zero_reason and second.zero_reason:
        return f"{untested}: in both systems {first.zero_reason}"
    if first.zero_reason or second.zero_reason:
        return f"{untested}: in one of the systems {first.zero_reason or second.zero_reason}"
    return ""


class _Studentised:
    """Distribution of a mean, or of the first system's minus the second one's, by its standard error."""

    def __init__(self, *systems: Clusters) -> None:
        # Results of one signature have one formula.
        moves = _moves_of_formula if systems[0].formula else _moves_of_means
        scale, without, influence, bends = moves(systems)
        n = len(influence)
        deviation = math.sqrt(np.mean(influence**2))
        error = math.sqrt((n - 1) / n * np.sum(without**2))
        self.error = scale * error if min(error, deviation) > _EQUAL else 0.0  # 0: the images do not differ
        self.rounding = _EQUAL * scale  # a difference that counts as 0 then
        share = np.add.reduce([system.counts / system.counts.sum() for system in systems]) / len(systems)
        self.degrees = max(1 / float(np.sum(share**2)) - 1, 1.0)  # Kish's effective number of images less one
        self.stretch = 1.0  # factor of Student's quantiles
        self.bend = 0.0  # a of g(t)
        self.shift = 0.0  # b of g(t)
        if len(systems) == 1 and self.error:
            z = influence / deviation
            growth, bias = bends(z)
            skewness = float(np.mean(z**3)) * math.sqrt(n * (n - 1)) / (n - 2)
            self.bend = (skewness / 3 - growth) / math.sqrt(n)
            self.shift = (skewness / 6 - bias) / math.sqrt(n)
            self.stretch = 1 + 1 / (4 * n)

    def bounds(self, estimate: float, level: float) -> tuple[float, float]:
        """The truths that are not rejected at `level`."""
        if not self.error:
            return estimate, estimate
        from scipy.special import stdtrit

        limit = -float(stdtrit(self.degrees, (1 - level) / 2)) * self.stretch
        low = estimate - self.error * self._inverse(limit)
        high = estimate - self.error * self._inverse(-limit)
        return low, high

    def p_value(self, estimate: float) -> float:
        """The p-value of the truth 0; never 0 itself, since an error is known to rounding at best."""
        if not self.error and abs(estimate) <= self.rounding:
            return 1.0
        from scipy.special import stdtr

        t = estimate / (self.error or max(self.rounding, LEAST_P))
        corrected = t * (1 + self.bend * t * (1 + self.bend * t / 3)) + self.shift  # g(t)
        return min(1.0, max(LEAST_P, 2 * float(stdtr(self.degrees, -abs(corrected) / self.stretch))))

    def _inverse(self, corrected: float) -> float:
        """The t whose g(t) this is: (cbrt(1 + 3 a y) - 1) / a, written so that a may be 0."""
        y = corrected - self.shift
        root = float(np.cbrt(1 + 3 * self.bend * y))
        return 3 * y / (root * root + root + 1)


_Bends = Callable[[Doubles], tuple[float, float]]  # of standardised influence values: k, and k with the bias


def _moves_of_means(systems: Sequence[Clusters]) -> tuple[float, Doubles, Doubles, _Bends]:
    """The moves of means by leaving an image out, and by its influence, in units of `scale`.

    The unit keeps squares within the range of float64.
    """
    n = len(systems[0].counts)
    shares = [system.counts / system.counts.sum() for system in systems]
    # A score of 1e200 has no square in float64; divided by the largest mean of an image it has.
    scale = max(float(np.abs(system.sums / system.counts).max()) for system in systems)
    influences = []
    for sign, system, share in zip((1.0, -1.0), systems, shares, strict=False):
        unit = scale or 1.0
        mean = system.sums.sum() / unit / system.counts.sum()
        contributions = system.sums / unit / system.counts.sum()
        influences.append(sign * n * (contributions - share * mean))
    # Without image i a mean moves by influence_i / (1 - share_i) / n, exactly.
    moves = []
    for influence, share in zip(influences, shares, strict=True):
        moves.append(influence / (1 - share))
    without = np.add.reduce(moves) / n

    def bends(z: Doubles) -> tuple[float, float]:
        return float(np.mean(z * (n * shares[0] - 1))), 0.0

    return scale, without, np.add.reduce(influences), bends


def _moves_of_formula(systems: Sequence[Clusters]) -> tuple[float, Doubles, Doubles, _Bends]:
    """The same of a formula of sums; images that do not differ change it a little if one is left out."""
    n = len(systems[0].counts)
    formula = cast(CorpusFormula, systems[0].formula)
    without = np.zeros(n)
    influence = np.zeros(n)
    for sign, system in zip((1.0, -1.0), systems, strict=False):
        added = system.sums
        total = added.sum(axis=0)
        deviations = added - total / n  # of each image's sums from the mean image's
        without = without + sign * (formula(total) - formula(total - added))
        central = formula(total + deviations) - formula(total - deviations)
        influence = influence + sign * n * central / 2

    def bends(z: Doubles) -> tuple[float, float]:
        deviation = math.sqrt(np.mean(influence**2))
        second = formula(total + deviations) + formula(total - deviations) - 2 * formula(total)
        bias = float(np.mean(second)) * n * n / 2
        # How the formula bends where the sums move by one standard error, or as far as none gets negative.
        direction = np.mean(z[:, None] * deviations, axis=0)
        room = np.divide(total, np.abs(direction), out=np.full_like(total, np.inf), where=direction != 0)
        step = min(math.sqrt(n), float(room.min()) / 2)
        ends = formula(total + step * direction) + formula(total - step * direction)
        growth = -float(ends - 2 * formula(total)) * (n / step) ** 2 / deviation / 2 if step else 0.0
        return growth, growth + bias / deviation

    return 1.0, without, influence, bends


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: expected a number between 0 and 1, e.g. 0.95")
