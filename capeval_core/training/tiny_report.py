"""How well a dual encoder reads synthetic scenes it has never seen.

    python -m capeval_core.training.tiny_report DIR [--seed 1] [--scenes 2000]

prints a table: how often the right caption beats another scene's caption, and a foil of each kind; how
often two wordings of one scene are closer than those of two scenes; and what cosines to expect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from PIL import Image

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.synthetic import KINDS, describe, draw, holds, sample_scene
from capeval_core.training.lessons import foil_if_any
from capeval_core.training.report import Comparison, Floats, Report, shown, unit

OTHERS = 5
"""Captions of other scenes that each right caption is compared with."""
REQUIRED: dict[str, float] = {
    "another scene": 0.99,
    "colour": 0.98,
    "shape": 0.90,
    "size": 0.93,
    "count": 0.92,
    "position": 0.80,
}
"""What the shipped model must reach; relations are reported, not required."""

_TITLES = {
    "another scene": "another scene's caption",
    "wording": "another scene's caption (text to text)",
}


def measure(
    encode_images: Callable[[list[Image.Image]], Floats],
    encode_texts: Callable[[list[str]], Floats],
    scenes: int = 2000,
    seed: int = 1,
    size: int = 192,
) -> dict[str, Comparison]:
    """Compare captions of fresh scenes drawn at `size` pixels.

    The encoders give one vector per image or caption, (n, d), of any length. The keys are "another
    scene", the kinds of foils, and "wording" (two captions of the same scene against captions of two
    scenes, text to text). Captions of another scene that are also true of this one are no trial.
    """
    rng = np.random.default_rng([seed, 2])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    captions = [describe(world, rng) for world in worlds]
    others = [describe(world, rng) for world in worlds]
    foils: dict[str, dict[int, str]] = {kind: {} for kind in KINDS}
    for index, (world, caption) in enumerate(zip(worlds, captions, strict=True)):
        for kind in KINDS:
            if (wrong := foil_if_any(world, caption, kind, rng)) is not None:
                foils[kind][index] = wrong
    images = unit(encode_images([draw(world, size) for world in worlds]))
    texts, again = unit(encode_texts(captions)), unit(encode_texts(others))
    right = (images * texts).sum(1)
    found: dict[str, Comparison] = {}
    rows, columns = [], []
    for index, world in enumerate(worlds):
        for step in range(1, OTHERS + 1):
            other = (index + step) % scenes
            if not holds(world, captions[other], margin=0.0):
                rows.append(index)
                columns.append(other)
    found["another scene"] = Comparison.of(list(right[rows]), list((images[rows] * texts[columns]).sum(1)))
    for kind, told in foils.items():
        which = list(told)
        away = unit(encode_texts(list(told.values()))) if told else texts[:0]
        found[kind] = Comparison.of(list(right[which]), list((images[which] * away).sum(1)))
    found["wording"] = Comparison.of(
        list((texts[rows] * again[rows]).sum(1)), list((texts[rows] * texts[columns]).sum(1))
    )
    return found


def measure_encoder(encoder: ClipEncoder, scenes: int = 2000, seed: int = 1) -> dict[str, Comparison]:
    """`measure` for an encoder, with the prompt that users score with."""
    prompt = encoder.config["constants"]["prompt"]

    def see(images: list[Image.Image]) -> Floats:
        return np.concatenate([part.features for part in encoder.encode_images(shown(images))])

    def read(texts: list[str]) -> Floats:
        return encoder.encode_texts([prompt + text for text in texts]).features

    return measure(see, read, scenes, seed)


REPORT = Report(
    module="tiny_report",
    about="How well a dual encoder reads synthetic scenes it has never seen.",
    encoder=ClipEncoder,
    measure=measure_encoder,
    scenes=2000,
    required=REQUIRED,
    title=lambda name: f"one-word foil: {name}" if name in KINDS else _TITLES[name],
    against="right caption against",
)


if __name__ == "__main__":
    sys.exit(REPORT.main())
