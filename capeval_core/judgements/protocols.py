"""A judged set: what metrics score, and the protocol that turns scores into the cells of a table.

Protocols: ratings of captions, pairs of captions, marked captions, whole systems, pools to choose from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import ClassVar

import numpy as np
import pandas as pd

from capeval_core.judgements.correlation import (
    Coefficient,
    Doubles,
    Integers,
    annotator_mean,
    average_precision,
    kendall_tau_b,
    kendall_tau_c,
    pearson,
    spearman,
    tie_calibrated_accuracy,
    undefined,
    won_pairs,
)
from capeval_core.judgements.resampling import Resamples, WeightedRows, centred
from capeval_core.statistics import Interval

_COEFFICIENTS: dict[str, Callable[..., Coefficient]] = {
    "tau_b": kendall_tau_b,
    "tau_c": kendall_tau_c,
    "spearman": spearman,
    "pearson": pearson,
}
STATISTICS = (*_COEFFICIENTS, "acc_eq")
"""What scores can be compared with ratings by; `acc_eq` is tie-calibrated within images."""
_TAUS = ("tau_b", "tau_c")


@dataclass(frozen=True)
class Items:
    """Captions to score, with the id of each one's image and its references (None: the set has none).

    names: of each caption in its file, for messages; None: the set's rows are not its captions.
    """

    captions: list[str]
    images: list[str]
    references: list[list[str]] | None = None
    names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.captions)


@dataclass(frozen=True)
class Scoring:
    """One way in which a protocol has its items scored.

    name: e.g. `draw 1` or `4 references`. items: equal objects are scored once where that is possible.
    chosen: positions of each item's references that count here; None: all.
    """

    name: str
    items: Items
    chosen: Sequence[Sequence[int]] | None = None

    def references(self) -> list[list[str]] | None:
        """The references of each item that count here."""
        if self.items.references is None or self.chosen is None:
            return self.items.references
        pairs = zip(self.items.references, self.chosen, strict=True)
        return [[texts[position] for position in positions] for texts, positions in pairs]


@dataclass(frozen=True)
class Scored:
    """The scores of a scoring's items; NaN where there is none.

    parts: components by name, one value per item. corpus: the value to report for all items, where that is
    not the mean of the scores. signature: of the result that they come from; None where there is none.
    """

    scores: Doubles
    parts: Mapping[str, Doubles] = field(default_factory=dict)
    corpus: float | None = None
    signature: str | None = None


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    value: NaN where it is undefined. draws: its value in each resample of images; None: no interval.
    rows: ratings or pairs that it is over. runs: its value in each scoring, where it is their mean.
    undefined: why there is no value.
    """

    value: float
    rows: int
    draws: Doubles | None = None
    runs: tuple[float, ...] = ()
    undefined: str | None = None

    @property
    def deviation(self) -> float:
        """The standard deviation over the scorings, NaN for fewer than two."""
        if len(self.runs) < 2:
            return math.nan
        # Of equal values rounding may leave a deviation, by which a distance would be thousands of them.
        return float(np.std(self.runs, ddof=1)) if min(self.runs) < max(self.runs) else 0.0

    def interval(self, resamples: Resamples | None, level: float) -> Interval | None:
        if resamples is None or self.draws is None or not math.isfinite(self.value):
            return None
        return resamples.interval(self.draws, level=level)


def mean_of(cells: Sequence[Cell]) -> Cell:
    """The mean of cells, of scorings or of categories."""
    draws = [cell.draws for cell in cells if cell.draws is not None]
    return Cell(
        float(np.mean([cell.value for cell in cells])),
        cells[0].rows,
        np.mean(draws, axis=0) if len(draws) == len(cells) else None,
        undefined=next((cell.undefined for cell in cells if cell.undefined), None),
    )


def _mean_of_runs(cells: Sequence[Cell]) -> Cell:
    return replace(mean_of(cells), runs=tuple(cell.value for cell in cells) if len(cells) > 1 else ())


@dataclass(frozen=True)
class JudgedSet(ABC):
    """Human judgements and their protocol.

    name: of its entry in `SETS`. scorings: what is scored; each metric gives one `Scored` for each.
    dropped: what was left out of the files, by reason. unit: what a row of `clusters` is.
    """

    unit: ClassVar[str] = "ratings"

    name: str
    scorings: tuple[Scoring, ...]
    dropped: dict[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def items(self) -> Items:
        """What is scored first."""
        return self.scorings[0].items

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the cells, in the order of the papers' tables."""

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
        ids = (image for scoring in self.scorings for image in scoring.items.images)
        return list(dict.fromkeys(ids))

    def levels(self, run: Scored) -> dict[str, list[float]]:
        """Scores by rating, to be drawn; of many ratings in ranges of equal counts."""
        return {}


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


def tau_columns() -> dict[str, RatingColumn]:
    """The two columns of most tables."""
    return {name: RatingColumn(name) for name in _TAUS}


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
        first, table = next(iter(self.table.values())), {}
        for column in self.table.values():
            for statistic in statistics:
                ratings = column.ratings if column.ratings != first.ratings else ""
                name = [statistic, ratings, column.scoring, column.part, column.subset]
                table[" ".join(filter(None, name))] = replace(column, statistic=statistic)
        return replace(self, table=table)

    def levels(self, run: Scored) -> dict[str, list[float]]:
        values = self.ratings[next(iter(self.table.values())).ratings]
        return _by_rating(values if values.ndim == 1 else values.mean(axis=1), run.scores[self.item])

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        @cache
        def rows(run: int, ratings: str, part: str | None, subset: str | None) -> _Rows:
            values = scored[run].scores if part is None else scored[run].parts[part]
            return _Rows(self, values, ratings, subset, resamples)

        def cell(column: RatingColumn, run: int) -> Cell:
            if column.part is not None and column.part not in scored[run].parts:
                return Cell(math.nan, 0, undefined=f"the metric has no {column.part}")
            found = rows(run, column.ratings, column.part, column.subset)
            return found.annotators(column.statistic) if self.by_annotator else found.cell(column.statistic)

        names = [scoring.name for scoring in self.scorings]
        return {
            name: cell(column, names.index(column.scoring))
            if column.scoring is not None
            else _mean_of_runs([cell(column, run) for run in range(len(scored))])
            for name, column in self.table.items()
        }


class _Rows:
    """Ratings with one metric's scores, whose statistics share counts and resamples."""

    def __init__(
        self, judged: RatedSet, values: Doubles, ratings: str, subset: str | None, resamples: Resamples | None
    ) -> None:
        scores = values[judged.item]
        self.kept = np.isfinite(scores)
        if subset is not None and judged.subsets is not None:
            self.kept &= np.asarray(judged.subsets, dtype=object) == subset
        self.scores, self.ratings = scores[self.kept], judged.ratings[ratings][self.kept]
        self.item = judged.item[self.kept]
        self.images = [image for image, kept in zip(judged.clusters, self.kept, strict=True) if kept]
        self.resamples = resamples

    def annotators(self, statistic: str) -> Cell:
        """The mean of a coefficient over annotators."""
        reason = undefined(self.scores, self.ratings[:, 0])
        if reason is not None:
            return Cell(math.nan, len(self.scores), undefined=reason)
        return Cell(annotator_mean(_COEFFICIENTS[statistic], self.scores, self.ratings), len(self.scores))

    def cell(self, statistic: str) -> Cell:
        count = len(self.scores)
        reason = undefined(self.scores, self.ratings)
        if reason is not None:
            return Cell(math.nan, count, undefined=reason)
        if statistic not in _COEFFICIENTS:
            # Several ratings of a caption are one here: it has one score, which would tie with itself.
            _, first, of_row = np.unique(self.item, return_index=True, return_inverse=True)
            means = np.bincount(of_row, self.ratings) / np.bincount(of_row)
            images = [self.images[row] for row in first]
            accuracy, _ = tie_calibrated_accuracy(self.scores[first], means, images)
            found = "no image has two rated captions" if math.isnan(accuracy) else None
            return Cell(accuracy, len(first), undefined=found)
        value = _COEFFICIENTS[statistic](self.scores, self.ratings)
        draws = None if self.resamples is None else centred(self._draws(statistic), value.value)
        return Cell(value.value, count, draws, undefined=value.undefined)

    @cached_property
    def _weighted(self) -> WeightedRows:
        return WeightedRows(self.scores, self.ratings)

    @cached_property
    def _taus(self) -> Doubles:
        """(draws, 2): tau-b and tau-c of each resample."""
        return self._each(self._weighted.taus)

    def _draws(self, statistic: str) -> Doubles:
        if statistic in _TAUS:
            return self._taus[:, _TAUS.index(statistic)]
        return self._each(self._weighted.spearman if statistic == "spearman" else self._weighted.pearson)

    def _each(self, of_weights: Callable[[Integers], float | Sequence[float]]) -> Doubles:
        assert self.resamples is not None
        return self.resamples.each(lambda weights: of_weights(weights[self.kept]))


def _by_rating(ratings: Doubles, scores: Doubles, most: int = 7) -> dict[str, list[float]]:
    """Scores by rating; of many ratings in ranges of equal counts."""
    kept = np.isfinite(ratings) & np.isfinite(scores)
    ratings, scores = ratings[kept], scores[kept]
    distinct = np.unique(ratings)
    if len(distinct) <= most:
        return {f"{value:.3g}": scores[ratings == value].tolist() for value in distinct}
    bounds = np.unique(np.quantile(ratings, np.linspace(0, 1, most)))
    groups = np.clip(np.searchsorted(bounds, ratings, side="right") - 1, 0, len(bounds) - 2)
    return {
        f"{bounds[group]:.2g} to {bounds[group + 1]:.2g}": scores[groups == group].tolist()
        for group in range(len(bounds) - 1)
    }


@dataclass(frozen=True)
class PairedSet(JudgedSet):
    """Pairs of captions. Items 2i and 2i + 1 are the captions a and b of pair i.

    preferred: of each scoring, (pairs,) 0 where a is preferred, 1 where b is.
    images: of each pair. categories: of each pair, columns beside their mean; None: there are none.
    by_scoring: whether each scoring is a column of its own, else a column is the mean of all scorings.
    paragraphs: of each pair, the paragraph that it is a sentence of: scores are averaged over sentences
        before they are compared. None: every pair stands alone.
    """

    unit = "pairs"

    preferred: tuple[Sequence[int], ...]
    images: list[str]
    categories: Sequence[str] | None = None
    by_scoring: bool = False
    paragraphs: Sequence[str] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        if self.categories is not None:
            return (*sorted(set(self.categories)), "mean")
        return tuple(scoring.name for scoring in self.scorings) if self.by_scoring else ("accuracy",)

    @property
    def clusters(self) -> list[str]:
        if self.paragraphs is None:
            return self.images
        return list(dict(zip(self.paragraphs, self.images, strict=True)).values())

    def levels(self, run: Scored) -> dict[str, list[float]]:
        sides = self._sides(run.scores, self.preferred[0])
        names = ("preferred", "other")
        return {name: own[np.isfinite(own)].tolist() for name, own in zip(names, sides, strict=True)}

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        runs = [
            self._run(run.scores, preferred, resamples)
            for run, preferred in zip(scored, self.preferred, strict=True)
        ]
        if self.by_scoring:
            return {name: run["accuracy"] for name, run in zip(self.columns, runs, strict=True)}
        return {name: _mean_of_runs([run[name] for run in runs]) for name in self.columns}

    def _sides(self, scores: Doubles, preferred: Sequence[int]) -> tuple[Doubles, Doubles]:
        """The scores of the preferred captions and of the others."""
        pairs, first = scores.reshape(-1, 2), np.asarray(preferred) == 0
        return np.where(first, pairs[:, 0], pairs[:, 1]), np.where(first, pairs[:, 1], pairs[:, 0])

    def _run(self, scores: Doubles, preferred: Sequence[int], resamples: Resamples | None) -> dict[str, Cell]:
        """The cells of one scoring: of each category and their mean, or `accuracy`."""
        sides = pd.DataFrame(dict(enumerate(self._sides(scores, preferred))))
        if self.paragraphs is not None:  # NaN where one of its sentences is
            sides = sides.groupby(list(self.paragraphs), sort=False).agg(lambda own: own.mean(skipna=False))
        won = won_pairs(sides[0], sides[1])
        if self.categories is None:
            return {"accuracy": _accuracy(won, resamples)}
        of_pair = np.asarray(self.categories, dtype=object)
        cells = {
            name: _accuracy(np.where(of_pair == name, won, np.nan), resamples) for name in self.columns[:-1]
        }
        rows = sum(cell.rows for cell in cells.values())
        return cells | {"mean": replace(mean_of(list(cells.values())), rows=rows)}


def _accuracy(won: Doubles, resamples: Resamples | None) -> Cell:
    finite = won[np.isfinite(won)]
    if not len(finite):
        return Cell(math.nan, 0, undefined="no pair has two scores")
    return Cell(float(finite.mean()), len(finite), None if resamples is None else resamples.means(won))


@dataclass(frozen=True)
class MarkedSet(JudgedSet):
    """Captions of which some are marked: the average precision with which low scores find them.

    marked: (items,) whether a caption has what is looked for, e.g. a hallucination.
    """

    unit = "captions"

    marked: Sequence[bool]

    @property
    def columns(self) -> tuple[str, ...]:
        return ("AP",)

    def levels(self, run: Scored) -> dict[str, list[float]]:
        return _by_rating(1.0 - np.asarray(self.marked, dtype=np.float64), run.scores)

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        scores, marks = -scored[0].scores, np.asarray(self.marked, dtype=np.float64)
        kept = np.isfinite(scores)
        scores, marks = scores[kept], marks[kept]
        reason = None
        if not marks.any() or marks.all():
            reason = f"of {len(marks):,} captions {'all' if marks.any() else 'none'} are marked"
        elif (scores == scores[0]).all():
            reason = f"all {len(scores):,} scores are equal"
        if reason is not None:
            return {"AP": Cell(math.nan, len(scores), undefined=reason)}
        value, draws = average_precision(scores, marks), None
        if resamples is not None:
            found = resamples.each(lambda weights: average_precision(scores, marks, weights[kept]))
            draws = centred(found, value)
        return {"AP": Cell(value, len(scores), draws)}


@dataclass(frozen=True)
class SystemSet(JudgedSet):
    """Captions of whole systems on the same images: the value that a metric reports for each."""

    unit = "captions"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(scoring.name for scoring in self.scorings)

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        cells = {}
        for name, run in zip(self.columns, scored, strict=True):
            finite = run.scores[np.isfinite(run.scores)]
            mean = float(finite.mean()) if len(finite) else math.nan
            # A corpus value is no mean of rows, so resampled means are not its interval.
            draws = None if resamples is None or run.corpus is not None else resamples.means(run.scores)
            reason = None if len(finite) else "no caption has a score"
            value = mean if run.corpus is None else run.corpus
            cells[name] = Cell(value, len(finite), draws, undefined=reason)
        return cells


@dataclass(frozen=True)
class PoolSet(JudgedSet):
    """Pools of candidates: how good the captions are that a metric chooses, by metrics on references.

    Its one scoring has all candidates, pool after pool. evaluators: by column, what scores the chosen
    captions as those of a system; `judge` puts the n-gram metrics here.
    """

    unit = "pools"

    evaluators: Mapping[str, Callable[[Items], Scored]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.evaluators)

    @property
    def clusters(self) -> list[str]:
        return self.image_ids

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        items = self.items
        rows = self._chosen(scored[0].scores)
        if not rows:
            return {name: Cell(math.nan, 0, undefined="no candidate has a score") for name in self.columns}
        references = items.references or []
        columns = (items.captions, items.images, references)
        best = Items(*([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]
        system = SystemSet(self.name, tuple(Scoring(name, best) for name in self.columns))
        runs = [evaluate(best) for evaluate in self.evaluators.values()]
        return system.cells(runs, resamples if len(rows) == len(self.clusters) else None)

    def _chosen(self, scores: Doubles) -> list[int]:
        """The candidate with the highest score of each image that has one, the first of equal ones."""
        finite = pd.Series(scores)[np.isfinite(scores)]
        images = np.asarray(self.items.images, dtype=object)[finite.index]
        return [int(row) for row in finite.groupby(images, sort=False).idxmax()]
