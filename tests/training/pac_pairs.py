"""Drawn scenes with captions and generated positives on the disk, and short trainings of PAC-S on them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.cli import main
from tests.support.seams import write_positives
from tools.captions import describe
from tools.scenes import draw, sample_scene

SHORT = {
    "start": "tiny",
    "device": "cpu",
    "batch_size": 4,
    "steps": 12,
    "evaluate_every": 3,
    "patience": 0,
    "validation": 0.2,
    "save_every": 3,
    "log_every": 2,
    "learning_rate": 1e-3,
}


def write_pairs(folder: Path, scenes: int = 20, captions_each: int = 2) -> Path:
    """`images`, `captions.jsonl` with two captions each, and `positives`, of which scene 0 has none."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(5)
    rows = []
    positives: list[tuple[Any, ...]] = []
    for index in range(scenes):
        scene, name = sample_scene(rng), str(index)
        draw(scene, 64).save(folder / "images" / f"{name}.png")
        captions = [describe(scene, rng) for _ in range(captions_each)]
        rows.append({"image_id": name, "captions": captions})
        if not index:
            continue
        positives.append(("caption", name, None, describe(scene, rng), None))
        for caption in captions:
            file = io.BytesIO()
            draw(scene, int(rng.integers(48, 80))).save(file, "PNG")
            positives.append(("image", name, caption, None, file.getvalue()))
    write_positives(folder / "positives", positives, {"captioner": "drawn", "seed": 5})
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def arguments(folder: Path, out: Path, **settings: Any) -> list[str]:
    """Of a short training on the pairs in a folder."""
    given = {"captions": folder / "captions.jsonl", "images": folder / "images"}
    given |= {"positives": folder / "positives", **SHORT, "out": out, **settings}
    flags = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value is not None}
    return ["train", "pacs", *(str(part) for pair in flags.items() for part in pair)]


def train(folder: Path, out: Path, **settings: Any) -> Path:
    """A short training that must go well; its folder."""
    assert main(arguments(folder, out, **settings)) == 0
    return out
