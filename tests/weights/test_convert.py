"""Original checkpoints in all their wrappings, against open_clip's own model and an independent merge."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from safetensors.torch import save_file

from capeval_core.weights.adapters import low_rank_update
from capeval_core.weights.catalogue import PACS_B32
from capeval_core.weights.clip import ClipConversion, _mlp_ratio, read_architecture
from capeval_core.weights.conversion import Release
from tests.golden import recipe

CASES = Path(__file__).parents[1] / "golden" / "cases"
VOCABULARY = 40  # the cases have 49,408 rows of embedding, which no test here needs
HEADS: dict[str, dict[str, Any]] = {"pacs-openclip-tiny": {"head_width": 16, "text_heads": 4}}
TINY = ["pacs-vit-tiny", "pacs-resnet-tiny", "pacs-openclip-tiny", "pacs-plusplus-lora-tiny"]


def checkpoint(case: str) -> dict[str, torch.Tensor]:
    """The case's checkpoint in its original naming and order, with a small vocabulary."""
    manifest = json.loads((CASES / case / "manifest.json").read_text())
    manifest["token_embedding.weight"]["shape"][0] = VOCABULARY
    return {name: torch.from_numpy(array) for name, array in recipe.state_dict(manifest, seed=3).items()}


def saved(tmp_path: Path, content: Any, name: str = "release.pth") -> Path:
    torch.save(content, tmp_path / name)
    return tmp_path / name


def read_release(path: Path, **settings: Any) -> Release:
    """The checkpoint, by these settings, with exactly the tensors of open_clip's model."""
    return ClipConversion(**settings).read(path, build)


def build(config: dict[str, Any]) -> CLIP:
    architecture = config["architecture"]
    quick = config["activation"] == "quick_gelu"
    return CLIP(
        architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=quick
    ).eval()


def notes_about(notes: list[str], word: str) -> str:
    matching = [note for note in notes if word in note]
    assert len(matching) == 1, notes
    return matching[0]


@pytest.mark.parametrize("case", TINY)
def test_the_tensors_are_exactly_those_of_open_clip(case: str, tmp_path: Path) -> None:
    release = read_release(saved(tmp_path, {"state_dict": checkpoint(case)}), **HEADS.get(case, {}))
    model = build(release.config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in release.tensors.items()} == expected
    model.load_state_dict(release.tensors, strict=True)
    for name, tensor in release.tensors.items():
        assert tensor.is_contiguous()
        assert tensor.dtype is (torch.int64 if name.endswith("num_batches_tracked") else torch.float32)
    save_file(release.tensors, tmp_path / "model.safetensors")  # refuses shared memory
    json.dumps(release.config)
    assert (
        release.config["preprocessing"]["image_size"]
        == release.config["architecture"]["vision"]["image_size"]
    )


@pytest.mark.parametrize("case", [*TINY, "pacs-vit-b32-full"])
def test_the_sizes_are_those_of_the_original(case: str) -> None:
    model = json.loads((CASES / case / "config.json").read_text())["model"]
    manifest = json.loads((CASES / case / "manifest.json").read_text())
    shapes = {name: tuple(spec["shape"]) for name, spec in manifest.items()}
    architecture = read_architecture(shapes, [], **HEADS.get(case, {}))
    vision, text = architecture["vision"], architecture["text"]
    assert architecture["embed_dim"] == model["embed_dim"]
    if "vision_cfg" in model:
        assert vision == model["vision_cfg"]
        assert text == {**model["text_cfg"], "mlp_ratio": 4.0}
        return
    assert vision["image_size"] == model["image_resolution"]
    assert vision["layers"] == model["vision_layers"]
    assert vision["width"] == model["vision_width"]
    assert vision.get("patch_size") == model["vision_patch_size"]
    scale = 32 if isinstance(vision["layers"], list) else 1
    assert vision["width"] * scale // vision["head_width"] == model["vision_heads"]
    for name in ("context_length", "vocab_size"):
        assert text[name] == model[name]
    for name in ("width", "heads", "layers"):
        assert text[name] == model[f"text_{name}"]


def test_the_source_is_recorded(tmp_path: Path) -> None:
    path = saved(tmp_path, checkpoint("pacs-vit-tiny"), "clip_ViT-B-32.pth")
    release = read_release(path, source="PAC-S ViT-B/32", url="https://example.org/x", licence="none given")
    source = release.config["source"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source["file"] == "clip_ViT-B-32.pth"
    assert source["size"] == path.stat().st_size
    assert (source["name"], source["url"], source["licence"]) == (
        "PAC-S ViT-B/32",
        "https://example.org/x",
        "none given",
    )
    assert source["notes"] == release.notes
    listed = read_release(path).config["source"]
    assert (listed["name"], listed["url"]) == ("clip_ViT-B-32", PACS_B32.original)
    assert listed["licence"] == "not stated by the original"
    bare = read_release(path.rename(tmp_path / "my.best.model.pth")).config["source"]
    assert (bare["name"], bare["url"]) == ("my.best.model", None)
    assert bare["licence"] == "not stated by the original"
    assert release.config["constants"] == {"prompt": "A photo depicts "}
    assert release.config["preprocessing"]["interpolation"] == "bicubic"


@pytest.mark.parametrize("prefix", ["", "module.", "clip.", "model.", "module.clip."])
@pytest.mark.parametrize("wrapped", [True, False])
def test_wrappings_do_not_change_the_tensors(prefix: str, wrapped: bool, tmp_path: Path) -> None:
    tensors = checkpoint("pacs-vit-tiny")
    content: Any = OrderedDict((prefix + name, tensor) for name, tensor in tensors.items())
    content = {"state_dict": content, "epoch": 3} if wrapped else content
    release = read_release(saved(tmp_path, content))
    assert all(torch.equal(release.tensors[name], tensor) for name, tensor in tensors.items())
    assert release.config["activation"] == "quick_gelu"
    if prefix:
        assert repr(prefix) in notes_about(release.notes, "prefix")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in checkpoint("pacs-resnet-tiny").items()}
    release = read_release(saved(tmp_path, tensors))
    for name, tensor in tensors.items():
        assert release.tensors[name].dtype is torch.float32
        assert torch.equal(release.tensors[name], tensor.float())
    assert str(dtype).removeprefix("torch.") in notes_about(release.notes, "stored as float32")


def test_leftovers_and_counters(tmp_path: Path) -> None:
    tensors: dict[str, Any] = checkpoint("pacs-resnet-tiny")
    tensors |= {
        "input_resolution": torch.tensor(64),
        "context_length": torch.tensor(77),
        "vocab_size": 49408,
        "attn_mask": torch.full((77, 77), float("-inf")).triu(1),
        "visual.bn1.num_batches_tracked": torch.tensor(7),
        "logit_scale": torch.ones(1),
    }
    release = read_release(saved(tmp_path, tensors))
    build(release.config).load_state_dict(release.tensors, strict=True)
    dropped = notes_about(release.notes, "left out")
    assert all(name in dropped for name in ("input_resolution", "context_length", "vocab_size", "attn_mask"))
    assert release.tensors["visual.bn1.num_batches_tracked"].item() == 7
    assert "21 BatchNorm counters" in notes_about(release.notes, "counters")
    assert release.tensors["logit_scale"].shape == ()


def test_slices_of_one_buffer_get_memory_of_their_own(tmp_path: Path) -> None:
    tensors = checkpoint("pacs-vit-tiny")
    both = torch.stack([tensors["ln_final.weight"], tensors["ln_final.bias"]])
    tensors["ln_final.weight"], tensors["ln_final.bias"] = both[0], both[1]
    tensors["text_projection"] = torch.nn.Parameter(tensors["text_projection"].t().contiguous().t())
    release = read_release(saved(tmp_path, tensors))
    save_file(release.tensors, tmp_path / "model.safetensors")
    assert torch.equal(release.tensors["ln_final.bias"], both[1])
    assert not release.tensors["text_projection"].requires_grad


def test_safetensors_and_legacy_files_are_read(tmp_path: Path) -> None:
    tensors = checkpoint("pacs-vit-tiny")
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save({"state_dict": tensors}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    first = read_release(tmp_path / "a.safetensors", activation="quick_gelu")
    second = read_release(tmp_path / "a.bin")
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_the_order_of_the_tensors_shows_the_activation(tmp_path: Path) -> None:
    openai = read_release(saved(tmp_path, checkpoint("pacs-vit-tiny")))
    assert openai.config["activation"] == "quick_gelu"
    assert "order of the tensors" in notes_about(openai.notes, "activation")
    theirs = saved(tmp_path, checkpoint("pacs-openclip-tiny"))
    open_clip = read_release(theirs, head_width=16)
    assert open_clip.config["activation"] == "gelu"
    assert "quick_gelu" in notes_about(open_clip.notes, "activation")  # how to say otherwise
    explicit = read_release(theirs, head_width=16, activation="quick_gelu")
    assert explicit.config["activation"] == "quick_gelu"
    assert "as given" in notes_about(explicit.notes, "activation")


def test_the_model_saved_by_open_clip_itself_shows_gelu(tmp_path: Path) -> None:
    vision = {"image_size": 32, "patch_size": 16, "width": 64, "layers": 1}
    text = {"vocab_size": VOCABULARY, "width": 64, "heads": 1, "layers": 1}
    model = CLIP(16, vision, text)
    release = read_release(saved(tmp_path, {"state_dict": model.state_dict()}))
    assert release.config["activation"] == "gelu"
    assert all(torch.equal(release.tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_sorted_names_show_no_activation(tmp_path: Path) -> None:
    tensors = checkpoint("pacs-vit-tiny")
    path = saved(tmp_path, {name: tensors[name] for name in sorted(tensors)})
    with pytest.raises(
        ValueError, match=r"release\.pth: the activation cannot be inferred.*Pass activation="
    ):
        read_release(path)
    assert read_release(path, activation="gelu").config["activation"] == "gelu"


def test_blocks_of_mixed_orders_show_no_activation(tmp_path: Path) -> None:
    """One block as OpenAI's code saves it, the others as open_clip does, or the other way round."""
    tensors = checkpoint("pacs-vit-tiny")
    block = "transformer.resblocks.1."
    parts = [name for name in tensors if name.startswith(block)]
    for order in (["ln_1", "attn", "ln_2", "mlp"], ["mlp", "attn", "ln_1", "ln_2"]):
        moved = sorted(parts, key=lambda name: order.index(name[len(block) :].split(".")[0]))
        assert moved != parts
        names = [name for name in tensors if name not in parts]
        for mixed in ([*names, *moved], [*moved, *names]):
            path = saved(tmp_path, {name: tensors[name] for name in mixed})
            with pytest.raises(ValueError, match=r"the activation cannot be inferred.*Pass activation="):
                read_release(path)


def test_sorted_adapters_still_show_openai(tmp_path: Path) -> None:
    tensors = checkpoint("pacs-plusplus-lora-tiny")
    release = read_release(saved(tmp_path, {name: tensors[name] for name in sorted(tensors)}))
    assert release.config["activation"] == "quick_gelu"
    assert "adapters are present" in notes_about(release.notes, "activation")


def test_the_resnet_note_names_the_tower_of_the_activation(tmp_path: Path) -> None:
    release = read_release(saved(tmp_path, checkpoint("pacs-resnet-tiny")))
    assert "ReLU" in notes_about(release.notes, "activation:")


def merged_by_hand(weight: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The update element by element: product, position in the flat result, division by the rank."""
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    rank = a.shape[0] // kernel
    flat = weight.astype(np.float64).ravel().copy()
    for row in range(b.shape[0]):
        for column in range(a.shape[1]):
            total = sum(float(b[row, k]) * float(a[k, column]) for k in range(a.shape[0]))
            flat[row * a.shape[1] + column] += total / rank
    merged: np.ndarray = flat.reshape(weight.shape).astype(np.float32)
    return merged


@pytest.mark.parametrize(
    ("shape", "a", "b"), [((6, 4), (2, 4), (6, 2)), ((4, 3, 2, 2), (6, 6), (8, 6)), ((3, 5), (1, 5), (3, 1))]
)
def test_an_update_by_hand(shape: tuple[int, ...], a: tuple[int, int], b: tuple[int, int]) -> None:
    weight, low, high = (torch.rand(s, generator=torch.Generator().manual_seed(5)) for s in (shape, a, b))
    ours = (weight.double() + low_rank_update(weight, low, high)).float().numpy()
    np.testing.assert_allclose(ours, merged_by_hand(weight.numpy(), low.numpy(), high.numpy()), atol=1e-7)


ADAPTED = {
    "in_proj": "transformer.resblocks.1.attn.in_proj_weight",
    "out_proj": "visual.transformer.resblocks.0.attn.out_proj.weight",
    "c_fc": "visual.transformer.resblocks.1.mlp.c_fc.weight",
    "c_proj": "transformer.resblocks.0.mlp.c_proj.weight",
    "conv1": "visual.conv1.weight",
}


@pytest.mark.parametrize("part", ADAPTED)
@pytest.mark.parametrize("adapters", ["released", "all", "none"])
def test_which_adapters_are_merged(part: str, adapters: Any, tmp_path: Path) -> None:
    tensors = checkpoint("pacs-plusplus-lora-tiny")
    ours = read_release(saved(tmp_path, tensors), adapters=adapters).tensors[ADAPTED[part]].numpy()
    name = ADAPTED[part]
    stem = name + "_lora_" if part == "in_proj" else name.removesuffix("weight") + "lora_"
    weight, a, b = (tensors[n].double().numpy() for n in (name, stem + "A", stem + "B"))
    if adapters == "all" or (adapters == "released" and part not in ("c_fc", "c_proj")):
        rank = 4
        weight = weight + np.einsum("ok,ki->oi", b, a).reshape(weight.shape) / rank
    np.testing.assert_array_equal(ours.shape, weight.shape)
    np.testing.assert_allclose(ours, weight, rtol=0, atol=2e-7)


def test_notes_count_and_explain_the_adapters(tmp_path: Path) -> None:
    path = saved(tmp_path, checkpoint("pacs-plusplus-lora-tiny"))
    released = read_release(path)
    assert notes_about(released.notes, "were merged").startswith("9 low-rank adapters")
    ignored = notes_about(released.notes, "were ignored")
    assert ignored.startswith("8 adapters of MLP layers")
    assert "evaluation mode" in ignored
    assert notes_about(read_release(path, adapters="all").notes, "were merged").startswith("all 17")
    assert notes_about(read_release(path, adapters="none").notes, "were ignored").startswith("all 17")


def test_adapters_merged_before_are_taken_as_they_are(tmp_path: Path) -> None:
    first = read_release(saved(tmp_path, checkpoint("pacs-plusplus-lora-tiny")))
    again = read_release(saved(tmp_path, {"state_dict": first.tensors}), activation="quick_gelu")
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in first.tensors.items())
    assert "no adapters" in notes_about(again.notes, "adapters")


def test_other_heads_and_mlp_ratios(tmp_path: Path) -> None:
    vision = {
        "image_size": 24, "patch_size": 8, "width": 26, "layers": 1, "head_width": 13, "mlp_ratio": 4.9231,
    }  # fmt: skip
    text = {
        "context_length": 9, "vocab_size": VOCABULARY, "width": 21, "heads": 3, "layers": 2, "mlp_ratio": 3.4,
    }  # fmt: skip
    model = CLIP(16, vision, text)
    release = read_release(saved(tmp_path, model.state_dict()), head_width=13, text_heads=3)
    rebuilt = build(release.config)
    rebuilt.load_state_dict(release.tensors, strict=True)
    pixels, ids = torch.randn(2, 3, 24, 24), torch.randint(0, VOCABULARY, (2, 9))
    with torch.no_grad():
        model.eval()
        assert torch.equal(rebuilt.encode_image(pixels), model.encode_image(pixels))
        assert torch.equal(rebuilt.encode_text(ids), model.encode_text(ids))


def test_the_mlp_ratio_gives_back_the_hidden_width() -> None:
    for width in (7, 49, 93, 1664):
        for hidden in range(1, 9 * width, 3):
            shapes = {"transformer.resblocks.0.mlp.c_fc.weight": (hidden, width)}
            assert int(width * _mlp_ratio(shapes, "transformer", width)) == hidden


# Refusals: each names the file and the fix.


def changed(**changes: Any) -> dict[str, Any]:
    """The ViT checkpoint with some tensors replaced (None takes one out); `__` stands for a dot."""
    tensors: dict[str, Any] = checkpoint("pacs-vit-tiny")
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors


REFUSED = {
    "no state dict": ({"epoch": 3, "optimizer": {}}, "holds no state dict: .*'epoch', 'optimizer'"),
    "a list": ([torch.ones(2)], "holds no state dict: .*a list"),
    "a tensor": (torch.ones(2), "holds no state dict: .*a Tensor"),
    "empty": ({"state_dict": {}}, "holds no state dict"),
    "numbers for names": ({0: torch.ones(1)}, "its keys are not names"),
    "no vision": (
        {"text_model.embeddings.weight": torch.ones(2), "vision_model.x": torch.ones(1)},
        "expected visual.conv1.weight among the tensors, found 'text_model.embeddings.weight'",
    ),
    "two models": (
        {"student.visual.conv1.weight": torch.ones(1), "teacher.visual.conv1.weight": torch.ones(1)},
        "several models in one checkpoint",
    ),
    "more than the model": (
        {"clip.visual.conv1.weight": torch.ones(1), "head.weight": torch.ones(1)},
        "lies under 'clip.', but there is more: 'head.weight'",
    ),
    "text tower missing": (
        {"visual.conv1.weight": torch.ones(1), "visual.proj": torch.ones(1)},
        "positional_embedding is not in the checkpoint",
    ),
    "tensor missing": (changed(ln_final__bias=None), "1 tensors are missing: 'ln_final.bias'"),
    "size missing": (changed(positional_embedding=None), "positional_embedding is not in the checkpoint"),
    "tensor unknown": (
        changed(logit_bias=torch.ones(())),
        "1 tensors are not part of the architecture: 'logit_bias'",
    ),
    "other shape": (
        changed(ln_final__bias=torch.ones(5)),
        r"1 tensors have another shape: 'ln_final.bias \(5,\) instead of \(128,\)'",
    ),
    "integers": (changed(ln_final__bias=torch.ones(128, dtype=torch.int8)), "ln_final.bias is of type int8"),
    "no tensor": (changed(ln_final__bias="x"), "ln_final.bias is no tensor but a str"),
    "not a number": (changed(ln_final__bias=torch.full((128,), float("nan"))), "ln_final.bias holds NaN"),
    "oblong": (
        changed(visual__positional_embedding=torch.ones(13, 128)),
        "12 image positions, not a square",
    ),
    "flat": (changed(visual__conv1__weight=torch.ones(3)), "visual.conv1.weight has shape"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, tmp_path: Path) -> None:
    content, message = REFUSED[what]
    with pytest.raises(ValueError, match=message) as caught:
        read_release(saved(tmp_path, content))
    assert str(tmp_path / "release.pth") in str(caught.value)


LORA = "transformer.resblocks.0.attn.out_proj.lora_A"
REFUSED_ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "elsewhere": ({"visual.proj.lora_A": torch.ones(4, 128)}, "unknown adapter visual.proj.lora_A"),
    "half": ({LORA: None}, "out_proj.lora_B lacks its other half, lora_A of"),
    "shape": ({LORA: torch.ones(4, 127)}, r"out_proj.lora_A: .* needs A \(r\*1, 128\)"),
    "kernel": ({"visual.conv1.lora_A": torch.ones(63, 48)}, r"conv1.lora_A: .* needs A \(r\*16, 48\)"),
    "weightless": ({"transformer.resblocks.0.attn.out_proj.weight": None}, "has no weight to change"),
}


@pytest.mark.parametrize("what", REFUSED_ADAPTERS)
@pytest.mark.parametrize("adapters", ["released", "none"])
def test_refused_adapters(what: str, adapters: Any, tmp_path: Path) -> None:
    changes, message = REFUSED_ADAPTERS[what]
    tensors: dict[str, Any] = checkpoint("pacs-plusplus-lora-tiny") | changes
    path = saved(tmp_path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    with pytest.raises(ValueError, match=message):
        read_release(path, adapters=adapters)


def test_heads_that_must_be_given(tmp_path: Path) -> None:
    narrow = CLIP(
        8,
        {"image_size": 16, "patch_size": 8, "width": 48, "layers": 1, "head_width": 16},
        {"vocab_size": 9, "width": 48, "heads": 4, "layers": 1},
    )
    path = saved(tmp_path, narrow.state_dict())
    with pytest.raises(ValueError, match=r"the text tower is 48 wide.*pass text_heads"):
        read_release(path)
    with pytest.raises(ValueError, match=r"the vision tower is 48 wide.*pass head_width"):
        read_release(path, text_heads=4)
    with pytest.raises(ValueError, match="head_width=20 does not divide"):
        read_release(path, text_heads=4, head_width=20)
    with pytest.raises(ValueError, match="text_heads=5 does not divide"):
        read_release(path, text_heads=5, head_width=16)


def test_wide_towers_need_their_head_width(tmp_path: Path) -> None:
    shapes = {
        "positional_embedding": (77, 1024),
        "token_embedding.weight": (49408, 1024),
        "text_projection": (1024, 1024),
        "transformer.resblocks.0.mlp.c_fc.weight": (4096, 1024),
        "visual.conv1.weight": (1280, 3, 14, 14),
        "visual.positional_embedding": (257, 1280),
        "visual.transformer.resblocks.0.mlp.c_fc.weight": (5120, 1280),
    }
    with pytest.raises(ValueError, match=r"1280 wide.*pass head_width"):
        read_architecture(shapes, [])
    architecture = read_architecture(shapes, [], head_width=80)
    assert architecture["vision"]["head_width"] == 80
    assert architecture["vision"]["image_size"] == 224


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"activation": "relu"}, "expected 'quick_gelu' or 'gelu'"),
        ({"adapters": "mlp"}, "expected 'released'"),
    ],
)
def test_unknown_choices(option: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_release(tmp_path / "never-read.pth", **option)


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth does not exist"):
        read_release(tmp_path / "nowhere.pth")
    with pytest.raises(ValueError, match="is a folder"):
        read_release(tmp_path)
    contents = {
        b"": "is empty",
        b"<!DOCTYPE html><html>": "is not a checkpoint: it is a web page",
        b"version https://git-lfs.github.com/spec/v1\n": "is not a checkpoint: it is a Git LFS pointer",
        b"\x1f\x8b\x08\x00": "is not a checkpoint: it is a compressed archive",
        b"hello there": "is not a checkpoint: it starts with",
        b"PK\x03\x04 and no more": "damaged or incomplete",
        b"\x80\x02": "damaged|refused",
        b"\x80\x04\x95garbage": "damaged|refused",
        (99).to_bytes(8, "little") + b"{" + b" " * 200: "damaged or incomplete",
    }
    for content, message in contents.items():
        (tmp_path / "x.pth").write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            read_release(tmp_path / "x.pth")
        assert "x.pth" in str(caught.value)


def test_a_file_cut_short(tmp_path: Path) -> None:
    path = saved(tmp_path, checkpoint("pacs-vit-tiny"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"release\.pth is damaged or incomplete: download it again"):
        read_release(path)
    save_file(checkpoint("pacs-vit-tiny"), tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        read_release(tmp_path / "x.safetensors", activation="gelu")


def test_zip_archives(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("weights.pth", b"...")
    with pytest.raises(ValueError, match="zip archive without a checkpoint"):
        read_release(tmp_path / "x.zip")


def test_torchscript_is_refused_with_a_recipe_that_works(tmp_path: Path) -> None:
    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.conv1(x)
            return y

    path = tmp_path / "jit.pt"
    torch.jit.save(torch.jit.script(Tower()), path)
    with pytest.raises(ValueError, match="TorchScript archive") as caught:
        read_release(path)
    recipe_line = str(caught.value).splitlines()[1].strip()
    code = recipe_line.removeprefix('python -c "').removesuffix('"')
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    extracted = torch.load(tmp_path / "jit.pt.pth", weights_only=True)["state_dict"]
    assert set(extracted) == {"conv1.weight", "conv1.bias"}


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("how", ["zip", "legacy", "plain"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(how: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "evil.pth"
    content = {"state_dict": checkpoint("pacs-vit-tiny"), "extra": Trap(victim)}
    if how == "plain":
        path.write_bytes(pickle.dumps({"state_dict": {}, "extra": Trap(victim)}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(ValueError, match=r"evil\.pth is refused") as caught:
        read_release(path)
    assert not victim.exists()
    assert "weights_only=False" not in str(caught.value)
    if how != "plain":
        assert "it asks for" in str(caught.value)


def test_importing_the_converter_imports_no_encoder() -> None:
    code = "import sys, capeval_core.weights.clip; sys.exit('capeval_core.encoders' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
