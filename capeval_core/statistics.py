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
    """

    means: tuple[float, float]
    difference: float
    interval: Interval
    p_value: float
    images: int
    left_out: int
    visual: str = "image"
    by_image: Comparison | None = None

    @property
    def test(self) -> str:
        return TEST.format(self.visual)

    @property
    def verdict(self) -> str:
        """The outcome of interval and p-value, in words."""
        level = f"{100 * self.interval.level:.12g}%"
        if self.interval.low > 0 or self.interval.high < 0:
            than = "higher" if self.difference > 0 else "lower"
            return f"the first system scores {than}: 0 lies outside the {level} interval"
        return f"no difference shown: 0 lies within the {level} interval"

    def in_words(self, shown: Callable[[float], str] = signed) -> str:
        """Difference, interval and p-value; `shown`: a difference for readers."""
        difference, low, high = map(shown, (self.difference, self.interval.low, self.interval.high))
        p_value = p_in_words(self.p_value, self.interval.level)
        return f"difference {difference}, interval {low} to {high}, {p_value}"

    def unevenness(self, shown: Callable[[float], str] = signed) -> str:
        """What `by_image` says, and why; "" without it."""
        if self.by_image is None:
            return ""
        found = (
            f"one system has more captions of some {self.visual}s, which weighs them differently in its mean"
        )
        return f"{found}; with each {self.visual} counted once: {self.by_image.in_words(shown)}"

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
        self.means, self.images, self.left_out = means, images, left_out


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of tests, adjusted by Holm (Scandinavian Journal of Statistics 6, 1979), in order.

    The chance of one or more false differences among those below a level is at most the level, whatever the
    tests have in common.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
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

    def lack(self, sums: Doubles) -> str | None:
        """What a set with these (k,) sums lacks to have more than 0, if it lacks something."""
        return next((why for name, why in self.needs.items() if not sums[self.sums.index(name)] > 0), None)

    def values(self, summands: Doubles) -> dict[str, float]:
        """The values of a set; `summands` (n, k) are what each caption adds, NaN where it has no score."""
        if not len(summands) or not (scored := np.isfinite(summands).all(axis=-1)).any():
            return dict.fromkeys(self.names, math.nan)
        return dict(zip(self.names, self.function(summands[scored].sum(axis=0)).tolist(), strict=True))

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
        every: Doubles = np.asarray(scores, dtype=np.float64)
        finite = np.isfinite(every)
        values, columns = every[finite], (every if summands is None else summands)[finite]
        names, members = np.unique(np.asarray(groups, dtype=object)[finite], return_inverse=True)
        sums: Doubles = np.zeros((len(names), *columns.shape[1:]))
        np.add.at(sums, members, columns)
        counts = np.bincount(members, minlength=len(names)).astype(np.float64)
        low = range[0] if (values >= range[0]).all() else -math.inf
        high = range[1] if (values <= range[1]).all() else math.inf
        return Clusters(names, sums, counts, formula, visual, (low, high))

    def take(self, images: NDArray[np.int64]) -> Clusters:
        return replace(self, **{name: getattr(self, name)[images] for name in ("names", "sums", "counts")})

    def evenly(self) -> Clusters:
        """The same images, each with one caption that stands for all of its own."""
        sums = (self.sums.T / self.counts).T
        return replace(self, sums=sums, counts=np.ones_like(self.counts))

    @property
    def value(self) -> float:
        """The number of all captions together."""
        total = self.sums.sum(axis=0)
        return float(self.formula(total) if self.formula else total / self.counts.sum())

    @property
    def lack(self) -> str | None:
        """Why the error of the number is unknown; None where it is not."""
        return None if self.formula is None else self.formula.lack(self.sums.sum(axis=0))


def mean_interval(clusters: Clusters, *, level: float) -> Interval:
    """Interval of the mean score, or of a corpus formula, over images like these with all their captions."""
    check_level(level)
    n, visuals = len(clusters.names), f"{clusters.visual}s"
    if n < LEAST_IMAGES:
        needs = f"needs at least {LEAST_IMAGES} {visuals} with a score, found {n}"
        raise ValueError(f"an interval {needs}: score more {visuals}")
    if clusters.formula and (lack := clusters.lack):
        raise ValueError(f"{clusters.formula.names[0]} has no interval: {lack}")
    statistic = _Studentised(clusters)
    if not statistic.error:
        found = f"the {n:,} {visuals} have the same score, which says nothing of the error of their mean"
        raise ValueError(f"an interval needs {visuals} that differ: {found}")
    low, high = np.clip(statistic.bounds(clusters.value, level), *clusters.range).tolist()
    return Interval(low, high, level, n)


def paired_comparison(first: Clusters, second: Clusters, *, level: float) -> Comparison:
    """Interval and test of a difference of numbers, over images that both systems have a score on."""
    check_level(level)
    _, a, b = np.intersect1d(first.names, second.names, assume_unique=True, return_indices=True)
    n, visual, sizes = len(a), first.visual, (len(first.names), len(second.names))
    if not n and all(sizes):
        found = f"no {visual} in common ({sizes[0]} and {sizes[1]})"
        fix = f"score both systems on the same {visual}s, given in the same form (files, or decoded)"
        raise ValueError(f"the results have {found}: {fix}")
    one, other, left_out = first.take(a), second.take(b), sum(sizes) - 2 * n
    means, lacks = (one.value, other.value) if n else (math.nan, math.nan), ""
    if n < LEAST_IMAGES:
        found = f"at least {LEAST_IMAGES} {visual}s that both systems have a score on, found {n}"
        lacks = f"a comparison needs {found}: score both systems on more {visual}s"
    elif one.formula and (lack := one.lack or other.lack):
        whose = "both" if one.lack and other.lack else "one of the"
        lacks = f"{one.formula.names[0]} has no test: in {whose} systems {lack}"
    if lacks:
        raise NoTestError(lacks, means, n, left_out)
    difference = means[0] - means[1]
    statistic = _Studentised(one, other)
    p_value = statistic.p_value(difference)
    most = max(first.range[1], second.range[1]) - min(first.range[0], second.range[0])
    low, high = np.clip(statistic.bounds(difference, level), -most, most).tolist()
    # Both decide by the same inequality; where it holds to the last digit, rounding must not part them.
    if p_value >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    elif low <= 0 <= high:
        low, high = (math.nextafter(0, 1), high) if difference > 0 else (low, math.nextafter(0, -1))
    interval, by_image = Interval(low, high, level, n), None
    if not np.array_equal(one.counts * other.counts.sum(), other.counts * one.counts.sum()):
        by_image = paired_comparison(one.evenly(), other.evenly(), level=level)
    return Comparison(means, difference, interval, p_value, n, left_out, visual, by_image)


class _Studentised:
    """Distribution of a mean, or of the first system's minus the second one's, by its standard error."""

    def __init__(self, *systems: Clusters) -> None:
        moves = _of_formula if systems[0].formula else _of_means  # results of one signature have one formula
        scale, without, influence, bends = moves(systems)
        n, deviation = len(influence), math.sqrt(np.mean(influence**2))
        error = math.sqrt((n - 1) / n * np.sum(without**2))
        self.error = scale * error if min(error, deviation) > _EQUAL else 0.0  # the images do not differ
        self.rounding = _EQUAL * scale  # what counts as 0 then
        share = np.add.reduce([system.counts / system.counts.sum() for system in systems]) / len(systems)
        self.degrees = max(1 / float(np.sum(share**2)) - 1, 1.0)  # Kish's effective number of images less one
        self.stretch, self.bend, self.shift = 1.0, 0.0, 0.0  # factor of Student's quantiles, a and b of g(t)
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
        return estimate - self.error * self._inverse(limit), estimate - self.error * self._inverse(-limit)

    def p_value(self, estimate: float) -> float:
        """Of a truth of 0; never 0, as an error is known to rounding at best."""
        if not self.error and abs(estimate) <= self.rounding:
            return 1.0
        from scipy.special import stdtr

        t = estimate / (self.error or max(self.rounding, LEAST_P))
        corrected = t * (1 + self.bend * t * (1 + self.bend * t / 3)) + self.shift
        return min(1.0, max(LEAST_P, 2 * float(stdtr(self.degrees, -abs(corrected) / self.stretch))))

    def _inverse(self, corrected: float) -> float:
        """The t whose g(t) this is: (cbrt(1 + 3 a y) - 1) / a, written so that a may be 0."""
        y = corrected - self.shift
        root = float(np.cbrt(1 + 3 * self.bend * y))
        return 3 * y / (root * root + root + 1)


_Bends = Callable[[Doubles], tuple[float, float]]  # of standardised influence values: k, and k with the bias


def _of_means(systems: Sequence[Clusters]) -> tuple[float, Doubles, Doubles, _Bends]:
    """How leaving an image out, and its influence, move means, in units of `scale`: squares stay in range."""
    n, shares = len(systems[0].counts), [system.counts / system.counts.sum() for system in systems]
    scale = max(float(np.abs(system.sums / system.counts).max()) for system in systems)
    influences = []
    for sign, system, share in zip((1.0, -1.0), systems, shares, strict=False):
        mean, own = (x / (scale or 1.0) / system.counts.sum() for x in (system.sums.sum(), system.sums))
        influences.append(sign * n * (own - share * mean))
    without = np.add.reduce([e / (1 - h) for e, h in zip(influences, shares, strict=True)]) / n
    bends: _Bends = lambda z: (float(np.mean(z * (n * shares[0] - 1))), 0.0)  # noqa: E731
    return scale, without, np.add.reduce(influences), bends


def _of_formula(systems: Sequence[Clusters]) -> tuple[float, Doubles, Doubles, _Bends]:
    """The same of a formula of sums; images that do not differ change it a little if one is left out."""
    n, formula = len(systems[0].counts), cast(CorpusFormula, systems[0].formula)
    without = influence = np.zeros(n)
    for sign, system in zip((1.0, -1.0), systems, strict=False):
        added = system.sums
        total = added.sum(axis=0)
        own = added - total / n
        without = without + sign * (formula(total) - formula(total - added))
        influence = influence + sign * n * (formula(total + own) - formula(total - own)) / 2

    def bends(z: Doubles) -> tuple[float, float]:
        deviation = math.sqrt(np.mean(influence**2))
        bias = float(np.mean(formula(total + own) + formula(total - own) - 2 * formula(total))) * n * n / 2
        # How the formula bends where the sums move by one standard error, or as far as none gets negative.
        direction = np.mean(z[:, None] * own, axis=0)
        room = np.divide(total, np.abs(direction), out=np.full_like(total, np.inf), where=direction != 0)
        step = min(math.sqrt(n), float(room.min()) / 2)
        ends = formula(total + step * direction) + formula(total - step * direction)
        growth = -float(ends - 2 * formula(total)) * (n / step) ** 2 / deviation / 2 if step else 0.0
        return growth, growth + bias / deviation

    return 1.0, without, influence, bends


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: expected a number between 0 and 1, e.g. 0.95")
