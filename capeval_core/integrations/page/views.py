"""What the result's place shows: nothing yet, weights being opened, a score, or what is wrong."""

from __future__ import annotations

from html import escape

from capeval_core.description import describe_metric
from capeval_core.integrations.page.panels import panels
from capeval_core.integrations.page.scale import number, scale
from capeval_core.integrations.page.scorer import Marks, Scored
from capeval_core.metric import CaptionMetric
from capeval_core.reranking import Reranker

TINY_KNOWS = (
    "tiny knows nothing but drawn scenes of coloured shapes: its score of anything else means nothing."
)


def heading(metric: type[CaptionMetric]) -> str:
    """The metric's name, and in a sentence what its number means."""
    told = describe_metric(metric)
    return (
        f'<header class="heading"><h1>{escape(told.title)}</h1><p>{escape(told.summary)}</p>'
        f'<p class="facts"><span>{told.range}</span><span>{told.better}</span><span>{told.references}</span>'
        f'<span><a href="{escape(told.address)}" target="_blank" rel="noreferrer">the paper</a></span>'
        "</p></header>"
    )


def empty(metric: type[CaptionMetric], marks: Marks) -> str:
    """Before the first score: the scale, with what is known of it already."""
    needs = (
        "an image and captions to choose from" if issubclass(metric, Reranker) else "an image and a caption"
    )
    if metric.needs_references:
        needs = "an image, a caption and references"
    return _place(
        f'<p class="what">{escape(metric.title)}</p>'
        f'<p class="said">Give {needs}, or take an example, and press Score.</p>'
        f"{_scale(metric, marks)}" + _notes([marks.source])
    )


def opening(weights: str) -> str:
    """While weights are opened for the first time."""
    return _place(
        f'<p class="what">One moment</p><p class="said">Opening the weights <b>{escape(weights)}</b>.</p>'
        '<p class="note">This happens once; weights that are not on this machine yet are downloaded.</p>'
    )


def score(scored: Scored, weights: str) -> str:
    """The score on its scale, with its parts."""
    if scored.result.errors:
        return problem(scored.result.errors[0])
    notes = [scored.marks.source]
    if issubclass(scored.metric, Reranker):
        notes.append(f"Compare totals of these captions only: {scored.metric.relative}.")
    notes += scored.notes
    if weights == "tiny":
        notes.append(TINY_KNOWS)
    verb = "chooses" if issubclass(scored.metric, Reranker) else "of"
    return _place(
        f'<p class="what">{escape(scored.metric.title)} {verb}</p>'
        f'<blockquote title="{escape(scored.caption)}">{escape(scored.caption)}</blockquote>'
        f"{_cut(scored)}"
        f'<p class="score"><data value="{scored.score!r}">{number(scored.score)}</data></p>'
        f"{_scale(scored.metric, scored.marks, scored.score)}" + _notes(notes) + panels(scored)
    )


def _cut(scored: Scored) -> str:
    if not scored.result.counts.truncated:
        return ""
    text = "A caption" if issubclass(scored.metric, Reranker) else "The caption"
    text += " or a reference" if scored.metric.needs_references else ""
    return f'<p class="warning">{text} is longer than the text encoder reads: its end was cut off.</p>'


def _scale(metric: type[CaptionMetric], marks: Marks, score: float | None = None) -> str:
    """Scores that are relative to their set lie on no scale."""
    return "" if issubclass(metric, Reranker) else scale(metric, marks.values, score)


def problem(message: str) -> str:
    """What is wrong, in the library's words, line by line; indented lines stay so where they are wrapped."""
    lines = "".join(
        f'<p style="--indent:{len(line) - len(line.lstrip())}ch">{escape(line.strip())}</p>'
        for line in message.splitlines()
    )
    return _place(f'<div class="problem" role="alert">{lines}</div>')


def _notes(notes: list[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)


def _place(content: str) -> str:
    return f'<section class="result" aria-live="polite">{content}</section>'
