"""Metrics in words, for the command line, `evaluate`, the documents and the page."""

from __future__ import annotations

from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.weights.catalogue import WeightsEntry

_VISUALS = {
    "images": "images, one per {}: paths, bytes, PIL, numpy or torch arrays, `datasets` images or a whole "
    "`datasets` column.",
    "videos": "videos, one per {}: paths of videos or of folders of frames, lists of frames, numpy or torch "
    "arrays, or `datasets` videos.",
}
_BOXES = " Box features too; ids, where `regions` holds features that were made before."


class MetricDescription:
    """A metric's class attributes in words.

    visual: "image" or "video", which a caption describes; None for texts alone. compares: what a caption is
    compared with. mean: of which captions its value is the mean. inputs: arguments of its module's `compute`.
    """

    def __init__(self, metric: type[CaptionMetric]) -> None:
        pools = issubclass(metric, Reranker)
        argument = argument_of(metric.media)
        low, high = metric.range
        weights = metric.default_weights
        self.title = metric.title
        self.summary = metric.summary
        self.relative = metric.relative
        self.range = "relative" if pools else f"{low:.3g} to {high:.3g}"
        self.better = f"{'higher' if metric.higher_is_better else 'lower'} is better"
        self.references = f"{'with' if metric.needs_references else 'without'} references"
        self.visual = None if argument is None else medium_of(argument)
        compared = []
        if argument is not None:
            compared.append(f"its {self.visual}")
        if metric.needs_references:
            compared.append("its references")
        self.compares = "its image and the other candidates" if pools else " and ".join(compared)
        self.mean = "chosen captions" if pools else "captions that have a score"
        self.weights = weights.name if weights else "none"
        self.licence = licence_in_words(weights) if weights else "none needed"
        citation, _, self.address = metric.paper.rpartition(" ")
        self.citation = citation.rstrip(",")
        captions = "pools, per image a list of candidate captions, any number each."
        self.inputs = {"predictions": captions if pools else "captions, one string per row."}
        if argument is not None:
            self.inputs[argument] = _VISUALS[argument].format("pool" if pools else "caption")
        if "boxes" in metric.media:
            self.inputs["images"] += _BOXES
        if metric.needs_references:
            self.inputs["references"] = "per caption a list of texts, or one text; any number each."
        output = "scores, parts and errors per caption"
        if pools:
            output = "per image the choice, its score and those of every candidate, errors"
        self.inputs["per_caption"] = f"`compute` also gives {output}, the signature and counts."

    def __str__(self) -> str:
        extent = "relative to its set" if self.relative else f"from {self.range}"
        return f"{self.title}: {self.summary} {self.references.capitalize()}, {extent}, {self.better}."


def licence_in_words(weights: WeightsEntry) -> str:
    """The licence of weights; `not stated` if their authors state none, which is no permission."""
    return weights.licence or "not stated"
