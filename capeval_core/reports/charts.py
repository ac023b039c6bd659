"""Charts of agreement with people: values with their intervals, and scores by rating; drawn with Pillow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from capeval_core.reports.canvas import FAINT, INK, LINE, PAPER, REGIONS, WRONG, Canvas
from capeval_core.reports.text import width_of

_WIDTH, _MARGIN = 960, 24
_ROW, _TITLE, _AXIS = 26, 40, 30  # heights: of a line of values, of a panel's title, of its axis
_SIZE = 13
_PANELS_ACROSS, _BOXES = 3, 220  # charts of boxes side by side, and the height of one


@dataclass(frozen=True)
class Bar:
    """A value with its interval; `low` and `high` None: it has none. published: a value to mark beside it."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


def draw_bars(panels: Mapping[str, Sequence[Bar]], note: str = "") -> Image.Image:
    """Panels one below the other: a line per value, a dot with its interval, and a tick where one is
    published.

    Values that are NaN are named and not drawn.

    >>> draw_bars({"tau_b": [Bar("PAC-S", 53.9, 52.0, 55.1, 53.919)]}).size
    (960, 142)
    """
    heights = [_TITLE + _ROW * max(len(bars), 1) + _AXIS for bars in panels.values()]
    canvas = Canvas(_WIDTH, sum(heights) + 2 * _MARGIN - 2, PAPER)
    names = [bar.name for bars in panels.values() for bar in bars]
    left = _MARGIN + min(260, max((width_of(name, _SIZE) for name in names), default=0)) + 24
    top = float(_MARGIN)
    for (title, bars), height in zip(panels.items(), heights, strict=True):
        _draw_bars(canvas, top, left, title, bars)
        top += height
    if note:
        canvas.text(_MARGIN, canvas.height - 8, note, _SIZE - 2, FAINT)
    return canvas.finished()


def _draw_bars(canvas: Canvas, top: float, left: float, title: str, bars: Sequence[Bar]) -> None:
    right = _WIDTH - _MARGIN - 150
    drawn = (x for bar in bars for x in (bar.value, bar.low, bar.high, bar.published))
    extents = [x for x in drawn if x is not None and math.isfinite(x)]
    low, high, step = round_axis(extents)

    def place(x: float) -> float:
        return left + (right - left) * (x - low) / (high - low)

    canvas.text(_MARGIN, top + 16, title, _SIZE + 1, INK, bold=True)
    bottom = top + _TITLE + _ROW * len(bars)
    for tick in np.arange(low, high + step / 2, step):
        canvas.line([(place(tick), top + _TITLE - 8), (place(tick), bottom)], LINE, 1)
        canvas.text(place(tick), bottom + 16, f"{tick:.4g}", _SIZE - 2, FAINT, anchor="ms")
    for index, bar in enumerate(bars):
        y = top + _TITLE + _ROW * index + 6
        colour = REGIONS[index % len(REGIONS)]
        canvas.text(left - 14, y + 4, bar.name, _SIZE, INK, anchor="rs")
        if not math.isfinite(bar.value):
            canvas.text(place(low) + 8, y + 4, "undefined", _SIZE - 1, FAINT)
            continue
        if bar.low is not None and bar.high is not None:
            canvas.line([(place(bar.low), y), (place(bar.high), y)], colour, 2.5)
        if bar.published is not None:
            canvas.line([(place(bar.published), y - 8), (place(bar.published), y + 8)], WRONG, 1.5)
        canvas.disc(place(bar.value), y, 4.5, colour)
        canvas.text(right + 12, y + 4, _written(bar), _SIZE - 1, FAINT)


def _written(bar: Bar) -> str:
    if bar.low is None or bar.high is None:
        return f"{bar.value:.1f}"
    return f"{bar.value:.1f}  [{bar.low:.1f}, {bar.high:.1f}]"


@dataclass(frozen=True)
class Spread:
    """The values at one level of a rating."""

    level: str
    values: Sequence[float]


def draw_spreads(panels: Mapping[str, Sequence[Spread]], axis: str = "rating") -> Image.Image:
    """A chart per metric: boxes from the lower to the upper quartile of the scores at each level.

    The line in a box is the median, whiskers reach from the 5th to the 95th percentile, and a line joins the
    means.

    >>> draw_spreads({"PAC-S": [Spread("1", [0.1, 0.2]), Spread("2", [0.4])]}).width
    960
    """
    rows = max(1, math.ceil(len(panels) / _PANELS_ACROSS))
    canvas = Canvas(_WIDTH, rows * (_BOXES + _MARGIN) + _MARGIN, PAPER)
    width = (_WIDTH - _MARGIN * (_PANELS_ACROSS + 1)) / _PANELS_ACROSS
    for index, (title, spreads) in enumerate(panels.items()):
        x = _MARGIN + (index % _PANELS_ACROSS) * (width + _MARGIN)
        y = _MARGIN + (index // _PANELS_ACROSS) * (_BOXES + _MARGIN)
        _draw_spreads(canvas, (x, y), width, title, spreads, axis, REGIONS[index % len(REGIONS)])
    return canvas.finished()


def _draw_spreads(
    canvas: Canvas,
    corner: tuple[float, float],
    width: float,
    title: str,
    spreads: Sequence[Spread],
    axis: str,
    colour: tuple[int, int, int],
) -> None:
    x, y = corner
    drawn = [spread for spread in spreads if len(spread.values)]
    canvas.text(x, y + 12, title, _SIZE, INK, bold=True)
    if not drawn:
        canvas.text(x, y + 60, "no scores", _SIZE - 1, FAINT)
        return
    marks = [np.quantile(spread.values, [0.05, 0.25, 0.5, 0.75, 0.95]) for spread in drawn]
    means = [float(np.mean(spread.values)) for spread in drawn]
    low, high, step = round_axis([*np.concatenate(marks).tolist(), *means], parts=4)
    left, right, above, below = x + 46, x + width, y + 28, y + _BOXES - 34

    def height(value: float) -> float:
        return below - (below - above) * (value - low) / (high - low)

    for tick in np.arange(low, high + step / 2, step):
        canvas.line([(left, height(tick)), (right, height(tick))], LINE, 1)
        canvas.text(left - 6, height(tick) + 4, f"{tick:.3g}", _SIZE - 3, FAINT, anchor="rs")
    across = (right - left) / len(drawn)
    half = min(18.0, across * 0.3)
    small = _SIZE - 3 if max(len(spread.level) for spread in drawn) * 6 < across else _SIZE - 5
    centres = [left + across * (index + 0.5) for index in range(len(drawn))]
    for spread, centre, five in zip(drawn, centres, marks, strict=True):
        least, lower, median, upper, most = (height(float(value)) for value in five)
        canvas.line([(centre, least), (centre, most)], colour, 1)
        canvas.box(centre - half, upper, 2 * half, max(lower - upper, 1.0), fill=(*colour, 60), edge=colour)
        canvas.line([(centre - half, median), (centre + half, median)], colour, 2)
        canvas.text(centre, below + 15, spread.level, small, FAINT, anchor="ms")
    if len(means) > 1:
        canvas.line([(c, height(mean)) for c, mean in zip(centres, means, strict=True)], INK, 1)
    for centre, mean in zip(centres, means, strict=True):
        canvas.disc(centre, height(mean), 2.5, INK)
    canvas.text((left + right) / 2, below + 30, axis, _SIZE - 3, FAINT, anchor="ms")


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


def draw_histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[int],
    marks: Mapping[str, float],
    *,
    kept_from: float | None = None,
    note: str = "",
) -> Image.Image:
    """A histogram with marked values; what is right of `kept_from` has another colour.

    edges: of the bins, one more than `counts`. marks: values by what is written above them, in order.

    >>> draw_histogram("PAC-S", [0.0, 0.5, 1.0], [3, 5], {"median": 0.6}, kept_from=0.5).size
    (960, 420)
    """
    canvas = Canvas(_WIDTH, 420, PAPER)
    left, right, above, below = _MARGIN + 60.0, float(_WIDTH - _MARGIN), 104.0, 350.0
    canvas.text(_MARGIN, 34, title, _SIZE + 3, INK, bold=True)
    canvas.text(_MARGIN, canvas.height - 14, note, _SIZE - 2, FAINT)
    low, high = float(edges[0]), float(edges[-1])
    _, most, rise = round_axis([0.0, float(max(counts, default=0))], parts=4)

    def across(x: float) -> float:
        return left + (right - left) * (x - low) / (high - low)

    def height(count: float) -> float:
        return below - (below - above) * count / most

    for tick in np.arange(0, most + rise / 2, rise):
        canvas.line([(left, height(tick)), (right, height(tick))], LINE, 1)
        canvas.text(left - 8, height(tick) + 4, f"{tick:,.4g}", _SIZE - 2, FAINT, anchor="rs")
    for begin, end, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            y = min(height(count), below - 1)
            middle = end if kept_from is None else min(max(begin, kept_from), end)
            for start, stop, colour in ((begin, middle, REGIONS[0]), (middle, end, REGIONS[1])):
                if stop > start:
                    width = across(stop) - across(start)
                    canvas.box(across(start), y, max(width - 1, 0.5), below - y, fill=colour)
    first, _, step = round_axis([low, high], parts=8)
    for tick in np.arange(first, high + step / 2, step):
        if low <= tick <= high:
            canvas.text(across(tick), below + 18, f"{tick:.4g}", _SIZE - 2, FAINT, anchor="ms")
    free = [-math.inf] * 3  # where each of three lines of labels is free again
    for name, value in marks.items():
        x, half = across(value), width_of(name, _SIZE - 3) / 2 + 4
        line = next((i for i, end in enumerate(free) if end <= x - half), 0)
        free[line] = x + half
        canvas.line([(x, above - 34 + 13 * line), (x, below)], INK, 1)
        canvas.text(x, above - 38 + 13 * line, name, _SIZE - 3, INK, anchor="ms")
    return canvas.finished()
