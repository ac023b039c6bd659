from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from capeval_core.demo import FOLDER, demo_clips, demo_set
from tools.captions import KINDS, describe, foil, foils, holds
from tools.scenes import (
    BACKGROUNDS,
    COLOURS,
    MOST_ALIKE,
    MOST_OBJECTS,
    SHAPES,
    SIZES,
    Scene,
    SceneObject,
    draw,
    masks,
    sample_scene,
)
from tools.sets import write_demo_clips, write_demo_set

SCENES = [sample_scene(np.random.default_rng([11, index])) for index in range(300)]


def caption_of(scene: Scene, seed: int) -> str:
    return describe(scene, np.random.default_rng(seed))


def one(shape: str, colour: str, size: str, x: float, y: float) -> SceneObject:
    return SceneObject(shape, colour, size, (x, y), 0.15 if size == "small" else 0.3)


# --- scenes


def test_a_seed_fixes_scene_image_caption_and_foil() -> None:
    def everything() -> tuple[Scene, bytes, str, str]:
        rng = np.random.default_rng(5)
        scene = sample_scene(rng)
        caption = describe(scene, rng)
        return scene, draw(scene, 64).tobytes(), caption, foil(scene, caption, "colour", rng)

    assert everything() == everything()
    assert len(set(SCENES)) > 290


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_number_of_groups_can_be_fixed(groups: int) -> None:
    assert all(len(sample_scene(np.random.default_rng(i), groups).groups()) == groups for i in range(30))


def test_an_impossible_number_of_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="groups=4"):
        sample_scene(np.random.default_rng(0), groups=4)


def test_objects_stay_apart_and_inside_and_groups_differ() -> None:
    for scene in SCENES:
        assert 1 <= len(scene.objects) <= MOST_OBJECTS
        for thing in scene.objects:
            low, high = SIZES[thing.size]
            assert low <= thing.extent <= high
            assert all(thing.extent / 2 < value < 1 - thing.extent / 2 for value in thing.centre)
        for thing, other in combinations(scene.objects, 2):
            gap = max(abs(a - b) for a, b in zip(thing.centre, other.centre, strict=True))
            assert gap > (thing.extent + other.extent) / 2
        kinds = [(group[0].shape, group[0].colour) for group in scene.groups()]
        assert len(set(kinds)) == len(kinds)
        assert all(len(group) <= MOST_ALIKE for group in scene.groups())


def test_everything_occurs() -> None:
    things = [thing for scene in SCENES for thing in scene.objects]
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {thing.colour for thing in things} == set(COLOURS)
    assert {scene.background for scene in SCENES} == set(BACKGROUNDS)
    assert {len(group) for scene in SCENES for group in scene.groups()} == set(range(1, MOST_ALIKE + 1))


# --- images


@pytest.mark.parametrize("size", [64, 97, 192])
def test_masks_agree_with_the_drawing(size: int) -> None:
    for scene in SCENES[:25]:
        image = np.asarray(draw(scene, size)).astype(int)
        visible = masks(scene, size)
        assert visible.shape == (len(scene.objects), size, size)
        assert visible.dtype == np.bool_
        assert (visible.sum(0) <= 1).all()
        for mask, thing in zip(visible, scene.objects, strict=True):
            away = np.abs(image - COLOURS[thing.colour]).max(-1)
            assert away[mask].max() <= 0.51 * 255, "half of every pixel at least has the object's colour"
            assert (away[mask] == 0).mean() > 0.4
            rows, columns = np.nonzero(mask)
            middle = ((columns.mean() + 0.5) / size, (rows.mean() + 0.5) / size)
            assert np.abs(np.subtract(middle, thing.centre)).max() < 0.15 * thing.extent + 1 / size
            for span in (np.ptp(rows) + 1, np.ptp(columns) + 1):
                assert abs(span / size - thing.extent) < 0.2 * thing.extent + 2 / size
        empty = np.abs(image[~visible.any(0)] - BACKGROUNDS[scene.background]).max(-1)
        assert (empty < 30).mean() > 0.8, "the rest is background, shadows and edges"


def test_every_shape_looks_different() -> None:
    filled = {
        shape: masks(Scene((one(shape, "red", "large", 0.5, 0.5),), "white"), 96)[0] for shape in SHAPES
    }
    for first, second in combinations(SHAPES, 2):
        both = (filled[first] & filled[second]).sum()
        assert both / (filled[first] | filled[second]).sum() < 0.9


def test_where_objects_overlap_the_later_one_has_the_pixel() -> None:
    scene = Scene(
        (one("square", "red", "large", 0.5, 0.5), one("circle", "blue", "small", 0.5, 0.5)), "white"
    )
    under, over = masks(scene, 64)
    assert over[32, 32]
    assert not under[32, 32]
    assert draw(scene, 64).getpixel((32, 32)) == COLOURS["blue"]


@pytest.mark.parametrize("make", [draw, masks])
def test_a_image_without_pixels_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="size=0"):
        make(SCENES[0], 0)  # type: ignore[operator]


# --- captions


def test_captions_are_true_and_varied() -> None:
    captions = [caption_of(scene, seed) for scene in SCENES for seed in range(3)]
    assert all(holds(scene, caption_of(scene, seed)) for scene in SCENES for seed in range(3))
    assert len(set(captions)) > 0.9 * len(captions)
    counts = Counter(word for caption in captions for word in caption.replace(",", "").split())
    for word in [
        *COLOURS,
        *SHAPES,
        "small",
        "large",
        "big",
        "little",
        "two",
        "three",
        "four",
        "left",
        "right",
    ]:
        assert counts[word] > 5, word
    for words in ("on the left", "at the top", "near the bottom", "in the middle", "in the top left corner"):
        assert any(words in caption for caption in captions), words
    for words in ("to the left of", "to the right of", "above", "below"):
        assert any(words in caption for caption in captions), words


def test_captions_name_every_group() -> None:
    for scene in SCENES:
        caption = caption_of(scene, 1)
        for group in scene.groups():
            assert f"{group[0].colour} {group[0].shape}" in caption


SCENE = Scene(
    (
        one("star", "red", "small", 0.2, 0.2),
        one("star", "red", "small", 0.2, 0.8),
        one("circle", "blue", "large", 0.8, 0.5),
    ),
    "white",
)


@pytest.mark.parametrize(
    ("caption", "truth"),
    [
        ("two red stars", True),
        ("Two small red stars.", True),
        ("three red stars", False),
        ("a red star", True),  # there is one, and another
        ("a blue star", False),
        ("two large red stars", False),
        ("two red stars on the left side and a blue circle", True),
        ("two red stars on the right and a blue circle", False),
        ("a red star in the top left corner", True),
        ("a red star in the top right corner", False),
        ("on the left are two red stars", True),
        ("on the right are two red stars", False),
        ("on the right side are two red stars", False),
        ("on the left side are two red stars", True),
        ("on the right there is a big blue circle and two red stars on the left", True),
        ("a blue circle to the right of a red star", True),
        ("a blue circle to the left of a red star", False),
        ("a red star above a blue circle", True),
        ("a blue circle in the middle", False),
        ("two red stars and two blue circles", False),
    ],
)
def test_the_judge_of_captions(caption: str, truth: bool) -> None:
    assert holds(SCENE, caption) is truth


@pytest.mark.parametrize("caption", ["", "a dog on a bench", "a red star above"])
def test_the_judge_refuses_what_it_cannot_read(caption: str) -> None:
    with pytest.raises(ValueError, match="caption"):
        holds(SCENE, caption)


def test_near_the_line_a_caption_is_neither_claimed_nor_a_foil() -> None:
    scene = Scene((one("star", "red", "small", 0.47, 0.9),), "white")
    assert not holds(scene, "a red star on the left")
    assert holds(scene, "a red star on the left", margin=0.0)
    captions = [caption_of(scene, seed) for seed in range(50)]
    assert not any("left" in caption or "right" in caption for caption in captions)


# --- foils


@pytest.mark.parametrize("kind", KINDS)
def test_foils_change_one_word_and_are_false(kind: str) -> None:
    trials = 0
    for seed, scene in enumerate(SCENES):
        caption = caption_of(scene, seed)
        every = foils(scene, caption, kind)
        if not every:
            with pytest.raises(ValueError, match=kind):
                foil(scene, caption, kind, np.random.default_rng(seed))
            continue
        trials += 1
        assert foil(scene, caption, kind, np.random.default_rng(seed)) in every
        for text in every:
            pairs = list(zip(caption.split(), text.split(), strict=True))
            assert sum(before != after for before, after in pairs) == 1
            assert not holds(scene, text, margin=0.0)
            assert not holds(scene, text)
    assert trials > 20, "enough captions say something of this kind"


def test_a_change_that_stays_true_is_no_foil() -> None:
    scene = Scene((one("star", "red", "small", 0.2, 0.2), one("star", "blue", "small", 0.8, 0.2)), "white")
    assert "a blue star" not in foils(scene, "a red star", "colour")
    assert foils(scene, "a red star on the left", "relation") == []
    assert foils(scene, "a red star to the left of a blue star", "position") == []
    assert foils(scene, "a red star to the left of a blue star", "relation") == [
        "a red star to the right of a blue star"
    ]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind='smell'"):
        foils(SCENE, "two red stars", "smell")


# --- demo and imports


def test_the_packaged_demo_is_what_its_seed_draws(tmp_path: Path) -> None:
    write_demo_set(tmp_path)
    assert (tmp_path / "demo.json").read_text() == (FOLDER / "demo.json").read_text()
    for item in demo_set():
        with Image.open(item.image) as packaged, Image.open(tmp_path / item.image.name) as drawn:
            assert packaged.size == (192, 192)
            assert np.abs(np.asarray(packaged).astype(int) - np.asarray(drawn)).max() <= 8
        assert len(item.references) == 2
        pairs = list(zip(item.good.split(), item.subtly_wrong.split(), strict=True))
        assert sum(before != after for before, after in pairs) == 1


def test_the_packaged_clips_are_what_their_seed_draws(tmp_path: Path) -> None:
    write_demo_clips(tmp_path)
    assert (tmp_path / "clips.json").read_text() == (FOLDER / "clips.json").read_text()
    for item in demo_clips():
        with Image.open(item.image) as packaged, Image.open(tmp_path / item.image.name) as drawn:
            assert packaged.size == (192, 192)
            frames = [np.stack([np.asarray(f.convert("RGB"), int) for f in ImageSequence.Iterator(one)])
                      for one in (packaged, drawn)]  # fmt: skip
        assert len(frames[0]) > 1 and np.abs(frames[0] - frames[1]).mean() < 1
        pairs = list(zip(item.good.split(), item.subtly_wrong.split(), strict=True))
        assert sum(before != after for before, after in pairs) == 1
        assert len(item.references) == 2 and item.unrelated != item.good


def test_scenes_need_neither_torch_nor_pillow_to_be_imported() -> None:
    code = "import sys, tools.captions, tools.sets; sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
