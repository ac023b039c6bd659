"""Scores for the page: one caption at a time, beside those that typical captions get."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capeval_core.demo import demo_of, demo_samples, score_kinds
from capeval_core.inputs.samples import Samples
from capeval_core.integrations.page.media import MEDIA
from capeval_core.integrations.page.words import capitalised, texts_of
from capeval_core.metric import CaptionMetric
from capeval_core.options import CorpusOptions
from capeval_core.registry import load, metric_class
from capeval_core.reranking import Reranker
from capeval_core.result import Result
from capeval_core.weights.folder import TINY, open_weights

LONGEST_TEXT = 20_000
"""Characters of a caption and its references together: strangers use a page, and encoding takes its time."""
RARE = "Word weights (idf) come from the packaged examples: one caption is too few."
NO_WEIGHTS = "none"
"""The only choice of weights where a metric has none."""


@dataclass(frozen=True)
class Mark:
    """A value to place a score beside."""

    label: str
    value: float


@dataclass(frozen=True)
class Marks:
    """What typical captions get, best first, and a sentence that says whose means these are."""

    values: tuple[Mark, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, metric: type[CaptionMetric], values: list[Mark], source: str) -> Marks:
        ordered = sorted(values, key=lambda mark: mark.value, reverse=metric.higher_is_better)
        return cls(tuple(ordered), source)


@dataclass(frozen=True)
class Scored:
    """One scored caption, or the one that a metric chose.

    notes: where the metric sees another image than the reader.
    """

    metric: type[CaptionMetric]
    caption: str
    result: Result
    evidence: Mapping[str, Any]
    marks: Marks
    notes: Sequence[str]

    @property
    def score(self) -> float:
        return self.result.scores[0]


class Scorer:
    """A metric with the weights that a page offers; each is opened when it is first used, and once.

    weights: those that are chosen at first, as `load` takes them; None: the metric's published ones.
    media: what captions are about; None: the metric's first.
    """

    def __init__(
        self, name: str, weights: str | os.PathLike[str] | None = None, media: str | None = None
    ) -> None:
        self.metric = metric_class(name, media)
        if self.metric.relative is not None and not issubclass(self.metric, Reranker):
            raise ValueError(f"{name} has no page, which scores single captions: {self.metric.relative}")
        self.medium = MEDIA[self.metric.media[0]] if self.metric.media else None
        if weights is not None:
            self.metric.check_options(self.metric.Options(weights=weights))
        entry, tiny = self.metric.default_weights, self.metric.tiny
        published = entry.repository if entry else NO_WEIGHTS
        self.first = published if weights is None else os.fspath(weights)
        demonstration = ["tiny"] if tiny is not None and (TINY / tiny).is_dir() else []
        self.offered = tuple(dict.fromkeys([self.first, published, *demonstration]))
        """Nothing else is opened: a page is open to people whom its owner does not know."""
        self._opened: dict[tuple[Any, ...], tuple[CaptionMetric, Marks]] = {}
        self._busy = threading.Lock()

    def is_open(self, weights: str) -> bool:
        """Whether `score` with these weights needs to open nothing."""
        return any(weights == opened for opened, *_ in self._opened)

    def check(
        self, visual: str | None, caption: str | Sequence[str], references: Sequence[str], weights: str
    ) -> Samples:
        """What `score` is to score; it opens no weights."""
        if weights not in self.offered:
            raise ValueError(f"weights={weights!r}: this page offers {' and '.join(map(repr, self.offered))}")
        captions = [caption] if isinstance(caption, str) else caption or []
        length = sum(len(text) for text in (*captions, *references) if isinstance(text, str))
        if length > LONGEST_TEXT:
            raise ValueError(f"the texts have {length:,} characters, this page takes {LONGEST_TEXT:,}")
        compared = [list(references)] if self.metric.needs_references else None
        # Not the path, which tells where the server keeps uploads.
        content = None if visual is None else {"bytes": Path(visual).read_bytes(), "path": Path(visual).name}
        with texts_of(self.metric).naming():
            samples = self.metric.check_input(self.metric.Options(), [caption], [content], compared)
        noun = "references" if self.medium is None else self.medium.name
        return replace(samples, images=[sample.at(f"the {noun}") for sample in samples.images])

    def score(
        self,
        visual: str | None,
        caption: str | Sequence[str],
        references: Sequence[str],
        weights: str | None = None,
    ) -> Scored:
        """One caption, or one list of candidates, of the file at a path, scored; one call at a time."""
        weights = self.first if weights is None else weights
        samples = self.check(visual, caption, references, weights)
        options, notes = {}, []
        if visual is not None and self.medium is not None:
            options = self.medium.options(Path(visual))
            notes = self.medium.notes(visual, crops=self.metric.crops, options=options)
        named = texts_of(self.metric).naming()
        with self._busy, named, warnings.catch_warnings(record=True) as caught:
            metric, marks = self._open(weights, options)
            result = metric.combine(metric.encode_all(samples), samples=samples)
        messages = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
        notes += dict.fromkeys(map(capitalised, messages))
        weighed = isinstance(metric.options, CorpusOptions) and metric.options.statistics is not None
        notes += [RARE] if weighed else []
        scored = caption if isinstance(caption, str) else result.parts["caption"][0]
        return Scored(self.metric, scored, result, result.explain(0), marks, notes)

    def _open(self, weights: str, options: Mapping[str, Any]) -> tuple[CaptionMetric, Marks]:
        key = (weights, *sorted(options.items()))
        if key not in self._opened:
            chosen = {} if weights == NO_WEIGHTS else {"weights": weights}
            metric = load(self.metric.name, media=self.metric.variant, evidence=True, **chosen, **options)
            metric = metric.prepared(demo_samples(metric))  # one caption is no corpus
            self._opened[key] = metric, marks_of(metric)
        return self._opened[key]


def marks_of(metric: CaptionMetric) -> Marks:
    """Published means where the metric's weights are those of a paper, else those of the demo's captions.

    The demo's captions are scored now, with the metric's own weights.
    """
    if metric.relative:
        return Marks()
    published = published_marks(type(metric), [*_listed(metric), *(m.label for m in metric.models.values())])
    if published.values:
        return published
    items = demo_of(type(metric))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is odd about the examples is no news of a visitor's caption
        values = [Mark(kind, result.mean) for kind, result in score_kinds(metric, items).items()]
    noun = (metric.media or ("image",))[0]
    weighed = ", with these weights" if metric.default_weights else ""
    return Marks.of(
        type(metric),
        values,
        f"Means over the {len(items)} drawn examples{weighed}: good captions are true, subtly "
        f"wrong ones have one word changed, unrelated ones are true of another {noun}.",
    )


def _listed(metric: CaptionMetric) -> list[str]:
    """The repository that the catalogue has of a metric's weights, whatever their folder is called."""
    weights = metric.options.weights
    if weights is None or not metric.default_weights:
        return []
    entry = open_weights(weights, metric=metric.name, tiny=metric.tiny or "").entry
    return [entry.repository] if entry else []


def published_marks(metric: type[CaptionMetric], weights: Sequence[str]) -> Marks:
    """Published means that were computed with one of these weights; a `@revision` is not looked at.

    Weights count as those of a paper by their repository, or by its last part: what a folder is called that
    is converted as the library says.
    """
    used = {name.partition("@")[0].lower() for name in weights}
    found = [
        value
        for value in metric.published
        if used & {value.weights.lower(), value.weights.lower().rpartition("/")[2]}
    ]
    if not found:
        return Marks()
    origins = ["; ".join(filter(None, [value.source, value.settings])) for value in found]
    sources = dict.fromkeys(f"{v.dataset} ({origin})" for v, origin in zip(found, origins, strict=True))
    return Marks.of(
        metric,
        [Mark(value.captions, value.value) for value in found],
        f"Means over {' and '.join(sources)}. Single captions vary far more than these means.",
    )
