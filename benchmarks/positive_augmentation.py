"""Positive-augmented training in the small: does a CLIP tuned with generated positives find more foils?

    python -m benchmarks.positive_augmentation --work FOLDER --pairs 500 --seeds 3
    python -m benchmarks.positive_augmentation --work FOLDER --pairs 4000 --seeds 1 --variants 0 3

The base is a small dual encoder that learnt from noisy pairs of drawn scenes, written as web texts are
(`python -m tools.tiny.web`; made unless FOLDER/base holds it). Each seed draws its own clean pairs of a scene
and a true caption, and positives as a captioner and a generator of images give them: another caption of the
scene, and another scene of which the caption is true, one in ten of each wrong in one thing. Its projections
are tuned by `train_pacs` with the paper's settings, stopped by the loss on 300 other pairs. Every model then
compares the true captions of the same fresh scenes with one-word foils. Gains over the base, in points, are
means over the seeds with 95% intervals of Student's t. What FOLDER/results.jsonl holds is not run again, and
the table shows all of it. Output: benchmarks/positive_augmentation.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import t as student

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.pacs import PacsTraining
from capeval_core.training.pacs_run import PairData, train_pacs
from capeval_core.training.positive_shards import PositiveShards, Shard
from capeval_core.training.positives import CAPTION, IMAGE, Positive, read_positives
from capeval_core.training.projections import Projections
from capeval_core.training.towers import TowerEncoder, TowerOutputs
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import WeightsFolder, open_weights
from tools.captions import KINDS, describe, holds
from tools.scenes import COLOURS, Scene, draw, sample_scene
from tools.tiny.command import unit
from tools.tiny.lessons import foil_if_any
from tools.tiny.web import WEB

VARIANTS: dict[str, dict[str, float]] = {
    "clean pairs only (both weights 0)": {"lambda_v": 0.0, "lambda_t": 0.0},
    "+ generated images (0.05)": {"lambda_v": 0.05, "lambda_t": 0.0},
    "+ generated captions (0.1)": {"lambda_v": 0.0, "lambda_t": 0.1},
    "+ both (0.05 and 0.1, the paper's)": {"lambda_v": 0.05, "lambda_t": 0.1},
    "+ both (0.5 and 1)": {"lambda_v": 0.5, "lambda_t": 1.0},
}
WRONG = 0.1
"""Share of the generated captions, and of the generated images, that are wrong in one thing."""
VALIDATION, SCENES, SIDE = 300, 2_500, 96
Floats = npt.NDArray[np.float64]


def another_scene(scene: Scene, caption: str, rng: np.random.Generator) -> Scene | None:
    """Another scene with the same groups in other places, of which the caption is true too."""
    groups = [(group[0].shape, group[0].colour, len(group)) for group in scene.groups()]
    for _ in range(400):
        other = sample_scene(rng, len(groups))
        things = []
        for (shape, colour, count), group in zip(groups, other.groups(), strict=True):
            if len(group) != count:
                break
            things += [dataclasses.replace(thing, shape=shape, colour=colour) for thing in group]
        else:
            changed = Scene(tuple(things), other.background)
            if holds(changed, caption):
                return changed
    return None


def generated_image(scene: Scene, caption: str, rng: np.random.Generator) -> bytes | None:
    """A PNG of a scene as the caption has it, or with one colour wrong; None where none was found."""
    made = another_scene(scene, caption, rng)
    if made is None:
        return None
    if rng.random() < WRONG:
        group = made.groups()[int(rng.integers(len(made.groups())))]
        colour = list(COLOURS)[int(rng.integers(len(COLOURS)))]
        things = [dataclasses.replace(t, colour=colour) if t in group else t for t in made.objects]
        made = Scene(tuple(things), made.background)
    file = io.BytesIO()
    draw(made, SIDE).save(file, "PNG")
    return file.getvalue()


def generated_caption(scene: Scene, rng: np.random.Generator) -> str:
    """A caption of the scene, or one with a wrong word."""
    caption = describe(scene, rng)
    if rng.random() < WRONG:
        foils = [foil_if_any(scene, caption, kind, rng) for kind in KINDS]
        wrong = [text for text in foils if text is not None]
        return wrong[int(rng.integers(len(wrong)))] if wrong else caption
    return caption


def draw_pairs(count: int, name: str, rng: np.random.Generator) -> tuple[list[Scene], CaptionedImages]:
    """Scenes, and their images each with one true caption."""
    scenes = [sample_scene(rng) for _ in range(count)]
    ids = [f"{name}{index}" for index in range(count)]
    images = [draw(scene, SIDE) for scene in scenes]

    def visuals() -> Iterator[InputImage]:
        return (InputImage.of(image, f"image of {i!r}") for i, image in zip(ids, images, strict=True))

    return scenes, CaptionedImages(ids, [describe(scene, rng) for scene in scenes], ids, visuals)


def tune(
    work: Path, base: Path, pairs: int, seed: int, variants: Sequence[str]
) -> Iterator[tuple[str, Path]]:
    """Each variant and the weights tuned by it, on the pairs of a seed."""
    rng = np.random.default_rng([seed, 5, pairs])
    scenes, captioned = draw_pairs(pairs, "t", rng)
    more, validation = draw_pairs(VALIDATION, "v", rng)
    folder = work / f"seed-{seed}-{pairs}"
    shutil.rmtree(folder, ignore_errors=True)
    generated_captions, generated_images = Shard(), Shard()
    ids, captions = captioned.ids + validation.ids, captioned.captions + validation.captions
    for i, (scene, image_id, caption) in enumerate(zip(scenes + more, ids, captions, strict=True)):
        text = generated_caption(scene, rng)
        generated_captions.made[i] = Positive(CAPTION, image_id, caption=text)
        if (image := generated_image(scene, caption, rng)) is not None:
            generated_images.made[i] = Positive(IMAGE, image_id, caption, image=image)
    settings = {"by": "drawn scenes", "seed": seed}
    PositiveShards(folder / "positives", CAPTION, settings).write(0, generated_captions)
    PositiveShards(folder / "positives", IMAGE, settings).write(0, generated_images)
    positives = read_positives(folder / "positives")
    for name in variants:
        settings: dict[str, Any] = {"start": base, "device": "cpu", "seed": seed, "prompt": PROMPT}
        training = PacsTraining(towers=work / "towers", **settings, **VARIANTS[name])
        data = PairData(training, captioned, positives, validation)
        out = folder / str(list(VARIANTS).index(name))
        out.mkdir()
        yield name, train_pacs(training, data, out)


class Foils:
    """Fresh scenes with a true caption and one-word foils, as outputs of the base's towers.

    accuracy: of a model with the same towers, by kind of foil and in all.
    """

    def __init__(self, start: WeightsFolder, towers: Path, seed: int = 1) -> None:
        rng = np.random.default_rng([seed, 7])
        scenes = [sample_scene(rng) for _ in range(SCENES)]
        captions = [describe(scene, rng) for scene in scenes]
        self.kinds, self.of_scene, foils = [], [], []
        for index, (scene, caption) in enumerate(zip(scenes, captions, strict=True)):
            for kind in KINDS:
                if (foil := foil_if_any(scene, caption, kind, rng)) is not None:
                    self.kinds.append(kind)
                    self.of_scene.append(index)
                    foils.append(foil)
        images = [InputImage.of(draw(scene, SIDE), f"scene {i}") for i, scene in enumerate(scenes)]
        texts = [PROMPT + text for text in captions + foils]
        outputs = TowerOutputs(TowerEncoder.of(start, "cpu"), towers, images, texts)
        self.images = outputs.images(np.arange(len(scenes)))
        self.texts = outputs.texts(np.arange(len(texts)))

    @torch.no_grad()
    def accuracy(self, weights: Path) -> dict[str, float]:
        """Of weights whose towers are the base's."""
        folder = open_weights(weights, metric="pacs", tiny="pacs")
        model = Projections(ClipEncoder.read_config(folder), folder.tensors(), None)
        images, texts = unit(model.images(self.images).numpy()), unit(model.texts(self.texts).numpy())
        own, foils = np.array(self.of_scene), texts[len(images) :]
        right = (images * texts[: len(images)]).sum(1)[own]
        won = right > (images[own] * foils).sum(1)
        kinds = np.array(self.kinds)
        return {**{kind: float(won[kinds == kind].mean()) for kind in KINDS}, "all": float(won.mean())}


def interval(values: Floats) -> str:
    """Mean and 95% interval, of one value itself.

    >>> interval(np.array([1.0, 2.0, 3.0]))
    '+2.0 ± 2.5'
    """
    if len(values) == 1:
        return f"{values[0]:+.1f}"
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.1f} ± {half:.1f}"


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown lines of what `main` has noted."""
    columns = ["all", *KINDS]
    head = ["clean pairs", "seeds", "tuned on", *columns, "all, less clean pairs only"]
    base = {column: next(r for r in results)["before"][column] for column in columns}
    lines = [head, ["---"] * len(head), ["-", "-", "the base", *(f"{base[c]:.1%}" for c in columns), ""]]
    first = next(iter(VARIANTS))
    for pairs in sorted({result["pairs"] for result in results}):
        plain = {r["seed"]: r["after"]["all"] for r in results if (r["pairs"], r["name"]) == (pairs, first)}
        for name in VARIANTS:
            runs = [r for r in results if (r["pairs"], r["name"]) == (pairs, name)]
            if not runs:
                continue
            gains = [interval(np.array([100 * (r["after"][c] - base[c]) for r in runs])) for c in columns]
            beside = np.array([100 * (r["after"]["all"] - plain[r["seed"]]) for r in runs])
            less = "" if name == first else interval(beside)
            lines.append([f"{pairs:,}", str(len(runs)), name, *gains, less])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="Tuning with and without generated positives.")
    parser.add_argument("--work", type=Path, required=True, help="folder of the base and the trainings")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--variants", type=int, nargs="+", default=list(range(len(VARIANTS))))
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = options.work / "base"
    if not base.exists():
        WEB.main(["--out", str(base)])
    notes = options.work / "results.jsonl"
    results = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    done = {(result["pairs"], result["seed"], result["name"]) for result in results}
    started = time.process_time()
    foils = Foils(open_weights(base, metric="pacs", tiny="pacs"), options.work / "towers")
    before = foils.accuracy(base)
    names = [list(VARIANTS)[number] for number in options.variants]
    for seed in range(options.seeds):
        missing = [name for name in names if (options.pairs, seed, name) not in done]
        for name, weights in tune(options.work, base, options.pairs, seed, missing) if missing else ():
            result = {"pairs": options.pairs, "seed": seed, "name": name, "before": before}
            results.append(result | {"after": foils.accuracy(weights)})
            with notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {time.process_time() - started:.0f} s of one core:\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
