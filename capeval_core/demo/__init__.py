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
# "Subtly wrong" is what n-gram metrics miss: one word of the caption is exchanged.
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
    # Paths from the file's own folder, wherever the package is installed.
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
    # Without images, which no statistics of texts need.
    captions: list[str] = []
    references: list[list[str]] = []
    for item in items:
        captions.append(item.good)
        references.append(list(item.references))
    return Samples(captions, [], references if metric.needs_references else None, range(len(items)))


def score_kinds(metric: CaptionMetric, items: Sequence[DemoItem]) -> dict[str, Result]:
    """One result per kind of caption, of the same images or videos (and references), or of texts alone."""
    from capeval_core.inputs.samples import argument_of

    argument = argument_of(metric.media)
    arguments: dict[str, Any] = {}
    images: list[Path] = []
    references: list[Sequence[str]] = []
    for item in items:
        images.append(item.image)
        references.append(item.references)
    if argument is not None:
        arguments[argument] = images
    if metric.needs_references:
        arguments["references"] = references
    results = {}
    for kind, field in KINDS.items():
        captions = [getattr(item, field) for item in items]
        # The images are encoded once for all kinds, by the cache of features.
        results[kind] = metric.score(captions, **arguments)
    return results
