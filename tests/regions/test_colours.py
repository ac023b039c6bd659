"""Patches of one colour, against the masks that drawn scenes know."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from capeval_core.demo import demo_set
from capeval_core.regions import rle
from capeval_core.regions.colours import ColourRegions, components, runs_of
from tools.scenes import BACKGROUNDS, Scene, SceneObject, draw, masks, sample_scene


@pytest.mark.parametrize(("size", "least"), [(192, 0.8), (224, 0.8), (400, 0.85)])
def test_every_drawn_object_is_one_region(size: int, least: float) -> None:
    rng = np.random.default_rng(size)
    for _ in range(12):
        scene = sample_scene(rng)
        regions = ColourRegions().segment(draw(scene, size))
        truth = masks(scene, size)
        patches = regions.masks()
        assert len(patches) == len(truth)  # objects never overlap, so none merge
        shared = (patches[:, None] & truth).sum((2, 3)) / (patches[:, None] | truth).sum((2, 3))
        assert shared.max(axis=0).min() > least
        assert sorted(shared.argmax(axis=0)) == list(range(len(truth)))


def test_order_is_that_of_reading_and_quality_the_share() -> None:
    def square(colour: str, x: float, y: float) -> SceneObject:
        return SceneObject("square", colour, "small", (x, y), 0.18)

    scene = Scene((square("red", 0.8, 0.8), square("blue", 0.2, 0.2), square("red", 0.8, 0.2)), "cream")
    first, second = (ColourRegions().segment(draw(scene)) for _ in range(2))
    assert [tuple(box[:2] > 96) for box in first.boxes] == [(False, False), (True, False), (True, True)]
    assert (first.masks() == second.masks()).all()
    assert first.quality == pytest.approx(first.areas / 192**2)


def test_touching_objects_of_one_colour_merge() -> None:
    two = [SceneObject("circle", "green", "large", (x, 0.5), 0.3) for x in (0.4, 0.6)]
    assert len(ColourRegions().segment(draw(Scene(tuple(two), "white")))) == 1
    other = SceneObject("circle", "brown", "large", (0.6, 0.5), 0.3)
    assert len(ColourRegions().segment(draw(Scene((two[0], other), "white")))) == 2


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_a_background_alone_has_no_region(background: str) -> None:
    assert len(ColourRegions().segment(Image.new("RGB", (64, 48), BACKGROUNDS[background]))) == 0


def test_specks_noise_and_small_images() -> None:
    speck = np.full((200, 200, 3), 255, np.uint8)
    speck[20:24, 20:24] = 0
    assert len(ColourRegions().segment(speck)) == 0
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    assert len(ColourRegions().segment(noise)) == 0
    for size in ((2, 2), (2, 9), (3, 2)):
        assert len(ColourRegions().segment(np.zeros((*size, 3), np.uint8))) == 0


def test_compressed_and_palette_images() -> None:
    import io

    scene = Scene((SceneObject("square", "blue", "large", (0.4, 0.6), 0.3),), "white")
    file = io.BytesIO()
    draw(scene).save(file, "JPEG", quality=90)
    assert len(ColourRegions().segment(file.getvalue())) == 1
    assert len(ColourRegions().segment(draw(scene).quantize(64, dither=Image.Dither.NONE))) == 1


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_components_are_scipys(share: float) -> None:
    grid = np.random.default_rng(0).random((40, 30)) < share
    labels = components(grid[:, 1:] & grid[:, :-1], grid[1:] & grid[:-1])
    theirs, count = ndimage.label(grid)
    assert len(np.unique(labels[grid])) == count
    assert len({*zip(labels[grid].tolist(), theirs[grid].tolist(), strict=True)}) == count


def test_large_images_have_the_same_regions_in_bounded_memory() -> None:
    image = Image.open(demo_set()[1].image).convert("RGB")
    small = ColourRegions().segment(image)
    large = image.resize((16 * 192, 16 * 192), Image.Resampling.NEAREST)  # 9.4 megapixels
    tracemalloc.start()
    regions = ColourRegions().segment(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert regions.size == (large.height, large.width)
    assert len(regions) == len(small)
    assert np.abs(regions.boxes - 16 * small.boxes).max() <= 16
    assert peak < 40 * large.width * large.height
    odd = large.crop((0, 0, 3071, 3001))  # no multiple of the step
    assert ColourRegions().segment(odd).size == (3001, 3071)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_runs_of_all_patches_are_those_of_each_mask(step: int) -> None:
    rng = np.random.default_rng(step)
    for height, width in ((1, 1), (7, 9), (30, 1), (1, 30), (step * 6, step * 4), (step * 6 - 1, 29)):
        small = (-(-height // step), -(-width // step))
        for coarse in (1, 2, small[0]):  # also patches over whole columns, whose runs go on in the next one
            patches = rng.integers(-1, 3, small).repeat(coarse, axis=0)[: small[0]]
            chosen = [patch for patch in (0, 2) if (patches == patch).any()]
            for patch, runs in zip(chosen, runs_of(patches, chosen, step, (height, width)), strict=True):
                mask = (patches == patch).repeat(step, 0)[:height].repeat(step, 1)[:, :width]
                assert runs.tolist() == rle.encode(mask).tolist()


def test_a_patch_costs_its_outline_and_no_mask() -> None:
    """Of a large image there may be a thousand patches: a mask for each would take minutes."""
    patches = np.repeat(np.arange(100), 100).reshape(100, 100)
    tracemalloc.start()
    runs = runs_of(patches, list(range(100)), 50, (5000, 5000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [rle.area(each) for each in runs] == [250_000] * 100
    assert peak < 5000 * 5000


def test_a_large_image_of_many_patches() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (25, 25, 3), dtype=np.uint8)
    regions = ColourRegions().segment(colours.repeat(200, axis=0).repeat(200, axis=1))
    assert 500 < len(regions) < 625
    assert regions.size == (5000, 5000) and regions.areas.min() > 30_000
