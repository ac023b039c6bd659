"""Intervals and paired tests against scipy, brute force and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capeval_core.statistics import Clusters, Comparison, Interval, bootstrap_interval, paired_comparison

NAN = float("nan")


def interval(
    scores: list[float], groups: list[str], level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    return bootstrap_interval(Clusters.of(scores, groups), level=level, resamples=resamples, seed=seed)


def compared(
    first: tuple[list[float], list[str]],
    second: tuple[list[float], list[str]],
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    return paired_comparison(
        Clusters.of(*first), Clusters.of(*second), level=level, resamples=resamples, seed=seed
    )


def names(n: int) -> list[str]:
    return [f"picture {i}" for i in range(n)]


def test_agrees_with_scipys_bootstrap() -> None:
    scores = list(np.random.default_rng(1).gamma(2, 0.2, 60))
    found = interval(scores, names(60), level=0.9, resamples=20_000)
    theirs = stats.bootstrap(
        (scores,), np.mean, confidence_level=0.9, n_resamples=20_000, method="percentile", rng=5
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx(
        (theirs.low, theirs.high), abs=0.05 * (theirs.high - theirs.low)
    )
    assert (found.level, found.pictures) == (0.9, 60)


def test_is_the_normal_interval_of_many_pictures() -> None:
    # Pictures with one to four captions each: the variance of a ratio of sums, by linearisation.
    rng = np.random.default_rng(2)
    n = 4000
    counts = rng.integers(1, 5, n)
    of_picture = np.repeat(np.arange(n), counts)
    scores = rng.normal(0.7, 0.1, n)[of_picture] + rng.normal(0, 0.1, len(of_picture))
    sums = np.bincount(of_picture, scores)
    mean = scores.mean()
    error = np.sqrt(((sums - mean * counts) ** 2).sum()) / counts.sum()
    found = interval(list(scores), [str(i) for i in of_picture], resamples=4000)
    half = stats.norm.ppf(0.975) * error
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=0.1 * half)
    # Captions of one picture are alike, so an interval of single captions would be too narrow.
    naive = interval(list(scores), names(len(scores)))
    assert naive.high - naive.low < 0.8 * (found.high - found.low)


@pytest.mark.parametrize(("level", "low", "high"), [(0.95, 0.90, 0.98), (0.8, 0.72, 0.87)])
def test_covers_the_truth_as_often_as_it_says(level: float, low: float, high: float) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(300):
        of_picture = np.repeat(np.arange(40), rng.integers(1, 4, 40))
        scores = rng.normal(0.5, 0.1, 40)[of_picture] + rng.normal(0, 0.05, len(of_picture))
        found = interval(list(scores), [str(i) for i in of_picture], level=level, resamples=400, seed=trial)
        hits += found.low <= 0.5 <= found.high
    assert low <= hits / 300 <= high


def test_a_true_null_is_rejected_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    p_values = []
    for trial in range(300):
        shared = rng.normal(0.5, 0.1, 20)
        first, second = (list(shared + rng.normal(0, 0.1, 20)) for _ in range(2))
        p_values.append(compared((first, names(20)), (second, names(20)), resamples=200, seed=trial).p_value)
    assert 0.02 <= np.mean(np.array(p_values) <= 0.05) <= 0.09
    assert 0.4 <= np.mean(p_values) <= 0.6


def test_the_order_of_captions_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    scores, groups = rng.random(50), rng.integers(0, 12, 50).astype(str)
    order = rng.permutation(50)
    straight = interval(list(scores), list(groups))
    shuffled = interval(list(scores[order]), list(groups[order]))
    assert (shuffled.low, shuffled.high) == pytest.approx((straight.low, straight.high), abs=1e-12)
    other = list(rng.random(50))
    first = compared((list(scores), list(groups)), (other, list(groups)))
    again = compared(
        (list(scores[order]), list(groups[order])), (list(np.array(other)[order]), list(groups[order]))
    )
    assert again.p_value == first.p_value and again.difference == pytest.approx(first.difference)


def test_failed_captions_count_for_nothing() -> None:
    found = interval([0.1, NAN, 0.2, 0.3, NAN], ["a", "a", "b", "c", "d"])
    assert found == interval([0.1, 0.2, 0.3], ["a", "b", "c"])
    assert found.pictures == 3


def test_a_seed_gives_the_same_interval_and_level_widens_it() -> None:
    scores = list(np.random.default_rng(6).random(30))
    assert interval(scores, names(30)) == interval(scores, names(30))
    assert interval(scores, names(30), seed=1) != interval(scores, names(30))
    narrow, wide = interval(scores, names(30), level=0.5), interval(scores, names(30), level=0.99)
    assert wide.low < narrow.low < np.mean(scores) < narrow.high < wide.high


def test_equal_scores_have_an_interval_of_no_width() -> None:
    found = interval([0.25] * 6, names(6))
    assert (found.low, found.high) == (0.25, 0.25)


@given(
    scores=st.lists(st.floats(0, 2), min_size=2, max_size=30),
    level=st.floats(0.01, 0.99),
    captions=st.integers(1, 3),
)
@settings(max_examples=60)
def test_the_interval_lies_among_the_scores(scores: list[float], level: float, captions: int) -> None:
    groups = [str(i // captions) for i in range(len(scores))]
    if len(set(groups)) < 2:
        return
    found = interval(scores, groups, level=level, resamples=50)
    assert min(scores) - 1e-12 <= found.low <= found.high <= max(scores) + 1e-12


def test_large_input_is_drawn_in_parts() -> None:
    # More numbers than are drawn at a time: parts must not repeat each other.
    scores = list(np.random.default_rng(7).normal(0, 1, 50_000))
    found = interval(scores, names(50_000), resamples=170)
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(50_000), rel=0.25)


def test_agrees_with_scipys_exact_permutation_test() -> None:
    rng = np.random.default_rng(8)
    for n in (3, 6, 9):
        first, second = rng.random(n), rng.random(n) + 0.2
        found = compared((list(first), names(n)), (list(second), names(n)))
        theirs = stats.permutation_test(
            (first, second),
            lambda a, b, axis: np.mean(a - b, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=np.inf,
        )
        assert found.p_value == pytest.approx(theirs.pvalue)
        assert found.difference == pytest.approx(first.mean() - second.mean())


def test_samples_what_scipy_samples_where_there_are_too_many_exchanges() -> None:
    rng = np.random.default_rng(9)
    first, second = rng.random(40), rng.random(40) + 0.07
    found = compared((list(first), names(40)), (list(second), names(40)), resamples=20_000)
    theirs = stats.permutation_test(
        (first, second),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=1,
    )
    assert found.p_value == pytest.approx(theirs.pvalue, abs=0.015)


def test_the_exact_test_is_a_loop_over_all_exchanges() -> None:
    # Systems with different numbers of captions per picture: whole pictures change sides.
    rng = np.random.default_rng(10)
    first = [list(rng.random(k)) for k in (1, 3, 2, 2, 1)]
    second = [list(rng.random(k) + 0.1) for k in (2, 1, 2, 4, 1)]

    def difference(a: list[list[float]], b: list[list[float]]) -> float:
        return float(np.mean(np.concatenate(a)) - np.mean(np.concatenate(b)))

    observed = difference(first, second)
    extreme = 0
    for exchanged in itertools.product([False, True], repeat=5):
        a = [y if e else x for x, y, e in zip(first, second, exchanged, strict=True)]
        b = [x if e else y for x, y, e in zip(first, second, exchanged, strict=True)]
        extreme += abs(difference(a, b)) >= abs(observed) - 1e-12

    def flat(system: list[list[float]]) -> tuple[list[float], list[str]]:
        return [score for scores in system for score in scores], [
            str(i) for i, scores in enumerate(system) for _ in scores
        ]

    found = compared(flat(first), flat(second))
    assert found.p_value == extreme / 32
    assert found.difference == pytest.approx(observed)


def test_exchanging_the_systems_mirrors_the_comparison() -> None:
    rng = np.random.default_rng(11)
    for n in (6, 30):
        first, second = list(rng.random(n)), list(rng.random(n))
        there = compared((first, names(n)), (second, names(n)))
        back = compared((second, names(n)), (first, names(n)))
        assert back.p_value == there.p_value
        assert back.difference == pytest.approx(-there.difference)
        assert (back.interval.low, back.interval.high) == pytest.approx(
            (-there.interval.high, -there.interval.low)
        )


@pytest.mark.parametrize("n", [4, 30])
def test_a_system_does_not_differ_from_itself(n: int) -> None:
    scores = list(np.random.default_rng(12).random(n))
    found = compared((scores, names(n)), (scores, names(n)))
    assert (found.p_value, found.difference) == (1.0, 0.0)
    assert (found.interval.low, found.interval.high) == (0.0, 0.0)


def test_a_clear_difference_has_the_least_p_value() -> None:
    scores = np.linspace(0.2, 0.3, 30)
    found = compared((list(scores + 0.5), names(30)), (list(scores), names(30)), resamples=999)
    assert found.p_value == 1 / 1000
    assert found.interval.low == pytest.approx(0.5) == found.interval.high


def test_pictures_of_one_system_only_are_left_out_and_counted() -> None:
    first = ([0.5, 0.6, 0.7, 0.9, NAN], ["a", "b", "c", "only first", "failed here"])
    second = ([0.4, 0.3, 0.6, 0.1, 0.2], ["c", "a", "b", "only second", "failed here"])
    found = compared(first, second)
    assert (found.pictures, found.left_out) == (3, 3)
    assert found.difference == pytest.approx((0.5 + 0.6 + 0.7) / 3 - (0.3 + 0.6 + 0.4) / 3)
    assert found.interval.pictures == 3


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, 95, NAN])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=r"level=.*between 0 and 1"):
        interval([0.1, 0.2], ["a", "b"], level=level)
    with pytest.raises(ValueError, match="level="):
        compared(([0.1, 0.2], ["a", "b"]), ([0.1, 0.2], ["a", "b"]), level=level)


@pytest.mark.parametrize("resamples", [0, -5])
def test_resamples_that_are_none_are_refused(resamples: int) -> None:
    with pytest.raises(ValueError, match=r"resamples=.*at least 1"):
        interval([0.1, 0.2], ["a", "b"], resamples=resamples)


@pytest.mark.parametrize(
    ("scores", "groups", "found"),
    [([], [], 0), ([0.1, 0.2], ["a", "a"], 1), ([0.1, NAN], ["a", "b"], 1), ([NAN, NAN], ["a", "b"], 0)],
)
def test_fewer_than_two_pictures_are_refused(scores: list[float], groups: list[str], found: int) -> None:
    with pytest.raises(ValueError, match=f"at least two pictures with a score, found {found}"):
        interval(scores, groups)
    with pytest.raises(ValueError, match="at least two"):
        compared((scores, groups), ([0.1, 0.2], ["a", "b"]))
