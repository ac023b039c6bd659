"""Resamples: exact against scipy on repeated rows, whole images, and intervals that cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, spearmanr

from capeval_core.judgements import resampling
from capeval_core.judgements.resampling import (
    Resamples,
    Taus,
    WeightedRows,
    centred,
    coefficient_draws,
    tau_draws,
)


@pytest.mark.parametrize(("scores_of", "ratings_of"), [(50, 4), (4, 50), (3, 3), (1000, 1000)])
def test_weighted_rows_are_repeated_rows(scores_of: int, ratings_of: int) -> None:
    rng = np.random.default_rng(scores_of + ratings_of)
    scores, ratings = rng.integers(0, scores_of, 80) / 7, rng.integers(0, ratings_of, 80).astype(float)
    rows = WeightedRows(scores, ratings)
    for _ in range(20):
        weights = rng.integers(0, 4, 80)
        x, y = np.repeat(scores, weights), np.repeat(ratings, weights)
        taus = rows.taus(weights)
        assert taus.b == pytest.approx(kendalltau(x, y, variant="b").statistic, abs=1e-12)
        assert taus.c == pytest.approx(kendalltau(x, y, variant="c").statistic, abs=1e-12)
        assert rows.spearman(weights) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert rows.pearson(weights) == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)


def test_rows_with_many_values_on_both_sides_are_sorted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, ratings, weights = rng.normal(size=200), rng.normal(size=200), rng.integers(0, 3, 200)
    sorted_rows = WeightedRows(scores, ratings)
    by_scipy = sorted_rows.taus(weights)
    monkeypatch.setattr(resampling, "_CELLS", 40_000)
    counted_rows = WeightedRows(scores, ratings)
    counted = counted_rows.taus(weights)
    # 200 x 200 counts take longer than sorting 200 rows; 5,000 x 4 counts take less than 5,000 rows.
    assert sorted_rows._cells is None and counted_rows._cells is not None
    assert (by_scipy.b, by_scipy.c) == pytest.approx((counted.b, counted.c), abs=1e-12)
    monkeypatch.undo()
    assert WeightedRows(np.arange(5_000.0), np.arange(5_000.0) % 4)._cells is not None


@pytest.mark.parametrize("weights", [[2, 0, 0], [0, 0, 0], [1, 1, 0], [0, 3, 1]])
def test_a_resample_without_two_values_has_no_coefficient(weights: list[int]) -> None:
    rows = WeightedRows([1.0, 1.0, 2.0], [1.0, 2.0, 2.0])
    chosen = np.array(weights)
    taus = rows.taus(chosen)
    assert all(map(math.isnan, (taus.b, taus.c, rows.spearman(chosen), rows.pearson(chosen))))
    assert rows.taus(np.array([1, 0, 1])) == Taus(1.0, 1.0)
    for seed in range(20):  # rounding does not lead beyond 1
        values = np.random.default_rng(seed).normal(size=30)
        assert 1 - 1e-12 < WeightedRows(values, 3 * values).pearson(np.ones(30, dtype=np.int64)) <= 1


def test_images_are_drawn_with_all_their_rows() -> None:
    resamples = Resamples(["a", "b", "a", "c", "c"], draws=200, seed=3)
    for draw in range(200):
        weights = resamples.weights(draw)
        assert weights[0] == weights[2] and weights[3] == weights[4]
        assert weights[0] + weights[1] + weights[3] == 3  # as many images as there are
    assert len({tuple(resamples.weights(draw)) for draw in range(200)}) > 5
    again = Resamples(["a", "b", "a", "c", "c"], draws=200, seed=3)
    assert all((again.weights(draw) == resamples.weights(draw)).all() for draw in range(200))


def test_sums_and_means_are_those_of_the_weights() -> None:
    values = np.array([1.0, 2.0, math.nan, 4.0])
    resamples = Resamples(["a", "b", "b", "c"], draws=50)
    for draw, mean in enumerate(resamples.means(values)):
        weights = resamples.weights(draw)
        kept = np.isfinite(values) & (weights > 0)
        expected = np.average(values[kept], weights=weights[kept])
        assert mean == pytest.approx(expected)
    assert np.isnan(Resamples(["a"], draws=3).means([math.nan])).all()
    assert np.isnan(Resamples([], draws=3).means([])).all()


def test_draws_are_those_of_the_resamples_one_by_one() -> None:
    rng = np.random.default_rng(5)
    scores, ratings = rng.normal(size=40), rng.integers(0, 3, 40).astype(float)
    resamples = Resamples([str(image) for image in rng.integers(0, 10, 40)], draws=20)
    rows = WeightedRows(scores, ratings)
    tau_b, tau_c = tau_draws(rows, resamples)
    for draw in range(20):
        weights = resamples.weights(draw)
        x, y = np.repeat(scores, weights), np.repeat(ratings, weights)
        assert tau_b[draw] == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)
        assert tau_c[draw] == pytest.approx(kendalltau(x, y, variant="c").statistic, abs=1e-12)
    assert coefficient_draws("kendall_tau_b", rows, resamples).tolist() == tau_b.tolist()
    assert coefficient_draws("kendall_tau_c", rows, resamples).tolist() == tau_c.tolist()


def test_few_images_have_no_interval_and_levels_are_checked() -> None:
    four, five = Resamples(list("abcd")), Resamples(list("abcde"))
    assert four.interval(four.means([1, 2, 3, 4])) is None
    interval = five.interval(five.means([1, 2, 3, 4, 5]), level=0.9)
    assert interval is not None and 1 < interval.low < 3 < interval.high < 5
    assert (interval.level, interval.images) == (0.9, 5)
    with pytest.raises(ValueError, match="level=1"):
        five.interval(five.means([1, 2, 3, 4, 5]), level=1)
    often = np.where(np.arange(1000) < 30, np.nan, 0.5)
    assert five.interval(often) is None  # undefined in 3% of the resamples


def test_rows_of_one_image_widen_the_interval() -> None:
    rng = np.random.default_rng(6)
    image = rng.normal(size=30)
    values = np.repeat(image, 10) + 0.1 * rng.normal(size=300)
    widths = []
    for groups in (np.repeat(np.arange(30), 10), np.arange(300)):
        resamples = Resamples([str(group) for group in groups])
        interval = resamples.interval(resamples.means(values))
        assert interval is not None
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1]
    assert widths[0] == pytest.approx(2 * 1.96 * image.std() / math.sqrt(30), rel=0.15)


def test_intervals_of_few_images_are_about_the_value() -> None:
    values = np.array([0.2, np.nan, 0.4])
    assert centred(values, 0.5).tolist()[::2] == pytest.approx([0.4, 0.6])
    assert centred(np.array([0.2, 0.9]), 0.9).max() == 1.0  # no coefficient is beyond
    rng = np.random.default_rng(7)
    ratings = np.tile([1.0, 5.0], 6)
    scores = ratings + np.repeat(5 * rng.normal(size=6), 2)  # right within each image, at random between
    resamples = Resamples([str(image) for image in np.repeat(np.arange(6), 2)])
    value = kendalltau(scores, ratings).statistic
    draws, _ = tau_draws(WeightedRows(scores, ratings), resamples)
    assert draws.mean() > value + 0.03
    interval = resamples.interval(centred(draws, value))
    assert interval is not None and interval.low < value < interval.high
