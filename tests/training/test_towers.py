"""Outputs of frozen towers: with the projections they are the features, computed once, kept by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.models.batching import count_forwards
from capeval_core.training.lora import AdaptedClip
from capeval_core.training.projections import Projections
from capeval_core.training.towers import PixelsAndIds, TowerEncoder, TowerOutputs
from capeval_core.weights.folder import WeightsFolder, open_weights
from tests.support.seeded import HEADS, encoder

TEXTS = ["A photo depicts a dog", "A photo depicts two red stars on the left", "", "a dog " * 60]
ALL = np.arange(4)


def images(broken: bool = False) -> list[InputImage]:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (50 + 9 * i, 70, 3), dtype=np.uint8) for i in range(3)]
    made = [InputImage.of(Image.fromarray(array), f"image {i}") for i, array in enumerate(arrays)]
    return [*made, InputImage.of(b"no image" if broken else Image.new("L", (9, 200), 77), "image 3")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WeightsFolder]:
    opened = {}
    for case in HEADS:
        path = tmp_path_factory.mktemp("weights") / case
        encoder(case).save_pretrained(path)
        opened[case] = open_weights(path, metric="pacs", tiny="pacs")
    return opened


def features(folder: WeightsFolder) -> tuple[torch.Tensor, torch.Tensor]:
    clip, none = ClipEncoder.open(folder, device="cpu"), FeatureCache(0)
    parts = clip.encode_images(images(), cache=none)
    texts = clip.encode_texts(TEXTS, cache=none).features
    return torch.from_numpy(np.concatenate([part.features for part in parts])), torch.from_numpy(texts)


@pytest.mark.parametrize("case", HEADS)
def test_projected_outputs_are_the_features(
    case: str, folders: dict[str, WeightsFolder], tmp_path: Path
) -> None:
    folder = folders[case]
    outputs = TowerOutputs(TowerEncoder.of(folder, "cpu"), tmp_path, images(), TEXTS)
    model = Projections(ClipEncoder.read_config(folder), folder.tensors(), None)
    expected = features(folder)
    rough = {"atol": 2e-3, "rtol": 0} if "resnet" in case else {"atol": 1e-5, "rtol": 1e-5}
    with torch.no_grad():
        torch.testing.assert_close(model.images(outputs.images(ALL)), expected[0], **rough)
        torch.testing.assert_close(model.texts(outputs.texts(ALL)), expected[1], atol=1e-5, rtol=1e-5)


def test_towers_run_once_whatever_the_projections(folders: dict[str, WeightsFolder], tmp_path: Path) -> None:
    towers = TowerEncoder.of(folders["pacs-vit-tiny"], "cpu")
    first = TowerOutputs(towers, tmp_path, images(), TEXTS)
    with count_forwards() as count:
        again = TowerOutputs(towers, tmp_path, reversed(images()), TEXTS[::-1])
    assert count.items == 0
    torch.testing.assert_close(first.images(ALL[::-1]), again.images(ALL), atol=0, rtol=0)
    torch.testing.assert_close(first.texts(ALL[::-1]), again.texts(ALL), atol=0, rtol=0)


def test_towers_of_other_weights_are_other_outputs(folders: dict[str, WeightsFolder], tmp_path: Path) -> None:
    folder = folders["pacs-vit-tiny"]
    first = TowerOutputs(TowerEncoder.of(folder, "cpu"), tmp_path, images(), TEXTS)
    config = {name: value for name, value in folder.config.items() if name not in ("canary", "checksum")}
    tensors = folder.tensors()
    for name in ("visual.conv1.weight", "positional_embedding"):  # of equal shapes, one for each tower
        tensors[name] = tensors[name] * 1.5
    ClipEncoder(config, tensors, device="cpu").save_pretrained(tmp_path / "other")
    other = open_weights(tmp_path / "other", metric="pacs", tiny="pacs")
    second = TowerOutputs(TowerEncoder.of(other, "cpu"), tmp_path, images(), TEXTS)
    assert not torch.allclose(first.images(ALL), second.images(ALL), atol=1e-3)
    assert not torch.allclose(first.texts(ALL), second.texts(ALL), atol=1e-3)


def test_what_an_interrupted_run_encoded_is_not_encoded_again(
    folders: dict[str, WeightsFolder], tmp_path: Path
) -> None:
    towers = TowerEncoder.of(folders["pacs-vit-tiny"], "cpu")
    with pytest.raises(ImageError, match="image 3"):
        TowerOutputs(towers, tmp_path, images(broken=True), TEXTS)
    with count_forwards() as count:
        TowerOutputs(towers, tmp_path, images(), [])
    assert count.items == 1


def test_pixels_and_ids_give_the_features_too(folders: dict[str, WeightsFolder], tmp_path: Path) -> None:
    folder = folders["pacs-openclip-tiny"]
    inputs = PixelsAndIds(ClipEncoder.open(folder, device="cpu"), tmp_path, images(), TEXTS)
    config = ClipEncoder.read_config(folder)
    model = AdaptedClip(config, folder.tensors(), 2, None, 0, torch.device("cpu"))
    expected = features(folder)
    with torch.no_grad():
        torch.testing.assert_close(model.images(inputs.images(ALL)), expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.texts(inputs.texts(ALL)), expected[1], atol=1e-5, rtol=1e-5)


def test_merged_adapters_are_the_adapted_model(folders: dict[str, WeightsFolder], tmp_path: Path) -> None:
    folder = folders["pacs-vit-tiny"]
    clip = ClipEncoder.open(folder, device="cpu")
    inputs = PixelsAndIds(clip, tmp_path, images(), TEXTS)
    config, tensors = ClipEncoder.read_config(folder), folder.tensors()
    model = AdaptedClip(config, tensors, 3, None, 0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for adapter in model.adapters:
            adapter.copy_(0.3 * torch.randn(adapter.shape, generator=generator))
        adapted = model.images(inputs.images(ALL)), model.texts(inputs.texts(ALL))
    merged = model.tuned(model.state_dict(), tensors)
    changed = {name for name in tensors if not torch.equal(merged[name], tensors[name])}
    assert len(changed) == 8 and all(
        ".attn.in_proj_weight" in n or ".attn.out_proj.weight" in n for n in changed
    )
    plain = ClipEncoder({k: v for k, v in config.items() if k != "canary"}, merged, device="cpu")
    none = FeatureCache(0)
    seen_by = np.concatenate([part.features for part in plain.encode_images(images(), cache=none)])
    torch.testing.assert_close(adapted[0], torch.from_numpy(seen_by), atol=2e-5, rtol=1e-5)
    texts = torch.from_numpy(plain.encode_texts(TEXTS, cache=none).features)
    torch.testing.assert_close(adapted[1], texts, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(adapted[0], features(folder)[0], atol=1e-2)
