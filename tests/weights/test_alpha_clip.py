"""Alpha-CLIP checkpoints: the image tower alone, with the text tower of every kind of base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from capeval_core.encoders.alpha_clip import AlphaClipEncoder, Row
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.weights.catalogue import ALPHA_CLIP
from capeval_core.weights.conversion import Release
from tests.support.seeded import alpha_checkpoints, alpha_release

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tower(tmp_path: Path) -> Path:
    return alpha_checkpoints(tmp_path)[0]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return alpha_checkpoints(tmp_path)[1]


def convert(path: Path, **settings: Any) -> Release:
    return AlphaClipEncoder.convert(path, **settings)


def rewritten(path: Path, change: Any, name: str = "changed.pth") -> Path:
    """The checkpoint after `change` of its tensors, beside the original."""
    tensors = torch.load(path, weights_only=True)
    torch.save(change(tensors), path.with_name(name))
    return path.with_name(name)


def same(release: Release, expected: Release) -> bool:
    return release.tensors.keys() == expected.tensors.keys() and all(
        torch.equal(release.tensors[name], expected.tensors[name]) for name in expected.tensors
    )


def test_the_tower_is_the_checkpoints_and_the_text_is_the_bases(tower: Path, base: Path) -> None:
    release = convert(tower, base=base)
    original, plain = torch.load(tower, weights_only=True), torch.load(base, weights_only=True)
    visual = {name: tensor for name, tensor in release.tensors.items() if name.startswith("visual.")}
    assert len(visual) == len(original)
    for name, tensor in original.items():
        assert torch.equal(release.tensors["visual." + name.replace("in_proj.", "in_proj_")], tensor), name
    for name in release.tensors.keys() - visual.keys():
        assert torch.equal(release.tensors[name], plain[name]), name
    assert not torch.equal(visual["visual.conv1.weight"], plain["visual.conv1.weight"])
    assert release.config["encoder"] == "alpha_clip" and release.config["mask"] == {"mean": 0.5, "std": 0.26}
    assert release.config["activation"] == "quick_gelu" and release.config["base"] == base.name
    assert f"text tower: of {base.name}" in release.notes
    assert [file["file"] for file in release.config["source"]["beside"]] == [base.name]
    for about in ("text heads:", "vision tower:", "activation:"):
        assert sum(note.startswith(about) for note in release.notes) == 1
    json.dumps(release.config)


def test_every_kind_of_base_gives_the_same(tower: Path, base: Path, tmp_path: Path) -> None:
    plain = ClipEncoder.convert(base)
    ClipEncoder(plain.config, plain.tensors, device="cpu").save_pretrained(tmp_path / "ours")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    save_file(plain.tensors, theirs / "open_clip_model.safetensors")
    architecture = plain.config["architecture"]
    model = {"embed_dim": architecture["embed_dim"], "quick_gelu": True}
    model |= {"vision_cfg": architecture["vision"], "text_cfg": architecture["text"]}
    preprocess = {"mean": [0.5] * 3, "std": [0.5] * 3, "size": 64}
    (theirs / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": model, "preprocess_cfg": preprocess})
    )
    expected = alpha_release()
    for every_base in (base, tmp_path / "ours", str(theirs)):
        release = convert(tower, base=every_base)
        assert same(release, expected)
        assert release.config["activation"] == "quick_gelu"
        assert release.config["architecture"] == expected.config["architecture"]
        assert release.config["preprocessing"] == expected.config["preprocessing"]


@pytest.mark.parametrize("prefix", ["visual.", "module.visual.", "module."])
def test_prefixes_are_taken_off(prefix: str, tower: Path, base: Path) -> None:
    wrapped = rewritten(
        tower, lambda t: {"state_dict": {prefix + name: tensor for name, tensor in t.items()}}
    )
    release = convert(wrapped, base=base)
    assert same(release, alpha_release())
    assert any(f"the prefix {prefix!r}" in note for note in release.notes)


def test_half_precision_is_widened(tower: Path, base: Path) -> None:
    halved = rewritten(tower, lambda t: {name: tensor.half() for name, tensor in t.items()})
    release = convert(halved, base=base)
    assert all(tensor.dtype is torch.float32 for tensor in release.tensors.values())
    assert any("float16 tensors were stored as float32" in note for note in release.notes)


def test_zeros_only_when_asked_for(base: Path) -> None:
    with pytest.raises(ValueError, match=r"this is a plain CLIP: .* zero_mask \(--zero-mask\)"):
        convert(base)
    release = convert(base, zero_mask=True)
    assert not release.tensors["visual.conv1_alpha.weight"].any()
    assert any("masks change nothing" in note for note in release.notes)
    with pytest.raises(ValueError, match="pass no base"):
        convert(base, zero_mask=True, base=base)


def test_a_tower_without_its_base(tower: Path) -> None:
    with pytest.raises(ValueError, match=r"holds the image tower alone: pass base, the CLIP"):
        convert(tower)


def sized(width: int, patch: int, positions: int, tmp_path: Path) -> Path:
    tensors = {
        "conv1_alpha.weight": torch.zeros(width, 1, patch, patch),
        "conv1.weight": torch.zeros(width, 3, patch, patch),
        "positional_embedding": torch.zeros(positions, width),
    }
    torch.save(tensors, tmp_path / "clip_released.pth")
    return tmp_path / "clip_released.pth"


@pytest.mark.parametrize(
    ("width", "patch", "positions", "named"),
    [
        (768, 16, 197, "timm/vit_base_patch16_clip_224.openai"),
        (1024, 14, 257, "timm/vit_large_patch14_clip_224.openai"),
        (1024, 14, 577, "timm/vit_large_patch14_clip_336.openai"),
    ],
)
def test_the_base_of_a_published_tower_is_named(
    width: int, patch: int, positions: int, named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        convert(sized(width, patch, positions, tmp_path))


def without(name: str) -> Any:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("conv1_alpha.weight"), "no Alpha-CLIP: expected conv1_alpha.weight among the tensors"),
        (without("proj"), "visual.proj"),
        (lambda t: t | {"extra.weight": torch.zeros(2)}, "architecture: 'visual.extra.weight'"),
        (lambda t: t | {"conv1_alpha.weight": torch.zeros(128, 1, 8, 8)}, "weight (128, 1, 8, 8) instead"),
        (lambda t: t | {"transformer.resblocks.0.attn.in_proj.lora_A": torch.zeros(2, 2)}, "adapters"),
        (lambda t: {"visual." + k: v for k, v in t.items()} | {"logit_scale": torch.zeros(())},
         "there is more: 'logit_scale'"),
        (lambda t: t | {"proj": torch.zeros(128, 64)}, "visual.proj (128, 64) and (128, 32)"),
        (lambda t: t | {"proj": torch.full((128, 32), float("nan"))}, "holds NaN"),
    ],
)  # fmt: skip
def test_broken_towers(change: Any, message: str, tower: Path, base: Path) -> None:
    changed = rewritten(tower, change)
    with pytest.raises(ValueError) as caught:
        convert(changed, base=base)
    assert message in str(caught.value) and str(changed) in str(caught.value)


def test_wrong_bases(tower: Path, base: Path, tmp_path: Path, seeded_weights: Path) -> None:
    with pytest.raises(ValueError, match=r"base=.* is neither a folder, nor a Hub id"):
        convert(tower, base=str(tmp_path / "nowhere"))
    release = alpha_release()
    AlphaClipEncoder(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "alpha")
    with pytest.raises(ValueError, match="weights of encoder 'alpha_clip', expected those of a CLIP"):
        convert(tower, base=tmp_path / "alpha")
    with pytest.raises(
        ValueError, match=r"activation='gelu' is not what base=.* says, 'quick_gelu': leave it"
    ):
        convert(tower, base=seeded_weights, activation="gelu")
    with pytest.raises(ValueError, match="was not tuned from"):
        convert(tower, base="tiny")


def test_a_listed_file_brings_its_address_and_licence(tower: Path, base: Path) -> None:
    listed = ALPHA_CLIP[0]
    renamed = rewritten(tower, dict, name=str(listed.checkpoint))
    source = convert(renamed, base=base).config["source"]
    assert (source["url"], source["licence"]) == (listed.original, listed.licence)
    explicit = convert(renamed, base=base, licence="mine", url="here", source="this").config["source"]
    assert (explicit["url"], explicit["licence"], explicit["name"]) == ("here", "mine", "this")


def test_the_catalogue_says_how_to_convert() -> None:
    assert len({entry.repository for entry in ALPHA_CLIP}) == 3
    for entry in ALPHA_CLIP:
        command = "".join(map(str, entry.how_to_convert("hices")))
        assert f"--base {entry.settings['base']}" in command and str(entry.checkpoint) in command


def test_features_of_a_converted_tower_are_finite(tower: Path, base: Path) -> None:
    release = convert(tower, base=base)
    encoder = AlphaClipEncoder(release.config, release.tensors, device="cpu")
    row = Row(torch.zeros(3, 64, 64), torch.zeros(1, 64, 64))
    assert np.isfinite(encoder.run_rows([row])).all()
