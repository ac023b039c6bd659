"""Drawn scenes and clips: masks, captions that are true and false of them, weights that read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

import capeval_core
from capeval_core.demo import FOLDER, demo_clips, demo_set
from tools.captions import KINDS, describe, foil, foils, holds
from tools.scenes import draw, sample_scene
from tools.sets import write_demo_clips, write_demo_set

SCENES = [sample_scene(np.random.default_rng([11, index])) for index in range(300)]


def test_captions_are_true_and_foils_of_one_word_false() -> None:
    counts = dict.fromkeys(KINDS, 0)
    for seed, scene in enumerate(SCENES):
        caption = describe(scene, np.random.default_rng(seed))
        assert holds(scene, caption)
        for kind in KINDS:
            every = foils(scene, caption, kind)
            counts[kind] += bool(every)
            assert not every or foil(scene, caption, kind, np.random.default_rng(seed)) in every
            for text in every:
                pairs = zip(caption.split(), text.split(), strict=True)
                assert sum(before != after for before, after in pairs) == 1
                assert not holds(scene, text, margin=0.0)
    assert min(counts.values()) > 20, "enough captions say something of each kind"


def test_what_is_packaged_is_what_its_seed_draws(tmp_path: Path) -> None:
    write_demo_set(tmp_path)
    write_demo_clips(tmp_path)
    for file in ("demo.json", "clips.json"):
        assert (tmp_path / file).read_text() == (FOLDER / file).read_text()
    for item in (*demo_set(), *demo_clips()):
        packaged, drawn = (frames(path) for path in (item.image, tmp_path / item.image.name))
        assert packaged.shape == drawn.shape and np.abs(packaged - drawn).mean() < 2
        pairs = zip(item.good.split(), item.subtly_wrong.split(), strict=True)
        assert sum(before != after for before, after in pairs) == 1


def frames(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.stack([np.asarray(frame.convert("RGB"), int) for frame in ImageSequence.Iterator(image)])


@pytest.mark.parametrize("name", ["pacs", "clips", "hices", "umic", "vilbertscore", "eco"])
def test_the_packaged_weights_read_scenes_of_new_seeds(name: str) -> None:
    """The right caption is preferred to that of another scene, and to one with a wrong word."""
    rng = np.random.default_rng(4711)
    scenes = [sample_scene(rng) for _ in range(40)]
    right = [describe(scene, rng) for scene in scenes]
    references = [[describe(scene, rng) for _ in range(2)] for scene in scenes]
    wrong = [
        next(text for kind in KINDS for text in foils(scene, caption, kind))
        for scene, caption in zip(scenes, right, strict=True)
    ]
    images, others = [draw(scene, 192) for scene in scenes], [*right[1:], right[0]]
    metric = capeval_core.load(name, weights="tiny", device="cpu")
    if name == "eco":
        choices = metric.score(list(zip(right, others, wrong, strict=True)), images).parts["choice"]
        assert np.mean(np.array(choices) == 0) > 0.85
        return
    given = {"references": references} if name == "vilbertscore" else {}
    scores = [np.array(metric.score(texts, images, **given).scores) for texts in (right, others, wrong)]
    assert min(np.mean(scores[0] > low) for low in scores[1:]) > 0.95


def test_the_packaged_weights_are_small() -> None:
    files = (Path(capeval_core.__file__).parent / "weights" / "tiny").rglob("*.safetensors")
    sizes = [file.stat().st_size for file in files]
    assert sizes and max(sizes) <= 8_000_000 and sum(sizes) < 30_000_000
