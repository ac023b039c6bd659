"""A score on its scale, drawn in HTML: sharp at every size, in the page's colours, read aloud as a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from capeval_core.integrations.page.scorer import Mark, Scored
from capeval_core.metric import CaptionMetric

DIGITS = 3
"""As papers report these metrics."""
_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_TICKS = 6


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
    step = next((step for step in _STEPS if (high - low) / step < _MOST_TICKS), (high - low) / 4)
    first = math.floor(low / step) + 1
    inner = [i * step for i in range(first, math.ceil(high / step))]
    room = 0.4 * step  # a tick this near to an end would run into its number
    return [low, *(tick for tick in inner if tick - low > room and high - tick > room), high]


def scale(metric: type[CaptionMetric], scored: Scored | None = None) -> str:
    """The scale of a metric; with a scored caption its place on it, over what typical captions get."""
    rows = list(_rows(metric, scored)) if scored else []
    told = _in_words(metric, scored)
    low, high = metric.range
    axis = "".join(
        f'<span style="--at:{_percent(metric, tick)}">{tick:.3g}</span>' for tick in ticks(low, high)
    )
    empty = "" if rows else '<div class="track"></div>'
    return (
        f'<div class="scale" role="img" aria-label="{escape(told)}"><div aria-hidden="true" class="rows">'
        f"{''.join(rows)}{empty}"
        f'<div class="axis">{axis}</div></div></div>'
    )


def _rows(metric: type[CaptionMetric], scored: Scored) -> Iterator[str]:
    here = _percent(metric, scored.score)
    yield (
        '<div class="row own"><span class="label">this caption</span>'
        f'<span class="lane" style="--at:{here}"><i class="bar"></i></span>'
        f'<span class="value">{number(scored.score)}</span></div>'
    )
    for mark in scored.marks.values:
        at = _percent(metric, mark.value)
        yield (
            f'<div class="row"><span class="label">{escape(mark.label)}</span>'
            f'<span class="lane" style="--at:{at};--own-at:{here}"><i class="dot"></i></span>'
            f'<span class="value">{number(mark.value)}</span></div>'
        )


def _in_words(metric: type[CaptionMetric], scored: Scored | None) -> str:
    low, high = metric.range
    better = "higher" if metric.higher_is_better else "lower"
    scale = f"a scale from {low:.3g} to {high:.3g}, {better} is better"
    if scored is None:
        return f"{metric.title} has {scale}."
    return f"{metric.title} of this caption: {number(scored.score)}, on {scale}. {_list(scored.marks.values)}"


def _list(marks: Sequence[Mark]) -> str:
    told = ", ".join(f"{mark.label} {number(mark.value)}" for mark in marks)
    return f"What typical captions get: {told}." if marks else ""


def _percent(metric: type[CaptionMetric], value: float) -> str:
    """Where a value lies on the scale, kept within it."""
    low, high = metric.range
    share = (value - low) / (high - low) if math.isfinite(value) else 0.0
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
