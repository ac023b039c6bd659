"""Patches of one colour, against the masks that drawn scenes know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tests.inputs.photographs import encoded
from tests.support.seams import open_regions
from tools.scenes import Scene, SceneObject, draw, masks, sample_scene


def segment(image: Any) -> Any:
    return open_regions("colours").segment(image)


@pytest.mark.parametrize(("size", "least"), [(192, 0.8), (224, 0.8), (400, 0.85)])
def test_every_drawn_object_is_one_region(size: int, least: float) -> None:
    rng = np.random.default_rng(size)
    for _ in range(12):
        scene = sample_scene(rng)
        truth, patches = masks(scene, size), segment(draw(scene, size)).masks()
        assert len(patches) == len(truth)  # objects never overlap, so none merge
        shared = (patches[:, None] & truth).sum((2, 3)) / (patches[:, None] | truth).sum((2, 3))
        assert shared.max(axis=0).min() > least
        assert sorted(shared.argmax(axis=0)) == list(range(len(truth)))


def test_patches_come_in_reading_order_with_their_share_as_quality() -> None:
    def square(colour: str, x: float, y: float) -> SceneObject:
        return SceneObject("square", colour, "small", (x, y), 0.18)

    scene = Scene((square("red", 0.8, 0.8), square("blue", 0.2, 0.2), square("red", 0.8, 0.2)), "cream")
    regions = segment(draw(scene))
    assert [tuple(box[:2] > 96) for box in regions.boxes] == [(False, False), (True, False), (True, True)]
    assert regions.quality == pytest.approx(regions.areas / 192**2)
    for form in (encoded(draw(scene), quality=90), draw(scene).quantize(64, dither=Image.Dither.NONE)):
        assert len(segment(form)) == 3


@pytest.mark.parametrize("scale", [8, 25])
def test_patches_equal_scipys_components(scale: int) -> None:
    grid = np.pad(np.random.default_rng(scale).random((9, 12)) < 0.5, 1)
    large = grid.repeat(scale, axis=0).repeat(scale, axis=1)
    labels, count = ndimage.label(large)
    found = segment(np.where(large[..., None], np.uint8([200, 20, 20]), np.uint8([255] * 3))).masks()
    expected = {(labels == i).tobytes() for i in range(1, count + 1)}
    enclosed = {mask.tobytes() for mask in found} - expected  # background that a patch surrounds is another
    assert not enclosed and len(found) == count
