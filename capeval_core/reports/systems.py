"""Several systems by several metrics as plain values, and their tables: stacked for a terminal, a cell each
for papers, a line each for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capeval_core.errors import p_in_words
from capeval_core.reports.explanations import DIGITS, number
from capeval_core.reports.tables import Table

_MARK = "*"
_COLUMNS = (
    "system", "metric", "mean", "low", "high", "level", "captions", "failed", "truncated", "empty",
    "baseline", "difference", "difference_low", "difference_high", "p", "p_holm", "significant", "compared",
    "left_out", "signature",
)  # fmt: skip
"""The columns of `long_table`."""


@dataclass(frozen=True)
class Column:
    """A metric: `name` as `load` knows it, `title` as papers write it, `key` of its value.

    range: least and greatest score at the default options. relative: why its scores have neither interval nor
    test. summary: a sentence. citation, address: of its paper.
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

    difference: the system's mean minus the baseline's, with its own interval. adjusted: the p-value after
    Holm's correction. count: visuals compared. left_out: those with a score in only one of the two.
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

    mean, scores: NaN without a score. parts: components that the paper names. errors: of failed captions.
    evidence: by index, where it was kept. no_interval, no_test: why there is none; the baseline has no test.
    lack: what its captions lack to have more than 0, where the mean is nothing but rounding.
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

    images: paths of images or of videos; None where they are not known, as for results read from files.
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

    baseline: the system that the others are tested against. visual: "image" or "video". test, correction: in
    words. messages: what failed or was left out. titles: of parts, by their names in `Cell.parts`. command:
    what repeats all this. digits: decimals for readers; None: as many as the place has by itself.
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


def stacked_table(systems: Systems) -> Table:
    """A system is up to three lines: means, intervals, and p-values after the correction."""

    def p_value(cell: Cell) -> str:
        return "" if cell.test is None else p_in_words(cell.test.adjusted, systems.level)

    lines: list[Callable[[Cell], str]] = [
        lambda cell: _mean(systems, cell),
        lambda cell: _interval(systems, cell, " to "),
        p_value,
    ]
    rows = []
    for system in systems.systems:
        texts = [[text(system.cells[column.name]) for column in systems.columns] for text in lines]
        kept = [line for place, line in enumerate(texts) if any(line) or not place]
        rows += [["" if place else system.name, *line] for place, line in enumerate(kept)]
    return Table("Systems", _header(systems), rows, _notes(systems))


def cells_table(systems: Systems) -> Table:
    """A system is one row: mean, mark and interval of each metric in a cell."""
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for system in systems.systems:
        cells = []
        for column in systems.columns:
            interval = _interval(systems, system.cells[column.name], ", ")
            mean = _mean(systems, system.cells[column.name])
            cells.append(f"{mean} [{interval}]" if interval else mean)
            if system.name in systems.best(column):
                bold.add((len(rows), len(cells)))
        rows.append([system.name, *cells])
    return Table("Systems", _header(systems), rows, _notes(systems), bold)


def long_table(systems: Systems) -> Table:
    """A line for each system and metric with every number, as many digits as it has."""
    rows = []
    for system in systems.systems:
        for name, cell in system.cells.items():
            means = [
                repr(x) if math.isfinite(x) else "" for x in (cell.mean, *(cell.interval or (math.nan,) * 2))
            ]
            counts = [len(cell.scores), len(cell.errors), cell.truncated, cell.empty]
            tested: list[object] = [""] * 8
            if test := cell.test:
                numbers = [test.difference, test.low, test.high, test.p_value, test.adjusted]
                significant = str(systems.significant(cell)).lower()
                tested = [*map(repr, numbers), significant, test.count, test.left_out]
            baseline = "" if system.name == systems.baseline else systems.baseline or ""
            row = [system.name, name, *means, systems.level, *counts, baseline, *tested, cell.signature]
            rows.append(list(map(str, row)))
    return Table("Systems", _COLUMNS, rows)


def _header(systems: Systems) -> list[str]:
    titles = [
        column.title + ("" if column.higher_is_better else " (lower is better)") for column in systems.columns
    ]
    return ["system", *titles]


def _notes(systems: Systems) -> list[str]:
    """What the table's signs mean, what failed, and the signatures."""
    notes = []
    cells = [system.cells[column.name] for column in systems.columns for system in systems.systems]
    if any(cell.interval is not None for cell in cells):
        notes.append(f"{systems.level:.0%} intervals of the means, by {systems.visual}")
    if any(cell.test is not None for cell in cells):
        corrected = f", {systems.correction}" if systems.correction else ""
        limit = f"p < {1 - systems.level:.2g}"
        notes.append(f"{_MARK}: differs from {systems.baseline} ({limit}, {systems.test}{corrected})")
    notes += ["means and intervals times 100"] if systems.times_100 else []
    return [*notes, *systems.messages, *dict.fromkeys(cell.signature for cell in cells)]


def _mean(systems: Systems, cell: Cell) -> str:
    return f"{systems.number(cell.mean)}{_MARK if systems.significant(cell) else ''}"


def _interval(systems: Systems, cell: Cell, between: str) -> str:
    return "" if cell.interval is None else between.join(map(systems.number, cell.interval))
