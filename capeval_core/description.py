"""Descriptions of metrics in words, for the command line, `evaluate`, the documents and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.metric import CaptionMetric, Reranker
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

    command: of `capeval` that scores with it. visual: what a caption is about; None for texts alone.
    compares: what a caption is compared with. mean: of which captions its value is the mean.
    inputs: arguments of its module's `compute`. predictions: an example of the first.
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
    pools, argument = issubclass(metric, Reranker), argument_of(metric.media)
    visual = None if argument is None else medium_of(argument)
    needed = [f"its {visual}"] * (visual is not None) + ["its references"] * metric.needs_references
    citation, _, address = metric.paper.rpartition(" ")
    low, high = metric.range
    weights = metric.default_weights
    return MetricDescription(
        name=metric.name,
        title=metric.title,
        summary=metric.summary,
        command="rerank" if pools else "score",
        range="relative" if pools else f"{low:.3g} to {high:.3g}",
        better=f"{'higher' if metric.higher_is_better else 'lower'} is better",
        references=f"{'with' if metric.needs_references else 'without'} references",
        visual=visual,
        compares="its image and the other candidates" if pools else " and ".join(needed),
        mean="chosen captions" if pools else "captions that have a score",
        inputs=_inputs(metric, argument, pools=pools),
        predictions="[...], ..." if pools else "...",
        weights=weights.repository if weights else "none",
        licence=licence_in_words(weights) if weights else "none needed",
        citation=citation.rstrip(","),
        address=address,
        bibtex=metric.bibtex,
        relative=metric.relative,
    )


def _inputs(metric: type[CaptionMetric], argument: str | None, *, pools: bool) -> dict[str, str]:
    captions = "pools, per image a list of candidate captions, any number each."
    inputs = {"predictions": captions if pools else "captions, one string per row."}
    if argument is not None:
        inputs[argument] = _VISUALS[argument].format("pool" if pools else "caption")
    if "boxes" in metric.media:
        inputs["images"] += " Box features too; ids, where `regions` holds features that were made before."
    if metric.needs_references:
        inputs["references"] = "per caption a list of texts, or one text; any number each."
    own = (
        "per image the choice, its score and those of every candidate, errors, the signature and counts."
        if pools
        else "scores, parts and errors per caption, the signature and counts."
    )
    return {**inputs, "per_caption": f"`compute` also gives {own}"}


def licence_in_words(weights: WeightsEntry) -> str:
    """The licence of weights; `not stated` if their authors state none, which is no permission."""
    return weights.licence or "not stated"
