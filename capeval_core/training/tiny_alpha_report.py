"""How well an Alpha-CLIP reads the regions of synthetic scenes it has never seen.

    python -m capeval_core.training.tiny_alpha_report DIR [--seed 1] [--scenes 1000]

prints a table: how often a masked object's own phrase beats those of all other objects, the same without a
mask; how often a true phrase finds a closer region than a false one; and what the full-one mask leaves of
the comparisons of `tiny_report`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.inputs.pictures import Picture
from capeval_core.phrases.chunks import chunks
from capeval_core.synthetic import KINDS, Scene, SceneObject, describe, draw, foil, masks, sample_scene
from capeval_core.training.tiny_report import Comparison, measure

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

_Array = npt.NDArray[np.float32]


def measure_regions(encoder: AlphaClipEncoder, scenes: int = 1000, seed: int = 1) -> dict[str, Comparison]:
    """Compare phrases of fresh scenes, then captions as `tiny_report.measure` does, all without a prompt."""
    rng = np.random.default_rng([seed, 4])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    shown = [Picture.of(draw(world), where=f"scene {index}") for index, world in enumerate(worlds)]
    seen = list(encoder.encode_regions(shown, map(masks, worlds), cache=FeatureCache(0)))

    def read(texts: list[str]) -> _Array:
        return _unit(encoder.encode_texts(texts, cache=FeatureCache(0)).features)

    def see(pictures: list[Image.Image]) -> _Array:
        given = [Picture.of(picture, where=f"scene {index}") for index, picture in enumerate(pictures)]
        none = (np.zeros((0, picture.height, picture.width), np.bool_) for picture in pictures)
        return np.stack([part.whole for part in encoder.encode_regions(given, none, cache=FeatureCache(0))])

    masked: tuple[list[float], list[float]] = ([], [])
    unmasked: tuple[list[float], list[float]] = ([], [])
    for world, found in zip(worlds, seen, strict=True):
        groups = world.groups()
        if len(groups) < 2:
            continue
        said = read([_phrase(group[0]) for group in groups])
        regions, whole = _unit(found.regions) @ said.T, _unit(found.whole[None])[0] @ said.T
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
                true, false = (_unit(found.regions) @ read(list(pair)).T).max(axis=0)
                right.append(float(true))
                wrong.append(float(false))
        result[f"true phrase, another {kind}"] = Comparison.of(right, wrong)
    return result | measure(see, read, scenes, seed)


def _phrase(thing: SceneObject) -> str:
    return f"{thing.size} {thing.colour} {thing.shape}"


def _changed(world: Scene, kind: str, rng: np.random.Generator) -> tuple[str, str] | None:
    """A phrase of a true caption, and what a foil of this kind makes of it."""
    caption = describe(world, rng)
    try:
        wrong = foil(world, caption, kind, rng)
    except ValueError:  # the caption says nothing of this kind
        return None
    pairs = zip(chunks(caption), chunks(wrong), strict=False)
    return next(((a.text, b.text) for a, b in pairs if a.text != b.text), None)


def table(found: dict[str, Comparison]) -> str:
    """The comparisons as a Markdown table."""
    lines = [
        "| right against wrong | accuracy | required | trials | mean cosine, right | mean cosine, wrong |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        needed = f"{REQUIRED[name]:.0%}" if name in REQUIRED else "-"
        title = name if "phrase" in name else f"caption, {name}"
        cells = (title, f"{row.accuracy:.1%}", needed, row.trials, f"{row.right:.3f}", f"{row.wrong:.3f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def missed(found: dict[str, Comparison]) -> list[str]:
    """The requirements that are not met, in words."""
    failures = [
        f"{name}: {found[name].accuracy:.1%} is below the required {needed:.0%}"
        for name, needed in REQUIRED.items()
        if not found[name].accuracy >= needed
    ]
    gain = found[MASKED].accuracy - found[UNMASKED].accuracy
    if not gain >= GAIN:
        failures.append(f"the mask adds {gain:.1%} to the own phrases that win, required are {GAIN:.0%}")
    return failures


def _unit(vectors: _Array) -> _Array:
    unit: _Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def main() -> int:
    """The command line; exit status 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m capeval_core.training.tiny_alpha_report",
        description="How well an Alpha-CLIP reads the regions of synthetic scenes it has never seen.",
    )
    parser.add_argument("folder", help="a weights folder, or 'tiny'")
    parser.add_argument("--seed", type=int, default=1, help="not the seed of the training")
    parser.add_argument("--scenes", type=int, default=1000)
    options = parser.parse_args()
    found = measure_regions(AlphaClipEncoder.from_pretrained(options.folder), options.scenes, options.seed)
    failures = missed(found)
    sys.stdout.write("\n".join([table(found), *failures]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
