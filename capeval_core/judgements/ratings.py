"""Ratings of single captions: correlations of scores with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from capeval_core.judgements.correlation import (
    Coefficient,
    Doubles,
    Integers,
    annotator_mean,
    equally_many,
    kendall_tau_b,
    kendall_tau_c,
    pearson,
    spearman,
    undefined,
)
from capeval_core.judgements.judged_set import Cell, JudgedSet, Scored, mean_of_runs
from capeval_core.judgements.resampling import Resamples, WeightedRows, centred

COEFFICIENTS: dict[str, Callable[..., Coefficient]] = {
    "tau_b": kendall_tau_b,
    "tau_c": kendall_tau_c,
    "spearman": spearman,
    "pearson": pearson,
}
ACCURACY = "acc_eq"
STATISTICS = (*COEFFICIENTS, ACCURACY)
"""What scores can be compared with ratings by; `acc_eq` is tie-calibrated within images."""
TAUS = ("tau_b", "tau_c")


@dataclass(frozen=True)
class RatingColumn:
    """A column of a table of ratings.

    statistic: one of `STATISTICS`. ratings: which ratings. scoring: which scoring, None: the mean of all.
    part: the component of a metric that is compared; None: its score.
    subset: the rows it is over; None: all.
    """

    statistic: str
    ratings: str = "rating"
    scoring: str | None = None
    part: str | None = None
    subset: str | None = None


@dataclass(frozen=True)
class RatedSet(JudgedSet):
    """Captions with ratings.

    Its scorings have the same items. item: (rows,) the item that each rating is about.
    ratings: (rows,) by name, or (rows, annotators) for `by_annotator`. table: columns by name.
    subsets: (rows,) the subset of each row.
    by_annotator: coefficients are means over annotators, as VATEX-EVAL defines them.
    """

    item: Integers
    ratings: Mapping[str, Doubles]
    table: Mapping[str, RatingColumn]
    subsets: Sequence[str] | None = None
    by_annotator: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table)

    @cached_property
    def clusters(self) -> list[str]:
        images = self.items.images
        return [images[item] for item in self.item]

    def with_statistics(self, statistics: Sequence[str]) -> RatedSet:
        """The same with these statistics, of `STATISTICS`, in place of the papers'."""
        first = next(iter(self.table.values()))
        names = list(dict.fromkeys((c.ratings, c.scoring, c.part, c.subset) for c in self.table.values()))
        table = {
            " ".join(
                filter(None, [statistic, ratings if ratings != first.ratings else "", scoring, subset])
            ): RatingColumn(statistic, ratings, scoring, part, subset)
            for ratings, scoring, part, subset in names
            for statistic in statistics
        }
        return replace(self, table=table)

    def rated(self, run: Scored) -> tuple[Doubles, Doubles] | None:
        values = self.ratings[next(iter(self.table.values())).ratings]
        return values if values.ndim == 1 else values.mean(axis=1), run.scores[self.item]

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        by_name = dict(zip((scoring.name for scoring in self.scorings), scored, strict=True))
        memory: dict[tuple[int, str, str | None], _Rows] = {}

        def rows_of(values: Doubles, column: RatingColumn) -> _Rows:
            key = id(values), column.ratings, column.subset
            if key not in memory:
                memory[key] = _Rows(self, values, column, resamples)
            return memory[key]

        def cell(column: RatingColumn, run: Scored) -> Cell:
            if column.part is not None and column.part not in run.parts:
                return Cell(math.nan, 0, undefined=f"the metric has no {column.part}")
            values = run.scores if column.part is None else run.parts[column.part]
            if self.by_annotator:
                return self._annotator_cell(column, values)
            return rows_of(values, column).cell(column.statistic)

        return {
            name: cell(column, by_name[column.scoring])
            if column.scoring is not None
            else mean_of_runs([cell(column, run) for run in scored])
            for name, column in self.table.items()
        }

    def _annotator_cell(self, column: RatingColumn, values: Doubles) -> Cell:
        of_rows, ratings = values[self.item], self.ratings[column.ratings]
        kept = np.isfinite(of_rows)
        reason = undefined(of_rows[kept], ratings[kept, 0])
        if reason is not None:
            return Cell(math.nan, int(kept.sum()), undefined=reason)
        coefficient = COEFFICIENTS[column.statistic]
        return Cell(annotator_mean(coefficient, of_rows[kept], ratings[kept]), int(kept.sum()))


class _Rows:
    """Ratings with one metric's scores, whose statistics share counts and resamples."""

    def __init__(
        self, judged: RatedSet, values: Doubles, column: RatingColumn, resamples: Resamples | None
    ) -> None:
        scores, ratings = values[judged.item], judged.ratings[column.ratings]
        self.kept = np.isfinite(scores)
        if column.subset is not None and judged.subsets is not None:
            self.kept &= np.asarray(judged.subsets, dtype=object) == column.subset
        self.scores, self.ratings = scores[self.kept], ratings[self.kept]
        self.item = judged.item[self.kept]
        self.images = [image for image, kept in zip(judged.clusters, self.kept, strict=True) if kept]
        self.resamples = resamples

    def cell(self, statistic: str) -> Cell:
        count = len(self.scores)
        reason = undefined(self.scores, self.ratings)
        if reason is not None:
            return Cell(math.nan, count, undefined=reason)
        if statistic == ACCURACY:
            # Several ratings of a caption are one here: it has one score, which would tie with itself.
            _, first, of_row = np.unique(self.item, return_index=True, return_inverse=True)
            means = np.bincount(of_row, self.ratings) / np.bincount(of_row)
            images = [self.images[row] for row in first]
            accuracy, _ = tie_calibrated_accuracy(self.scores[first], means, images)
            found = "no image has two rated captions" if math.isnan(accuracy) else None
            return Cell(accuracy, len(first), undefined=found)
        value = COEFFICIENTS[statistic](self.scores, self.ratings)
        draws = self._draws(statistic)
        moved = None if draws is None else centred(draws, value.value)
        return Cell(value.value, count, moved, undefined=value.undefined)

    @cached_property
    def _weighted(self) -> WeightedRows:
        return WeightedRows(self.scores, self.ratings)

    @cached_property
    def _taus(self) -> Doubles:
        """(draws, 2): tau-b and tau-c of each resample."""
        assert self.resamples is not None
        found = [
            self._weighted.taus(self.resamples.weights(draw)[self.kept])
            for draw in range(len(self.resamples))
        ]
        return np.array([(taus.b, taus.c) for taus in found])

    def _draws(self, statistic: str) -> Doubles | None:
        if self.resamples is None:
            return None
        if statistic in TAUS:
            return self._taus[:, TAUS.index(statistic)]
        coefficient = {"spearman": self._weighted.spearman, "pearson": self._weighted.pearson}[statistic]
        return self.resamples.each(lambda weights: coefficient(weights[self.kept]))


def tau_columns(**settings: str) -> dict[str, RatingColumn]:
    """The two columns of most tables; `settings` are fields of `RatingColumn`."""
    return {name: RatingColumn(name, **settings) for name in TAUS}


def tie_calibrated_accuracy(
    scores: ArrayLike, ratings: ArrayLike, groups: Sequence[str]
) -> tuple[float, float]:
    """acc_eq, accuracy over pairs that gives credit for ties, and the threshold of a tie that is best for it.

    Deutsch, Foster and Freitag, Ties Matter: Meta-Evaluating Modern Metrics with Pairwise Accuracy and Tie
    Calibration, EMNLP 2023, https://arxiv.org/abs/2305.14324.

        acc_eq = (C + T_hm) / (C + D + T_h + T_m + T_hm)

    over all pairs of rows of a group, e.g. of captions of an image, as mean over groups: C ordered by score
    as by people, D the other way round, T_h tied by people only, T_m by scores only, T_hm by both. Scores
    that differ by at most the threshold are tied. NaN where no group has two rows.

    >>> tie_calibrated_accuracy([0.1, 0.2, 0.5], [1, 1, 2], "aaa")
    (1.0, 0.1)
    """
    x, y = equally_many(scores, ratings)
    _, of_row = np.unique(np.asarray(list(groups), dtype=object), return_inverse=True)
    members = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row))[:-1])
    pairs = [rows[np.stack(np.triu_indices(len(rows), 1))] for rows in members if len(rows) > 1]
    if not pairs:
        return math.nan, math.nan
    (i, j), sizes = np.concatenate(pairs, axis=1), [own.shape[1] for own in pairs]
    weights = np.repeat(1.0 / np.array(sizes), sizes) / len(sizes)  # groups count alike
    steps, ratings_apart = x[i] - x[j], y[i] - y[j]
    alike, tied = steps * ratings_apart > 0, ratings_apart == 0
    order = np.argsort(np.abs(steps), kind="stable")
    gaps = np.abs(steps)[order]
    gained = (weights * (tied.astype(np.float64) - alike))[order]
    last = np.append(np.flatnonzero(np.diff(gaps)), len(gaps) - 1)  # of each distinct gap
    # Below the smallest gap nothing is tied, which a threshold of 0 means unless there are equal scores.
    without = float(np.sum(weights * alike))
    thresholds = np.append([] if gaps[0] == 0 else [0.0], gaps[last])
    accuracies = np.append([] if gaps[0] == 0 else [without], without + np.cumsum(gained)[last])
    best = int(np.argmax(accuracies))
    return float(accuracies[best]), float(thresholds[best])
