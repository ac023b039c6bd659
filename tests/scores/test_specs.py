"""Long captions: what CLIP metrics read of them, Long-CLIP's weights, and SPECS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel

import capeval_core
from tests.support.seams import convert, network

LONG = " ".join(["dog"] * 100)


@pytest.mark.parametrize(
    ("name", "options", "read"), [("clips", {}, 72), ("hices", {}, 75), ("pacs", {"prompt": ""}, 75)]
)
def test_a_metric_says_how_much_of_a_caption_it_read(
    name: str, options: dict[str, str], read: int, images: list[Path]
) -> None:
    metric = capeval_core.load(name, weights="tiny", **options)
    with pytest.warns(UserWarning, match=f"{name}: .*% of words were truncated: specs reads 248 tokens"):
        result = metric.score([LONG, "a dog"], images[:2])
    assert result.parts["coverage"] == [read / 100, 1.0]
    assert result.truncation_note.startswith(f"{(100 - read) / 2:.0f}% of words were truncated")
    few = metric.score([LONG, *["a dog"] * 19], images[:1] * 20)  # without a warning
    assert few.truncation_note == f"{(100 - read) / 20:.0f}% of words were truncated"


def test_specs_reads_248_tokens_and_names_a_metric_that_reads_more(images: list[Path]) -> None:
    specs = capeval_core.load("specs", weights="tiny")
    with pytest.warns(UserWarning, match="specs: 18% of words were truncated: umic reads 512 tokens"):
        result = specs.score([f"{LONG} {LONG} {LONG}", f"{LONG} {LONG} cat {LONG}"], images[:2])
    assert result.counts.truncated == 2 and result.parts["coverage"][0] == 246 / 300
    same, other = specs.score([f"{LONG} {LONG}", f"{LONG} cat {LONG}"], images[:1] * 2).scores
    assert same != other  # what pacs cannot tell apart
    unit = capeval_core.load("specs", weights="tiny", scale="unit").score(["a dog"], images[:1])
    assert unit.scores[0] == pytest.approx((unit.parts["cosine"][0] + 1) / 2, abs=1e-12)
    assert unit.interval is not None and "|scale:unit|" in unit.signature and unit.range == (0.0, 1.0)


@pytest.mark.parametrize("nested", [False, True])
def test_long_clip_of_transformers(nested: bool, tmp_path: Path, images: list[Path]) -> None:
    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 1}
    text = {**tower, "max_position_embeddings": 248, "eos_token_id": 49407, "bos_token_id": 49406}
    vision = {**tower, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).eval()
    state, table = model.state_dict(), "text_model.embeddings.position_embedding"
    tensors = {name: tensor.clone() for name, tensor in state.items()}
    if nested:  # Long-CLIP's own class, with a second table, of which the first 20 rows do not count
        tensors[f"{table}_res"] = state[f"{table}.weight"].clone()
        tensors[f"{table}_res"][:20] += 1
        tensors[f"{table}.weight"][20:] += 1
        twice = {kind: f"{kind}_model.{kind}_model." for kind in ("text", "vision")}
        for kind, prefix in twice.items():
            tensors = {name.replace(f"{kind}_model.", prefix, 1): own for name, own in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    release = convert("clip", tmp_path / "model.safetensors", activation="quick_gelu")
    folder = tmp_path / "long-clip"
    network("clip", release.config, release.tensors).save_pretrained(folder)
    encoder = network("clip", str(folder))
    texts = ["a dog", LONG, f"{LONG} {LONG}"]
    for text, own in zip(texts, encoder.encode_texts(texts).features, strict=True):
        with torch.no_grad():
            found = model(torch.tensor(encoder.tokenizer.encode([text]).ids), torch.zeros(1, 3, 32, 32))
        own = torch.nn.functional.normalize(torch.from_numpy(own), dim=0)
        assert torch.allclose(own, found.text_embeds[0], atol=1e-6)
    for name in ("clips", "refclips", "pacs", "specs"):
        references = [["a cat"]] if name == "refclips" else None
        metric = capeval_core.load(name, weights=str(folder))
        result = metric.score([LONG], images[:1], references)
        assert result.parts["coverage"] == [1.0] and result.counts.truncated == 0
        assert metric.options.prompt == ("" if name == "specs" else "A photo depicts ")
        assert "|weights:long-clip@" in result.signature
    # Not specs, which reads as many.
    with pytest.warns(UserWarning, match="clips: .* truncated: umic reads 512 tokens"):
        capeval_core.load("clips", weights=str(folder)).score([f"{LONG} {LONG} {LONG}"], images[:1])
