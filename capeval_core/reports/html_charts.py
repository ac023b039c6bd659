"""Charts of a report, which its template draws: means with intervals, and how scores are distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from capeval_core.reports.systems import Column, Systems
from capeval_core.values import minus

_BINS = 8, 48
"""Fewest and most bars of a distribution."""


class _Axis:
    """Where numbers stand, in percent of a lane."""

    def __init__(self, values: list[float], systems: Systems) -> None:
        self.low, self.high, step = round_axis(values, parts=5)
        ticks = np.arange(self.low, self.high + step / 2, step).tolist()
        self.ticks = [(self.at(tick), minus(f"{systems.scaled(tick):.4g}")) for tick in ticks]

    def at(self, value: float) -> str:
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"


def means(column: Column, systems: Systems) -> dict[str, Any] | None:
    """The number of each system and its interval, on an axis of what these take up."""
    number = systems.for_page
    cells = {system.name: system.cells[column.name] for system in systems.systems}
    extents = [x for cell in cells.values() for x in (cell.mean, *(cell.interval or ())) if math.isfinite(x)]
    if not extents:
        return None
    axis, rows = _Axis(extents, systems), []
    for name, cell in cells.items():
        row: dict[str, Any] = {"name": name, "value": number(cell.mean), "spoken": number(cell.mean)}
        if cell.interval is not None:
            row["spoken"] += f", interval {' to '.join(map(number, cell.interval))}"
            row["interval"] = [*map(axis.at, cell.interval)]
        rows.append(row | ({"dot": axis.at(cell.mean)} if math.isfinite(cell.mean) else {}))
    title = "Means" + (" with intervals" if any(cell.interval for cell in cells.values()) else "")
    return {"title": title, "kind": "means", "rows": rows, "ticks": axis.ticks}


def distributions(column: Column, systems: Systems) -> dict[str, Any] | None:
    """How many captions of each system have which score, on one axis, with the mean marked."""
    number = systems.for_page
    finite = {
        system.name: np.array([x for x in system.cells[column.name].scores if math.isfinite(x)])
        for system in systems.systems
    }
    values = np.concatenate([*finite.values(), np.empty(0)])
    if not len(values):
        return None
    axis = _Axis([float(values.min()), float(values.max())], systems)
    bins = min(max(int(2 * math.sqrt(max(map(len, finite.values())))), _BINS[0]), _BINS[1])
    rows = []
    for name, own in finite.items():
        count = np.histogram(own, bins, (axis.low, axis.high))[0]
        shares = (100 * count / max(count.max(), 1)).tolist()
        bars = [(f"{100 / bins * place:.2f}", share) for place, share in enumerate(shares) if share]
        row: dict[str, Any] = {"name": name, "value": "", "spoken": f"{len(own):,} scores", "bars": bars}
        if len(own):
            below = ", ".join(map(number, np.quantile(own, [0.05, 0.5, 0.95]).tolist()))
            row["spoken"] += f"; 5%, 50% and 95% lie below {below}"
            row |= {"value": number(float(own.std())), "mean": axis.at(float(own.mean()))}
        rows.append(row)
    note = "line: mean of the captions; bars: each system's own share of captions; right: standard deviation"
    title = "Distribution of the captions' scores"
    return {
        "title": title,
        "kind": "counts",
        "width": f"{100 / bins:.2f}",
        "rows": rows,
        "ticks": axis.ticks,
        "note": note,
    }


def round_axis(values: Sequence[float], parts: int = 6) -> tuple[float, float, float]:
    """Ends and step of an axis of round numbers that holds the values.

    >>> round_axis([3.2, 47.0])
    (0.0, 50.0, 10.0)
    >>> round_axis([0.5, 0.5 + 1e-16])
    (0.5, 0.6, 0.1)
    """
    low, high = (min(values), max(values)) if len(values) else (0.0, 1.0)
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high)):  # what rounding leaves of equal values
        span = abs(high) or 1.0
    rough = span / parts
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough - 1e-12)
    first, last = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return first, last if last > first else first + step, step
