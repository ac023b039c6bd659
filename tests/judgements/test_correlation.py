"""Coefficients and accuracies: what is undefined, ties, and second ways of computing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from capeval_core.judgements.correlation import (
    accuracy_by_category,
    annotator_mean,
    average_precision,
    kendall_tau_b,
    kendall_tau_c,
    majority,
    pairwise_accuracy,
    paragraph_means,
    pearson,
    spearman,
    undefined,
    won_pairs,
)
from capeval_core.judgements.differences import paired_bootstrap, williams
from capeval_core.judgements.resampling import Resamples, WeightedRows
from capeval_core.judgements.ties import tie_aware_accuracy, tie_calibrated_accuracy

COEFFICIENTS = (kendall_tau_b, kendall_tau_c, spearman, pearson)


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
@pytest.mark.parametrize(
    ("scores", "ratings", "reason"),
    [
        ([0.5, 0.5, 0.5], [1, 2, 3], "all 3 scores are equal"),
        ([1, 2, 3], [0.5, 0.5, 0.5], "all 3 ratings are equal"),
        ([], [], "there are no rows, and a correlation needs two"),
        ([1], [1], "there is 1 row, and a correlation needs two"),
        ([1, math.nan, 2], [1, 2, 3], "1 of 3 scores is not finite"),
        ([1, 2, 3], [1, math.inf, math.nan], "2 of 3 ratings are not finite"),
    ],
)
def test_what_does_not_exist_is_no_number(coefficient, scores, ratings, reason) -> None:  # type: ignore[no-untyped-def]
    found = coefficient(scores, ratings)
    assert math.isnan(found.value) and math.isnan(found.p_value)
    assert (found.undefined, undefined(scores, ratings)) == (reason, reason)


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\)"):
        pearson([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"shapes \(1, 2\) and \(1, 2\)"):
        won_pairs([[1, 2]], [[1, 2]])


def test_values_near_the_largest_float_have_their_coefficient() -> None:
    for values in ([1.0, 1.0, 0.0], [1.0, -1.0, 1.5]):
        largest = 1e308 * np.array(values)
        assert pearson(largest, [1, 2, 4]).value == pytest.approx(pearson(values, [1, 2, 4]).value)
        rows = [WeightedRows(side, [1, 2, 4]).pearson(np.array([2, 1, 1])) for side in (largest, values)]
        assert rows[0] == pytest.approx(rows[1])


def test_taus_follow_their_definitions() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, 40), rng.integers(0, 3, 40)
    pairs = list(itertools.combinations(range(40), 2))
    surplus = sum(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]) for i, j in pairs)
    untied = [sum(side[i] != side[j] for i, j in pairs) for side in (x, y)]
    assert kendall_tau_b(x, y).value == pytest.approx(surplus / math.sqrt(untied[0] * untied[1]))
    levels = min(len(set(x)), len(set(y)))
    assert kendall_tau_c(x, y).value == pytest.approx(2 * surplus / (40**2 * (levels - 1) / levels))


def test_ties_count_nothing_or_one_half_and_pairs_without_scores_do_not_count() -> None:
    better, worse = [0.9, 0.5, 0.3, math.nan], [0.1, 0.5, 0.4, 0.2]
    assert pairwise_accuracy(better, worse) == pytest.approx(1 / 3)
    assert pairwise_accuracy(better, worse, ties="half") == pytest.approx(1.5 / 3)
    assert math.isnan(won_pairs(better, worse)[3])
    assert math.isnan(pairwise_accuracy([math.nan], [1.0]))


def test_the_mean_of_categories_is_not_the_mean_of_pairs() -> None:
    found = accuracy_by_category([2, 2, 2, 1], [1, 1, 1, 2], ["HC", "HC", "HC", "MM"])
    assert found == {"HC": 1.0, "MM": 0.0, "mean": 0.5}
    assert accuracy_by_category([2, 1], [2, 2], ["HC", "MM"], ties="half")["HC"] == 0.5


def test_annotators_are_averaged_and_rounded() -> None:
    scores, ratings = [0.12341, 0.12342, 0.3, 0.4], [[1, 1], [2, 1], [3, 3], [4, 2]]
    exact = [kendall_tau_b(scores, column).value for column in np.transpose(ratings)]
    assert annotator_mean(kendall_tau_b, scores, ratings, digits=None) == pytest.approx(np.mean(exact))
    rounded = [kendall_tau_b(np.round(scores, 4), column).value for column in np.transpose(ratings)]
    assert annotator_mean(kendall_tau_b, scores, ratings) == round(float(np.mean(rounded)), 4)
    assert rounded != exact  # the first two scores are tied once they are rounded
    assert math.isnan(annotator_mean(kendall_tau_b, scores, [[1, 1], [2, 1], [3, 1], [4, 1]]))


def test_paragraphs_and_votes() -> None:
    assert paragraph_means([[1.0, 0.5], [0.25]]).tolist() == [0.75, 0.25]
    assert math.isnan(paragraph_means([[]])[0])
    assert majority([[1, 1, -1], [-1, -1, 1], [1, -1, 0]]).tolist() == [1, -1, 0]


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
        expected = stepwise_precision(scores, positive, np.ones(60))
        assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-12)
        weights = rng.integers(0, 3, 60)
        expected = stepwise_precision(scores, positive, weights)
        assert average_precision(scores, positive, weights) == pytest.approx(expected, abs=1e-12)
    tied = [0.5, 0.5, 0.5, 0.1], [True, False, False, True]  # 1/2 at precision 1/3, 1/2 at 1/2
    assert average_precision(*tied) == pytest.approx(5 / 12, abs=1e-12)
    assert math.isnan(average_precision([0.1, 0.2], [False, False]))
    assert math.isnan(average_precision([], [])) and math.isnan(
        average_precision([0.1, math.nan], [True, False])
    )


def agreement(scores: list[float], ratings: list[float], groups: list[str], epsilon: float) -> float:
    """acc_eq by its definition: concordant or tied by both, of all pairs of a group; mean over groups."""
    means = []
    for group in dict.fromkeys(groups):
        rows = [i for i, own in enumerate(groups) if own == group]
        right = []
        for i, j in itertools.combinations(rows, 2):
            tied = abs(scores[i] - scores[j]) <= epsilon
            order = 0 if tied else np.sign(scores[i] - scores[j])
            right.append(order == np.sign(ratings[i] - ratings[j]))
        if right:
            means.append(np.mean(right))
    return float(np.mean(means))


def test_ties_are_calibrated_by_the_best_threshold_of_all() -> None:
    rng = np.random.default_rng(2)
    ratings = rng.integers(0, 3, 40).astype(float)
    scores = (ratings + rng.normal(size=40)).round(2)
    groups = [str(group) for group in rng.integers(0, 8, 40)] + ["alone"]
    ratings, scores = [*ratings, 1.0], [*scores, 0.0]
    assert tie_aware_accuracy(scores, ratings, groups, epsilon=0.3) == pytest.approx(
        agreement(scores, ratings, groups, 0.3)
    )
    found = tie_calibrated_accuracy(scores, ratings, groups)
    pairs = itertools.combinations(range(41), 2)
    gaps = {0.0, *(abs(scores[i] - scores[j]) for i, j in pairs if groups[i] == groups[j])}
    tried = {epsilon: agreement(scores, ratings, groups, epsilon) for epsilon in gaps}
    assert found.accuracy == pytest.approx(max(tried.values()))
    assert tried[found.epsilon] == pytest.approx(found.accuracy)
    assert found.groups == sum(groups.count(group) > 1 for group in set(groups)) < len(set(groups))
    assert found.accuracy > tried[0.0]


def test_ties_of_people_count_where_scores_tie_too() -> None:
    assert tie_calibrated_accuracy([0.3, 0.3], [1, 1]).accuracy == 1.0
    assert tie_calibrated_accuracy([0.3, 0.3], [1, 2]).accuracy == 0.0
    best = tie_calibrated_accuracy([0.1, 0.2], [1, 2])
    assert (best.accuracy, best.epsilon) == (1.0, 0.0)
    assert tie_calibrated_accuracy([0.25, 0.25, 0.5], [1, 1, 1]).epsilon == 0.25
    # A threshold ties all pairs of one gap or none.
    assert tie_calibrated_accuracy([0.25, 0.5, 0.25, 0.5], [1, 1, 1, 2], list("aabb")).accuracy == 0.5
    alone = tie_calibrated_accuracy([0.1, 0.2], [1, 2], ["a", "b"])
    assert math.isnan(alone.accuracy) and alone.pairs == 0


def test_williams_is_the_test_of_the_literature() -> None:
    # t = (r12 - r13) sqrt((n-1)(1+r23) / (2K (n-1)/(n-3) + (r12+r13)^2/4 (1-r23)^3)), by hand for n = 103
    first, second, between, n = 0.4, 0.3, 0.5, 103
    k = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    t = (first - second) * math.sqrt(
        (n - 1) * (1 + between) / (2 * k * (n - 1) / (n - 3) + (first + second) ** 2 / 4 * (1 - between) ** 3)
    )
    from scipy.integrate import quad
    from scipy.stats import t as student

    tail = quad(lambda x: student.pdf(x, n - 3), t, math.inf)[0]
    assert williams(first, second, between, n) == pytest.approx(2 * tail)
    assert williams(second, first, between, n) == pytest.approx(2 * tail)
    assert williams(0.4, 0.4, 0.5, n) == 1.0
    assert math.isnan(williams(0.4, 0.3, 0.5, 3)) and math.isnan(williams(math.nan, 0.3, 0.5, 10))


def test_no_p_value_of_a_correlation_is_zero() -> None:
    ranks = np.arange(3000.0)
    for coefficient in (kendall_tau_b, kendall_tau_c, spearman, pearson):
        assert coefficient(ranks, ranks + (ranks % 2)).p_value > 0
    assert williams(0.999, 0.1, 0.1, 10**6) > 0


def test_williams_keeps_its_level() -> None:
    rng = np.random.default_rng(3)
    rejected = 0
    for _ in range(400):
        truth = rng.normal(size=60)
        sides = [truth + rng.normal(size=60) for _ in range(2)]
        correlations = [np.corrcoef(truth, side)[0, 1] for side in sides]
        rejected += williams(*correlations, np.corrcoef(*sides)[0, 1], 60) < 0.05
    assert 6 <= rejected <= 36  # of 400 at a level of 5%: 20, give or take


def test_a_paired_bootstrap_sees_what_two_intervals_hide() -> None:
    rng = np.random.default_rng(4)
    groups = [str(i) for i in range(60)]
    hard = rng.normal(size=60)
    resamples = Resamples(groups, draws=500)
    values = [hard + 0.2 + 0.05 * rng.normal(size=60), hard]
    draws = tuple(resamples.means(side) for side in values)
    means = tuple(float(side.mean()) for side in values)
    found = paired_bootstrap(means, draws, resamples)  # type: ignore[arg-type]
    assert found.interval is not None and 0.1 < found.interval.low < found.value < found.interval.high < 0.3
    assert found.p_value == pytest.approx(2 / 501)
    turned = paired_bootstrap(means[::-1], draws[::-1], resamples)  # type: ignore[arg-type]
    assert (turned.value, turned.p_value) == (-found.value, found.p_value)
    same = paired_bootstrap((means[0], means[0]), (draws[0], draws[0]), resamples)
    assert (same.value, same.p_value) == (0.0, 1.0)


def test_gaps_of_the_threshold_itself_are_tied() -> None:
    assert tie_aware_accuracy([0.0, 0.5], [1, 1], epsilon=0.5) == 1.0
    assert tie_aware_accuracy([0.5, 0.5], [1, 1]) == 1.0
    assert tie_aware_accuracy([0.0, 0.5], [1, 2], epsilon=0.5) == 0.0
