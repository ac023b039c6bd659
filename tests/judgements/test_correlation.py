"""Coefficients, accuracies and intervals: what is undefined, ties, and second ways of computing."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kendalltau, pearsonr, spearmanr
from scipy.stats import t as student

from capeval_core.judgements.correlation import (
    average_precision,
    kendall_tau_b,
    kendall_tau_c,
    pearson,
    spearman,
    undefined,
)
from tests.judgements.conftest import Judge
from tests.judgements.data import write_lines
from tests.support.seams import resampled_correlations, resamples

COEFFICIENTS = (kendall_tau_b, kendall_tau_c, spearman, pearson)


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
@pytest.mark.parametrize(
    ("scores", "ratings"),
    [
        ([0.5, 0.5, 0.5], [1, 2, 3]),
        ([1, 2, 3], [0.5, 0.5, 0.5]),
        ([], []),
        ([1], [1]),
        ([1, math.nan, 2], [1, 2, 3]),
        ([1, 2, 3], [1, math.inf, math.nan]),
    ],
)
def test_what_does_not_exist_is_no_number(
    coefficient: Any, scores: list[float], ratings: list[float]
) -> None:
    found = coefficient(scores, ratings)
    assert math.isnan(found.value) and math.isnan(found.p_value)
    assert found.undefined == undefined(scores, ratings) != ""


def test_no_p_value_is_zero_and_no_size_overflows() -> None:
    ranks = np.arange(3000.0)
    assert all(coefficient(ranks, ranks + ranks % 2).p_value > 0 for coefficient in COEFFICIENTS)
    for values in ([1.0, 1.0, 0.0], [1.0, -1.0, 1.5]):
        largest = 1e308 * np.array(values)
        assert pearson(largest, [1, 2, 4]).value == pytest.approx(pearson(values, [1, 2, 4]).value)
        drawn = [resampled_correlations(side, [1, 2, 4], [2, 1, 1]) for side in (largest, values)]
        assert drawn[0]["pearson"] == pytest.approx(drawn[1]["pearson"])


def stepwise_precision(scores: Any, positive: Any, weights: Any) -> float:
    """Average precision by its definition: a threshold at each distinct score, the highest first."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        above = scores >= threshold
        if weights[above].sum():
            found = weights[above & positive].sum()
            reached = found / weights[positive].sum()
            total += (reached - recall) * found / weights[above].sum()
            recall = reached
    return total


def test_average_precision_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    for levels in (3, 1000):
        scores, positive = rng.integers(0, levels, 60) / levels, rng.random(60) < 0.3
        for weights in (np.ones(60), rng.integers(0, 3, 60)):
            expected = stepwise_precision(scores, positive, weights)
            assert average_precision(scores, positive, weights) == pytest.approx(expected, abs=1e-12)
    tied = [0.5, 0.5, 0.5, 0.1], [True, False, False, True]  # 1/2 at precision 1/3, 1/2 at 1/2
    assert average_precision(*tied) == pytest.approx(5 / 12, abs=1e-12)
    for missing in (([0.1, 0.2], [False, False]), ([], []), ([0.1, math.nan], [True, False])):
        assert math.isnan(average_precision(*missing))


# Resamples


@pytest.mark.parametrize(
    ("levels", "of_ratings", "rows"), [(50, 4, 80), (4, 50, 80), (3, 3, 80), (999, 999, 200)]
)
def test_weighted_rows_are_repeated_rows(levels: int, of_ratings: int, rows: int) -> None:
    rng = np.random.default_rng(levels + of_ratings)
    scores, ratings = rng.integers(0, levels, rows) / 7, rng.integers(0, of_ratings, rows).astype(float)
    for _ in range(20):
        weights = rng.integers(0, 4, rows)
        x, y = np.repeat(scores, weights), np.repeat(ratings, weights)
        expected = {
            "kendall_tau_b": kendalltau(x, y, variant="b").statistic,
            "kendall_tau_c": kendalltau(x, y, variant="c").statistic,
            "spearman": spearmanr(x, y).statistic,
            "pearson": pearsonr(x, y).statistic,
        }
        assert resampled_correlations(scores, ratings, weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weights", [[2, 0, 0], [0, 0, 0], [1, 1, 0], [0, 3, 1]])
def test_a_resample_without_two_values_has_no_coefficient(weights: list[int]) -> None:
    assert all(map(math.isnan, resampled_correlations([1.0, 1.0, 2.0], [1.0, 2.0, 2.0], weights).values()))


def test_images_are_drawn_with_all_their_rows() -> None:
    groups = ["a", "b", "a", "c", "c"]
    drawn = resamples(groups, draws=200, seed=3)
    values = np.array([1.0, 2.0, math.nan, 4.0, 5.0])
    for draw, mean in enumerate(drawn.means(values)):
        weights = drawn.weights(draw)
        assert weights[0] == weights[2] and weights[3] == weights[4]
        assert weights[0] + weights[1] + weights[3] == 3  # as many images as there are
        kept = np.isfinite(values) & (weights > 0)
        assert mean == pytest.approx(np.average(values[kept], weights=weights[kept]))
    assert len({tuple(drawn.weights(draw)) for draw in range(200)}) > 5
    again = resamples(groups, draws=200, seed=3)
    assert all((again.weights(draw) == drawn.weights(draw)).all() for draw in range(200))
    assert np.isnan(resamples([], draws=3).means([])).all()


def test_an_interval_leaves_out_as_much_on_both_sides() -> None:
    five = resamples(list("abcde"), draws=1000)
    values = np.random.default_rng(0).permutation(np.arange(1000.0))
    interval = five.interval(values, level=0.9)
    assert interval is not None and (interval.low, interval.high) == pytest.approx((49.95, 949.05))
    assert (interval.level, interval.images) == (0.9, 5)
    with pytest.raises(ValueError):
        five.interval(values, level=1)
    assert five.interval(np.where(np.arange(1000) < 30, np.nan, 0.5)) is None  # undefined in 3%
    four = resamples(list("abcd"), draws=1000)
    assert four.interval(values) is None  # of too few images


# Through `capeval judge`


def own(folder: Path, ratings: Any, images: Any) -> Path:
    """A set of one's own."""
    rows = [
        {"image": str(image), "candidate": f"caption {i}", "rating": float(rating)}
        for i, (image, rating) in enumerate(zip(images, ratings, strict=True))
    ]
    write_lines(folder / "judgements.jsonl", rows)
    return folder


def agreement(scores: Any, ratings: Any, groups: Any, epsilon: float) -> float:
    """acc_eq by its definition: concordant or tied by both, of all pairs of a group; mean over groups."""
    means = []
    for group in dict.fromkeys(groups):
        rows = [i for i, other in enumerate(groups) if other == group]
        right = []
        for i, j in itertools.combinations(rows, 2):
            order = 0 if abs(scores[i] - scores[j]) <= epsilon else np.sign(scores[i] - scores[j])
            right.append(order == np.sign(ratings[i] - ratings[j]))
        if right:
            means.append(np.mean(right))
    return float(np.mean(means))


def test_ties_are_calibrated_by_the_best_threshold_of_all(judge: Judge, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    ratings = [*rng.integers(0, 3, 40), 1]
    scores = [*(np.array(ratings[:40]) + rng.normal(size=40)).round(2), 0.0]
    images = [*rng.integers(0, 8, 40), 99]  # one alone
    folder = own(tmp_path / "set", ratings, images)
    found = judge("own", folder, {"M": scores, "tied": np.eye(41)[40]}, "--statistics", "acc_eq")
    pairs = list(itertools.combinations(range(41), 2))
    gaps = {0.0, *(abs(scores[i] - scores[j]) for i, j in pairs if images[i] == images[j])}
    best = max(agreement(scores, ratings, images, epsilon) for epsilon in gaps)
    assert found.values()["acc_eq"] == pytest.approx(100 * best, abs=1e-5)
    assert best > agreement(scores, ratings, images, 0.0)
    tied = agreement(np.eye(41)[40], ratings, images, 0.0)
    assert found.values("tied")["acc_eq"] == pytest.approx(100 * tied, abs=1e-5)


def contests(found: Any) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of the table of differences, by both metrics."""
    with (found.out / "own-differences.csv").open(newline="") as file:
        return {(row["first"], row["second"]): row for row in csv.DictReader(file)}


def test_williams_is_the_test_of_the_literature(judge: Judge, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ratings, n = rng.normal(size=8), 8
    first, second = ratings + rng.normal(size=8), ratings + 2 * rng.normal(size=8)
    scores = {"A": first, "B": second, "C": first}
    found = judge(
        "own", own(tmp_path / "set", ratings, range(8)), scores, "--statistics", "pearson", draws=40
    )
    r12, r13, r23 = (
        pearsonr(*sides).statistic for sides in ((first, ratings), (second, ratings), (first, second))
    )
    k = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    spread = 2 * k * (n - 1) / (n - 3) + (r12 + r13) ** 2 / 4 * (1 - r23) ** 3
    t = abs(r12 - r13) * math.sqrt((n - 1) * (1 + r23) / spread)
    expected = 2 * quad(lambda x: student.pdf(x, n - 3), t, math.inf)[0]
    row = contests(found)["A", "B"]
    assert 0.01 < expected < 0.9 and float(row["p, Williams"]) == pytest.approx(expected, abs=6e-4)
    assert float(row["difference"]) == pytest.approx(100 * (r12 - r13), abs=0.06)
    drawn = resamples([str(image) for image in range(8)], draws=40)
    moved = []
    for side, value in ((first, r12), (second, r13)):
        of_draws = [resampled_correlations(side, ratings, drawn.weights(i))["pearson"] for i in range(40)]
        moved.append(np.clip(np.array(of_draws) - (np.mean(of_draws) - value), -1, 1))
    differences = moved[0] - moved[1]
    below = np.count_nonzero(differences < 0)
    assert min(below, 40 - below) > 2
    low, high = (float(bound) for bound in row["interval"].split(" to "))
    expected_bounds = 100 * np.quantile(differences, [0.025, 0.975])
    assert [low, high] == pytest.approx(expected_bounds.tolist(), abs=0.06)
    assert float(row["p, bootstrap"]) == pytest.approx(2 * (min(below, 40 - below) + 1) / 41, abs=6e-4)


def test_metrics_of_equal_scores_do_not_differ(judge: Judge, tmp_path: Path) -> None:
    """A resample without a difference is neither below 0 nor above."""
    ratings = [1, 2, 3, 4, 5, 6, 7]
    scores = {"A": [1, 3, 2, 5, 4, 7, 6], "B": [1, 3, 2, 5, 4, 7, 6], "C": [7, 6, 5, 4, 3, 2, 1]}
    folder = own(tmp_path / "set", ratings, range(7))
    rows = contests(judge("own", folder, scores, "--statistics", "pearson", draws=20))
    assert list(rows) == [("A", "B"), ("A", "C"), ("B", "C")]
    assert (rows["A", "B"]["p, bootstrap"], rows["A", "B"]["p, Williams"]) == ("1.000", "1.000")
    assert float(rows["A", "B"]["difference"]) == 0
    assert rows["A", "C"]["p, bootstrap"] == rows["B", "C"]["p, bootstrap"] == f"{2 / 21:.3f}"


def test_intervals_of_few_images_are_about_the_value(judge: Judge, tmp_path: Path) -> None:
    """An image that is drawn twice makes pairs of its rows with themselves, which moves every draw alike."""
    ratings = np.tile([1.0, 5.0], 6)
    scores = ratings + np.repeat(5 * np.random.default_rng(7).normal(size=6), 2)
    images = np.repeat(np.arange(6), 2)
    cell = judge("own", own(tmp_path / "set", ratings, images), {"M": scores}, draws=300).cells["M", "tau_b"]
    value = kendalltau(scores, ratings).statistic
    drawn = resamples([str(image) for image in images], draws=300)
    draws = [
        resampled_correlations(scores, ratings, drawn.weights(draw))["kendall_tau_b"] for draw in range(300)
    ]
    moved = np.clip(np.array(draws) - (np.mean(draws) - value), -1, 1)
    assert np.mean(draws) > value + 0.03
    expected = 100 * np.quantile(moved, [0.025, 0.975])
    assert [float(cell["low"]), float(cell["high"])] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_cell_without_an_interval_says_why(judge: Judge, tmp_path: Path) -> None:
    folder = own(tmp_path / "set", [1, 1, 1, 1, 1, 2], "abcdef")
    found = judge("own", folder, {"M": np.arange(6.0)}, draws=200)
    cell = found.cells["M", "tau_b"]
    assert cell["value"] and not cell["low"] and "resamples" in found.text.split("M: no interval of tau_b")[1]
