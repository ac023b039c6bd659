"""Which words of a long caption move a score: one wrong fact at a known token.

    python -m benchmarks.long_scenes [--scenes 600] [--seed 0] [--metrics pacs specs] [--out FILE]

Crowds of 8 to 40 objects, each with a caption that states them one after another (up to 248 tokens), and the
same caption with one fact made wrong. Accuracy is how often the true one scores higher; a tie counts as half.
`benchmarks/results/long_scenes.md` is the output of this program, by the packaged small models.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import warnings
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import capeval_core
from capeval_core.encoders.tokenizers import ClipTokenizer
from tools.captions import facts_of, wrong_fact
from tools.scenes import draw, sample_crowd

LENGTH = 248
EDGES = (1, 25, 49, 73, 98, 123, 148, 173, 198, 223, 248)
"""Where ranges of tokens begin; `pacs`, which reads a prompt of three, sees none from token 73 on."""
FOILS = 5


class Trial(NamedTuple):
    """A true caption and one with a wrong fact, which differ first at this token."""

    image: int
    true: str
    false: str
    token: int


def trials_of(scenes: int, rng: np.random.Generator) -> tuple[list[Image.Image], list[Trial]]:
    """Drawn crowds, and some trials of each, spread over its caption."""
    tokenizer = ClipTokenizer(10_000)
    images = []
    trials = list[Trial]()
    for image in range(scenes):
        scene = sample_crowd(rng, int(rng.integers(8, 41, 2).max()))
        images.append(draw(scene, 224))
        facts = facts_of(scene, rng)
        while len(tokenizer.encode([", ".join(facts)]).ids[0]) > LENGTH:
            facts.pop()
        places = np.linspace(0, len(facts) - 1, FOILS + 1) + rng.uniform(0, len(facts) / (FOILS + 1))
        for place in {int(place) for place in places if place < len(facts)}:
            false = [*facts[:place], wrong_fact(scene, facts[place], rng), *facts[place + 1 :]]
            trial = Trial(image, ", ".join(facts), ", ".join(false), 0)
            ids = zip(*tokenizer.encode([trial.true, trial.false]).ids, strict=False)
            differing = [token for token, (true_id, false_id) in enumerate(ids) if true_id != false_id]
            if differing:  # else nothing about this object would be wrong
                trials.append(trial._replace(token=differing[0]))
    return images, trials


def accuracies(name: str, images: list[Image.Image], trials: list[Trial]) -> tuple[list[list[str]], float]:
    """For each range of tokens the shares of won and of bit-equal pairs, in %; the mean share of words that
    were read."""
    metric = capeval_core.load(name, weights="tiny", device="cpu")
    images_of_trials = [images[trial.image] for trial in trials]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was not seen, which is the subject here
        true = metric.score([trial.true for trial in trials], images_of_trials)
        false = metric.score([trial.false for trial in trials], images_of_trials)
    difference = np.array(true.parts["cosine"]) - np.array(false.parts["cosine"])
    ranges = np.digitize([trial.token for trial in trials], EDGES)
    cells = []
    for number in range(1, len(EDGES)):
        in_range = difference[ranges == number]
        won = 100 * np.mean((in_range > 0) + 0.5 * (in_range == 0))
        cells.append([f"{won:.1f}%", f"{100 * np.mean(in_range == 0):.0f}%"])
    return cells, float(np.mean(true.parts["coverage"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_scenes", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--scenes", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metrics", nargs="+", default=["pacs", "specs"])
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    images, trials = trials_of(flags.scenes, np.random.default_rng([flags.seed, 248]))
    results = {name: accuracies(name, images, trials) for name in flags.metrics}
    counts = np.bincount(np.digitize([trial.token for trial in trials], EDGES), minlength=len(EDGES) + 1)
    heads = [f"{name} | equal" for name in results]
    lines = [
        "# One wrong fact in a long caption",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, torch {torch.__version__}, packaged "
        f"models; {len(trials):,} captions of {flags.scenes} crowds; see `benchmarks/long_scenes.py`.",
        "",
        *(f"`{name}` read {coverage:.1%} of the words.  " for name, (_, coverage) in results.items()),
        "",
        "| wrong at token | captions | " + " | ".join(heads) + " |",
        "|---" * (2 + 2 * len(results)) + "|",
    ]
    for number, (first, end) in enumerate(pairwise(EDGES)):
        cells = []
        for cells_of_metric, _ in results.values():
            cells += cells_of_metric[number]
        lines.append(f"| {first} to {end - 1} | {counts[number + 1]} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if flags.out:
        flags.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
