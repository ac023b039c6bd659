"""A score on its scale, drawn in HTML: sharp at every size, and read aloud as a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from capeval_core.description import describe_metric
from capeval_core.integrations.page.scorer import Mark
from capeval_core.metric import CaptionMetric

DIGITS = 3
"""As papers report these metrics."""
_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST = 5  # steps; more numbers would run into each other on a phone


def number(value: float) -> str:
    """
    >>> number(0.81849), number(float("nan"))
    ('0.818', 'no score')
    """
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "no score"


def ticks(low: float, high: float) -> list[float]:
    """Round numbers along a scale, with its two ends.

    >>> ticks(0, 2), ticks(0, 4 / 3)
    ([0, 0.5, 1.0, 1.5, 2], [0, 0.5, 1.0, 1.3333333333333333])
    """
    step = next((step for step in _STEPS if (high - low) / step <= _MOST), (high - low) / 4)
    first = math.floor(low / step) + 1
    inner = [i * step for i in range(first, math.ceil(high / step))]
    room = 0.4 * step  # a tick this near to an end would run into its number
    return [low, *(tick for tick in inner if tick - low > room and high - tick > room), high]


def scale(metric: type[CaptionMetric], marks: Sequence[Mark], score: float | None = None) -> str:
    """The scale of a metric: a row for a score, and one for each mark below it, over a common axis."""
    own = [_row(metric, "this caption", score, "bar")] if score is not None else []
    others = [_row(metric, mark.label, mark.value, "dot") for mark in marks]
    rows = "".join(own + others) or '<div class="track"></div>'
    axis = "".join(
        f'<span style="--at:{_place(metric, tick)}">{tick:.3g}</span>' for tick in ticks(*metric.range)
    )
    told = escape(_in_words(metric, marks, score))
    here = "" if score is None else f' style="--here:{_place(metric, score)}"'
    return (
        f'<div class="scale"{here} role="img" aria-label="{told}">'
        f'<div aria-hidden="true">{rows}<div class="axis">{axis}</div></div></div>'
    )


def _row(metric: type[CaptionMetric], label: str, value: float, shape: str) -> str:
    return (
        f'<div class="row {shape}s"><span class="label">{escape(label)}</span>'
        f'<span class="lane" style="--at:{_place(metric, value)}"><i class="{shape}"></i></span>'
        f'<span class="value">{number(value)}</span></div>'
    )


def _in_words(metric: type[CaptionMetric], marks: Sequence[Mark], score: float | None) -> str:
    told = describe_metric(metric)
    own = "" if score is None else f"{told.title} of this caption: {number(score)}. "
    others = ", ".join(f"{mark.label} {number(mark.value)}" for mark in marks)
    typical = f" What typical captions get: {others}." if marks else ""
    return f"{own}The scale goes from {told.range}, {told.better}.{typical}"


def _place(metric: type[CaptionMetric], value: float) -> str:
    """Where a value lies on the scale, kept within it."""
    low, high = metric.range
    share = (value - low) / (high - low) if math.isfinite(value) else 0.0
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
