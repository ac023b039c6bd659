"""The same pixels with every version of Pillow."""

from __future__ import annotations

import hashlib

import numpy as np
import PIL
import pytest
from PIL import Image

from capeval_core.inputs.decoding import resized

SHAPES = [(30, 160), (160, 30), (7, 200), (33, 34), (1, 90)]
SIZES = [(20, 20), (64, 21), (5, 150), (40, 200)]
MODES = ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK", "I", "F"]
METHODS = [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR]


def noise(mode: str, width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width + height)
    image = Image.fromarray(rng.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    return image if mode == "RGBA" else image.convert("LA" if mode == "LA" else "L").convert(mode)


def all_resized(mode: str) -> list[tuple[Image.Image, Image.Image]]:
    images = [noise(mode, *shape) for shape in SHAPES]
    return [
        (resized(image, size, method), image.resize(size, method))
        for image in images
        for size in SIZES
        for method in METHODS
    ]


@pytest.mark.skipif(
    int(PIL.__version__.split(".")[0]) >= 13, reason="this Pillow orders its passes otherwise"
)
@pytest.mark.parametrize("mode", MODES)
def test_pixels_are_those_of_pillow_before_13(mode: str) -> None:
    for ours, theirs in all_resized(mode):
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size) == (mode, theirs.size)
        assert ours.tobytes() == theirs.tobytes()


def test_pixels_are_pinned_for_every_version() -> None:
    digest = hashlib.sha256()
    for mode in ("RGB", "RGBA", "L"):
        for ours, _ in all_resized(mode):
            digest.update(ours.tobytes())
    assert digest.hexdigest()[:16] == "8cc45cdc03c41957"


@pytest.mark.parametrize("mode", MODES)
def test_a_box_is_a_part_of_the_whole(mode: str) -> None:
    rng = np.random.default_rng(len(mode))
    for shape in SHAPES:
        image = noise(mode, *shape)
        for width, height in [*SIZES, (20, shape[1]), (shape[0], 20), shape]:
            (left, right), (top, bottom) = (
                sorted(rng.choice(n + 1, 2, replace=False)) for n in (width, height)
            )
            box = int(left), int(top), int(right), int(bottom)
            for method in METHODS:
                part = resized(image, (width, height), method, box)
                whole = resized(image, (width, height), method).crop(box)
                assert (part.mode, part.size) == (whole.mode, whole.size)
                assert part.tobytes() == whole.tobytes()
