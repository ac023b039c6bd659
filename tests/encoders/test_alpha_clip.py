"""Alpha-CLIP: regions against plain ways of computing them, forwards counted, masks that are wrong."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder, RegionFeatures, Row
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.preprocessing import central_square
from capeval_core.errors import Problem
from capeval_core.inputs.visual import InputImage
from capeval_core.matching.cosine import paired_cosine
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionsError, RegionSource
from capeval_core.weights.conversion import Release
from capeval_core.weights.folder import WeightsError
from tests.support.counting import counted
from tests.support.seeded import alpha_encoder, alpha_release, write_config

Floats = NDArray[np.float32]
Masks = NDArray[np.bool_]


def image(seed: int, height: int = 40, width: int = 56) -> InputImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return InputImage.of(pixels, where=f"images[{seed}]")


def some_masks(seed: int, count: int, height: int = 40, width: int = 56) -> Masks:
    """Rectangles that reach into the central square."""
    rng = np.random.default_rng([seed, 9])
    masks = np.zeros((count, height, width), dtype=np.bool_)
    for mask in masks:
        top, left = rng.integers(0, height // 2), rng.integers(width // 4, width // 2)
        mask[top : top + rng.integers(1, height // 2), left : left + rng.integers(1, width // 2)] = True
    return masks


def regions(encoder: AlphaClipEncoder, *arguments: Any, **more: Any) -> list[RegionFeatures]:
    more.setdefault("cache", FeatureCache(0))
    return list(encoder.encode_regions(*arguments, **more))


def one_by_one(encoder: AlphaClipEncoder, shown: InputImage, masks: Masks) -> Floats:
    """A forward per mask, the whole image first: the plain way."""
    pixels = torch.from_numpy(encoder.preprocess(shown.load()))
    full = np.ones((1, *masks.shape[1:]), dtype=np.bool_)
    every = np.concatenate([full, masks])
    alphas = [torch.from_numpy(encoder.preprocess_masks(mask[None])[0]) for mask in every]
    return np.concatenate([encoder.run_rows([Row(pixels, alpha)]) for alpha in alphas])


def agree(found: Floats, expected: Floats, relative: float = 1e-5) -> bool:
    off = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return bool((off <= relative).all())


@pytest.mark.parametrize("batch_size", [None, 1, 5])
def test_many_images_in_a_batch_are_each_alone(batch_size: int | None) -> None:
    encoder = alpha_encoder()
    shown = [image(seed, 40 + seed, 56 - seed) for seed in range(5)]
    masks = [some_masks(seed, seed, 40 + seed, 56 - seed) for seed in range(5)]
    found = regions(encoder, shown, masks, batch_size=batch_size)
    for one, own, features in zip(shown, masks, found, strict=True):
        expected = one_by_one(encoder, one, own)
        assert agree(features.whole, expected[0]) and agree(features.regions, expected[1:])
        assert features.kept.tolist() == list(range(len(own)))
        assert (features.dropped, features.error, features.key) == (0, None, one.key)


def test_masks_and_regions_are_the_same() -> None:
    masks = some_masks(1, 4)
    encoder = alpha_encoder()
    (of_masks,), (of_regions,) = (
        regions(encoder, [image(1)], [masks]),
        regions(encoder, [image(1)], [Regions.of(masks)]),
    )
    assert np.array_equal(of_masks.regions, of_regions.regions)
    (of_tensor,) = regions(encoder, [image(1)], [torch.from_numpy(masks)])
    assert np.array_equal(of_masks.regions, of_tensor.regions)


def test_a_mask_moves_the_features() -> None:
    """Else all tests of equality would hold for an encoder that forgets the mask."""
    (found,) = regions(alpha_encoder(), [image(2)], [some_masks(2, 3)])
    every = np.concatenate([found.whole[None], found.regions])
    for row in range(len(every)):
        for other in range(row):
            assert not agree(every[row], every[other], 1e-3)


@pytest.mark.parametrize("mask_transform", ["square_crop", "released", "released_no_antialias"])
def test_without_a_mask_channel_it_is_clip(mask_transform: Any) -> None:
    plain = alpha_encoder(zero_mask=True)
    release = alpha_release(zero_mask=True)
    tensors = {name: tensor for name, tensor in release.tensors.items() if "conv1_alpha" not in name}
    clip = ClipEncoder({**release.config, "encoder": "clip"}, tensors, device="cpu")
    shown = [image(3, 64, 64), image(4, 64, 90)]  # at the tower's size nothing is resized
    masks = [some_masks(3, 2, 64, 64), some_masks(4, 2, 64, 90)]
    found = regions(plain, shown, masks, mask_transform=mask_transform)
    (expected,) = clip.encode_images(shown, cache=FeatureCache(0))
    for features, row in zip(found, expected.features, strict=True):
        assert agree(features.whole, row) and agree(features.regions, np.stack([row, row]))
    texts = ["a dog", "two red circles on the left"]
    assert np.array_equal(plain.encode_texts(texts).features, clip.encode_texts(texts).features)


def test_the_released_transform_is_clips_preprocessing() -> None:
    encoder = alpha_encoder()
    grey = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90), dtype=np.uint8))
    found = encoder.preprocess(grey, "released")
    expected = encoder.preprocessing.pixels(grey.convert("RGB"))
    mean, std = (np.array(values, dtype=np.float32)[:, None, None] for values in (
        encoder.preprocessing.mean, encoder.preprocessing.std))  # fmt: skip
    assert np.allclose(found, (expected.astype(np.float32) / 255 - mean) / std, atol=1e-6)


def test_a_square_image_lines_up_in_both_geometries() -> None:
    encoder = alpha_encoder()
    masks = some_masks(5, 3, 64, 64)
    crop, squash = (
        encoder.preprocess_masks(masks, "square_crop"),
        encoder.preprocess_masks(masks, "released"),
    )
    assert np.array_equal(crop, squash)
    wide = some_masks(5, 3, 64, 96)
    assert not np.array_equal(
        encoder.preprocess_masks(wide, "square_crop"), encoder.preprocess_masks(wide, "released")
    )


@given(st.integers(1, 500), st.integers(1, 500))
def test_the_central_square_lies_inside_and_in_the_middle(height: int, width: int) -> None:
    top, left, side = central_square(height, width)
    assert side == min(height, width)
    assert 0 <= top <= height - side and 0 <= left <= width - side
    assert abs(2 * top + side - height) <= 1 and abs(2 * left + side - width) <= 1


def test_the_full_mask_is_full_and_shares_are_shares() -> None:
    encoder = alpha_encoder()
    full = encoder.preprocess_masks(np.ones((1, 33, 47), dtype=np.bool_))
    assert np.allclose(full, 0.5 / 0.26, atol=1e-6)
    half = np.zeros((1, 64, 64), dtype=np.bool_)
    half[0, :, ::2] = True
    assert np.abs(encoder.preprocess_masks(half)).max() <= 0.5 / 0.26 + 1e-6


def test_regions_outside_the_crop_are_dropped_and_counted() -> None:
    masks = some_masks(6, 4, 40, 80)
    masks[1] = masks[3] = False
    masks[1, :, :20] = masks[3, :, 60:] = True  # what the central 40 columns do not reach
    encoder = alpha_encoder()
    (found,) = regions(encoder, [image(6, 40, 80)], [masks])
    assert found.kept.tolist() == [0, 2] and found.dropped == 2
    assert agree(found.regions, one_by_one(encoder, image(6, 40, 80), masks[[0, 2]])[1:])
    (squashed,) = regions(encoder, [image(6, 40, 80)], [masks], mask_transform="released")
    assert squashed.kept.tolist() == [0, 1, 2, 3] and squashed.dropped == 0


def test_no_regions_leave_the_whole_image() -> None:
    encoder = alpha_encoder()
    with counted(encoder) as count:
        (found,) = regions(encoder, [image(7)], [np.zeros((0, 40, 56), dtype=np.bool_)])
    assert found.regions.shape == (0, 32) and len(found.kept) == 0
    assert np.isfinite(found.whole).all() and count.masked == 1
    assert regions(encoder, [], []) == []


class Counting(RegionSource):
    """A source that counts what it is asked."""

    name, fingerprint = "counting", "counting-1"

    def __init__(self, count: int = 30, fingerprint: str = "counting-1") -> None:
        self.count, self.fingerprint, self.asked = count, fingerprint, 0

    def find(self, image: InputImage) -> Regions:
        self.asked += 1
        decoded = image.load()
        return Regions.of(some_masks(8, self.count, decoded.height, decoded.width))


def test_four_captions_of_thirty_regions_cost_31_rows_and_a_further_one_none() -> None:
    encoder, cache, source = alpha_encoder(), FeatureCache(), Counting()
    with counted(encoder) as count:
        four = regions(encoder, [image(8)] * 4, source, cache=cache)
    assert (count.masked, source.asked) == (31, 1)
    with counted(encoder) as count:
        fifth = regions(encoder, [image(8)], source, cache=cache)
    assert (count.masked, count.images, source.asked) == (0, 0, 1)
    assert len({features.regions.tobytes() for features in [*four, *fifth]}) == 1


def test_equal_images_far_apart_are_encoded_once_with_a_cache() -> None:
    encoder, source = alpha_encoder(), Counting(2)
    shown = [image(seed, 20, 20) for seed in range(70)]
    with counted(encoder) as count:
        found = regions(encoder, [*shown, *shown], source, cache=FeatureCache())
    assert count.masked == 70 * 3 and source.asked == 70
    assert all(np.array_equal(a.whole, b.whole) for a, b in zip(found, found[70:], strict=False))


def test_features_are_kept_by_image_regions_transform_and_type() -> None:
    cache = FeatureCache()
    encoder = alpha_encoder()

    def rows(*given: Any, **more: Any) -> int:
        with counted(encoder) as count:
            regions(encoder, *given, cache=cache, **more)
        return count.masked

    shown, masks = [image(9)], some_masks(9, 3)
    assert rows(shown, [masks]) == 4
    assert rows(shown, [masks.copy()]) == 0
    assert rows(shown, [masks[:2]]) == 2  # the whole image is known
    assert rows(shown, [masks[::-1]]) == 3
    assert rows(shown, [masks], mask_transform="released") == 4
    assert rows([image(10)], [masks]) == 4
    assert rows(shown, Counting(2)) == 2
    assert rows(shown, Counting(2, fingerprint="counting-2")) == 2
    narrow = alpha_encoder("bfloat16")
    with counted(narrow) as count:
        regions(narrow, shown, [masks], cache=cache)
    assert count.masked == 4


def test_features_on_disk_serve_another_process(tmp_path: Path) -> None:
    encoder, source = alpha_encoder(), Counting(3)
    (first,) = regions(encoder, [image(11)], source, cache=FeatureCache(folder=tmp_path))
    with counted(encoder) as count:
        (second,) = regions(encoder, [image(11)], source, cache=FeatureCache(folder=tmp_path))
    assert count.masked == 0 and source.asked == 1
    assert np.array_equal(first.regions, second.regions) and first.kept.tolist() == second.kept.tolist()


def test_masks_of_many_images_fill_a_batch() -> None:
    encoder = alpha_encoder()
    shown = [image(seed) for seed in range(6)]
    with counted(encoder) as count:
        regions(encoder, shown, [some_masks(seed, 3) for seed in range(6)], batch_size=8)
    assert count.masked_batches == [8, 8, 8]


def test_a_batch_size_that_does_not_fit_is_told_and_an_automatic_one_shrinks() -> None:
    release = alpha_release()
    encoder = AlphaClipEncoder(release.config, release.tensors, checksum="own", device="cpu")
    expected = regions(encoder, [image(12)], [some_masks(12, 9)])

    def refuse(module: Any, inputs: Any) -> None:
        if len(inputs[0]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    encoder.model.visual.ln_pre.register_forward_pre_hook(refuse)
    with pytest.raises(MemoryError, match="batch_size=5 does not fit into memory: lower it"):
        regions(encoder, [image(12)], [some_masks(12, 9)], batch_size=5)
    (found,) = regions(encoder, [image(12)], [some_masks(12, 9)])
    assert agree(found.regions, expected[0].regions)


class Unpacking(Regions):
    """Regions that count how many arrays of theirs are alive."""

    alive = 0
    most = 0

    def masks(self, start: int = 0, stop: int | None = None) -> Masks:
        found = super().masks(start, stop)
        kind = type(self)
        kind.alive += len(found)
        kind.most = max(kind.most, kind.alive)
        weakref.finalize(found, self._gone, len(found))
        return found

    @classmethod
    def _gone(cls, count: int) -> None:
        cls.alive -= count


def test_five_hundred_regions_are_unpacked_and_encoded_a_few_at_a_time() -> None:
    encoder = alpha_encoder()
    masks = np.zeros((500, 64, 64), dtype=np.bool_)
    for index, mask in enumerate(masks):
        mask[index // 25 * 3 : index // 25 * 3 + 5, index % 25 * 2 : index % 25 * 2 + 6] = True
    crowd = Unpacking.of(masks)
    with counted(encoder) as count:
        (found,) = regions(encoder, [image(13, 64, 64)], [crowd], batch_size=16)
    assert found.regions.shape == (500, 32) and found.dropped == 0
    assert count.masked == 501 and max(count.masked_batches) == 16
    gc.collect()
    assert Unpacking.alive == 0 and Unpacking.most <= 32
    for index in (0, 250, 499):
        expected = one_by_one(encoder, image(13, 64, 64), masks[index : index + 1])[1]
        assert agree(found.regions[index], expected)


def test_a_mask_larger_than_what_is_unpacked_at_once_is_encoded_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, masks = alpha_encoder(), some_masks(3, 4)
    (expected,) = regions(encoder, [image(3)], [masks])
    monkeypatch.setattr("capeval_core.encoders.alpha_clip._EXPANDED", 10)
    (found,) = regions(encoder, [image(3)], [masks])
    assert found.error is None and found.kept.tolist() == expected.kept.tolist()
    assert agree(found.regions, expected.regions)


def test_wrong_regions_are_refused_with_the_right_ones_in_the_cache() -> None:
    """They have the same bytes, but another type, shape or size."""
    encoder, cache, masks = alpha_encoder(), FeatureCache(), some_masks(3, 2)
    right = Regions.of(masks, size=(40, 56))
    for good in (masks, right):
        assert regions(encoder, [image(3)], [good], cache=cache)[0].error is None
    for wrong in (masks.view(np.uint8), masks.reshape(2, 56, 40), replace(right, size=(56, 40))):
        assert regions(encoder, [image(3)], [wrong], cache=cache)[0].error is not None


def test_images_are_taken_as_they_are_needed() -> None:
    taken = 0

    def shown() -> Iterator[InputImage]:
        nonlocal taken
        for seed in range(1000):
            taken += 1
            yield image(seed, 10, 10)

    found = alpha_encoder().encode_regions(shown(), Counting(1), cache=FeatureCache(0))
    for _ in range(3):
        next(found)
    assert taken <= 128


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((2, 40, 56), np.uint8), "images[1]: its masks are of type uint8, expected boolean"),
        (None, "images[1]: its regions are a NoneType: pass Regions or boolean masks (n, 40, 56)"),
        (np.ones((2, 40, 56), np.float32), "masks > 0.5 where they are probabilities"),
        (np.ones((2, 56, 40), np.bool_), "have shape (2, 56, 40), but the array"),
        (np.ones((40, 56), np.bool_), "expected (n, 40, 56)"),
        (np.ones((0, 30, 30), np.bool_), "40 pixels high and 56 wide"),
        (np.eye(3, dtype=np.bool_)[:, :, None, None][:, 0] & np.ones((3, 40, 56), np.bool_),
         "images[1]: masks[1], masks[2] of 3 have no pixel: leave them out"),
        (Regions.of(np.ones((1, 20, 28), np.bool_)), "not of a copy"),
    ],
)  # fmt: skip
def test_wrong_masks_cost_their_image_and_say_why(given: Any, message: str) -> None:
    encoder = alpha_encoder()
    shown = [image(seed) for seed in range(3)]
    found = regions(encoder, shown, [some_masks(0, 2), given, some_masks(2, 2)])
    assert found[1].error is not None and message in found[1].error
    assert np.isnan(found[1].whole).all() and found[1].regions.shape == (0, 32)
    alone = regions(encoder, [shown[0], shown[2]], [some_masks(0, 2), some_masks(2, 2)])
    assert agree(found[0].regions, alone[0].regions) and agree(found[2].regions, alone[1].regions)
    assert found[0].error is found[2].error is None


def test_a_image_or_a_source_that_fails_costs_its_row(tmp_path: Path) -> None:
    class Failing(Counting):
        def find(self, image: InputImage) -> Regions:
            if image.key == failing:
                found = f"nothing was precomputed for {image.name}"
                raise RegionsError(Problem(image.where, None, found, verb=""))
            return super().find(image)

    failing = image(1).key
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    shown = [image(0), image(1), InputImage.of(tmp_path / "broken.png", "images[2]"),
             InputImage.of(tmp_path / "absent.png", "images[3]"), image(0),
             InputImage.of(image(1).load(), "images[5]")]  # fmt: skip
    found = regions(alpha_encoder(), shown, Failing(2))
    assert [features.error is None for features in found] == [True, False, False, False, True, False]
    assert all(found[row].error.startswith(f"images[{row}]") for row in (1, 2, 3, 5))  # type: ignore[union-attr]
    assert "nothing was precomputed" in str(found[1].error) and found[3].key == ""


def test_too_few_and_too_many_regions() -> None:
    masks = some_masks(0, 1)
    with pytest.raises(ValueError, match="there are 1 regions but more images"):
        regions(alpha_encoder(), [image(0), image(1)], [masks])
    with pytest.raises(ValueError, match="there are 1 images but more regions"):
        regions(alpha_encoder(), [image(0)], iter([masks, masks]))
    with pytest.raises(ValueError, match="mask_transform='squre': expected one of 'square_crop'"):
        regions(alpha_encoder(), [image(0)], [masks], mask_transform="squre")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_near(dtype: str) -> None:
    shown, masks = [image(14)], [some_masks(14, 5)]
    (wide,), (narrow,) = (
        regions(encoder, shown, masks) for encoder in (alpha_encoder(), alpha_encoder(dtype))
    )
    assert narrow.regions.dtype == np.float32
    assert paired_cosine(wide.regions, narrow.regions).min() > 0.999


@given(st.lists(st.integers(0, 4), max_size=5), st.integers(1, 7))
@settings(max_examples=12)
def test_any_order_and_any_batch(order: list[int], batch_size: int) -> None:
    encoder = alpha_encoder()
    alone = [regions(encoder, [image(seed)], [some_masks(seed, seed)])[0] for seed in range(5)]
    found = regions(
        encoder,
        [image(seed) for seed in order],
        [some_masks(seed, seed) for seed in order],
        batch_size=batch_size,
    )
    for seed, features in zip(order, found, strict=True):
        assert agree(features.whole, alone[seed].whole) and agree(features.regions, alone[seed].regions)


# ---- weights


def saved(folder: Path, release: Release | None = None) -> Path:
    found = release or alpha_release()
    AlphaClipEncoder(found.config, found.tensors, device="cpu").save_pretrained(folder)
    return folder


def test_saved_weights_come_back(tmp_path: Path) -> None:
    encoder = AlphaClipEncoder.from_pretrained(saved(tmp_path / "w"), device="cpu")
    kept, made = encoder.model.state_dict(), alpha_encoder().model.state_dict()
    assert kept.keys() == made.keys() and all(torch.equal(kept[name], made[name]) for name in made)
    shown, masks = [image(15)], [some_masks(15, 3)]
    (found,), (expected,) = (regions(each, shown, masks) for each in (encoder, alpha_encoder()))
    assert agree(found.regions, expected.regions)


def test_the_canary_sees_the_mask_channel_and_its_scaling(tmp_path: Path) -> None:
    folder = saved(tmp_path / "w")
    config = json.loads((folder / "config.json").read_text())
    for name in ("conv1_alpha.weight", "conv1.weight"):
        tensors = dict(alpha_release().tensors)
        tensors[f"visual.{name}"] = tensors[f"visual.{name}"] * 1.1
        with pytest.raises(WeightsError, match="canary"):
            AlphaClipEncoder(config, tensors, device="cpu")
    with pytest.raises(WeightsError, match="canary"):
        AlphaClipEncoder(
            {**config, "mask": {"mean": 0.0, "std": 0.26}}, alpha_release().tensors, device="cpu"
        )


@pytest.mark.parametrize(
    "mask",
    [None, {}, {"mean": 0.5}, {"mean": 0.5, "std": 0}, {"mean": "x", "std": 1}, {"mean": 0, "std": -1}],
)
def test_a_config_must_say_how_masks_are_scaled(mask: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "w")
    config = json.loads((folder / "config.json").read_text())
    write_config(folder, {**config, "mask": mask})
    with pytest.raises(WeightsError, match="expected the mean and the standard deviation"):
        AlphaClipEncoder.from_pretrained(folder)


def test_weights_of_another_encoder_are_refused(seeded_weights: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="weights of encoder 'clip', expected 'alpha_clip'"):
        AlphaClipEncoder.from_pretrained(seeded_weights)
    with pytest.raises(WeightsError, match="weights of encoder 'alpha_clip', expected 'clip'"):
        ClipEncoder.from_pretrained(saved(tmp_path / "w"))


def test_every_setting_of_masks_changes_the_fingerprint() -> None:
    release = alpha_release()
    other = {**release.config, "mask": {"mean": 0.4, "std": 0.26}}
    found = AlphaClipEncoder(other, release.tensors, device="cpu")
    assert found.fingerprint != alpha_encoder().fingerprint


def test_tensors_must_fit() -> None:
    release = alpha_release()
    tensors = {name: tensor for name, tensor in release.tensors.items() if "conv1_alpha" not in name}
    with pytest.raises(WeightsError, match=r"1 tensors are missing: 'visual.conv1_alpha.weight'"):
        AlphaClipEncoder(release.config, tensors, device="cpu")


def test_what_it_is_in_one_line() -> None:
    assert AlphaClipEncoder.describe(alpha_release().config).startswith("ViT/16 2x128, 64 pixels")
