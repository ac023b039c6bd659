"""A judged set: what metrics score, and the protocol that turns scores into the cells of a table.

Protocols: ratings of captions, pairs of captions, whole systems, pools to choose from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capeval_core.judgements.correlation import (
    COEFFICIENTS,
    Correlation,
    Doubles,
    Integers,
    Resamples,
    WeightedRows,
    annotator_mean,
    centred,
    tie_calibrated_accuracy,
    undefined,
    won_pairs,
)
from capeval_core.registry import load, metric_class

STATISTICS = ("tau_b", "tau_c", "spearman", "pearson", "acc_eq")
"""Statistics of any scores with ratings; `acc_eq` is tie-calibrated within images."""
_WITHIN_IMAGES = "acc_eq"
_LEAST_SYSTEMS = 3  # of two every correlation is 1 or -1
_OF_CHOSEN = ("bleu", "rougel", "ciderd")
"""Metrics that compare the captions chosen from pools with references."""
_LEVELS = 7  # of ratings in a chart


@dataclass(frozen=True)
class Items:
    """Captions to score."""

    captions: list[str]
    images: list[str]  # their ids
    references: list[list[str]] | None = None  # None: the set has none
    names: list[str] | None = None  # in the file, for messages; None: its rows are not these captions

    def __len__(self) -> int:
        return len(self.captions)

    def take(self, rows: Sequence[int]) -> Items:
        """The items at these positions."""
        captions = [self.captions[row] for row in rows]
        images = [self.images[row] for row in rows]
        references = None
        if self.references is not None:
            references = [self.references[row] for row in rows]
        names = None
        if self.names is not None:
            names = [self.names[row] for row in rows]
        return Items(captions, images, references, names)


class Scoring(NamedTuple):
    """One way in which a protocol has its items scored."""

    name: str  # e.g. `draw 1` or `4 references`
    items: Items  # the same object is scored once where that is possible
    positions: Sequence[Sequence[int]] | None = None  # of each item's references that count; None: all

    def references(self) -> list[list[str]] | None:
        if self.items.references is None or self.positions is None:
            return self.items.references
        references = []
        for texts, positions in zip(self.items.references, self.positions, strict=True):
            references.append([texts[position] for position in positions])
        return references


class Scored(NamedTuple):
    """The scores of a scoring's items; NaN where there is none."""

    scores: Doubles
    parts: Mapping[str, Doubles] = {}  # components by name, a value per item
    corpus: float | None = None  # what to report for all items, where that is not the mean of the scores
    signature: str = ""  # of the result that they come from, or their file


class Cell(NamedTuple):
    """One number of a table."""

    value: float  # NaN where it is undefined
    rows: int  # ratings or pairs that it is over
    draws: Doubles | None = None  # its value in each resample of images; None: no interval
    runs: tuple[float, ...] = ()  # its value in each of several scorings, where it is their mean
    undefined: str | None = None  # why there is no value

    @property
    def deviation(self) -> float:
        """The standard deviation over several scorings, else NaN; 0 of equal ones whatever rounding adds."""
        if not self.runs:
            return math.nan
        return float(np.std(self.runs, ddof=1)) if min(self.runs) < max(self.runs) else 0.0


def _mean(cells: Sequence[Cell]) -> Cell:
    """The mean of cells, of scorings or of categories."""
    values = []
    draws = []
    reason = None
    for cell in cells:
        values.append(cell.value)
        if cell.draws is not None:
            draws.append(cell.draws)
        reason = reason or cell.undefined
    # All scorings share their resamples of images, so that draws are averaged resample by resample.
    mean_draws = np.mean(draws, axis=0) if len(draws) == len(cells) else None
    runs = tuple(values) if len(values) > 1 else ()
    return Cell(float(np.mean(values)), cells[0].rows, mean_draws, runs, reason)


def _mean_of(values: Doubles, resamples: Resamples | None, undefined: str) -> Cell:
    """The mean of the finite values; `undefined`: why there is none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Cell(math.nan, 0, undefined=undefined)
    return Cell(float(finite.mean()), len(finite), None if resamples is None else resamples.means(values))


@dataclass(frozen=True)
class JudgedSet(ABC):
    """Human judgements and their protocol."""

    unit: ClassVar[str] = "ratings"  # what a row of `clusters` is

    name: str  # of its entry in `SETS`
    scorings: tuple[Scoring, ...]  # each metric gives one `Scored` for each
    dropped: Mapping[str, int] = field(default_factory=dict, kw_only=True)  # what was left out, by reason
    notes: Sequence[str] = field(default=(), kw_only=True)  # how the file was read, where that was not given

    @property
    def items(self) -> Items:
        return self.scorings[0].items

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the cells, in the order of the papers' tables."""
        return tuple(scoring.name for scoring in self.scorings)

    @abstractmethod
    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        """The cells of one metric, by column; without `resamples` none has an interval."""

    @property
    def clusters(self) -> list[str]:
        """The image of each rating or pair."""
        return self.items.images

    @cached_property
    def image_ids(self) -> list[str]:
        """Every image of the items once."""
        images: dict[str, None] = {}
        for scoring in self.scorings:
            images.update(dict.fromkeys(scoring.items.images))
        return list(images)

    def levels(self, run: Scored) -> dict[str, list[float]]:
        """Scores by rating, to be drawn; of many ratings in ranges of equal counts."""
        return {}


class RatingColumn(NamedTuple):
    """A column of a table of ratings."""

    statistic: str  # one of `STATISTICS`, or `ap`
    ratings: str = "rating"
    scoring: str | None = None  # None: the mean of all
    part: str | None = None  # the component of a metric that is compared; None: its score
    subset: str | None = None  # of the rows; None: all
    of_systems: bool = False  # whether means of systems are compared, instead of captions


@dataclass(frozen=True)
class RatedSet(JudgedSet):
    """Captions with ratings; its scorings have the same items.

    items    0 "a dog"    1 "a cat"    2 "two cars"
    item     0  0  0      1            2  2           the caption that each row is about
    rating   4  3  4      1            2  3
    """

    item: Integers  # (rows,) that each rating is about
    ratings: Mapping[str, Doubles]  # (rows,) by name, or (rows, annotators) for `by_annotator`
    table: Mapping[str, RatingColumn]
    subsets: Sequence[str] | None = None  # (rows,)
    by_annotator: bool = False  # coefficients are means over annotators, as VATEX-EVAL defines them
    systems: Sequence[str] | None = None  # (rows,) that wrote the captions

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
        table = {}
        for column in self.table.values():
            for statistic in statistics:
                if column.of_systems and statistic == _WITHIN_IMAGES:
                    continue
                ratings = column.ratings if column.ratings != first.ratings else ""
                level = "of systems" if column.of_systems else ""
                name = [statistic, ratings, column.scoring, column.part, column.subset, level]
                table[" ".join(filter(None, name))] = column._replace(statistic=statistic)
        return replace(self, table=table)

    def with_systems(self) -> RatedSet:
        """The same with each statistic of the means of systems as well, where rows name several."""
        if self.systems is None or len(set(self.systems)) < 2:
            return self
        table = dict(self.table)
        for name, column in self.table.items():
            if column.statistic != _WITHIN_IMAGES:
                table[f"{name} of systems"] = column._replace(of_systems=True)
        return replace(self, table=table)

    def levels(self, run: Scored) -> dict[str, list[float]]:
        values = self.ratings[next(iter(self.table.values())).ratings]
        return _by_rating(values if values.ndim == 1 else values.mean(axis=1), run.scores[self.item])

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        alike: dict[RatingColumn, list[str]] = {}  # columns of the same rows share their resamples
        for column in self.table.values():
            alike.setdefault(column._replace(statistic=""), []).append(column.statistic)
        cells: dict[RatingColumn, Cell] = {}
        for rows, names in alike.items():
            runs = []
            for run, scoring in zip(scored, self.scorings, strict=True):
                if rows.scoring in (None, scoring.name):
                    runs.append(self._statistics(rows, run, names, resamples))
            for name in names:
                cells[rows._replace(statistic=name)] = _mean([run[name] for run in runs])
        cells_by_name = {}
        for name, column in self.table.items():
            cells_by_name[name] = cells[column]
        return cells_by_name

    def _statistics(
        self, rows: RatingColumn, run: Scored, names: Sequence[str], resamples: Resamples | None
    ) -> dict[str, Cell]:
        """Statistics of the ratings of a column with the scores of a run."""
        if rows.part is not None and rows.part not in run.parts:
            return dict.fromkeys(names, Cell(math.nan, 0, undefined=f"the metric has no {rows.part}"))
        scores = (run.scores if rows.part is None else run.parts[rows.part])[self.item]
        counted = np.isfinite(scores)
        if rows.subset is not None:
            counted &= np.asarray(self.subsets, dtype=object) == rows.subset
        if rows.of_systems:
            return self._of_systems(scores, self.ratings[rows.ratings], counted, names, resamples)
        scores = scores[counted]
        ratings = self.ratings[rows.ratings][counted]
        reason = undefined(scores, ratings[:, 0] if self.by_annotator else ratings)
        if reason:
            return dict.fromkeys(names, Cell(math.nan, len(scores), undefined=reason))
        cells = {}
        if self.by_annotator:  # without intervals: the paper's protocol has none for a mean of annotators
            for name in names:
                cells[name] = Cell(annotator_mean(COEFFICIENTS[name], scores, ratings), len(scores))
            return cells
        coefficients = [name for name in names if name in COEFFICIENTS]
        for name in coefficients:
            coefficient = COEFFICIENTS[name](scores, ratings)
            cells[name] = Cell(coefficient.value, len(scores), undefined=coefficient.undefined)
        if coefficients and resamples is not None:
            # All coefficients of a resample at once: its weights are drawn once, and its counts are shared.
            weighted = WeightedRows(scores, ratings)
            drawn = resamples.each(lambda weights: weighted.coefficients(weights[counted], coefficients))
            for name, draws in zip(coefficients, drawn.T, strict=True):
                cells[name] = cells[name]._replace(draws=centred(draws, cells[name].value))
        if "acc_eq" in names:
            cells["acc_eq"] = self._tie_calibrated(scores, ratings, self.item[counted])
        return cells

    def _of_systems(
        self,
        scores: Doubles,
        ratings: Doubles,
        counted: NDArray[np.bool_],
        names: Sequence[str],
        resamples: Resamples | None,
    ) -> dict[str, Cell]:
        """Statistics of the mean scores of systems with their mean ratings, over the rows that have both."""
        names_of_rows = np.asarray(self.systems, dtype=object)[counted]
        systems, codes = np.unique(names_of_rows, return_inverse=True)
        if len(systems) < _LEAST_SYSTEMS:
            reason = f"there are {len(systems)} systems, and a correlation of systems needs three"
            return dict.fromkeys(names, Cell(math.nan, len(systems), undefined=reason))

        def means(values: Doubles, weights: Integers | None) -> Doubles:
            counts = np.bincount(codes, weights, len(systems))
            weighted = values[counted] if weights is None else values[counted] * weights
            with np.errstate(invalid="ignore"):  # a system of which a resample has no row
                return np.bincount(codes, weighted, len(systems)) / counts

        mean_scores = means(scores, None)
        mean_ratings = means(ratings, None)
        no_correlation = undefined(mean_scores, mean_ratings)
        if no_correlation:
            cell = Cell(math.nan, len(systems), undefined=f"of systems, {no_correlation}")
            return dict.fromkeys(names, cell)
        cells = {}
        for name in names:
            coefficient = COEFFICIENTS[name]
            draws = None
            if resamples is not None:

                def of_resample(weights: Integers, coefficient: Correlation = coefficient) -> float:
                    drawn = weights[counted]
                    return coefficient(means(scores, drawn), means(ratings, drawn)).value

                draws = resamples.each(of_resample)
            cells[name] = Cell(coefficient(mean_scores, mean_ratings).value, len(systems), draws)
        return cells

    def _tie_calibrated(self, scores: Doubles, ratings: Doubles, items_of_rows: Integers) -> Cell:
        # Several ratings of a caption are one here: it has one score, which would tie with itself.
        items, first, of_row = np.unique(items_of_rows, return_index=True, return_inverse=True)
        means = np.bincount(of_row, ratings) / np.bincount(of_row)
        images = [self.items.images[item] for item in items]
        accuracy, _ = tie_calibrated_accuracy(scores[first], means, images)
        reason = "no image has two rated captions" if math.isnan(accuracy) else None
        return Cell(accuracy, len(items), undefined=reason)


def _by_rating(ratings: Doubles, scores: Doubles) -> dict[str, list[float]]:
    """Scores by rating; of many ratings in ranges of equal counts."""
    finite = np.isfinite(ratings) & np.isfinite(scores)
    ratings = ratings[finite]
    scores = scores[finite]
    distinct = np.unique(ratings)
    scores_by_level: dict[str, list[float]] = {}
    if len(distinct) <= _LEVELS:
        for value in distinct:
            scores_by_level[f"{value:.3g}"] = scores[ratings == value].tolist()
        return scores_by_level
    # Where many ratings are equal, quantiles coincide: there are fewer ranges then.
    bounds = np.unique(np.quantile(ratings, np.linspace(0, 1, _LEVELS)))
    # The highest rating is the last bound, and belongs to the last range.
    groups = np.clip(np.searchsorted(bounds, ratings, side="right") - 1, 0, len(bounds) - 2)
    for group, (low, high) in enumerate(pairwise(bounds)):
        scores_by_level[f"{low:.2g} to {high:.2g}"] = scores[groups == group].tolist()
    return scores_by_level


@dataclass(frozen=True)
class PairedSet(JudgedSet):
    """Pairs of captions. Items 2i and 2i + 1 are the captions a and b of pair i.

    items       0 "a dog"  1 "a cat"    2 "a bus"  3 "a car"
    pair        0                       1
    preferred   0 (a)                   1 (b)
    """

    unit = "pairs"

    preferred: tuple[Sequence[int], ...]  # of each scoring, (pairs,) 0 where a is preferred, 1 where b is
    images: list[str]  # of each pair
    categories: Sequence[str] | None = None  # of each pair: columns in addition to their mean
    by_scoring: bool = False  # a column for each scoring, else the mean of all scorings
    paragraphs: Sequence[str] | None = None  # of each pair: scores are averaged before they compete

    @property
    def columns(self) -> tuple[str, ...]:
        if self.categories is not None:
            return (*sorted(set(self.categories)), "mean")
        return super().columns if self.by_scoring else ("accuracy",)

    @property
    def clusters(self) -> list[str]:
        if self.paragraphs is None:
            return self.images
        return list(dict(zip(self.paragraphs, self.images, strict=True)).values())

    def levels(self, run: Scored) -> dict[str, list[float]]:
        preferred, rejected = self._sides(run.scores, self.preferred[0])
        return {
            "preferred": preferred[np.isfinite(preferred)].tolist(),
            "other": rejected[np.isfinite(rejected)].tolist(),
        }

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        runs = []
        for run, preferred in zip(scored, self.preferred, strict=True):
            runs.append(self._run(run.scores, preferred, resamples))
        cells = {}
        for place, name in enumerate(self.columns):
            if self.by_scoring:
                cells[name] = runs[place]["accuracy"]
            else:
                cells[name] = _mean([run[name] for run in runs])
        return cells

    def _sides(self, scores: Doubles, preferred: Sequence[int]) -> tuple[Doubles, Doubles]:
        """The scores of the preferred captions and of the others."""
        pairs = scores.reshape(-1, 2)
        first = np.asarray(preferred) == 0
        return np.where(first, pairs[:, 0], pairs[:, 1]), np.where(first, pairs[:, 1], pairs[:, 0])

    def _run(self, scores: Doubles, preferred: Sequence[int], resamples: Resamples | None) -> dict[str, Cell]:
        """The cells of one scoring: of each category and their mean, or `accuracy`."""
        sides = pd.DataFrame(dict(enumerate(self._sides(scores, preferred))))
        if self.paragraphs is not None:  # NaN where one of its sentences is
            paragraphs = sides.groupby(list(self.paragraphs), sort=False)
            sides = paragraphs.agg(lambda sentences: sentences.mean(skipna=False))
        won = won_pairs(sides[0], sides[1])
        reason = "no pair has two scores"
        if self.categories is None:
            return {"accuracy": _mean_of(won, resamples, reason)}
        of_pair = np.asarray(self.categories, dtype=object)
        cells = {}
        for name in self.columns[:-1]:
            cells[name] = _mean_of(np.where(of_pair == name, won, np.nan), resamples, reason)
        # Categories count alike, however many pairs they have: the mean column of the papers.
        rows = sum(cell.rows for cell in cells.values())
        return cells | {"mean": _mean(list(cells.values()))._replace(rows=rows)}


@dataclass(frozen=True)
class SystemSet(JudgedSet):
    """Captions of whole systems on the same images: the value that a metric reports for each."""

    unit = "captions"

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        cells = {}
        for name, run in zip(self.columns, scored, strict=True):
            cells[name] = _mean_of(run.scores, resamples, "no caption has a score")
            if run.corpus is not None:  # not a mean of rows, so resampled means are not its interval
                cells[name] = cells[name]._replace(value=run.corpus, draws=None)
        return cells


@dataclass(frozen=True)
class PoolSet(JudgedSet):
    """Pools of candidates, of one scoring: how good the captions are that a metric chooses, by metrics on
    references."""

    unit = "pools"

    @property
    def columns(self) -> tuple[str, ...]:
        titles = []
        for name in _OF_CHOSEN:
            titles.append(metric_class(name).title)
        return tuple(titles)

    @property
    def clusters(self) -> list[str]:
        return self.image_ids

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        items = self.items
        scores = pd.Series(scored[0].scores)
        finite = scores[np.isfinite(scores)]
        images = np.asarray(items.images, dtype=object)[finite.index]
        rows = finite.groupby(images, sort=False).idxmax().tolist()  # the first of equal ones
        if not rows:
            return dict.fromkeys(self.columns, Cell(math.nan, 0, undefined="no candidate has a score"))
        references = items.references or []
        best = replace(items, references=references).take(rows)
        scorings = []
        runs = []
        for column, name in zip(self.columns, _OF_CHOSEN, strict=True):
            scorings.append(Scoring(column, best))
            result = load(name, empty="score").score(best.captions, references=best.references)
            corpus = result.mean if result.formula else None
            runs.append(Scored(np.array(result.scores, np.float64), corpus=corpus))
        system = SystemSet(self.name, tuple(scorings))
        # Resamples are of all pools: where one has no choice, rows and weights do not correspond.
        return system.cells(runs, resamples if len(rows) == len(self.clusters) else None)
