"""SigLIP against open_clip's own classes on seeded weights, and as any metric for CLIPs takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

import capeval_core
from capeval_core.cache import FeatureCache
from tests.support import seams
from tests.support.networks import folder, opened
from tests.support.seeded import siglip_repository

TEXTS = ["a dog", "", "A Dog's walking_home &amp; the dog!", "dog " * 30, "the</s> dog", "\u00e9 \U0001f600"]
IMAGES = list(np.random.default_rng(1).integers(0, 256, (3, 70, 130, 3), dtype=np.uint8))


@torch.inference_mode()
def test_features_are_those_of_open_clip(tmp_path: Path) -> None:
    place = siglip_repository(tmp_path / "siglip")
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
    pixels = torch.stack([transform(seams.visual("image", image).load()) for image in IMAGES])
    images = np.stack([image["features"] for image in seams.encode(ours, IMAGES)])
    assert np.allclose(images, theirs.encode_image(pixels).numpy(), rtol=0, atol=1e-5)


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
