"""Protocols that are neither ratings nor pairs: marked captions, whole systems, pools to choose from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from capeval_core.judgements.correlation import Doubles, average_precision
from capeval_core.judgements.judged_set import Cell, Items, JudgedSet, Scored, Scoring
from capeval_core.judgements.resampling import Resamples, centred

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

    scored: all candidates, pool after pool. evaluators: by column, what scores the chosen captions as those
    of a system; `judge` puts the n-gram metrics here.
    """

    scored: Scoring
    evaluators: Mapping[str, Callable[[Items], Scored]] = field(default_factory=dict)

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        return (self.scored,)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.evaluators)

    @property
    def clusters(self) -> list[str]:
        return list(dict.fromkeys(self.scored.items.images))

    @property
    def unit(self) -> str:
        return "pools"

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        rows, items = self.chosen(scored[0]), self.scored.items
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
        for row, (image, score) in enumerate(zip(self.scored.items.images, scored.scores, strict=True)):
            if math.isfinite(score) and (image not in best or score > scored.scores[best[image]]):
                best[image] = row
        return list(best.values())
