"""Masks as run lengths: decoded on the device they are those of NumPy, and give the CPU's features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from capeval_core.cache import FeatureCache
from capeval_core.encoders import run_masks
from capeval_core.encoders.alpha_clip import AlphaClipEncoder, _Regions
from capeval_core.encoders.cuda_blocks import PYTORCH
from capeval_core.encoders.engine import encode_stream
from capeval_core.encoders.preprocessing import MaskTransform, crop_masks, resize_masks
from capeval_core.encoders.run_masks import RunMask, shares_of
from capeval_core.inputs.visual import InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.regions import rle
from tests.support.seeded import alpha_encoder

CPU = torch.device("cpu")
TRANSFORMS: tuple[MaskTransform, ...] = ("square_crop", "released", "released_no_antialias")


def drawn(seed: int) -> Any:
    """Some masks of one size: nearly empty ones, noise, full ones."""
    random = np.random.default_rng(seed)
    height, width = random.integers(2, 40, 2)
    return random.random((random.integers(1, 9), height, width)) < random.choice([0.02, 0.1, 0.5, 1.0])


def as_runs(masks: Any, transform: MaskTransform) -> list[RunMask]:
    return [RunMask.of(rle.encode(mask), masks.shape[1:], transform) for mask in masks]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("at_once", [1 << 22, 300, 1])
def test_shares_are_those_of_decoded_masks(
    transform: MaskTransform, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_masks, "_DECODED", at_once)
    sets = [drawn(seed) for seed in range(40)]
    runs = [mask for masks in sets for mask in as_runs(masks, transform)]
    expected = [
        resize_masks(torch.from_numpy(crop_masks(masks, transform).copy()), 16, transform) for masks in sets
    ]
    assert torch.equal(shares_of(runs, 16, CPU), torch.cat(expected))


def test_what_the_tower_sees_is_known_without_decoding() -> None:
    sets = [drawn(seed) for seed in range(200)]
    for transform in TRANSFORMS:
        for masks in sets:
            visible = [mask.visible for mask in as_runs(masks, transform)]
            assert visible == crop_masks(masks, transform).any(axis=(1, 2)).tolist()
    cropped = [mask.visible for masks in sets for mask in as_runs(masks, "square_crop")]
    assert 10 < cropped.count(False) < len(cropped) - 10


def test_the_full_mask_is_one_everywhere() -> None:
    for transform in TRANSFORMS:
        assert torch.equal(shares_of([RunMask.full(28, transform)], 28, CPU), torch.ones(1, 1, 28, 28))


def encoded(encoder: AlphaClipEncoder, images: Any, masks: Any, *, on_device: bool) -> list[Any]:
    """Arrays of images with masks, by the way of a GPU or of the CPU, in batches of five rows."""
    regions = _Regions(encoder, "square_crop", BatchSize(5, automatic=False))
    if on_device:
        regions.as_runs, regions.full = True, RunMask.full(encoder.preprocessing.image_size, "square_crop")
    items = [(InputImage.of(image), own) for image, own in zip(images, masks, strict=True)]
    parts = encode_stream(items, regions.encoding(), FeatureCache(0))
    return [[item.arrays[key] for key in item.keys] for part in parts for item in part if item.arrays]


def test_features_are_those_of_the_cpus_way() -> None:
    random = np.random.default_rng(1)
    sizes = [(40, 56), (56, 40), (33, 33)]
    images = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    masks = [random.random((count, *size)) < 0.3 for count, size in zip((4, 7, 0), sizes, strict=True)]
    masks[0][1] = False
    masks[0][1, :, 0] = True  # outside of the central square
    encoder = alpha_encoder()
    expected = encoded(encoder, images, masks, on_device=False)
    assert len(expected) == 3 and [len(record) for _, record in expected] == [4, 8, 1]
    for ours, theirs in zip(encoded(encoder, images, masks, on_device=True), expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(a, b)


def test_packed_rows_are_those_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    images = [random.integers(0, 256, (40, 56, 3), dtype=np.uint8) for _ in range(3)]
    masks = [random.random((count, 40, 56)) < 0.3 for count in (3, 1, 6)]
    encoder = alpha_encoder()
    expected = encoded(encoder, images, masks, on_device=False)
    monkeypatch.setattr(encoder, "kernels", PYTORCH)
    for ours, theirs in zip(encoded(encoder, images, masks, on_device=True), expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
