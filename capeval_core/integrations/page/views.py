"""The result: nothing yet, weights being opened, a score on its scale, or what is wrong. All is HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from capeval_core.description import describe_metric
from capeval_core.integrations.page.scorer import Mark, Marks, Scored
from capeval_core.integrations.page.words import capitalised, needs_of, texts_of
from capeval_core.metric import CaptionMetric
from capeval_core.project import address
from capeval_core.registry import titles_of_parts
from capeval_core.reports.explanations import TINY_KNOWS, number, panels, parts
from capeval_core.values import minus

_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST = 5  # steps; more numbers would run into each other on a phone


def heading(metric: type[CaptionMetric]) -> str:
    """The metric's name, and in a sentence what its number means."""
    described = describe_metric(metric)
    links = {"the paper": described.address, "the project": address()}
    linked = "".join(
        f'<span><a href="{escape(url)}" target="_blank" rel="noreferrer">{text}</a></span>'
        for text, url in links.items()
        if url
    )
    return (
        f'<header class="heading"><h1>{escape(described.title)}</h1><p>{escape(described.summary)}</p>'
        f'<p class="facts"><span>{minus(described.range)}</span><span>{described.better}</span>'
        f"<span>{described.references}</span>{linked}</p></header>"
    )


def empty(metric: type[CaptionMetric], marks: Marks) -> str:
    """Before the first score: the scale, with what is known of it already."""
    return _section(
        f'<p class="what">{escape(metric.title)}</p>'
        f'<p class="message">Give {needs_of(metric)}, or take an example, and press Score.</p>'
        f"{scale(metric, marks.values)}" + _notes([marks.source])
    )


def keys(metric: type[CaptionMetric]) -> str:
    """The keys that score, below the button."""
    pressed = "Enter" if texts_of(metric).lines[0] == 1 else "Shift + Enter"
    pressed += ", in the references Shift + Enter" if metric.needs_references else ""
    return f'<p class="keys">or press {pressed}</p>'


def opening(weights: str) -> str:
    """While weights are opened for the first time."""
    return _section(
        f'<p class="what">One moment</p><p class="message">Opening the weights <b>{escape(weights)}</b>.</p>'
        '<p class="note">This happens once; weights that are not on this machine yet are downloaded.</p>'
    )


def score(scored: Scored, weights: str) -> str:
    """The score on its scale, with its parts."""
    if scored.result.errors:
        return problem(scored.result.errors[0])
    notes = [scored.marks.source]
    if scored.metric.relative:
        notes.append(f"Compare totals of these captions only: {scored.metric.relative}.")
    notes += scored.notes
    tiny = f'<p class="warning">{escape(TINY_KNOWS)}</p>' if weights == "tiny" else ""
    return _section(
        f'<p class="what">{escape(scored.metric.title)} {texts_of(scored.metric).verb}</p>'
        f'<blockquote title="{escape(scored.caption)}">{escape(scored.caption)}</blockquote>'
        f"{_truncated(scored)}"
        f'<p class="score"><data value="{scored.score!r}">{number(scored.score)}</data></p>{tiny}'
        f"{scale(scored.metric, scored.marks.values, scored.score)}"
        + _notes(notes)
        + panels(scored.evidence)
        + parts({name: values[0] for name, values in scored.result.parts.items()}, titles_of_parts())
    )


def _truncated(scored: Scored) -> str:
    if not scored.result.counts.truncated:
        return ""
    text = texts_of(scored.metric).truncated + (" or a reference" if scored.metric.needs_references else "")
    return f'<p class="warning">{text} is longer than the text encoder reads: its end was cut off.</p>'


def problem(message: str) -> str:
    """What is wrong, in the library's words, line by line; indented lines stay so where they are wrapped."""
    lines = "".join(
        f'<p style="--indent:{len(line) - len(line.lstrip())}ch">{escape(capitalised(line.strip()))}</p>'
        for line in message.splitlines()
    )
    return _section(f'<div class="problem" role="alert">{lines}</div>')


def _notes(notes: list[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)


def _section(content: str) -> str:
    return f'<section class="result" aria-live="polite">{content}</section>'


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
    """The scale of a metric: a row for a score, and one for each mark below it, over a common axis.

    None for scores that are relative to their set.
    """
    if metric.relative:
        return ""
    own = [_row(metric, "this caption", score, "bar")] if score is not None else []
    others = [_row(metric, mark.label, mark.value, "dot") for mark in marks]
    rows = "".join(own + others) or '<div class="track"></div>'
    places = {tick: _position(metric, tick) for tick in ticks(*metric.range)}
    axis = "".join(f'<span style="--at:{at}">{minus(f"{tick:.3g}")}</span>' for tick, at in places.items())
    label = escape(_spoken(metric, marks, score))
    here = "" if score is None else f' style="--here:{_position(metric, score)}"'
    return (
        f'<div class="scale"{here} role="img" aria-label="{label}">'
        f'<div aria-hidden="true">{rows}<div class="axis">{axis}</div></div></div>'
    )


def _row(metric: type[CaptionMetric], label: str, value: float, shape: str) -> str:
    start, at = (_position(metric, x) for x in (min(value, 0.0), max(value, 0.0)))
    if shape == "dot":
        start = at = _position(metric, value)
    return (
        f'<div class="row {shape}s"><span class="label">{escape(label)}</span>'
        f'<span class="lane" style="--from:{start};--at:{at}"><i class="{shape}"></i></span>'
        f'<span class="value">{number(value)}</span></div>'
    )


def _spoken(metric: type[CaptionMetric], marks: Sequence[Mark], score: float | None) -> str:
    described = describe_metric(metric)
    own = "" if score is None else f"{described.title} of this caption: {number(score)}. "
    others = ", ".join(f"{mark.label} {number(mark.value)}" for mark in marks)
    typical = f" What typical captions get: {others}." if marks else ""
    return f"{own}The scale goes from {minus(described.range)}, {described.better}.{typical}"


def _position(metric: type[CaptionMetric], value: float) -> str:
    """The position of a value on the scale, kept within it."""
    low, high = metric.range
    share = (value - low) / (high - low) if math.isfinite(value) else 0.0
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
