"""Tables of systems by metrics: stacked for a terminal, a cell each for papers, a line each for programs."""

from __future__ import annotations

import math

from capeval_core.reports.systems import Cell, Systems
from capeval_core.reports.tables import Table
from capeval_core.values import p_in_words

MARK = "*"
COLUMNS = (
    "system", "metric", "mean", "low", "high", "level", "captions", "failed", "truncated", "empty",
    "baseline", "difference", "difference_low", "difference_high", "p", "p_holm", "significant", "compared",
    "left_out", "signature",
)  # fmt: skip
"""The columns of `long_table`."""


def stacked_table(systems: Systems) -> Table:
    """A system is up to three lines: means, intervals, and p-values after the correction."""
    rows = []
    for system in systems.systems:
        cells = [system.cells[column.name] for column in systems.columns]
        lines = [
            [_mean(systems, cell) for cell in cells],
            [_interval(systems, cell, " to ") for cell in cells],
            [_p_value(systems, cell) for cell in cells],
        ]
        kept = [lines[0], *(line for line in lines[1:] if any(line))]
        rows += [[system.name if i == 0 else "", *line] for i, line in enumerate(kept)]
    return Table("Systems", _header(systems), rows, _notes(systems))


def cells_table(systems: Systems) -> Table:
    """A system is one row: mean, mark and interval of each metric in a cell."""
    rows = [
        [
            system.name,
            *(
                " ".join(filter(None, [_mean(systems, cell), _bracketed(systems, cell)]))
                for cell in (system.cells[column.name] for column in systems.columns)
            ),
        ]
        for system in systems.systems
    ]
    best = [systems.best(column) for column in systems.columns]
    bold = {
        (row, place)
        for row, system in enumerate(systems.systems)
        for place, names in enumerate(best, 1)
        if system.name in names
    }
    return Table("Systems", _header(systems), rows, _notes(systems), bold)


def long_table(systems: Systems) -> Table:
    """A line for each system and metric with every number, as many digits as it has."""
    rows = []
    for system in systems.systems:
        for name, cell in system.cells.items():
            low, high = cell.interval or (math.nan, math.nan)
            counts = [len(cell.scores), len(cell.errors), cell.truncated, cell.empty]
            test = cell.test
            tested = ["" if system.name == systems.baseline else systems.baseline or "", *[""] * 8]
            if test is not None:
                numbers = [test.difference, test.low, test.high, test.p_value, test.adjusted]
                tested[1:] = [*map(repr, numbers), str(systems.significant(cell)).lower()]
                tested += [str(test.count), str(test.left_out)]
            means = [_number(value) for value in (cell.mean, low, high)]
            rows.append(
                [system.name, name, *means, repr(systems.level), *map(str, counts), *tested, cell.signature]
            )
    return Table("Systems", COLUMNS, rows)


def _header(systems: Systems) -> list[str]:
    titles = [
        column.title + ("" if column.higher_is_better else " (lower is better)") for column in systems.columns
    ]
    return ["system", *titles]


def _notes(systems: Systems) -> list[str]:
    """What the table's signs mean, what failed, and the signatures."""
    notes = []
    cells = [cell for system in systems.systems for cell in system.cells.values()]
    if any(cell.interval is not None for cell in cells):
        notes.append(f"{systems.level:.0%} intervals of the means, by {systems.visual}")
    if any(cell.test is not None for cell in cells):
        corrected = f", {systems.correction}" if systems.correction else ""
        limit = f"p < {1 - systems.level:.2g}"
        notes.append(f"{MARK}: differs from {systems.baseline} ({limit}, {systems.test}{corrected})")
    notes += ["means and intervals times 100"] if systems.times_100 else []
    notes += systems.messages
    for column in systems.columns:
        signatures = dict.fromkeys(system.cells[column.name].signature for system in systems.systems)
        notes += signatures
    return notes


def _mean(systems: Systems, cell: Cell) -> str:
    return f"{systems.number(cell.mean)}{MARK if systems.significant(cell) else ''}"


def _interval(systems: Systems, cell: Cell, between: str) -> str:
    return "" if cell.interval is None else between.join(map(systems.number, cell.interval))


def _bracketed(systems: Systems, cell: Cell) -> str:
    interval = _interval(systems, cell, ", ")
    return interval and f"[{interval}]"


def _p_value(systems: Systems, cell: Cell) -> str:
    return "" if cell.test is None else p_in_words(cell.test.adjusted, systems.level)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""
