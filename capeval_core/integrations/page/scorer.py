"""What the page asks of the library: one caption scored, with what typical captions get beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capeval_core.metric import CaptionMetric, Published
from capeval_core.registry import load, metric_class
from capeval_core.result import Result
from capeval_core.synthetic.demo import demo_set, score_kinds
from capeval_core.weights.folder import TINY

LONGEST_TEXT = 20_000
"""Characters of a caption and its references together: a page is for everybody, and encoding takes its time."""


@dataclass(frozen=True)
class Mark:
    """A value to place a score beside."""

    label: str
    value: float


@dataclass(frozen=True)
class Marks:
    """What typical captions get, best first, and a sentence that says whose means these are."""

    values: tuple[Mark, ...]
    source: str


@dataclass(frozen=True)
class Scored:
    """One scored caption."""

    metric: type[CaptionMetric]
    caption: str
    result: Result
    evidence: Mapping[str, Any]
    marks: Marks

    @property
    def score(self) -> float:
        return self.result.scores[0]

    @property
    def parts(self) -> dict[str, Any]:
        return {name: part[0] for name, part in self.result.parts.items()}


class Scorer:
    """A metric with the weights that a page offers; each is opened when it is first used, and once.

    Args:
        name: of the metric.
        weights: those that are chosen at first, as `load` takes them; None: the metric's published ones.
    """

    def __init__(self, name: str, weights: str | os.PathLike[str] | None = None) -> None:
        self.metric = metric_class(name)
        published = self.metric.default_weights.repository
        self.first = published if weights is None else os.fspath(weights)
        tiny = ["tiny"] if (TINY / self.metric.tiny).is_dir() else []
        self.offered = tuple(dict.fromkeys([self.first, published, *tiny]))
        """Nothing else is opened: a page is open to people whom its owner does not know."""
        self._opened: dict[str, tuple[CaptionMetric, Marks]] = {}
        self._busy = threading.Lock()

    def is_open(self, weights: str) -> bool:
        """Whether `score` with these weights needs to open nothing."""
        return weights in self._opened

    def score(
        self, picture: str | None, caption: str, references: Sequence[str], weights: str | None = None
    ) -> Scored:
        """One caption of the picture at a path, scored; one call at a time.

        Raises:
            ValueError, TypeError: wrong input, or weights that cannot be had: the library's own errors.
        """
        weights = self.first if weights is None else weights
        if weights not in self.offered:
            raise ValueError(f"weights={weights!r}: this page offers {' and '.join(map(repr, self.offered))}")
        length = sum(len(text) for text in (caption, *references) if isinstance(text, str))
        if length > LONGEST_TEXT:
            raise ValueError(f"the texts have {length:,} characters, this page takes {LONGEST_TEXT:,}")
        with self._busy:
            metric, marks = self._open(weights)
            told = [list(references)] if self.metric.needs_references else None
            result = metric.score([caption], [picture], told)
            return Scored(self.metric, caption, result, result.explain(0), marks)

    def _open(self, weights: str) -> tuple[CaptionMetric, Marks]:
        if weights not in self._opened:
            metric = load(self.metric.name, weights=weights, evidence=True)
            self._opened[weights] = metric, marks_of(metric)
        return self._opened[weights]


def marks_of(metric: CaptionMetric) -> Marks:
    """Published means where the metric's weights are those of a paper, else those of the demo's captions.

    The demo's captions are scored now, under the metric's own weights.
    """
    opened = {model.label.rpartition("@")[0].lower() for model in metric.models.values()}
    published = [value for value in metric.published if _names(value) & opened]
    if published:
        sources = " and ".join(dict.fromkeys(f"{value.dataset} ({value.source})" for value in published))
        return Marks(
            _sorted(metric, [Mark(value.captions, value.value) for value in published]),
            f"Means over {sources}. Single captions vary far more than these means.",
        )
    items = demo_set()
    values = [Mark(f"{kind} captions", result.mean) for kind, result in score_kinds(metric, items).items()]
    return Marks(
        _sorted(metric, values),
        f"Means over the {len(items)} drawn example pictures, under these weights: true captions, the same "
        "with one word wrong, and true captions of another picture.",
    )


def _names(value: Published) -> set[str]:
    """What weights of a published value are called: the repository, and the folder of who converts them."""
    repository = value.weights.lower()
    return {repository, Path(repository).name}


def _sorted(metric: CaptionMetric, marks: list[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: mark.value, reverse=metric.higher_is_better))
