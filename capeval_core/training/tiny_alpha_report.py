"""How well an Alpha-CLIP reads the regions of synthetic scenes it has never seen.

    python -m capeval_core.training.tiny_alpha_report DIR [--seed 1] [--scenes 1000]

prints a table: how often a masked object's own phrase beats those of all other objects, the same without a
mask; how often a true phrase finds a closer region than a false one; and what the full-one mask leaves of
the comparisons of `tiny_report`.
"""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.phrases.chunks import chunks
from capeval_core.synthetic import KINDS, Scene, SceneObject, describe, draw, masks, sample_scene
from capeval_core.training.lessons import foil_if_any
from capeval_core.training.report import Comparison, Floats, Report, shown, unit
from capeval_core.training.tiny_report import measure

MASKED, UNMASKED = "own phrase, under the object's mask", "own phrase, under the full-one mask"
REQUIRED: dict[str, float] = {
    MASKED: 0.97,
    "another scene": 0.99,
    "colour": 0.97,
    "shape": 0.90,
    "size": 0.90,
    "count": 0.85,
    "position": 0.80,
}
"""What the shipped model must reach."""
GAIN = 0.30
"""What the mask must add to the share of own phrases that win."""


def measure_regions(encoder: AlphaClipEncoder, scenes: int = 1000, seed: int = 1) -> dict[str, Comparison]:
    """Compare phrases of fresh scenes, then captions as `tiny_report.measure` does, all without a prompt."""
    rng = np.random.default_rng([seed, 4])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    images = shown(map(draw, worlds))
    seen = list(encoder.encode_regions(images, map(masks, worlds), cache=FeatureCache(0)))

    def read(texts: list[str]) -> Floats:
        return unit(encoder.encode_texts(texts, cache=FeatureCache(0)).features)

    def see(images: list[Image.Image]) -> Floats:
        none = (np.zeros((0, image.height, image.width), np.bool_) for image in images)
        found = encoder.encode_regions(shown(images), none, cache=FeatureCache(0))
        return np.stack([part.whole for part in found])

    masked: tuple[list[float], list[float]] = ([], [])
    unmasked: tuple[list[float], list[float]] = ([], [])
    for world, found in zip(worlds, seen, strict=True):
        groups = world.groups()
        if len(groups) < 2:
            continue
        said = read([_phrase(group[0]) for group in groups])
        regions, whole = unit(found.regions) @ said.T, unit(found.whole[None])[0] @ said.T
        for thing, cosines in zip(world.objects, regions, strict=True):
            own = next(index for index, group in enumerate(groups) if thing in group)
            for (right, wrong), values in ((masked, cosines), (unmasked, whole)):
                right.append(float(values[own]))
                wrong.append(float(np.delete(values, own).max()))
    result = {MASKED: Comparison.of(*masked), UNMASKED: Comparison.of(*unmasked)}
    for kind in KINDS:
        right, wrong = [], []
        for world, found in zip(worlds, seen, strict=True):
            pair = _changed(world, kind, rng)
            if pair is not None:
                true, false = (unit(found.regions) @ read(list(pair)).T).max(axis=0)
                right.append(float(true))
                wrong.append(float(false))
        result[f"true phrase, another {kind}"] = Comparison.of(right, wrong)
    return result | measure(see, read, scenes, seed)


def _phrase(thing: SceneObject) -> str:
    return f"{thing.size} {thing.colour} {thing.shape}"


def _changed(world: Scene, kind: str, rng: np.random.Generator) -> tuple[str, str] | None:
    """A phrase of a true caption, and what a foil of this kind makes of it."""
    caption = describe(world, rng)
    wrong = foil_if_any(world, caption, kind, rng)
    if wrong is None:
        return None
    pairs = zip(chunks(caption), chunks(wrong), strict=False)
    return next(((a.text, b.text) for a, b in pairs if a.text != b.text), None)


def _without_gain(found: dict[str, Comparison]) -> list[str]:
    gain = found[MASKED].accuracy - found[UNMASKED].accuracy
    if gain >= GAIN:
        return []
    return [f"the mask adds {gain:.1%} to the own phrases that win, required are {GAIN:.0%}"]


REPORT = Report(
    module="tiny_alpha_report",
    about="How well an Alpha-CLIP reads the regions of synthetic scenes it has never seen.",
    encoder=AlphaClipEncoder,
    measure=measure_regions,
    scenes=1000,
    required=REQUIRED,
    title=lambda name: name if "phrase" in name else f"caption, {name}",
    further=_without_gain,
)


if __name__ == "__main__":
    sys.exit(REPORT.main())
