"""A judged set's table: cells of each metric with intervals, beside what papers print, and tests between
metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from capeval_core.judgements.correlation import Doubles, pearson
from capeval_core.judgements.protocols import Cell, JudgedSet, RatedSet, Scored
from capeval_core.judgements.published import PublishedCell, published
from capeval_core.judgements.resampling import Resamples
from capeval_core.statistics import LEAST_P, Interval


@dataclass(frozen=True)
class Entry:
    """One cell of a table, in the papers' scale of 100, beside what a paper prints, where one does."""

    label: str
    column: str
    cell: Cell
    interval: Interval | None
    published: PublishedCell | None

    @property
    def value(self) -> float:
        return 100 * self.cell.value

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of the interval, times 100."""
        return None if self.interval is None else (100 * self.interval.low, 100 * self.interval.high)

    @property
    def distance(self) -> float | None:
        """Ours less the published value; None where either is missing."""
        if self.published is None or not math.isfinite(self.value):
            return None
        return self.value - self.published.value

    @property
    def z_score(self) -> float | None:
        """The distance in standard deviations over the draws of references, None where there are none."""
        deviation = 100 * self.cell.deviation
        return self.distance / deviation if self.distance is not None and deviation > 0 else None


@dataclass(frozen=True)
class _Contest:
    """Two metrics in one column: the bootstrap's difference, and Williams' p-value where it exists."""

    first: str
    second: str
    column: str
    difference: _Difference
    williams: float


class Judged:
    """A judged set with the scores of metrics: by label, those of each of its scorings.

    draws, seed: of the resamples of intervals of a `level`; 0 draws: no intervals.
    """

    def __init__(
        self,
        judged: JudgedSet,
        scores: Mapping[str, Sequence[Scored]],
        *,
        draws: int = 1_000,
        level: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.judged, self.scores, self.level = judged, dict(scores), level
        self.resamples = Resamples(judged.clusters, draws=draws, seed=seed) if draws else None

    @cached_property
    def cells(self) -> dict[str, dict[str, Cell]]:
        """By label and column."""
        return {label: self.judged.cells(runs, self.resamples) for label, runs in self.scores.items()}

    @cached_property
    def entries(self) -> list[Entry]:
        """Every cell, metric after metric."""
        name = self.judged.name
        return [
            Entry(
                label, column, cell, cell.interval(self.resamples, self.level), published(name, label, column)
            )
            for label, cells in self.cells.items()
            for column, cell in cells.items()
        ]

    def contests(self) -> Iterator[_Contest]:
        """Every two metrics in each column in which both have resamples."""
        if self.resamples is None:
            return
        for column in self.judged.columns:
            for first, second in combinations(self.cells, 2):
                cells = self.cells[first][column], self.cells[second][column]
                if cells[0].draws is not None and cells[1].draws is not None:
                    values, draws = (cells[0].value, cells[1].value), (cells[0].draws, cells[1].draws)
                    difference = _paired_bootstrap(values, draws, self.resamples, level=self.level)
                    yield _Contest(first, second, column, difference, self._williams(first, second, column))

    def _williams(self, first: str, second: str, column: str) -> float:
        """For ratings alone: of Pearson's correlations of the rows that both metrics have a score on."""
        judged = self.judged
        if not isinstance(judged, RatedSet) or judged.by_annotator or len(judged.scorings) != 1:
            return math.nan
        spec = judged.table[column]
        if spec.part is not None or spec.subset is not None:
            return math.nan
        sides = [self.scores[label][0].scores[judged.item] for label in (first, second)]
        kept = np.isfinite(sides[0]) & np.isfinite(sides[1])
        x, y, ratings = sides[0][kept], sides[1][kept], judged.ratings[spec.ratings][kept]
        of_first, of_second, between = (pearson(*pair).value for pair in ((x, ratings), (y, ratings), (x, y)))
        return williams(of_first, of_second, between, len(x))


@dataclass(frozen=True)
class _Difference:
    """The difference of a statistic of two metrics, first minus second.

    interval: None where there are too few images. p_value: two-sided, of no difference; NaN where undefined.
    """

    value: float
    interval: Interval | None
    p_value: float


def _paired_bootstrap(
    values: tuple[float, float], draws: tuple[Doubles, Doubles], resamples: Resamples, *, level: float = 0.95
) -> _Difference:
    """The difference of two metrics, both taken on the same resamples of images.

    With the percentile interval, and the p-value 2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples
    whose difference is at most 0 (those at 0 count half).
    """
    differences = draws[0] - draws[1]
    finite = differences[np.isfinite(differences)]
    interval = resamples.interval(differences, level=level)
    value = values[0] - values[1]
    if interval is None or not math.isfinite(value):
        return _Difference(value, None, math.nan)
    below = float(np.count_nonzero(finite < 0) + np.count_nonzero(finite == 0) / 2)
    extreme = min(below, len(finite) - below)
    return _Difference(value, interval, min(1.0, 2 * (extreme + 1) / (len(finite) + 1)))


def williams(first: float, second: float, between: float, rows: int) -> float:
    """The two-sided p-value of Williams' test that two correlations with the same ratings are equal.

    Williams, The Comparison of Regression Variables, JRSS B 21, 1959; for metrics: Graham and Baldwin,
    Testing for Significance of Increased Correlation with Human Judgment, EMNLP 2014. It is for Pearson's
    correlation of independent rows; rows of one image are not, so it is beside the bootstrap, not in its
    place. NaN with fewer than four rows, or where a correlation is undefined.

    >>> williams(0.5, 0.4, 0.6, 100)
    0.2048...
    """
    if rows < 4 or not all(map(math.isfinite, (first, second, between))):
        return math.nan
    if first == second:
        return 1.0
    from scipy.stats import t as student

    n = rows
    # The determinant of the three correlations; rounding must not make it negative.
    k = max(1 - first**2 - second**2 - between**2 + 2 * first * second * between, 0.0)
    spread = 2 * k * (n - 1) / (n - 3) + ((first + second) / 2) ** 2 * (1 - between) ** 3
    if spread <= 0:
        return math.nan
    statistic = (first - second) * math.sqrt((n - 1) * (1 + between) / spread)
    return max(float(2 * student.sf(abs(statistic), n - 3)), LEAST_P)
