"""Descriptions of metrics in words, for the command line, `evaluate`, the documents and the page."""

from __future__ import annotations

from dataclasses import dataclass

from capeval_core.metric import CaptionMetric
from capeval_core.weights.catalogue import WeightsEntry


@dataclass(frozen=True)
class MetricDescription:
    """A metric's class attributes in words.

    name: for `load`. title: as papers write it. summary: one sentence.
    range: of the score at the default options, e.g. `0 to 1.33`, or `relative`.
    better: `higher is better` or `lower is better`.
    references: `with references` or `without references`. media: e.g. `image`.
    weights: repository of the default weights, or `none`.
    licence: of these weights, `not stated` or `none needed`.
    citation: authors, title and venue of the paper. address: its URL.
    relative: why scores are comparable within one set only, None if they stand by themselves.
    """

    name: str
    title: str
    summary: str
    range: str
    better: str
    references: str
    media: str
    weights: str
    licence: str
    citation: str
    address: str
    relative: str | None = None

    def __str__(self) -> str:
        extent = "relative to its set" if self.relative else f"from {self.range}"
        return f"{self.title}: {self.summary} {self.references.capitalize()}, {extent}, {self.better}."


def describe_metric(metric: type[CaptionMetric]) -> MetricDescription:
    """The description of a metric.

    >>> from capeval_core.registry import metric_class
    >>> refpacs = describe_metric(metric_class("refpacs"))
    >>> refpacs.range, refpacs.better, refpacs.references, refpacs.licence
    ('0 to 1.33', 'higher is better', 'with references', 'not stated')
    """
    low, high = metric.range
    citation, _, address = metric.paper.rpartition(" ")
    return MetricDescription(
        name=metric.name,
        title=metric.title,
        summary=metric.summary,
        range="relative" if metric.relative else f"{low:.3g} to {high:.3g}",
        better=f"{'higher' if metric.higher_is_better else 'lower'} is better",
        references=f"{'with' if metric.needs_references else 'without'} references",
        media=", ".join(metric.media),
        weights=metric.default_weights.repository if metric.default_weights else "none",
        licence=licence_in_words(metric.default_weights) if metric.default_weights else "none needed",
        citation=citation.rstrip(","),
        address=address,
        relative=metric.relative,
    )


def describe_inputs(metric: type[CaptionMetric]) -> dict[str, str]:
    """The arguments of `compute` in a metric's `evaluate` module.

    >>> from capeval_core.registry import metric_class
    >>> list(describe_inputs(metric_class("refpacs")))
    ['predictions', 'images', 'references', 'per_caption']
    """
    inputs = {
        "predictions": "captions, one string per row.",
        "images": "images, one per caption: paths, bytes, PIL, numpy or torch arrays, `datasets` images or "
        "a whole `datasets` column.",
        "references": "per caption a list of texts, or one text; any number each.",
        "per_caption": "`compute` also gives scores, parts and errors per caption, the signature and counts.",
    }
    if metric.pools:
        inputs |= {
            "predictions": "pools, per image a list of candidate captions, any number each.",
            "images": inputs["images"].replace("one per caption", "one per pool"),
            "per_caption": "`compute` also gives per image the choice, its score and all parts of "
            "every candidate, errors, the signature and counts.",
        }
    if not metric.needs_references:
        del inputs["references"]
    return inputs


def licence_in_words(weights: WeightsEntry) -> str:
    """The licence of weights; `not stated` if their authors state none, which is no permission."""
    return weights.licence or "not stated"
