"""SigLIP against open_clip's own classes on seeded weights, and as any metric for CLIPs takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from tests.support import seams
from tests.support.networks import folder, opened
from tests.support.seeded import siglip_repository

TEXTS = ["a dog", "", "A Dog's walking_home &amp; the dog!", "dog " * 30, "the</s> dog", "\u00e9 \U0001f600"]
IMAGES = list(np.random.default_rng(1).integers(0, 256, (3, 70, 130, 3), dtype=np.uint8))


def images_of_all_shapes() -> list[Image.Image]:
    """Wide, tall, an odd margin, a strip, large, with transparency and with a palette."""
    rng = np.random.default_rng(2)
    shapes = ((70, 130), (131, 70), (160, 159), (3, 150), (300, 200))
    images = [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    transparent = Image.fromarray(rng.integers(0, 256, (90, 50, 4), dtype=np.uint8), "RGBA")
    return [*images, transparent, transparent.quantize(16)]


@pytest.mark.parametrize("resize", ["squash", "longest"])
@torch.inference_mode()
def test_features_are_those_of_open_clip(resize: str, tmp_path: Path) -> None:
    place = siglip_repository(tmp_path / "siglip", resize)
    theirs, _, transform = open_clip.create_model_and_transforms(f"local-dir:{place}")
    theirs.eval()
    ours = seams.network("siglip", place)
    ids = open_clip.get_tokenizer(f"local-dir:{place}")(TEXTS)
    expected = theirs.encode_text(ids).numpy()
    for batch_size in (None, 1, 4):
        texts = ours.encode_texts(TEXTS, cache=FeatureCache(0), batch_size=batch_size)
        assert np.allclose(texts.features, expected, rtol=0, atol=1e-5)
    assert texts.truncated == [0, 0, 0, 11, 0, 0]
    tokens = ours.encode_tokens(TEXTS, cache=FeatureCache(0))
    for row, (features, token_ids) in enumerate(zip(tokens.features, tokens.ids, strict=True)):
        assert len(features) == len(token_ids)
        assert np.allclose(features[-1], expected[row], rtol=0, atol=1e-5)
    inputs = images_of_all_shapes()
    pixels = torch.stack([transform(image) for image in inputs])
    images = np.stack([image["features"] for image in seams.encode(ours, inputs)])
    assert np.allclose(images, theirs.encode_image(pixels).numpy(), rtol=0, atol=1e-5)


def test_margins_of_another_colour_are_refused(tmp_path: Path) -> None:
    place = siglip_repository(tmp_path / "siglip", "longest")
    config = json.loads((place / "open_clip_config.json").read_text())
    config["preprocess_cfg"]["fill_color"] = 255
    (place / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="expected 0"):
        capeval_core.load("clips", weights=str(place))


@pytest.mark.parametrize("name", ["pacs", "clips", "refclips"])
def test_metrics_for_clips_take_it(name: str) -> None:
    metric = capeval_core.load(name, weights=str(folder("siglip")))
    references = [["a dog"], ["the dog", "a"]] if metric.needs_references else None
    result = metric.score(["a dog", "the dog"], IMAGES[:2], references)
    (features,) = seams.encode(opened("siglip"), IMAGES[:1])
    text = opened("siglip").encode_texts([f"{metric.options.prompt}a dog"], cache=FeatureCache(0)).features[0]
    image = features["features"]
    cosine = float(image @ text / np.linalg.norm(image) / np.linalg.norm(text))
    assert result.parts["cosine"][0] == pytest.approx(cosine, abs=1e-6)


def test_a_repository_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    place = siglip_repository(tmp_path / "siglip")
    marks = place / "tokenizer_config.json"
    marks.write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(ValueError, match="pad_token"):
        seams.network("siglip", place)
    (place / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        seams.network("siglip", place)
