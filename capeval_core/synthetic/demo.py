"""The images and captions of `capeval demo`: a few fixed scenes, each with three captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capeval_core.synthetic.captions import describe, foil, holds
from capeval_core.synthetic.drawing import draw
from capeval_core.synthetic.scenes import Scene, sample_scene

if TYPE_CHECKING:
    from capeval_core.metric import CaptionMetric
    from capeval_core.result import Result

FOLDER = Path(__file__).with_name("demo")
"""Where the packaged images and `demo.json` lie."""
SEED = 2024
KINDS = {"good": "good", "subtly wrong": "subtly_wrong", "unrelated": "unrelated"}
"""The kinds of captions, best first, and the field of `DemoItem` that holds each."""
_CHANGES = ("colour", "count", "shape", "position")
_SIDE = 192


@dataclass(frozen=True)
class DemoItem:
    """One image with its captions, best first, and two references."""

    id: str
    image: Path
    good: str
    """True of the image."""
    subtly_wrong: str
    """The good caption with one word changed, so that it is false."""
    changed: str
    """What was changed: a colour, a shape, a count or a position."""
    unrelated: str
    """A true caption of another image."""
    references: tuple[str, ...]
    """Two more true captions."""


def demo_set() -> list[DemoItem]:
    """The packaged demo, read from disk.

    >>> first = demo_set()[0]
    >>> first.image.name, len(first.references)
    ('0.png', 2)
    """
    items = json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))["items"]
    return [
        DemoItem(**{**item, "image": FOLDER / item["image"], "references": tuple(item["references"])})
        for item in items
    ]


def score_kinds(metric: CaptionMetric, items: Sequence[DemoItem]) -> dict[str, Result]:
    """One result per kind of caption, of the same images (and references)."""
    images = [item.image for item in items]
    references = [item.references for item in items] if metric.needs_references else None
    return {
        kind: metric.score([getattr(item, field) for item in items], images, references)
        for kind, field in KINDS.items()
    }


def write_demo_set(folder: Path, seed: int = SEED) -> None:
    """Draw the demo anew: `<id>.png` and `demo.json`. The packaged files are those of the default seed.

    The scenes are the first draws of their kind, not a choice: one whose caption can be changed in its
    colour, then one for a count, a shape and a position.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    items: list[dict[str, Any]] = []
    for index, kind in enumerate(_CHANGES):
        while True:
            scene = sample_scene(rng)
            good = describe(scene, rng)
            try:
                wrong = foil(scene, good, kind, rng)
            except ValueError:  # the caption says nothing of this kind: the next scene
                continue
            told = [item["good"] for item in items]
            if not any(holds(other, good, 0.0) for other in scenes) and not any(
                holds(scene, t, 0.0) for t in told
            ):
                break
        scenes.append(scene)
        item = {"id": str(index), "image": f"{index}.png", "good": good}
        item |= {"subtly_wrong": wrong, "changed": kind, "unrelated": ""}
        items.append(item | {"references": [describe(scene, rng) for _ in range(2)]})
        draw(scene, _SIDE).save(folder / f"{index}.png", optimize=True)
    for index, item in enumerate(items):
        item["unrelated"] = items[(index + 1) % len(items)]["good"]
    text = json.dumps({"seed": seed, "items": items}, indent=1)
    (folder / "demo.json").write_text(text + "\n", encoding="utf-8")
