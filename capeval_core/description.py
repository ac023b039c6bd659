"""Descriptions of metrics in words, for the command line, `evaluate`, the documents and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.metric import CaptionMetric
from capeval_core.reranking import Reranker
from capeval_core.weights.catalogue import WeightsEntry

_VISUALS = {
    "images": "images, one per {}: paths, bytes, PIL, numpy or torch arrays, `datasets` images or a whole "
    "`datasets` column.",
    "videos": "videos, one per {}: paths of videos or of folders of frames, lists of frames, numpy or torch "
    "arrays, or `datasets` videos.",
}


@dataclass(frozen=True)
class MetricDescription:
    """A metric's class attributes in words.

    name: as `load` knows it. title: as papers write it. summary: one sentence.
    command: of `capeval` that scores with it.
    range: of the score at the default options, e.g. `0 to 1.33`, or `relative`.
    better: `higher is better` or `lower is better`.
    references: `with references` or `without references`.
    visual: what a caption is about, `image` or `video`; None for texts alone.
    compares: what a caption is compared with. mean: of which captions its value is the mean.
    inputs: arguments of its module's `compute`, and their meaning. predictions: an example of the first.
    weights: repository of the default weights, or `none`. licence: of these, `not stated` or `none needed`.
    citation: authors, title and venue of the paper. address: its URL.
    bibtex: its entry; '' where the metric states none.
    relative: why its scores can be compared within one set only; None if with those of other sets, too.
    """

    name: str
    title: str
    summary: str
    command: str
    range: str
    better: str
    references: str
    visual: str | None
    compares: str
    mean: str
    inputs: Mapping[str, str]
    predictions: str
    weights: str
    licence: str
    citation: str
    address: str
    bibtex: str = ""
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
    >>> list(refpacs.inputs)
    ['predictions', 'images', 'references', 'per_caption']
    """
    low, high = metric.range
    citation, _, address = metric.paper.rpartition(" ")
    of_pools = issubclass(metric, Reranker)
    argument = argument_of(metric.media)
    visual = None if argument is None else medium_of(argument)
    inputs = {
        "predictions": "captions, one string per row.",
        **({argument: _VISUALS[argument].format("pool" if of_pools else "caption")} if argument else {}),
        "references": "per caption a list of texts, or one text; any number each.",
        "per_caption": "`compute` also gives scores, parts and errors per caption, the signature and counts.",
    }
    if of_pools:
        inputs["predictions"] = "pools, per image a list of candidate captions, any number each."
        inputs["per_caption"] = (
            "`compute` also gives per image the choice, its score and those of every candidate, errors, the "
            "signature and counts."
        )
    if "boxes" in metric.media:
        inputs["images"] += " Box features too; ids, where `regions` holds features that were made before."
    if not metric.needs_references:
        del inputs["references"]
    compared = " and ".join(
        [*([f"its {visual}"] if visual else []), *["its references"] * metric.needs_references]
    )
    return MetricDescription(
        name=metric.name,
        title=metric.title,
        summary=metric.summary,
        command="rerank" if of_pools else "score",
        range="relative" if of_pools else f"{low:.3g} to {high:.3g}",
        better=f"{'higher' if metric.higher_is_better else 'lower'} is better",
        references=f"{'with' if metric.needs_references else 'without'} references",
        visual=visual,
        compares="its image and the other candidates" if of_pools else compared,
        mean="chosen captions" if of_pools else "captions that have a score",
        inputs=inputs,
        predictions="[...], ..." if of_pools else "...",
        weights=metric.default_weights.repository if metric.default_weights else "none",
        licence=licence_in_words(metric.default_weights) if metric.default_weights else "none needed",
        citation=citation.rstrip(","),
        address=address,
        bibtex=metric.bibtex,
        relative=metric.relative,
    )


def licence_in_words(weights: WeightsEntry) -> str:
    """The licence of weights; `not stated` if their authors state none, which is no permission."""
    return weights.licence or "not stated"
