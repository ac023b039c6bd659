"""Protocols other than ratings: pairs of captions, marked ones, whole systems, pools to choose from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from capeval_core.judgements.correlation import Doubles, Ties, average_precision, won_pairs
from capeval_core.judgements.judged_set import Cell, Items, JudgedSet, Scored, Scoring, mean_of_runs
from capeval_core.judgements.resampling import Resamples, centred

PRECISION = "AP"
MEAN = "mean"


@dataclass(frozen=True)
class MarkedSet(JudgedSet):
    """Captions of which some are marked: the average precision with which low scores find them.

    marked: (items,) whether a caption has what is looked for, e.g. a hallucination.
    """

    unit = "captions"

    marked: Sequence[bool]

    @property
    def columns(self) -> tuple[str, ...]:
        return (PRECISION,)

    def rated(self, run: Scored) -> tuple[Doubles, Doubles] | None:
        return 1.0 - np.asarray(self.marked, dtype=np.float64), run.scores

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        scores, marks = -scored[0].scores, np.asarray(self.marked, dtype=np.float64)
        kept = np.isfinite(scores)
        scores, marks = scores[kept], marks[kept]
        value = average_precision(scores, marks)
        reason = None
        if not marks.any() or marks.all():
            share = "all" if marks.any() else "none"
            value, reason = math.nan, f"of {len(marks):,} captions {share} are marked"
        elif (scores == scores[0]).all():
            value, reason = math.nan, f"all {len(scores):,} scores are equal"
        draws = None
        if resamples is not None and reason is None:
            found = resamples.each(lambda weights: average_precision(scores, marks, weights[kept]))
            draws = centred(found, value)
        return {PRECISION: Cell(value, len(scores), draws, undefined=reason)}


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
            value = (
                run.corpus if run.corpus is not None else float(finite.mean()) if len(finite) else math.nan
            )
            # A corpus value is no mean of rows, so resampled means are not its interval.
            draws = None if resamples is None or run.corpus is not None else resamples.means(run.scores)
            reason = None if len(finite) else "no caption has a score"
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
        rows, items = self.chosen(scored[0]), self.items
        if not rows:
            return {name: Cell(math.nan, 0, undefined="no candidate has a score") for name in self.columns}
        references = items.references or []
        best = Items(
            [items.captions[row] for row in rows],
            [items.images[row] for row in rows],
            [references[row] for row in rows],
        )
        system = SystemSet(self.name, tuple(Scoring(name, best) for name in self.columns))
        runs = [evaluate(best) for evaluate in self.evaluators.values()]
        return system.cells(runs, resamples if len(rows) == len(self.clusters) else None)

    def chosen(self, scored: Scored) -> list[int]:
        """The candidate with the highest score of each image that has one, the first of equal ones."""
        best: dict[str, int] = {}
        for row, (image, score) in enumerate(zip(self.items.images, scored.scores, strict=True)):
            if math.isfinite(score) and (image not in best or score > scored.scores[best[image]]):
                best[image] = row
        return list(best.values())


@dataclass(frozen=True)
class PairedSet(JudgedSet):
    """Pairs of captions. Items 2i and 2i + 1 are the captions a and b of pair i.

    preferred: of each scoring, (pairs,) 0 where a is preferred, 1 where b is.
    images: of each pair. categories: of each pair, columns beside their mean; None: there are none.
    by_scoring: whether each scoring is a column of its own, else a column is the mean of all scorings.
    ties: what equal scores count.
    paragraphs: of each pair, the paragraph that it is a sentence of: scores are averaged over sentences
        before they are compared. None: every pair stands alone.
    """

    unit = "pairs"

    preferred: tuple[Sequence[int], ...]
    images: list[str]
    categories: Sequence[str] | None = None
    by_scoring: bool = False
    ties: Ties = "wrong"
    paragraphs: Sequence[str] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        if self.categories is not None:
            return (*sorted(set(self.categories)), MEAN)
        return tuple(scoring.name for scoring in self.scorings) if self.by_scoring else ("accuracy",)

    @property
    def clusters(self) -> list[str]:
        if self.paragraphs is None:
            return self.images
        image = dict(zip(self.paragraphs, self.images, strict=True))
        return list(image.values())

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        runs = [
            self._run(run.scores, preferred, resamples)
            for run, preferred in zip(scored, self.preferred, strict=True)
        ]
        if self.by_scoring:
            names = [scoring.name for scoring in self.scorings]
            return {name: run["accuracy"] for name, run in zip(names, runs, strict=True)}
        return {name: mean_of_runs([run[name] for run in runs]) for name in self.columns}

    def _run(self, scores: Doubles, preferred: Sequence[int], resamples: Resamples | None) -> dict[str, Cell]:
        """The cells of one scoring: of each category and their mean, or `accuracy`."""
        sides = scores.reshape(-1, 2)
        first = np.asarray(preferred) == 0
        better, worse = np.where(first, sides[:, 0], sides[:, 1]), np.where(first, sides[:, 1], sides[:, 0])
        if self.paragraphs is not None:
            better, worse = (_means(side, self.paragraphs) for side in (better, worse))
        won = won_pairs(better, worse, ties=self.ties)
        if self.categories is None:
            return {"accuracy": _accuracy(won, resamples)}
        of_pair = np.asarray(self.categories, dtype=object)
        names = self.columns[:-1]
        cells = {name: _accuracy(np.where(of_pair == name, won, np.nan), resamples) for name in names}
        draws = [cell.draws for cell in cells.values() if cell.draws is not None]
        cells[MEAN] = Cell(
            float(np.mean([cell.value for cell in cells.values()])),
            sum(cell.rows for cell in cells.values()),
            np.mean(draws, axis=0) if len(draws) == len(names) else None,
            undefined=next((cell.undefined for cell in cells.values() if cell.undefined), None),
        )
        return cells


def _accuracy(won: Doubles, resamples: Resamples | None) -> Cell:
    finite = won[np.isfinite(won)]
    if not len(finite):
        return Cell(float("nan"), 0, undefined="no pair has two scores")
    return Cell(float(finite.mean()), len(finite), None if resamples is None else resamples.means(won))


def _means(values: Doubles, paragraphs: Sequence[str]) -> Doubles:
    """The mean of each paragraph's values, in order of first mention; NaN if one of them is NaN."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(paragraphs))}
    of_row = np.array([numbers[name] for name in paragraphs], dtype=np.int64)
    total = np.bincount(of_row, values, len(numbers))
    return np.asarray(total / np.bincount(of_row, minlength=len(numbers)))
