"""Pairs of captions of which people prefer one: how often a metric prefers the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capeval_core.judgements.correlation import Doubles, Ties, won_pairs
from capeval_core.judgements.judged_set import Cell, JudgedSet, Scored, Scoring, mean_of_runs
from capeval_core.judgements.resampling import Resamples

MEAN = "mean"


@dataclass(frozen=True)
class PairedSet(JudgedSet):
    """Pairs of captions. Items 2i and 2i + 1 are the captions a and b of pair i.

    scored: the scorings. preferred: of each scoring, (pairs,) 0 where a is preferred, 1 where b is.
    images: of each pair. categories: of each pair, columns beside their mean; None: there are none.
    by_scoring: whether each scoring is a column of its own, else a column is the mean of all scorings.
    ties: what equal scores count.
    paragraphs: of each pair, the paragraph that it is a sentence of: scores are averaged over sentences
        before they are compared. None: every pair stands alone.
    """

    scored: tuple[Scoring, ...]
    preferred: tuple[Sequence[int], ...]
    images: list[str]
    categories: Sequence[str] | None = None
    by_scoring: bool = False
    ties: Ties = "wrong"
    paragraphs: Sequence[str] | None = None

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        return self.scored

    @property
    def columns(self) -> tuple[str, ...]:
        if self.categories is not None:
            return (*sorted(set(self.categories)), MEAN)
        return tuple(scoring.name for scoring in self.scored) if self.by_scoring else ("accuracy",)

    @property
    def clusters(self) -> list[str]:
        if self.paragraphs is None:
            return self.images
        image = dict(zip(self.paragraphs, self.images, strict=True))
        return list(image.values())

    @property
    def unit(self) -> str:
        return "pairs"

    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        runs = [
            self._run(run.scores, preferred, resamples)
            for run, preferred in zip(scored, self.preferred, strict=True)
        ]
        if self.by_scoring:
            names = [scoring.name for scoring in self.scored]
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
