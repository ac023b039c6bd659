"""Intervals and paired tests against scipy, a plain second computation and simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from capeval_core.statistics import (
    Clusters,
    Comparison,
    CorpusFormula,
    Interval,
    NoTestError,
    holm,
    mean_interval,
    paired_comparison,
)
from tests.support.simulation import coverage, exponential, normal, rejections

NAN = float("nan")
System = list[list[float]]  # the scores of each image


def interval(scores: list[float], groups: list[str], level: float = 0.95) -> Interval:
    return mean_interval(Clusters.of(scores, groups), level=level)


def compared(
    first: tuple[list[float], list[str]], second: tuple[list[float], list[str]], level: float = 0.95
) -> Comparison:
    return paired_comparison(Clusters.of(*first), Clusters.of(*second), level=level)


def names(n: int) -> list[str]:
    return [f"image {i}" for i in range(n)]


def flat(system: System) -> tuple[list[float], list[str]]:
    return [score for scores in system for score in scores], [
        f"image {i}" for i, scores in enumerate(system) for _ in scores
    ]


def ragged(rng: np.random.Generator, n: int) -> System:
    """One to four captions per image, skewed, and better where there are more of them."""
    sizes = rng.integers(1, 5, n)
    return [[float(x) for x in rng.gamma(1, 0.2, k) + rng.gamma(1, 0.2) + 0.05 * k] for k in sizes]


class Plain:
    """The statistic by its definition: leave-one-out errors, numerical derivatives, a search for the ends."""

    def __init__(self, *systems: System) -> None:
        self.systems = systems
        self.n = n = len(systems[0])
        self.estimate = self.mean([1.0] * n)
        without = [self.mean([float(i != left) for i in range(n)]) for left in range(n)]
        self.error = math.sqrt((n - 1) / n * sum((value - self.estimate) ** 2 for value in without))

        # The statistic as a function of each image's weight: its mean and third cumulant to first order.
        step, even = 1e-4, np.full(n, 1 / n)
        unit = step * np.eye(n)
        slope = np.array(
            [(self.studentised(even + u) - self.studentised(even - u)) / (2 * step) for u in unit]
        )
        bends = np.array(
            [
                [
                    sum(s * r * self.studentised(even + s * u + r * v) for s in (1, -1) for r in (1, -1))
                    / (4 * step**2)
                    for v in unit
                ]
                for u in unit
            ]
        )
        covariance = (np.eye(n) / n - 1 / n**2) / n
        mean = float(np.trace(bends @ covariance)) / 2
        pull = covariance @ slope
        third = float(np.mean((slope - slope.mean()) ** 3)) / n**2 + 3 * float(pull @ bends @ pull)
        # Skewness is underestimated in few values: Fisher's factor.
        values = np.array(self.influences(even))
        skewness = stats.skew(values, bias=False) - stats.skew(values)
        self.bend = -third / 6 + skewness / 3 / math.sqrt(n)
        self.shift = -mean + third / 6 + skewness / 6 / math.sqrt(n)

        captions = [[len(scores) for scores in system] for system in systems]
        shares = [sum(sizes[i] / sum(sizes) for sizes in captions) / len(captions) for i in range(n)]
        self.student = stats.t(1 / sum(share**2 for share in shares) - 1)
        self.stretch = 1 + 1 / (4 * n)
        if len(systems) > 1:  # a difference is not corrected
            self.bend, self.shift, self.stretch = 0.0, 0.0, 1.0

    def ratio(self, system: System, weights: Any) -> float:
        total = sum(weight * sum(scores) for weight, scores in zip(weights, system, strict=True))
        return float(
            total / sum(weight * len(scores) for weight, scores in zip(weights, system, strict=True))
        )

    def mean(self, weights: Any) -> float:
        first, *second = [self.ratio(system, weights) for system in self.systems]
        return first - sum(second)

    def influences(self, weights: NDArray[np.float64]) -> list[float]:
        result = np.zeros(self.n)
        for sign, system in zip((1, -1), self.systems, strict=False):
            sizes = np.array([len(scores) for scores in system])
            ratio = self.ratio(system, weights)
            residuals = np.array([sum(scores) for scores in system]) - ratio * sizes
            result += sign * residuals / (weights @ sizes / weights.sum())
        return list(result)

    def studentised(self, weights: NDArray[np.float64]) -> float:
        variance = weights @ np.array(self.influences(weights)) ** 2 / weights.sum()
        return float(math.sqrt(self.n) * (self.mean(weights) - self.estimate) / math.sqrt(variance))

    def corrected(self, truth: float) -> float:
        t = (self.estimate - truth) / self.error
        return t + self.bend * t**2 + self.bend**2 * t**3 / 3 + self.shift

    def ends(self, level: float) -> list[float]:
        limit = self.student.ppf((1 + level) / 2) * self.stretch
        return [
            brentq(lambda truth, at=at: self.corrected(truth) - at, -1e3, 1e3, xtol=1e-12)
            for at in (limit, -limit)
        ]

    @property
    def p_value(self) -> float:
        return float(2 * self.student.sf(abs(self.corrected(0)) / self.stretch))


@pytest.mark.parametrize(("n", "level"), [(5, 0.95), (8, 0.8), (13, 0.99), (30, 0.95)])
def test_agrees_with_a_plain_computation(n: int, level: float) -> None:
    rng = np.random.default_rng(n)
    first, second = ragged(rng, n), ragged(rng, n)
    result, plain = interval(*flat(first), level=level), Plain(first)
    assert [result.low, result.high] == pytest.approx(plain.ends(level), rel=1e-5)
    assert (result.level, result.images) == (level, n)

    both, plain = compared(flat(first), flat(second), level), Plain(first, second)
    assert [both.interval.low, both.interval.high] == pytest.approx(plain.ends(level), rel=1e-4, abs=1e-6)
    assert both.p_value == pytest.approx(plain.p_value, rel=1e-4)
    assert both.difference == pytest.approx(plain.estimate) == both.means[0] - both.means[1]


def test_is_students_interval_and_test_where_nothing_is_skewed() -> None:
    # The only difference from scipy's interval is the factor that pays for the estimate of the skewness.
    scores = [0.1, 0.2, 0.35, 0.65, 0.8, 0.9]
    result = interval(scores, names(6))
    theirs = stats.ttest_1samp(scores, 0).confidence_interval()
    half = (theirs.high - theirs.low) / 2 * (1 + 1 / 24)
    assert (result.low, result.high) == pytest.approx((0.5 - half, 0.5 + half))

    rng = np.random.default_rng(1)
    for n in (5, 6, 40):
        first, second = rng.random(n), rng.random(n) ** 3
        theirs = stats.ttest_rel(first, second)
        tested = compared((list(first), names(n)), (list(second), names(n)), 0.9)
        assert tested.p_value == pytest.approx(theirs.pvalue)
        extent = theirs.confidence_interval(0.9)
        assert (tested.interval.low, tested.interval.high) == pytest.approx((extent.low, extent.high))


@pytest.mark.parametrize("captions", ["1", "5", "1 to 5"])
@pytest.mark.parametrize("images", [5, 20])
def test_covers_the_truth_as_often_as_it_says(captions: str, images: int) -> None:
    # A sample of benchmarks/results/coverage.md: with five images the percentile bootstrap covers 80 to 84%.
    even = coverage(normal(captions, 0.1, images), trials=1500, seed=3, beside="percentile")
    assert 93.3 <= even["ours"] <= 96.7 and even["percentile"] < even["ours"] - 1
    skewed = coverage(exponential(captions, 0.0, images), trials=1500, seed=4, beside="student")
    assert skewed["ours"] >= (92.8 if images == 20 else 91)
    assert skewed["student"] < skewed["ours"] - 1


@pytest.mark.parametrize("captions", ["1", "1 to 5"])
def test_a_true_null_is_rejected_as_often_as_it_says(captions: str) -> None:
    for pair in ((normal, normal), (exponential, exponential), (normal, exponential)):
        first, second = (shape(captions, 0.1, 10) for shape in pair)
        rejected, contradictions = rejections(first, second, trials=1000, seed=5)
        assert 3 <= rejected <= 7.5 and contradictions == 0


def test_equal_scores_have_no_interval() -> None:
    """They show no error, where five of six images of a metric that is right or wrong are right."""
    for score in (0.25, 0.1, 0.0, -3e7):
        with pytest.raises(ValueError, match="the 5 images have the same score"):
            interval([score] * 7, ["a", "b", "c", "d", "e", "e", "e"])


@pytest.mark.parametrize("n", [5, 30])
def test_a_system_does_not_differ_from_itself(n: int) -> None:
    system = ragged(np.random.default_rng(12), n)
    result = compared(flat(system), flat(system))
    assert (result.p_value, result.difference) == (1.0, 0.0)
    assert (result.interval.low, result.interval.high) == (0.0, 0.0)
    assert result.verdict == "no difference shown: 0 lies within the 95% interval"
    # The captions of an image in another order leave rounding at most.
    again = compared(flat(system), flat([scores[::-1] for scores in system]))
    assert again.p_value == 1.0 and again.interval.low <= 0 <= again.interval.high


def test_an_equal_difference_everywhere_is_certain() -> None:
    scores = np.linspace(0.2, 0.3, 30)
    result = compared((list(scores + 0.5), names(30)), (list(scores), names(30)))
    assert 0 < result.p_value < 1e-300
    assert result.interval.low == pytest.approx(0.5) == result.interval.high
    assert "p < 0.001" in str(result)


@pytest.mark.parametrize("images", [5, 40, 4000])
def test_no_p_value_is_zero(images: int) -> None:
    """Neither of an equal difference everywhere nor of a large one, of which t is beyond float64."""
    rng = np.random.default_rng(images)
    scores = rng.random(images)
    for noise in (0.0, 1e-9, 1e-3):
        other = scores + 1 + noise * rng.random(images)
        test = compared((list(other), names(images)), (list(scores), names(images)))
        assert 0 < test.p_value < 1e-6 and test.interval.low > 0.99
        assert all(p > 0 for p in holm([test.p_value, 0.5]))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_interval_of_a_difference_lies_within_the_width_of_the_range(sign: int) -> None:
    high, low = np.array([2.0, 2.0, 2.0, 2.0, 1.9]), np.array([0.0, 0.1, 0.0, 0.0, 0.0])
    first, second = (high, low) if sign > 0 else (-low, -high)
    bounded, open_ = (
        paired_comparison(
            Clusters.of(first, names(5), range=(min(0, sign * most), max(0, sign * most))),
            Clusters.of(second, names(5), range=(min(0, sign * most), max(0, sign * most))),
            level=0.95,
        )
        for most in (2.0, 1.5)  # the second does not hold: options moved scores beyond it
    )
    assert open_.interval.high > 2 == bounded.interval.high
    assert bounded.interval.low == open_.interval.low and bounded.p_value == open_.p_value


def test_a_difference_of_rounding_everywhere_is_none() -> None:
    result = compared(([0.1 + 0.2] * 6, names(6)), ([0.3] * 6, names(6)))
    assert result.difference != 0 and result.p_value == 1.0
    assert result.interval.low <= 0 <= result.interval.high


def test_there_is_at_least_one_degree_of_freedom() -> None:
    """Where one image has nearly all captions, quantiles of a fraction of one would be beyond all bounds."""
    system = [[0.1, 0.9] * 2000, *([0.2 + 0.1 * i] for i in range(5))]
    other = [[score - 0.05 - 0.02 * i for score in scores] for i, scores in enumerate(system)]
    wide, narrow = (compared(flat(system), flat(other), level).interval for level in (0.95, 0.5))
    ratio = (wide.high - wide.low) / (narrow.high - narrow.low)
    assert ratio == pytest.approx(stats.t(1).ppf(0.975) / stats.t(1).ppf(0.75), rel=1e-6)


def contradicts(result: Comparison) -> bool:
    outside = result.interval.low > 0 or result.interval.high < 0
    return outside != (result.p_value < 1 - result.interval.level)


differences = st.one_of(
    st.sampled_from([0.0, 0.1, -0.1, 1.0, 1e-17]), st.floats(-2, 2), st.floats(-1e-3, 1e-3)
)


@given(
    first=st.lists(st.lists(differences, min_size=1, max_size=3), min_size=5, max_size=12),
    shift=differences,
    level=st.floats(0.01, 0.999),
)
@example(first=[[0.0]] * 5, shift=5e-324, level=0.95)
@example(first=[[0.0]] * 4 + [[1.0]], shift=0.0, level=0.95)
@settings(max_examples=300, deadline=None)
def test_interval_and_p_value_never_contradict_each_other(first: System, shift: float, level: float) -> None:
    second = [[score + shift for score in scores[:2]] for scores in first]
    result = compared(flat(first), flat(second), level)
    assert 0 <= result.p_value <= 1
    assert result.interval.low <= result.interval.high
    assert not contradicts(result)
    assert ("no difference" in result.verdict) == (result.p_value >= 1 - level)
    # At the very level that the p-value stands for, and next to it, rounding decides nothing.
    for edge in (
        1 - result.p_value,
        math.nextafter(1 - result.p_value, 0),
        math.nextafter(1 - result.p_value, 1),
    ):
        if 0 < edge < 1:
            assert not contradicts(compared(flat(first), flat(second), edge))


def test_images_of_one_system_only_are_left_out_and_counted() -> None:
    first = ([0.5, 0.6, 0.7, 0.8, 0.3, 0.9, NAN], [*"abcde", "only first", "failed here"])
    second = ([0.4, 0.3, 0.6, 0.2, 0.7, 0.1, 0.2], [*"cabed", "only second", "failed here"])
    result = compared(first, second)
    assert (result.images, result.left_out) == (5, 3)
    assert result.difference == pytest.approx(
        (0.5 + 0.6 + 0.7 + 0.8 + 0.3) / 5 - (0.4 + 0.3 + 0.6 + 0.2 + 0.7) / 5
    )
    assert result.interval.images == 5
    assert "5 images, 3 left out" in str(result)


@pytest.mark.parametrize(
    ("scores", "groups", "result"),
    [
        ([], [], 0),
        ([0.1, 0.2, 0.3, 0.4, 0.5], ["a"] * 5, 1),
        ([0.1, 0.2, 0.3, 0.4, NAN], [*"abcde"], 4),
        ([NAN] * 5, [*"abcde"], 0),
    ],
)
def test_fewer_than_five_images_are_refused(scores: list[float], groups: list[str], result: int) -> None:
    with pytest.raises(ValueError, match=f"an interval needs at least 5 images with a score, found {result}"):
        interval(scores, groups)
    with pytest.raises(ValueError, match=rf"comparison needs at least 5 images that both .* found {result}"):
        compared((scores, groups), ([0.1] * 5 if result else [], [*"abcde"] if result else []))


@given(st.lists(st.floats(allow_nan=False, min_value=-1e6, max_value=1e6), min_size=5, max_size=30))
@settings(max_examples=100, deadline=None)
def test_an_interval_of_any_scores_is_finite_and_holds_the_mean(scores: list[float]) -> None:
    try:
        result = interval(scores, names(len(scores)))
    except ValueError:
        assert np.ptp(scores) <= 1e-9 * max(map(abs, scores))  # equal but for rounding
        return
    assert math.isfinite(result.low) and math.isfinite(result.high)
    close = 1e-9 * max(map(abs, scores))
    assert result.low - close <= float(np.mean(scores)) <= result.high + close


@pytest.mark.parametrize("images", [5, 30, 400])
def test_a_formula_of_sums_gives_the_interval_of_a_mean_that_it_is(images: int) -> None:
    """A mean over captions is a ratio of two sums, whose error and bends the closed form has, too."""
    rng = np.random.default_rng(images)
    counts = rng.integers(1, 6, images)
    groups = [str(i) for i, count in enumerate(counts) for _ in range(count)]
    scores = rng.beta(2, 8, len(groups)) + np.repeat(rng.beta(1, 5, images), counts)
    other = scores + rng.normal(0.02, 0.1, len(groups))
    mean = CorpusFormula(("mean",), ("total", "captions"), lambda sums: sums[..., :1] / sums[..., 1:])

    def summed(values: Any) -> Clusters:
        return Clusters.of(values, groups, mean, np.stack([values, np.ones(len(values))], axis=-1))

    plain = mean_interval(Clusters.of(scores, groups), level=0.95)
    resampled = mean_interval(summed(scores), level=0.95)
    assert summed(scores).value == pytest.approx(np.mean(scores))
    width = plain.high - plain.low
    assert (resampled.low, resampled.high) == pytest.approx((plain.low, plain.high), abs=0.01 * width)
    expected = paired_comparison(Clusters.of(scores, groups), Clusters.of(other, groups), level=0.9)
    found = paired_comparison(summed(scores), summed(other), level=0.9)
    assert found.p_value == pytest.approx(expected.p_value, rel=1e-9)
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (expected.interval.low, expected.interval.high), rel=1e-9
    )


def closed_testing(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values by closed testing: each hypothesis by the worst Bonferroni test of its subsets."""
    indices = range(len(p_values))
    subsets = [s for n in range(1, len(p_values) + 1) for s in itertools.combinations(indices, n)]
    return [max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets if i in s) for i in indices]


def test_holm_s_correction_is_closed_testing_by_bonferroni() -> None:
    rng = np.random.default_rng(5)
    for n in range(1, 8):
        for _ in range(20):
            p_values = np.round(rng.uniform(0, 0.3, n), 2).tolist()  # with ties
            assert holm(p_values) == pytest.approx(closed_testing(p_values), abs=1e-15)
    assert holm([]) == [] and holm([0.03]) == [0.03] and holm([1.0, 1.0]) == [1.0, 1.0]


def test_a_comparison_of_few_images_has_their_means() -> None:
    a = Clusters.of([1.0, 3.0, 5.0], ["x", "y", "z"], visual="video")
    b = Clusters.of([2.0, 2.0, NAN], ["x", "y", "z"], visual="video")
    with pytest.raises(NoTestError, match="at least 5 videos that both systems have") as few:
        paired_comparison(a, b, level=0.95)
    assert (few.value.means, few.value.images, few.value.left_out) == ((2.0, 2.0), 2, 1)


def test_other_numbers_of_captions_are_said_with_the_test_by_image() -> None:
    """Captions of equal quality, of which one system writes more for easy images."""
    rng = np.random.default_rng(8)
    easy = np.linspace(0, 1, 30)
    first = [[float(x) for x in easy[i] + rng.normal(0, 0.02, 1 + 4 * (easy[i] > 0.5))] for i in range(30)]
    second = [[float(x) for x in easy[i] + rng.normal(0, 0.02, 1 + 4 * (easy[i] < 0.5))] for i in range(30)]
    result = compared(flat(first), flat(second))
    assert result.p_value < 0.05 and result.by_image is not None
    evenly = [[float(np.mean(scores))] for scores in first], [[float(np.mean(scores))] for scores in second]
    by_image = compared(flat(evenly[0]), flat(evenly[1]))
    assert by_image.by_image is None and by_image.p_value > 0.05
    assert result.by_image.p_value == pytest.approx(by_image.p_value)
    assert result.by_image.difference == pytest.approx(by_image.difference)
    assert result.by_image.in_words() in str(result)
    # Twice as many captions of each image weigh no image otherwise.
    assert compared(flat(first), flat([scores * 2 for scores in first])).by_image is None


def test_a_formula_has_its_test_by_image_too() -> None:
    counts = np.array([1, 3, 1, 3, 1, 3, 1, 2])
    mean = CorpusFormula(("mean",), ("total", "captions"), lambda sums: sums[..., :1] / sums[..., 1:])
    rng = np.random.default_rng(9)

    def summed(values: Any, repeats: Any) -> Clusters:
        scores = np.repeat(values, repeats)
        groups = [name for name, n in zip(names(8), repeats, strict=True) for _ in range(n)]
        return Clusters.of(scores, groups, mean, np.stack([scores, np.ones(len(scores))], axis=-1))

    first, second = rng.random(8), rng.random(8)
    result = paired_comparison(summed(first, counts), summed(second, counts[::-1]), level=0.95)
    assert result.by_image is not None
    assert result.by_image.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)
