"""How well a dual encoder reads synthetic scenes it has never seen.

    python -m capeval_core.training.tiny_report DIR [--seed 1] [--scenes 2000]

prints a table: how often the right caption beats another scene's caption, and a foil of each kind; how
often two wordings of one scene are closer than those of two scenes; and what cosines to expect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.pictures import Picture
from capeval_core.synthetic import KINDS, describe, draw, foil, holds, sample_scene

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

_Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Comparison:
    """Right against wrong: the share of trials won, their number, and the mean cosine of either side."""

    accuracy: float
    trials: int
    right: float
    wrong: float

    @staticmethod
    def of(right: list[float], wrong: list[float]) -> Comparison:
        """A draw is a loss."""
        if not right:
            return Comparison(float("nan"), 0, float("nan"), float("nan"))
        ahead = np.asarray(right) > np.asarray(wrong)
        return Comparison(float(ahead.mean()), len(right), float(np.mean(right)), float(np.mean(wrong)))


def measure(
    encode_pictures: Callable[[list[Image.Image]], _Array],
    encode_texts: Callable[[list[str]], _Array],
    scenes: int = 2000,
    seed: int = 1,
    size: int = 192,
) -> dict[str, Comparison]:
    """Compare captions of fresh scenes drawn at `size` pixels.

    The encoders give one vector per picture or caption, (n, d), of any length. The keys are "another
    scene", the kinds of foils, and "wording" (two captions of the same scene against captions of two
    scenes, text to text). Captions of another scene that are also true of this one are no trial.
    """
    rng = np.random.default_rng([seed, 2])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    captions = [describe(world, rng) for world in worlds]
    others = [describe(world, rng) for world in worlds]
    foils: dict[str, list[tuple[int, str]]] = {kind: [] for kind in KINDS}
    for index, (world, caption) in enumerate(zip(worlds, captions, strict=True)):
        for kind in KINDS:
            try:
                foils[kind].append((index, foil(world, caption, kind, rng)))
            except ValueError:  # the caption says nothing of this kind
                continue
    pictures = _unit(encode_pictures([draw(world, size) for world in worlds]))
    texts, again = _unit(encode_texts(captions)), _unit(encode_texts(others))
    right = (pictures * texts).sum(1)
    found: dict[str, Comparison] = {}
    rows, columns = [], []
    for index, world in enumerate(worlds):
        for step in range(1, OTHERS + 1):
            other = (index + step) % scenes
            if not holds(world, captions[other], margin=0.0):
                rows.append(index)
                columns.append(other)
    found["another scene"] = Comparison.of(list(right[rows]), list((pictures[rows] * texts[columns]).sum(1)))
    for kind in KINDS:
        which = [index for index, _ in foils[kind]]
        wrong = _unit(encode_texts([text for _, text in foils[kind]])) if which else texts[:0]
        found[kind] = Comparison.of(list(right[which]), list((pictures[which] * wrong).sum(1)))
    found["wording"] = Comparison.of(
        list((texts[rows] * again[rows]).sum(1)), list((texts[rows] * texts[columns]).sum(1))
    )
    return found


def table(found: dict[str, Comparison]) -> str:
    """The comparisons as a Markdown table."""
    lines = [
        "| right caption against | accuracy | required | trials | mean cosine, right | mean cosine, wrong |",
        "|---|---|---|---|---|---|",
    ]
    names = {kind: f"one-word foil: {kind}" for kind in KINDS} | {
        "another scene": "another scene's caption",
        "wording": "another scene's caption (text to text)",
    }
    for name, row in found.items():
        needed = f"{REQUIRED[name]:.0%}" if name in REQUIRED else "-"
        cells = (
            names[name],
            f"{row.accuracy:.1%}",
            needed,
            row.trials,
            f"{row.right:.3f}",
            f"{row.wrong:.3f}",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def missed(found: dict[str, Comparison]) -> list[str]:
    """The requirements that are not met, in words."""
    return [
        f"{name}: {found[name].accuracy:.1%} is below the required {needed:.0%}"
        for name, needed in REQUIRED.items()
        if not found[name].accuracy >= needed
    ]


def _unit(vectors: _Array) -> _Array:
    unit: _Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def measure_encoder(encoder: ClipEncoder, scenes: int = 2000, seed: int = 1) -> dict[str, Comparison]:
    """`measure` for an encoder, with the prompt that users score with."""
    prompt = encoder.config["constants"]["prompt"]

    def see(pictures: list[Image.Image]) -> _Array:
        given = (Picture.of(picture, where=f"scene {index}") for index, picture in enumerate(pictures))
        return np.concatenate([part.features for part in encoder.encode_pictures(given)])

    def read(texts: list[str]) -> _Array:
        return encoder.encode_texts([prompt + text for text in texts]).features

    return measure(see, read, scenes, seed)


def main() -> int:
    """The command line; exit status 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m capeval_core.training.tiny_report",
        description="How well a dual encoder reads synthetic scenes it has never seen.",
    )
    parser.add_argument("folder", help="a weights folder, or 'tiny'")
    parser.add_argument("--seed", type=int, default=1, help="not the seed of the training")
    parser.add_argument("--scenes", type=int, default=2000)
    options = parser.parse_args()
    found = measure_encoder(ClipEncoder.from_pretrained(options.folder), options.scenes, options.seed)
    failures = missed(found)
    sys.stdout.write("\n".join([table(found), *failures]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
