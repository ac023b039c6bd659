"""Charts of a report as inline SVG: means with their intervals, and how scores are distributed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from capeval_core.reports.charts import round_axis
from capeval_core.reports.systems import Cell, Column, Systems
from capeval_core.values import minus

_BINS = 8, 48
"""Fewest and most bars of a distribution."""


def means(column: Column, systems: Systems) -> str:
    """The number of each system and its interval, on an axis of what these take up."""
    cells = [system.cells[column.name] for system in systems.systems]
    number = systems.for_page
    extents = [x for cell in cells for x in (cell.mean, *(cell.interval or ())) if math.isfinite(x)]
    if not extents:
        return ""
    low, high, step = round_axis(extents, parts=5)

    def at(x: float) -> str:
        return f"{100 * (x - low) / (high - low):.2f}%"

    rows = []
    for system, cell in zip(systems.systems, cells, strict=True):
        marks = ""
        if cell.interval is not None:
            ends = f'x1="{at(cell.interval[0])}" x2="{at(cell.interval[1])}"'
            marks = f'<line {ends} y1="50%" y2="50%" class="whisker"/>'
        if math.isfinite(cell.mean):
            marks += f'<circle cx="{at(cell.mean)}" cy="50%" r="5" class="dot"/>'
        rows.append(_row(system.name, marks, _in_words(cell, number), number(cell.mean), "means"))
    title = "Means" + (" with intervals" if any(cell.interval for cell in cells) else "")
    return _chart(title, rows, systems, low, high, step)


def distributions(column: Column, systems: Systems) -> str:
    """How many captions of each system have which score, on one axis, with the mean marked."""
    finite = {
        system.name: np.array([x for x in system.cells[column.name].scores if math.isfinite(x)])
        for system in systems.systems
    }
    number = systems.for_page
    values = np.concatenate([*finite.values(), np.empty(0)])
    if not len(values):
        return ""
    low, high, step = round_axis([float(values.min()), float(values.max())], parts=5)
    bins = min(max(int(2 * math.sqrt(max(map(len, finite.values())))), _BINS[0]), _BINS[1])
    width = 100 / bins
    rows = []
    for system in systems.systems:
        own = finite[system.name]
        count = np.histogram(own, bins, (low, high))[0]
        bars = "".join(
            f'<rect x="{width * place:.2f}%" y="{100 - 100 * share:.1f}%" width="{width:.2f}%" '
            f'height="{100 * share:.1f}%"/>'
            for place, share in enumerate((count / max(count.max(), 1)).tolist())
            if share
        )
        spoken = f"{len(own):,} scores"
        if len(own):
            middle = 100 * (float(own.mean()) - low) / (high - low)
            bars += f'<line x1="{middle:.2f}%" x2="{middle:.2f}%" y1="0" y2="100%" class="mean"/>'
            quartiles = np.quantile(own, [0.05, 0.5, 0.95]).tolist()
            spoken += "; 5%, 50% and 95% lie below " + ", ".join(map(number, quartiles))
        deviation = number(float(own.std())) if len(own) else ""
        rows.append(_row(system.name, bars, spoken, deviation, "counts"))
    note = "line: mean of the captions; bars: each system's own share of captions; right: standard deviation"
    return _chart("Distribution of the captions' scores", rows, systems, low, high, step, note)


def _in_words(cell: Cell, number: Callable[[float], str]) -> str:
    if cell.interval is None:
        return number(cell.mean)
    return f"{number(cell.mean)}, interval {number(cell.interval[0])} to {number(cell.interval[1])}"


def _row(name: str, marks: str, spoken: str, value: str, kind: str) -> str:
    text = escape(f"{name}: {spoken}")
    return (
        f'<div class="row {kind}"><span class="name" dir="auto">{escape(name)}</span>'
        f'<svg class="lane" role="img" aria-label="{text}"><title>{text}</title>{marks}</svg>'
        f'<span class="value">{value}</span></div>'
    )


def _chart(
    title: str, rows: Sequence[str], systems: Systems, low: float, high: float, step: float, note: str = ""
) -> str:
    ticks = np.arange(low, high + step / 2, step).tolist()
    shown = {tick: minus(f"{systems.scaled(tick):.4g}") for tick in ticks}
    axis = "".join(
        f'<span style="left:{100 * (tick - low) / (high - low):.2f}%">{text}</span>'
        for tick, text in shown.items()
    )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{"".join(rows)}'
        f'<div class="axis" aria-hidden="true">{axis}</div>{below}</figure>'
    )
