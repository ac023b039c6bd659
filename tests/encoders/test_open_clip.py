"""CLIPs with an image tower of timm's, beside open_clip's own loading, transform and forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.open_clip import OpenClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.registry import network_of
from capeval_core.weights.folder import WeightsError, open_weights
from tests.support.seeded import open_clip_repository

TEXTS = ["a dog runs on grass", "two red circles", "dog " * 90, "a dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return open_clip_repository(tmp_path_factory.mktemp("timm") / "mobile")


def opened(folder: Path, dtype: str = "float32") -> OpenClipEncoder:
    found = open_weights(str(folder), metric="eco", tiny="")
    assert network_of(found) is OpenClipEncoder
    return OpenClipEncoder.open(found, device="cpu", dtype=dtype)


def image(seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def features(encoder: OpenClipEncoder) -> tuple[Any, Any]:
    shown = [InputImage.of(image(seed)) for seed in (0, 1)]
    of_images = [part.features for part in encoder.encode_images(shown, cache=FeatureCache(0))]
    return np.concatenate(of_images), encoder.encode_texts(TEXTS, cache=FeatureCache(0)).features


@pytest.mark.parametrize("quick", [False, True])
@torch.inference_mode()
def test_features_are_those_of_open_clip(tmp_path: Path, quick: bool) -> None:
    folder = open_clip_repository(tmp_path / "mobile", quick=quick)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    image_features, text_features = features(opened(folder))
    pixels = torch.stack([transform(image(seed)) for seed in (0, 1)])
    ids = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
    assert np.allclose(image_features, model.encode_image(pixels), atol=1e-5)
    assert np.allclose(text_features, model.encode_text(ids), atol=1e-5)
    assert np.abs(text_features[0] - text_features[3]).max() > 1e-3


def test_towers_named_as_in_plain_clip_are_the_same(folder: Path, tmp_path: Path) -> None:
    plain = open_clip_repository(tmp_path / "plain", custom=False)
    assert np.allclose(features(opened(plain))[0].shape, features(opened(folder))[0].shape)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_agree(folder: Path, dtype: str) -> None:
    for wide, narrow in zip(features(opened(folder)), features(opened(folder, dtype)), strict=True):
        cosines = (wide * narrow).sum(1) / np.linalg.norm(wide, axis=1) / np.linalg.norm(narrow, axis=1)
        assert cosines.min() > 0.998


def test_saved_and_opened_again_it_gives_the_same(folder: Path, tmp_path: Path) -> None:
    encoder = opened(folder)
    encoder.save_pretrained(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    for first, second in zip(features(encoder), features(again), strict=True):
        assert np.allclose(first, second, atol=1e-5)


def test_building_it_leaves_the_users_random_numbers_alone(folder: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    opened(folder)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timm_model_name": "hf-hub:someone/model"}, "hf-hub"),
        ({"timm_model_name": "no_such_tower"}, "no_such_tower"),
        ({"hf_model_name": "x"}, "hf_model_name"),
        ({"timm_pool": "avg", "timm_proj": "mlp"}, "tensors"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(WeightsError, match="weights 'odd'") as caught:
        opened(open_clip_repository(tmp_path / "odd", **change))
    assert said in str(caught.value)


def test_plain_clips_go_to_their_own_encoder(seeded_weights: Path) -> None:
    assert network_of(open_weights(str(seeded_weights), metric="eco", tiny="")) is ClipEncoder
