"""Images and captions of `capeval demo`: twelve drawn scenes with three captions and two references each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capeval_core.inputs.samples import Samples
    from capeval_core.metric import CaptionMetric
    from capeval_core.result import Result

FOLDER = Path(__file__).parent
KINDS = {"good": "good", "subtly wrong": "subtly_wrong", "unrelated": "unrelated"}
"""Kinds of captions, best first, and the field of `DemoItem` that has each."""


@dataclass(frozen=True)
class DemoItem:
    """A PNG, or the GIF of a clip, with captions: true, wrong in one word, of another image."""

    id: str
    image: Path
    good: str
    subtly_wrong: str
    changed: str  # in the one before: a colour, a shape, a count or a position
    unrelated: str
    references: tuple[str, ...]


def demo_clips() -> list[DemoItem]:
    """The packaged clips, for metrics of videos."""
    return _items("clips.json")


def demo_set() -> list[DemoItem]:
    """The packaged scenes."""
    return _items("demo.json")


def _items(name: str) -> list[DemoItem]:
    """The items of a file of the demo."""
    items = []
    for item in json.loads((FOLDER / name).read_text(encoding="utf-8"))["items"]:
        item["image"] = FOLDER / item["image"]
        item["references"] = tuple(item["references"])
        items.append(DemoItem(**item))
    return items


def demo_of(metric: CaptionMetric | type[CaptionMetric]) -> list[DemoItem]:
    """The packaged examples for a metric's medium."""
    return demo_clips() if metric.media[:1] == ("video",) else demo_set()


def demo_samples(metric: CaptionMetric) -> Samples:
    """The good captions and the references of the demo, for statistics of a small corpus; nothing is read."""
    from capeval_core.inputs.samples import Samples

    items = demo_of(metric)
    references = [list(item.references) for item in items] if metric.needs_references else None
    return Samples([item.good for item in items], [], references, range(len(items)))


def score_kinds(metric: CaptionMetric, items: Sequence[DemoItem]) -> dict[str, Result]:
    """One result per kind of caption, of the same images or videos (and references), or of texts alone."""
    from capeval_core.inputs.samples import argument_of

    argument = argument_of(metric.media)
    visuals: dict[str, Any] = {}
    if argument is not None:
        visuals[argument] = [item.image for item in items]
    references = [item.references for item in items] if metric.needs_references else None
    results = {}
    for kind, field in KINDS.items():
        captions = [getattr(item, field) for item in items]
        results[kind] = metric.score(captions, references=references, **visuals)
    return results
