"""EVA-CLIP checkpoints in both formats of their release, whole and broken, to a folder and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.weights.catalogue import EVA_18B
from capeval_core.weights.conversion import Release
from capeval_core.weights.folder import WeightsError
from tests.support.eva_checkpoint import Sizes, Tensors, as_transformers, seeded

Change = Callable[[Tensors], Any]


def convert(path: Path, **settings: Any) -> Release:
    settings.setdefault("head_width", Sizes().head_width)
    return EvaClipEncoder.convert(path, **settings)


def written(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return {name: tensor.half() for name, tensor in seeded().items()}


@pytest.fixture
def checkpoint(tmp_path: Path, tensors: Tensors) -> Path:
    return written(tmp_path / "eva.pt", tensors)


def sharded(folder: Path, tensors: Tensors, kind: str) -> Path:
    """The index of three shards in transformers' naming, and the shards."""
    content = as_transformers(tensors)
    folder.mkdir()
    shard_of = {name: f"model-0000{i % 3 + 1}-of-00003.{kind}" for i, name in enumerate(content)}
    for shard in set(shard_of.values()):
        held = {name: content[name].contiguous() for name, file in shard_of.items() if file == shard}
        if kind == "safetensors":
            save_file(held, folder / shard)
        else:
            torch.save(held, folder / shard)
    index = folder / f"model.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": shard_of}))
    return index


def same(release: Release, expected: Release) -> bool:
    return release.tensors.keys() == expected.tensors.keys() and all(
        torch.equal(release.tensors[name], tensor) for name, tensor in expected.tensors.items()
    )


def test_names_values_and_types_are_the_checkpoints(checkpoint: Path, tensors: Tensors) -> None:
    release = convert(checkpoint)
    assert release.tensors.keys() == {name.removeprefix("text.") for name in tensors}
    for name, tensor in tensors.items():
        own = release.tensors[name.removeprefix("text.")]
        assert own.dtype is torch.float16 and torch.equal(own, tensor), name
    sizes = Sizes()
    assert release.config["encoder"] == "eva_clip"
    assert release.config["architecture"]["vision"] == {
        "image_size": sizes.image,
        "patch_size": sizes.patch,
        "width": sizes.width,
        "layers": sizes.layers,
        "head_width": sizes.head_width,
        "mlp_width": sizes.hidden,
        "norm": "post",
    }
    assert release.config["architecture"]["text"]["heads"] == sizes.text_width // 64
    assert release.config["preprocessing"]["image_size"] == sizes.image
    assert any("12 wide, post-norm (heads and norm are not visible" in note for note in release.notes)
    assert "tensors are kept in float16, as released" in release.notes
    json.dumps(release.config)


def test_reading_leaves_tensors_in_the_file(checkpoint: Path) -> None:
    """A second copy of 36 GB would not fit where the first does."""
    mapped = Path("/proc/self/maps")
    if not mapped.exists():
        pytest.skip("needs /proc to see which files are mapped")
    release = convert(checkpoint)
    assert str(checkpoint) in mapped.read_text()
    del release


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_shards_of_transformers_give_the_same(
    kind: str, tmp_path: Path, checkpoint: Path, tensors: Tensors
) -> None:
    release = convert(sharded(tmp_path / "shards", tensors, kind))
    assert same(release, convert(checkpoint))
    assert release.config["architecture"] == convert(checkpoint).config["architecture"]
    assert release.config["source"]["name"] == "model"
    assert release.config["source"]["file"] == f"model.{kind}.index.json"
    shards = release.config["source"]["beside"]
    assert [shard["file"] for shard in shards] == [f"model-0000{i}-of-00003.{kind}" for i in (1, 2, 3)]
    assert sum(shard["size"] for shard in shards) > 10**7
    assert len({shard["sha256"] for shard in shards}) == 3


@pytest.mark.parametrize("wrap", [
    lambda t: {"module": t, "epoch": 3},
    lambda t: {"state_dict": {f"module.{name}": tensor for name, tensor in t.items()}},
    lambda t: {name.removeprefix("text."): tensor for name, tensor in t.items()},
    lambda t: t | {"text.attn_mask": torch.zeros(77, 77)},
])  # fmt: skip
def test_wrappings(wrap: Change, tmp_path: Path, tensors: Tensors, checkpoint: Path) -> None:
    assert same(convert(written(tmp_path / "wrapped.pt", wrap(tensors))), convert(checkpoint))


def test_a_folder_comes_of_it_and_gives_the_same_back(checkpoint: Path, tmp_path: Path) -> None:
    release = convert(checkpoint)
    EvaClipEncoder(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "w")
    stored = load_file(tmp_path / "w" / "model.safetensors")
    assert stored.keys() == release.tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in release.tensors.items())
    assert (tmp_path / "w" / "model.safetensors").stat().st_size < 1.01 * checkpoint.stat().st_size
    EvaClipEncoder.from_pretrained(tmp_path / "w", device="cpu")


def test_norms_follow_the_width_of_the_released_models(tmp_path: Path) -> None:
    for width, expected in ((4096, "pre"), (5120, "post")):
        sizes = Sizes(width=width, head_width=128, hidden=8, layers=1, text_layers=1, text_width=64)
        path = written(tmp_path / f"{width}.pt", {name: t.half() for name, t in seeded(sizes).items()})
        assert convert(path, head_width=128).config["architecture"]["vision"]["norm"] == expected
    assert convert(path, head_width=128, norm="pre").config["architecture"]["vision"]["norm"] == "pre"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("visual.blocks.2.mlp.fc2.bias"), "1 tensors are missing: 'visual.blocks.2.mlp.fc2"),
        (lambda t: t.pop("text.text_projection"), "'text_projection'"),
        (lambda t: t.pop("text.positional_embedding"), "positional_embedding is not in the checkpoint"),
        (lambda t: t.pop("visual.pos_embed"), "visual.pos_embed is not in the checkpoint"),
        (lambda t: t.update({"visual.rope.freqs": torch.zeros(2)}), "architecture: 'visual.rope.freqs'"),
        (lambda t: t.update({"visual.norm.weight": torch.zeros(3)}), "norm.weight (3,) instead of (48,)"),
        (lambda t: t.update({"visual.pos_embed": torch.zeros(1, 18, 48)}), "17 image positions, not a"),
        (lambda t: t.update({"visual.norm.weight": torch.full((48,), torch.nan)}), "norm.weight holds NaN"),
        (lambda t: t.update({"visual.norm.weight": torch.zeros(48).long()}), "is of type int64"),
        (lambda t: t.update({"ln_final.bias": torch.zeros(128)}), "ln_final.bias is a second ln_final.bias"),
        (lambda t: t.pop("visual.patch_embed.proj.weight"), "no EVA-CLIP: expected visual.patch_embed.proj"),
        (lambda t: t.update({"m.visual.patch_embed.proj.weight": torch.zeros(1)}), "several models"),
    ],
)  # fmt: skip
def test_broken_checkpoints(change: Change, message: str, tmp_path: Path, tensors: Tensors) -> None:
    changed = dict(tensors)
    change(changed)
    path = written(tmp_path / "changed.pt", changed)
    with pytest.raises(ValueError) as caught:
        convert(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_heads_that_do_not_divide(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="head_width=128 does not divide the width 48 of the image tower"):
        convert(checkpoint, head_width=128)
    with pytest.raises(ValueError, match="text_heads=3 does not divide"):
        convert(checkpoint, text_heads=3)


def test_broken_shards(tmp_path: Path, tensors: Tensors) -> None:
    index = sharded(tmp_path / "shards", tensors, "safetensors")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        convert(tmp_path / "none.index.json")
    shard = "model-00002-of-00003.safetensors"
    held = load_file(index.parent / shard)
    name = sorted(held)[0]
    save_file({key: tensor for key, tensor in held.items() if key != name}, index.parent / shard)
    with pytest.raises(ValueError, match=f"{shard} lacks '{name}'"):
        convert(index)
    (index.parent / shard).unlink()
    with pytest.raises(FileNotFoundError, match=f"3 shards, of which 1 do not lie beside it .'{shard}'"):
        convert(index)
    index.write_text(json.dumps({"weight_map": {"a": "../../elsewhere.bin"}}))
    with pytest.raises(ValueError, match="names files elsewhere"):
        convert(index)
    for broken in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(broken)
        with pytest.raises(ValueError, match="is no index of shards"):
            convert(index)


def test_a_projection_with_a_bias_and_parts_that_are_missing(tmp_path: Path, tensors: Tensors) -> None:
    content = as_transformers(tensors)
    path = written(tmp_path / "x.bin", {**content, "visual_projection.bias": torch.ones(Sizes().dimension)})
    with pytest.raises(ValueError, match="bias is not zero, but EVA-CLIP"):
        convert(path)
    name = "vision_model.encoder.layers.1.self_attn.k_proj.weight"
    path = written(tmp_path / "y.bin", {key: value for key, value in content.items() if key != name})
    with pytest.raises(ValueError, match=r"missing: 'visual\.blocks\.1\.attn\.qkv\.weight'"):
        convert(path)


def test_a_listed_file_brings_its_address_and_licence(tmp_path: Path, tensors: Tensors) -> None:
    path = written(tmp_path / str(EVA_18B.checkpoint), tensors)
    source = convert(path).config["source"]
    assert (source["url"], source["licence"]) == (EVA_18B.original, "Apache-2.0")
    assert source["name"] == "EVA_CLIP_18B_psz14_s6B"
    explicit = convert(path, url="here", licence="mine", source="this").config["source"]
    assert (explicit["url"], explicit["licence"], explicit["name"]) == ("here", "mine", "this")


def test_the_catalogue_says_how_to_convert() -> None:
    command = "capeval convert eva-clip EVA_CLIP_18B_psz14_s6B.fp16.pt --out eva-clip-18b"
    assert command in "".join(map(str, EVA_18B.how_to_convert("eva-clip")))


def test_weights_of_another_encoder_are_refused(
    checkpoint: Path, tmp_path: Path, seeded_weights: Path, open_clip_folder: Path
) -> None:
    with pytest.raises(WeightsError, match="weights of encoder 'clip', expected 'eva_clip'"):
        EvaClipEncoder.from_pretrained(seeded_weights)
    with pytest.raises(WeightsError, match="in open_clip's format, expected 'eva_clip'"):
        EvaClipEncoder.from_pretrained(open_clip_folder)
    release = convert(checkpoint)
    EvaClipEncoder(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "w")
    with pytest.raises(WeightsError, match="weights of encoder 'eva_clip', expected 'clip'"):
        ClipEncoder.from_pretrained(tmp_path / "w")


def test_from_the_command_line(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from capeval_core.cli import main

    out = tmp_path / "w"
    heads = ["--head-width", str(Sizes().head_width)]
    assert main(["convert", "eva-clip", str(checkpoint), "--out", str(out), *heads]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "EVA ViT/7 3x48, 28 pixels; text 2x128; 40 dimensions; gelu" in output
    assert output.endswith(f"--members {out},blip2-itc")
    assert EvaClipEncoder.from_pretrained(out, device="cpu").dimension == Sizes().dimension
    assert main(["convert", "eva-clip", str(checkpoint), "--out", str(tmp_path / "x")]) == 2
    assert "--head-width 128 does not divide" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
