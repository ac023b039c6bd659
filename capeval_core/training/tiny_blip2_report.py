"""How well a BLIP-2 reads synthetic scenes it has never seen.

    python -m capeval_core.training.tiny_blip2_report DIR [--seed 1] [--scenes 1000]

prints a table: how often the probability of a match is higher for the right caption than for a foil of each
kind or another scene's caption, how often either lies on its side of one half, and how often the contrast
puts the right caption before those of twelve other scenes.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.inputs.pictures import Picture
from capeval_core.synthetic import KINDS, describe, draw, foil, holds, sample_scene
from capeval_core.training.tiny_report import Comparison

OTHERS = 12
"""Captions of other scenes that each right caption is compared with."""
FIRST, PROBABLE = "first of 13 by contrast", "right side of one half"
REQUIRED: dict[str, float] = {
    FIRST: 0.98,
    "another scene": 0.99,
    "colour": 0.97,
    "shape": 0.95,
    "size": 0.86,
    "count": 0.88,
    "position": 0.80,
}
"""What the shipped model must reach; relations are reported, not required."""


def measure_matching(encoder: Blip2Encoder, scenes: int = 1000, seed: int = 1) -> dict[str, Comparison]:
    """Compare captions of fresh scenes; captions of another scene that are true of this one too are no trial.

    The keys are the kinds of foils and "another scene" (by probability), PROBABLE and FIRST.
    """
    rng = np.random.default_rng([seed, 6])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    captions = [describe(world, rng) for world in worlds]
    shown = [Picture.of(draw(world), where=f"scene {index}") for index, world in enumerate(worlds)]
    pools: list[list[tuple[str, str]]] = []
    for index, (world, caption) in enumerate(zip(worlds, captions, strict=True)):
        pool = [("right", caption)]
        for kind in KINDS:
            try:
                pool.append((kind, foil(world, caption, kind, rng)))
            except ValueError:  # the caption says nothing of this kind
                continue
        others = [captions[(index + step) % scenes] for step in range(1, 3 * OTHERS)]
        wrong = [text for text in others if not holds(world, text, margin=0.0)]
        pools.append(pool + [("another scene", text) for text in wrong[:OTHERS]])
    texts = [[text for _, text in pool] for pool in pools]
    right: dict[str, list[float]] = {name: [] for name in (*KINDS, "another scene", PROBABLE, FIRST)}
    wrong_values: dict[str, list[float]] = {name: [] for name in right}
    for pool, found in zip(pools, encoder.match(shown, texts, cache=FeatureCache(0)), strict=True):
        probabilities = found.itm
        for (name, _), value in zip(pool[1:], probabilities[1:], strict=True):
            right[name].append(float(probabilities[0]))
            wrong_values[name].append(float(value))
        for (name, _), value in zip(pool, probabilities, strict=True):
            right[PROBABLE].append(float(value if name == "right" else 1 - value))
            wrong_values[PROBABLE].append(0.5)
        away = [float(v) for (name, _), v in zip(pool, found.itc, strict=True) if name == "another scene"]
        right[FIRST].append(float(found.itc[0]))
        wrong_values[FIRST].append(max(away))
    return {name: Comparison.of(right[name], wrong_values[name]) for name in right}


def table(found: dict[str, Comparison]) -> str:
    """The comparisons as a Markdown table."""
    lines = ["| right against wrong | accuracy | required | trials | mean, right | mean, wrong |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in found.items():
        needed = f"{REQUIRED[name]:.0%}" if name in REQUIRED else "-"
        title = f"one-word foil: {name}" if name in KINDS else name
        cells = (title, f"{row.accuracy:.1%}", needed, row.trials, f"{row.right:.3f}", f"{row.wrong:.3f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def missed(found: dict[str, Comparison]) -> list[str]:
    """The requirements that are not met, in words."""
    return [
        f"{name}: {found[name].accuracy:.1%} is below the required {needed:.0%}"
        for name, needed in REQUIRED.items()
        if not found[name].accuracy >= needed
    ]


def main() -> int:
    """The command line; exit status 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m capeval_core.training.tiny_blip2_report",
        description="How well a BLIP-2 reads synthetic scenes it has never seen.",
    )
    parser.add_argument("folder", help="a weights folder, or 'tiny'")
    parser.add_argument("--seed", type=int, default=1, help="not the seed of the training")
    parser.add_argument("--scenes", type=int, default=1000)
    options = parser.parse_args()
    encoder = Blip2Encoder.from_pretrained(options.folder)
    found = measure_matching(encoder, options.scenes, options.seed)
    failures = missed(found)
    sys.stdout.write("\n".join([table(found), *failures]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
