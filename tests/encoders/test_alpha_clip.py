"""Alpha-CLIP: regions alone and together, what is kept of them, masks that are wrong, memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support import seams
from tests.support.seeded import alpha_encoder, alpha_release

Floats = NDArray[np.float32]
Masks = NDArray[np.bool_]
TRANSFORMS = ("square_crop", "released", "released_no_antialias")


def image(seed: int, height: int = 40, width: int = 56) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def some_masks(seed: int, count: int, height: int = 40, width: int = 56) -> Masks:
    """Rectangles that reach into the central square."""
    rng = np.random.default_rng([seed, 9])
    masks = np.zeros((count, height, width), dtype=np.bool_)
    for mask in masks:
        top, left = rng.integers(0, height // 2), rng.integers(width // 4, width // 2)
        mask[top : top + rng.integers(1, height // 2), left : left + rng.integers(1, width // 2)] = True
    return masks


def regions(encoder: Any, images: Any, masks: Any, **more: Any) -> list[dict[str, Any]]:
    return list(seams.encode(encoder, images, regions=masks, **more))


def agree(found: Floats, expected: Floats, relative: float = 1e-5) -> bool:
    off = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return bool((off <= relative).all())


@contextmanager
def rows_of_batches() -> Iterator[list[int]]:
    sizes: list[int] = []
    layer = alpha_encoder().model.visual.ln_pre
    hook = layer.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        yield sizes
    finally:
        hook.remove()


@pytest.mark.parametrize("mask_transform", TRANSFORMS)
def test_without_a_mask_channel_it_is_clip(mask_transform: str) -> None:
    plain, release = alpha_encoder(zero_mask=True), alpha_release(zero_mask=True)
    tensors = {name: tensor for name, tensor in release.tensors.items() if "conv1_alpha" not in name}
    clip = seams.network("clip", {**release.config, "encoder": "clip"}, tensors)
    shown = [image(3, 64, 64), image(4, 64, 90)]  # at the tower's size nothing is resized
    masks = [some_masks(3, 2, 64, 64), some_masks(4, 2, 64, 90)]
    found = regions(plain, shown, masks, mask_transform=mask_transform)
    for features, expected in zip(found, seams.encode(clip, shown), strict=True):
        row = expected["features"]
        assert agree(features["image"], row) and agree(features["regions"], np.stack([row, row]))
    texts = ["a dog", "two red circles on the left"]
    assert np.array_equal(plain.encode_texts(texts).features, clip.encode_texts(texts).features)


def test_masks_lie_where_their_image_does() -> None:
    encoder = alpha_encoder()
    square, wide = some_masks(5, 3, 64, 64), some_masks(5, 3, 64, 96)
    scaled = {name: encoder.preprocess_masks(square, name) for name in TRANSFORMS[:2]}
    assert np.array_equal(scaled["square_crop"], scaled["released"])
    assert np.array_equal(
        encoder.preprocess_masks(wide, "square_crop"), encoder.preprocess_masks(wide[:, :, 16:80], "released")
    )
    assert not np.array_equal(encoder.preprocess_masks(wide), encoder.preprocess_masks(wide, "released"))
    full = encoder.preprocess_masks(np.ones((1, 33, 47), dtype=np.bool_))
    assert np.allclose(full, 0.5 / 0.26, atol=1e-6)
    half = np.zeros((1, 64, 64), dtype=np.bool_)
    half[0, :, ::2] = True
    assert np.abs(encoder.preprocess_masks(half)).max() <= 0.5 / 0.26 + 1e-6


@given(st.sampled_from(TRANSFORMS), st.integers(0, 99))
def test_what_a_mask_shows_is_that_of_its_box_alone(transform: str, seed: int) -> None:
    """The share of a mask is 0 exactly where the tower sees nothing of it: then it is dropped."""
    random = np.random.default_rng(seed)
    height, width = random.integers(2, 40, 2)
    masks = random.random((3, height, width)) < random.choice([0.02, 0.1, 0.5])
    masks[:, 0, 0] |= ~masks.any(axis=(1, 2))
    side, top = min(height, width), 0
    left = top = 0
    if transform == "square_crop":
        top, left = (height - side) // 2, (width - side) // 2
        visible = masks[:, top : top + side + 1, left : left + side + 1].any(axis=(1, 2))
        inside = masks[:, top + 1 : top + side - 1, left + 1 : left + side - 1].any(axis=(1, 2))
    else:
        visible = inside = masks.any(axis=(1, 2))
    (found,) = regions(alpha_encoder(), [image(1, height, width)], [masks], mask_transform=transform)
    kept = np.isin(np.arange(3), found["region_indices"])
    assert not (kept & ~visible).any() and not (inside & ~kept).any()


def test_five_hundred_regions_are_unpacked_and_encoded_a_few_at_a_time() -> None:
    masks = np.zeros((500, 64, 64), dtype=np.bool_)
    for index, mask in enumerate(masks):
        mask[index // 25 * 3 : index // 25 * 3 + 5, index % 25 * 2 : index % 25 * 2 + 6] = True
    (packed,) = [seams.mask_regions(masks)]
    unpack, counts = type(packed).masks, {"alive": 0, "most": 0}

    def gone(count: int) -> None:
        counts["alive"] -= count

    def noted(self: Any, *part: Any) -> Masks:
        found: Masks = unpack(self, *part)
        counts["alive"] += len(found)
        counts["most"] = max(counts.values())
        weakref.finalize(found, gone, len(found))
        return found

    with rows_of_batches() as sizes, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(packed), "masks", noted)
        (found,) = regions(alpha_encoder(), [image(13, 64, 64)], [packed], batch_size=16)
    assert found["regions"].shape == (500, 32) and found["dropped"] == 0
    assert found["region_indices"].tolist() == list(range(500))
    assert sum(sizes) == 501 and max(sizes) == 16
    gc.collect()
    assert counts["alive"] == 0 and counts["most"] <= 32
    for index in (0, 250, 499):
        (alone,) = regions(alpha_encoder(), [image(13, 64, 64)], [masks[index : index + 1]])
        assert agree(found["regions"][index], alone["regions"][0])
