"""Protocols that are neither ratings nor pairs: marked captions, whole systems, pools to choose from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capeval_core.judgements.correlation import average_precision
from capeval_core.judgements.judged_set import Cell, JudgedSet, Scored, Scoring
from capeval_core.judgements.resampling import Resamples

PRECISION = "AP"


@dataclass(frozen=True)
class MarkedSet(JudgedSet):
    """Captions of which some are marked: the average precision with which low scores find them.

    marked: (items,) whether a caption has what is looked for, e.g. a hallucination.
    """

    scored: Scoring
    marked: Sequence[bool]

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        return (self.scored,)

    @property
    def columns(self) -> tuple[str, ...]:
        return (PRECISION,)

    @property
    def clusters(self) -> list[str]:
        return self.scored.items.images

    @property
    def unit(self) -> str:
        return "captions"

    def ratings_of_items(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return 1.0 - np.asarray(self.marked, dtype=np.float64)

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        scores, marks = -scored[0].scores, np.asarray(self.marked, dtype=np.float64)
        kept = np.isfinite(scores)
        scores, marks = scores[kept], marks[kept]
        value = average_precision(scores, marks)
        reason = None
        if not marks.any() or marks.all():
            value, reason = math.nan, f"of {len(marks):,} captions {'all' if len(marks) and marks.all() else 'none'} are marked"
        elif (scores == scores[0]).all():
            value, reason = math.nan, f"all {len(scores):,} scores are equal"
        draws = None
        if resamples is not None and reason is None:
            draws = resamples.each(lambda weights: average_precision(scores, marks, weights[kept]))
        return {PRECISION: Cell(value, len(scores), draws, undefined=reason)}


@dataclass(frozen=True)
class SystemSet(JudgedSet):
    """Captions of whole systems on the same images: the value that a metric reports for each."""

    systems: tuple[Scoring, ...]

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        return self.systems

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(scoring.name for scoring in self.systems)

    @property
    def clusters(self) -> list[str]:
        return self.systems[0].items.images

    @property
    def unit(self) -> str:
        return "captions"

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        cells = {}
        for name, run in zip(self.columns, scored, strict=True):
            finite = run.scores[np.isfinite(run.scores)]
            value = run.corpus if run.corpus is not None else float(finite.mean()) if len(finite) else math.nan
            # A corpus value is no mean of rows, so resampled means are not its interval.
            draws = None if resamples is None or run.corpus is not None else resamples.means(run.scores)
            reason = None if len(finite) else "no caption has a score"
            cells[name] = Cell(value, len(finite), draws, undefined=reason)
        return cells


@dataclass(frozen=True)
class PoolSet(JudgedSet):
    """Pools of candidates: how good the candidate is that a metric chooses, by metrics on references.

    scored: all candidates, pool after pool. quality: (items,) by name, what each candidate is worth; the column
    is the mean of the chosen ones.
    """

    scored: Scoring
    quality: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        return (self.scored,)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.quality)

    @property
    def clusters(self) -> list[str]:
        return list(dict.fromkeys(self.scored.items.images))

    @property
    def unit(self) -> str:
        return "pools"

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        chosen = self.chosen(scored[0])
        rows = np.array(list(chosen.values()), dtype=np.int64)
        cells = {}
        for name, quality in self.quality.items():
            values = np.full(len(self.clusters), math.nan)
            order = {image: number for number, image in enumerate(self.clusters)}
            values[[order[image] for image in chosen]] = quality[rows]
            finite = values[np.isfinite(values)]
            reason = None if len(finite) else "no pool has a scored candidate"
            value = float(finite.mean()) if len(finite) else math.nan
            draws = None if resamples is None else resamples.means(values)
            cells[name] = Cell(value, len(finite), draws, undefined=reason)
        return cells

    def chosen(self, scored: Scored) -> dict[str, int]:
        """The candidate with the highest score of each image, the first of equal ones."""
        best: dict[str, int] = {}
        for row, (image, score) in enumerate(zip(self.scored.items.images, scored.scores, strict=True)):
            if math.isfinite(score) and (image not in best or score > scored.scores[best[image]]):
                best[image] = row
        return best
