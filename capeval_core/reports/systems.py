"""Several systems by several metrics, and their tables: for a terminal, for papers, and for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """A metric: `name` as `load` knows it, `title` as papers write it; citation and address of its paper."""

    name: str
    title: str
    range: tuple[float, float]
    higher_is_better: bool = True
    relative: str | None = None
    summary: str = ""
    citation: str = ""
    address: str = ""


@dataclass(frozen=True)
class Cell:
    """One system by one metric: its `Result`, evidence by index, interval and test, or why there is none."""

    result: Any
    evidence: Mapping[int, Mapping[str, Any]] | None = None
    interval: Any = None
    no_interval: str = ""
    test: Mapping[str, Any] | None = None  # of the baseline none; keys as in `compare_systems`
    no_test: str = ""

    def verdict(self, column: Column) -> str:
        """Whether the system is "better" or "worse" than the baseline, or "equal"; "" without a test."""
        if self.test is None or not self.test["significant"]:
            return "equal" if self.test else ""
        return "better" if (self.test["difference"] > 0) == column.higher_is_better else "worse"


@dataclass(frozen=True)
class System:
    """A system's captions, one entry per caption in each list, and its cells by the name of the metric."""

    name: str
    ids: Sequence[str]
    captions: Sequence[str]
    cells: Mapping[str, Cell]
    images: Sequence[Any] | None = None  # paths; None for results read from files
    references: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class Systems:
    """A comparison: systems are rows, metrics columns; one system by one metric is the smallest."""

    systems: Sequence[System]
    columns: Sequence[Column]
    baseline: str | None = None
    visual: str = "image"
    level: float = 0.95
    test: str = ""
    correction: str = ""
    messages: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    command: str = ""  # that repeats all this
    digits: int | None = None  # decimals for readers; None: as many as the place has by itself
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
        results = {system.name: system.cells[column.name].result for system in self.systems}
        means = {name: result.mean for name, result in results.items() if math.isfinite(result.mean)}
        if len(means) < 2:
            return []
        best = self.number((max if column.higher_is_better else min)(means.values()), usual)
        shown = [name for name, mean in means.items() if self.number(mean, usual) == best]
        return [name for name in shown if results[name].lack is None]


def stacked_table(systems: Systems) -> Table:
    """A system is up to three lines: means, intervals, and p-values after the correction."""
    rows = []
    for system in systems.systems:
        cells = [system.cells[column.name] for column in systems.columns]
        means, intervals = ([text(systems, cell) for cell in cells] for text in (_mean, _interval))
        tests = [
            "" if cell.test is None else p_in_words(cell.test["adjusted"], systems.level) for cell in cells
        ]
        rows += [[system.name, *means], *(["", *line] for line in (intervals, tests) if any(line))]
    return Table("Systems", _header(systems), rows, _notes(systems))


def cells_table(systems: Systems) -> Table:
    """A system is one row: mean, mark and interval of each metric in a cell."""
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for system in systems.systems:
        row = [system.name]
        for column in systems.columns:
            cell = system.cells[column.name]
            interval = _interval(systems, cell, ", ")
            if system.name in systems.best(column):
                bold.add((len(rows), len(row)))
            row.append(_mean(systems, cell) + (f" [{interval}]" if interval else ""))
        rows.append(row)
    return Table("Systems", _header(systems), rows, _notes(systems), bold)


def long_table(systems: Systems) -> Table:
    """A line for each system and metric with every number, as many digits as it has."""
    rows: list[list[str]] = []
    for system in systems.systems:
        for name, cell in system.cells.items():
            result, own = cell.result, cell.interval
            ends = (math.nan, math.nan) if own is None else (own.low, own.high)
            means = [repr(x) if math.isfinite(x) else "" for x in (result.mean, *ends)]
            tested = cell.test.values() if cell.test else [""] * 8
            baseline = "" if system.name == systems.baseline else systems.baseline or ""
            values = [*means, systems.level, *vars(result.counts).values(), baseline, *tested]
            texts = [str(x).lower() if isinstance(x, bool) else str(x) for x in values]
            rows.append([system.name, name, *texts, result.signature])
    return Table("Systems", _COLUMNS, rows)


def _header(systems: Systems) -> list[str]:
    lower = {True: "", False: " (lower is better)"}
    return ["system", *(column.title + lower[column.higher_is_better] for column in systems.columns)]


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
    return [*notes, *systems.messages, *dict.fromkeys(cell.result.signature for cell in cells)]


def _mean(systems: Systems, cell: Cell) -> str:
    return systems.number(cell.result.mean) + (_MARK if cell.test and cell.test["significant"] else "")


def _interval(systems: Systems, cell: Cell, between: str = " to ") -> str:
    own = cell.interval
    return "" if own is None else between.join(map(systems.number, (own.low, own.high)))
