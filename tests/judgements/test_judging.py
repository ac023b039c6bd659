"""The table of a judged set: agreement with print, distances over draws, contests, and charts' levels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from capeval_core.judgements.judged_set import Cell, Items, Scored, Scoring, mean_of_runs
from capeval_core.judgements.judging import Entry, Judged
from capeval_core.judgements.pairs import PairedSet
from capeval_core.judgements.published import PublishedCell
from capeval_core.judgements.ratings import RatedSet, tau_columns
from capeval_core.judgements.report import contest_table, judged_table
from capeval_core.judgements.resampling import WeightedRows, centred, tau_draws
from tests.judgements.data import write_expert


def rated(ratings: list[float], images: list[str]) -> RatedSet:
    count = len(ratings)
    items = Items([f"caption {i}" for i in range(count)], images)
    return RatedSet(
        "flickr8k_expert",
        (Scoring("", items),),
        np.arange(count),
        {"rating": np.array(ratings)},
        tau_columns(),
    )


@pytest.mark.parametrize(
    ("value", "digits", "agrees"),
    [(0.53949, 1, True), (0.53951, 1, False), (0.53849, 1, False), (0.539194, 3, True), (0.5392, 3, False)],
)
def test_a_value_agrees_if_it_rounds_to_what_is_printed(value: float, digits: int, agrees: bool) -> None:
    printed = PublishedCell(53.9 if digits == 1 else 53.919, digits, "a paper")
    entry = Entry("PAC-S", "tau_b", Cell(value, 9), None, printed)
    assert entry.agrees is agrees
    assert entry.distance == pytest.approx(100 * value - printed.value)
    assert Entry("PAC-S", "tau_b", Cell(math.nan, 9), None, printed).agrees is None
    assert Entry("PAC-S", "tau_b", Cell(value, 9), None, None).distance is None


def test_the_distance_to_print_is_in_deviations_of_the_draws() -> None:
    cell = mean_of_runs([Cell(value, 9) for value in (0.60, 0.62, 0.64)])
    entry = Entry("BLEU-1", "HC", cell, None, PublishedCell(64.0, 1, "a paper"))
    assert entry.z_score == pytest.approx((62 - 64) / 2)
    same = mean_of_runs([Cell(0.997, 9)] * 5)
    assert same.deviation == 0.0  # and not what rounding leaves of three equal numbers
    assert Entry("FLEUR", "HC", same, None, PublishedCell(61.4, 1, "a paper")).z_score is None
    assert mean_of_runs([Cell(0.5, 9)]).runs == ()


def test_contests_tell_metrics_apart_on_the_same_resamples() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.normal(size=60), 3)
    ratings = np.round(2 * truth + 0.5 * rng.normal(size=180))
    judged = rated(ratings.tolist(), [str(i) for i in np.repeat(np.arange(60), 3)])
    good, bad = truth + 0.3 * rng.normal(size=180), truth + 3 * rng.normal(size=180)
    bad[0] = math.nan  # a caption that failed costs its own row
    result = Judged(judged, {"good": [Scored(good)], "bad": [Scored(bad)]}, draws=300)
    assert (result.failed("good"), result.failed("bad")) == (0, 1)
    contests = list(result.contests())
    assert [(c.first, c.second, c.column) for c in contests] == [
        ("good", "bad", "tau_b"),
        ("good", "bad", "tau_c"),
    ]
    for contest in contests:
        cells = result.cells
        gap = cells["good"][contest.column].value - cells["bad"][contest.column].value
        assert contest.difference.value == pytest.approx(gap)
        assert contest.difference.interval is not None and contest.difference.interval.low > 0
        assert contest.difference.p_value < 0.01 and contest.williams < 0.001
    assert len(contest_table(result).rows) == 2
    assert not list(Judged(judged, {"good": [Scored(good)]}, draws=0).contests())
    text = judged_table(result).text()
    assert "bad: 1 caption has no score" in text and "180 ratings of 60 images" in text


def test_tau_b_and_tau_c_have_draws_of_their_own() -> None:
    rng = np.random.default_rng(1)
    ratings = rng.integers(0, 4, 60).astype(float)
    judged = rated(ratings.tolist(), [str(i) for i in np.repeat(np.arange(20), 3)])
    noise = rng.normal(size=60)
    result = Judged(judged, {"m": [Scored(ratings + noise)]}, draws=100)
    of_b, of_c = (entry.interval for entry in result.entries())
    assert of_b is not None and of_c is not None and of_b.low != of_c.low
    assert result.resamples is not None
    drawn = tau_draws(WeightedRows(ratings + noise, ratings), result.resamples)
    for entry, draws in zip(result.entries(), drawn, strict=True):
        assert entry.interval is not None and entry.cell.draws is not None
        assert entry.interval.low < entry.cell.value < entry.interval.high
        assert entry.cell.draws.tolist() == centred(draws, entry.cell.value).tolist()


def test_several_ratings_of_a_caption_are_one_where_ties_count(tmp_path: Path) -> None:
    from capeval_core.judgements.sets import load_set

    judged = load_set("flickr8k_expert", write_expert(tmp_path))
    assert isinstance(judged, RatedSet)
    # Means of the ratings: a.png 11/3 and 4/3; b.png 3/2 and 3. The scores order both images alike.
    (cell,) = (
        judged.with_statistics(["acc_eq"]).cells([Scored(np.array([0.9, 0.1, 0.2, 0.8]))], None).values()
    )
    assert (cell.value, cell.rows) == (1.0, 4)
    # The first rating of b.png's captions (1 and 3) would be as here, its mean with more ratings not.
    (turned,) = (
        judged.with_statistics(["acc_eq"]).cells([Scored(np.array([0.9, 0.1, 0.8, 0.2]))], None).values()
    )
    assert turned.value == 0.5
    many = rated([1.0, 5.0, 5.0, 3.0], ["a"] * 4)
    rows = RatedSet("own", many.scored, np.array([0, 0, 0, 1]), many.ratings, many.table)
    # Ratings 1, 5, 5 of one caption have a mean of 11/3, above the other's 3.
    (mean,) = rows.with_statistics(["acc_eq"]).cells([Scored(np.array([0.9, 0.1, 0, 0]))], None).values()
    assert (mean.value, mean.rows) == (1.0, 2)


def test_scores_are_drawn_by_rating_by_preference_or_in_ranges() -> None:
    few = rated([1, 2, 2, 3], list("abcd"))
    result = Judged(few, {"m": [Scored(np.array([0.1, 0.2, math.nan, 0.4]))]}, draws=0)
    assert result.levels("m") == [("1", [0.1]), ("2", [0.2]), ("3", [0.4])]
    many = rated(np.linspace(0, 1, 70).tolist(), [str(i) for i in range(70)])
    levels = Judged(many, {"m": [Scored(np.arange(70.0))]}, draws=0).levels("m")
    assert len(levels) == 6 and [x for _, own in levels for x in own] == list(np.arange(70.0))
    items = Items(["x"] * 4, list("aabb"))
    pairs = PairedSet("foil", (Scoring("", items),), ([0, 1],), ["a", "b"])
    drawn = Judged(pairs, {"m": [Scored(np.array([0.9, 0.1, 0.2, 0.8]))]}, draws=0).levels("m")
    assert drawn == [("preferred", [0.9, 0.8]), ("other", [0.1, 0.2])]


def test_a_cell_without_an_interval_says_why() -> None:
    judged = rated([1, 1, 1, 1, 1, 2], list("abcdef"))  # a resample without the last image has no coefficient
    result = Judged(judged, {"m": [Scored(np.arange(6.0))]}, draws=200)
    draws = result.cells["m"]["tau_b"].draws
    assert draws is not None and (without := int(np.isnan(draws).sum())) > 2
    notes = judged_table(result).notes
    assert f"m: no interval of tau_b, undefined in {without} of 200 resamples" in notes
    others = Judged(judged, result.scores, draws=0), Judged(rated([*range(6)], list("abcdef")), result.scores)
    assert not any("no interval of" in note for other in others for note in judged_table(other).notes)
