"""Several systems by several metrics as plain values, which tables and pages of a comparison are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capeval_core.reports.explanations import DIGITS, number


@dataclass(frozen=True)
class Column:
    """A metric.

    name: as `load` knows it. title: as papers write it. key: of its value. range: least and greatest score at
    the default options. relative: why its scores have neither interval nor test; None where they have.
    summary: what it measures, in a sentence. citation: authors, title and venue of its paper. address: the
    paper's URL.
    """

    name: str
    title: str
    key: str
    range: tuple[float, float]
    higher_is_better: bool = True
    relative: str | None = None
    summary: str = ""
    citation: str = ""
    address: str = ""


@dataclass(frozen=True)
class Test:
    """A paired test of a system against the baseline, on the visuals that both have a score on.

    difference: the system's mean minus the baseline's, over these. low, high: its confidence interval, of
    this comparison alone. p_value: two-sided. adjusted: the p-value after Holm's correction.
    count: visuals compared. left_out: visuals with a score in only one of the two.
    """

    difference: float
    low: float
    high: float
    p_value: float
    adjusted: float
    count: int
    left_out: int = 0


@dataclass(frozen=True)
class Cell:
    """One system's result by one metric; lists have one value per caption.

    mean: the number to report, NaN without a score. interval: (low, high); None: `no_interval` says why.
    scores: NaN where scoring failed. parts: components that the paper names. errors: index of a failed
    caption and why. truncated, empty: numbers of such captions. signature: everything that the numbers depend
    on. evidence: by index, where a score comes from, for a picture with `plot()`; None where it was not kept.
    test: against the baseline; None for the baseline itself, and where `no_test` says why. lack: what its
    captions lack to have more than 0, where the mean is nothing but rounding.
    """

    mean: float
    interval: tuple[float, float] | None
    scores: Sequence[float]
    parts: Mapping[str, Sequence[Any]]
    errors: Mapping[int, str]
    signature: str
    no_interval: str = ""
    truncated: int = 0
    empty: int = 0
    evidence: Mapping[int, Mapping[str, Any]] | None = field(default=None, repr=False)
    test: Test | None = None
    no_test: str = ""
    lack: str | None = None


@dataclass(frozen=True)
class System:
    """A system's captions, one entry per caption in each list, and its cells by the name of the metric.

    images: paths of images or of videos, in the same order; None where they are not known, as for results
    read from files. references: None without any.
    """

    name: str
    ids: Sequence[str]
    captions: Sequence[str]
    images: Sequence[Any] | None
    references: Sequence[Sequence[str]] | None
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Systems:
    """A comparison: systems are rows, metrics columns; one system by one metric is the smallest.

    baseline: the name of the system that the others are tested against; None for a single system.
    visual: what captions are about, "image" or "video". level: of intervals and tests.
    test: name of the test. correction: how p-values are adjusted, in words, with the family of tests.
    messages: what failed or was truncated or left out, in words, for people to read.
    titles: of parts, by their names in `Cell.parts`, where they have any. command: what repeats all this.
    digits: decimals of scores for readers; None: as many as the place has by itself.
    times_100: whether scores for readers are times 100.
    """

    systems: Sequence[System]
    columns: Sequence[Column]
    baseline: str | None = None
    visual: str = "image"
    level: float = 0.95
    test: str = ""
    correction: str = ""
    messages: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    digits: int | None = None
    times_100: bool = False

    def scaled(self, value: float) -> float:
        """A score, or a difference of scores, as readers want it."""
        return 100 * value if self.times_100 else value

    def decimals(self, usual: int) -> int:
        """Decimals of scores; `usual`: where readers want none in particular, of scores as they are."""
        return max(usual - 2 * self.times_100, 0) if self.digits is None else self.digits

    def number(self, value: float, usual: int = 4) -> str:
        """A score for readers; "n/a" where there is none."""
        return f"{self.scaled(value):.{self.decimals(usual)}f}" if math.isfinite(value) else "n/a"

    def for_page(self, value: float) -> str:
        """A score on a page."""
        return number(self.scaled(value), self.decimals(DIGITS))

    def best(self, column: Column, usual: int = 4) -> list[str]:
        """The systems with the best mean of several; more than one where they tie in the digits shown."""
        cells = {system.name: system.cells[column.name] for system in self.systems}
        finite = {name: cell for name, cell in cells.items() if math.isfinite(cell.mean)}
        if len(finite) < 2:
            return []
        best = (max if column.higher_is_better else min)(cell.mean for cell in finite.values())
        shown = self.number(best, usual)
        return [
            n for n, cell in finite.items() if cell.lack is None and self.number(cell.mean, usual) == shown
        ]

    def significant(self, cell: Cell) -> bool:
        """Whether a cell differs from the baseline after the correction."""
        return cell.test is not None and cell.test.adjusted < 1 - self.level

    def verdict(self, cell: Cell, column: Column) -> str:
        """Whether a cell is "better" or "worse" than the baseline, or "equal"; "" without a test."""
        if cell.test is None:
            return ""
        if not self.significant(cell):
            return "equal"
        return "better" if (cell.test.difference > 0) == column.higher_is_better else "worse"
