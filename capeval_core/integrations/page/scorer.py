"""Scores for the page: one caption at a time, beside those that typical captions get."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capeval_core.demo import demo_of, demo_samples, score_kinds
from capeval_core.errors import naming, place
from capeval_core.inputs.samples import Samples
from capeval_core.integrations.page.media import notes_on, options_of
from capeval_core.metric import CaptionMetric, Reranker, prepared
from capeval_core.options import CorpusOptions
from capeval_core.registry import load, metric_class
from capeval_core.result import Result
from capeval_core.weights.folder import TINY, open_weights

NO_WEIGHTS = "none"
"""The only choice of weights where a metric has none."""
_LONGEST_TEXT = 20_000  # characters of a request: strangers use a page, and encoding takes its time
_LIST_MARK = re.compile(r"^(?:[-*•–—]|\d{1,3}[.)])(?:\s+|$)")
_RARE = "Word weights (idf) come from the packaged examples: one caption is too few."


Marks = tuple[Sequence[tuple[str, float]], str]
"""What typical captions get, best first, and a sentence that says whose means these are."""


@dataclass(frozen=True)
class Scored:
    """One scored caption, or the one that a metric chose; notes say where it sees another image."""

    caption: str
    result: Result
    marks: Marks
    notes: Sequence[str]


def chooses(metric: type[CaptionMetric]) -> bool:
    """Whether a metric chooses from captions, one per line; an example then shows all of its captions."""
    return issubclass(metric, Reranker)


def lines_of(text: str) -> list[str]:
    """The lines that say something, without the bullets and numbers of a list that was pasted."""
    lines = [_LIST_MARK.sub("", line.strip(), count=1) for line in text.splitlines()]
    return list(filter(None, lines))


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _naming(metric: type[CaptionMetric]) -> AbstractContextManager[None]:
    """Let problems be those of the page's boxes."""
    names = {"captions": "the list of captions" if chooses(metric) else "the caption"}
    names |= {"references": "the list of references", "images": "the image", "videos": "the video"}

    def row(argument: str, path: Sequence[int | str]) -> str:
        if len(path) > 1 and isinstance(path[1], int) and argument in ("captions", "references"):
            return f"{'line' if argument == 'captions' else 'reference'} {path[1] + 1}"
        return place(argument, path[1:])

    def advice(name: str, value: Any) -> str:
        """How an option is set; the page has none but the weights."""
        if name != "weights" or value == "tiny":
            return "choose tiny" if name == "weights" else ""
        if "SPACE_ID" in os.environ:  # on the Hub, where nobody types commands
            return f"start this page with CAPEVAL_WEIGHTS={value}"
        return f"start `capeval page` with --weights {value}"

    return naming(names, row=row, advice=advice)


class Scorer:
    """A metric with the weights that a page offers; each is opened when it is first used, and once."""

    def __init__(
        self, name: str, weights: str | os.PathLike[str] | None = None, media: str | None = None
    ) -> None:
        self.metric = metric_class(name, media)
        if self.metric.relative is not None and not issubclass(self.metric, Reranker):
            raise ValueError(f"{name} has no page, which scores single captions: {self.metric.relative}")
        self.medium = self.metric.media[0] if self.metric.media else None
        if weights is not None:
            self.metric.Options(weights=weights).check(self.metric)
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
        captions = [caption] if isinstance(caption, str) else caption
        length = sum(map(len, (*captions, *references)))
        if length > _LONGEST_TEXT:
            raise ValueError(f"the texts have {length:,} characters, this page takes {_LONGEST_TEXT:,}")
        compared = [list(references)] if self.metric.needs_references else None
        # Not the path, which tells where the server keeps uploads.
        content = None if visual is None else {"bytes": Path(visual).read_bytes(), "path": Path(visual).name}
        with _naming(self.metric):
            samples = self.metric.Options().check_input(self.metric, [caption], [content], compared)
        noun = self.medium or "references"
        return replace(samples, images=[sample.at(f"the {noun}") for sample in samples.images])

    def score(
        self, visual: str | None, caption: str | Sequence[str], references: Sequence[str], weights: str
    ) -> Scored:
        """One caption, or one list of candidates, of the file at a path, scored; one call at a time."""
        samples = self.check(visual, caption, references, weights)
        options, notes = dict[str, Any](), list[str]()
        if visual is not None and self.medium is not None:
            options = options_of(Path(visual), self.medium)
            notes = notes_on(Path(visual), self.medium, crops=self.metric.crops, options=options)
        with self._busy, _naming(self.metric), warnings.catch_warnings(record=True) as caught:
            metric, marks = self._open(weights, options)
            result = metric.combine(metric.encode_all(samples), samples=samples)
        messages = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
        notes += dict.fromkeys(map(capitalised, messages))
        if isinstance(metric.options, CorpusOptions) and metric.options.statistics is not None:
            notes.append(_RARE)
        chosen = caption if isinstance(caption, str) else result.parts["caption"][0]
        return Scored(chosen, result, marks, notes)

    def _open(self, weights: str, options: Mapping[str, Any]) -> tuple[CaptionMetric, Marks]:
        key = (weights, *sorted(options.items()))
        if key not in self._opened:
            chosen = {} if weights == NO_WEIGHTS else {"weights": weights}
            metric = load(self.metric.name, media=self.metric.variant, evidence=True, **chosen, **options)
            metric = prepared(metric, demo_samples(metric))  # one caption is no corpus
            self._opened[key] = metric, _marks_of(metric)
        return self._opened[key]


def _marks_of(metric: CaptionMetric) -> Marks:
    """Published means where the metric's weights are those of a paper, else those of the demo's captions."""
    if metric.relative:
        return (), ""
    names = [model.label for model in metric.models.values()]
    if metric.options.weights is not None and metric.default_weights:  # whatever their folder is called
        entry = open_weights(metric.options.weights, metric=metric.name, tiny=metric.tiny or "").entry
        names += [entry.repository] if entry else []
    published = published_marks(type(metric), names)
    if published[0]:
        return published
    items = demo_of(type(metric))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is odd about the examples is no news of a visitor's caption
        values = {kind: result.mean for kind, result in score_kinds(metric, items).items()}
    noun = (metric.media or ("image",))[0]
    weighed = ", with these weights" if metric.default_weights else ""
    return _sorted(
        type(metric),
        values.items(),
        f"Means over the {len(items)} drawn examples{weighed}: good captions are true, subtly "
        f"wrong ones have one word changed, unrelated ones are true of another {noun}.",
    )


def published_marks(metric: type[CaptionMetric], weights: Sequence[str]) -> Marks:
    """Published means that were computed with one of these weights, by repository or its last part."""
    used = {name.partition("@")[0].lower() for name in weights}
    found = [v for v in metric.published if used & {v.weights.lower(), v.weights.lower().rpartition("/")[2]}]
    if not found:
        return (), ""
    origins = ["; ".join(filter(None, [value.source, value.settings])) for value in found]
    sources = dict.fromkeys(f"{v.dataset} ({origin})" for v, origin in zip(found, origins, strict=True))
    text = f"Means over {' and '.join(sources)}. Single captions vary far more than these means."
    return _sorted(metric, [(value.captions, value.value) for value in found], text)


def _sorted(metric: type[CaptionMetric], values: Iterable[tuple[str, float]], source: str) -> Marks:
    return sorted(values, key=lambda mark: mark[1], reverse=metric.higher_is_better), source
