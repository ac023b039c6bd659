"""Small networks of every kind with seeded weights: equal everywhere, and no download."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.golden import recipe
from tests.support import seams
from tests.support.eva_checkpoint import Sizes, Tensors, seeded

CASES = Path(__file__).parents[1] / "golden" / "cases"
HEADS: dict[str, dict[str, Any]] = {
    "pacs-vit-tiny": {},  # OpenAI's naming, QuickGELU
    "pacs-resnet-tiny": {"head_width": 64},
    "pacs-openclip-tiny": {"head_width": 16, "text_heads": 4},  # exact GELU
}
"""What the tensors of each case cannot tell."""


def kept(name: str, make: Callable[[Path], Any]) -> Path:
    """What `make` writes to a path: once for all processes of a run of tests, whose folder conftest names."""
    root = Path(os.environ.get("CAPEVAL_TEST_FOLDER") or _own_folder())
    place = root / name
    if not place.exists():
        partial = Path(tempfile.mkdtemp(dir=root)) / name
        make(partial)
        with suppress(OSError):  # another process was first
            partial.rename(place)
    return place


@cache
def _own_folder() -> str:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


@cache
def release(case: str = "pacs-vit-tiny") -> Any:
    """The converted checkpoint of a golden case; treat it as read-only."""
    manifest, config = (
        json.loads((CASES / case / name).read_text()) for name in ("manifest.json", "config.json")
    )
    tensors = {
        name: torch.from_numpy(array) for name, array in recipe.state_dict(manifest, config["seed"]).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tensors, Path(folder) / "original.pth")
        return seams.convert("clip", Path(folder) / "original.pth", **HEADS[case])


@cache
def encoder(case: str = "pacs-vit-tiny", dtype: str = "float32") -> Any:
    """The encoder of a golden case, on the CPU."""
    found = release(case)
    return seams.network("clip", found.config, found.tensors, dtype=dtype)


def alpha_checkpoints(folder: Path) -> tuple[Path, Path]:
    """The original checkpoints of the golden Alpha-CLIP, written to `folder`: image tower and base."""
    case = CASES / "alphaclip-tiny"
    seed = json.loads((case / "config.json").read_text())["seed"]
    paths = []
    for name in ("manifest_alpha", "manifest"):
        tensors = recipe.state_dict(json.loads((case / f"{name}.json").read_text()), seed)
        paths.append(folder / f"{name}.pth")
        torch.save({key: torch.from_numpy(array) for key, array in tensors.items()}, paths[-1])
    return paths[0], paths[1]


@cache
def alpha_release(zero_mask: bool = False) -> Any:
    """The converted Alpha-CLIP, or its base with a mask channel of zeros; treat it as read-only."""
    with tempfile.TemporaryDirectory() as folder:
        tower, base = alpha_checkpoints(Path(folder))
        if zero_mask:
            return seams.convert("alpha_clip", base, zero_mask=True)
        return seams.convert("alpha_clip", tower, base=str(base))


@cache
def alpha_encoder(dtype: str = "float32", zero_mask: bool = False) -> Any:
    """The seeded Alpha-CLIP, on the CPU."""
    found = alpha_release(zero_mask)
    return seams.network("alpha_clip", found.config, found.tensors, dtype=dtype)


def blip2_weights(folder: Path) -> Path:
    """A weights folder of the golden BLIP-2, made in `folder`; its words are w0, w1 and so on."""
    from tests.golden.blip2_itm import lavis, settings
    from tests.golden.case import Case

    case = Case(CASES / "blip2-itm")
    found = seams.convert("blip2", lavis(case, folder), **settings(case, folder))
    seams.network("blip2", found.config, found.tensors).save_pretrained(folder / "blip2")
    return folder / "blip2"


@cache
def faster_rcnn_release() -> Any:
    """The converted Faster R-CNN of the golden case; treat it as read-only."""
    from tests.golden.frcnn_vg_tiny import write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        return seams.convert("faster_rcnn", write_checkpoint(CASES / "frcnn-vg-tiny", Path(folder)))


@cache
def faster_rcnn(dtype: str = "float32") -> Any:
    """The seeded Faster R-CNN, on the CPU."""
    found = faster_rcnn_release()
    return seams.network("faster_rcnn", found.config, found.tensors, dtype=dtype)


def write_config(folder: Path, config: dict[str, Any], file: str = "config.json") -> None:
    """Write a config that was edited, with the checksum that a saved one has."""
    if file == "config.json" and isinstance(config.get("checksum"), dict):
        config = {**config, "checksum": {**config["checksum"], file: seams.config_checksum(config)}}
    (folder / file).write_text(json.dumps(config))


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "red", "dog"]


@cache
def uniter(region_size: int = 64, heads: int = 4, width: int = 32) -> Any:
    """A seeded small UNITER on the CPU, for the features of the embedded region encoder."""
    architecture = {
        "vocab_size": len(WORDS),
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "region_size": region_size,
    }
    config = {
        "format": 1,
        "encoder": "uniter",
        "architecture": architecture,
        "context_length": 40,
        "vocabulary": WORDS,
        "lowercase": True,
        "constants": {"regions": "tiny"},
        "source": {"licence": "MIT"},
    }
    tensors = drawn(seams.shapes("uniter", config), 3)
    tensors["ranking_head.weight"] *= 4  # scores that differ visibly
    return seams.network("uniter", config, tensors)


@cache
def vilbert(task: int | None = 7, region_size: int = 64) -> Any:
    """A seeded small ViLBERT on the CPU, for the features of the embedded region encoder."""
    architecture = {
        "text": {
            "vocab_size": len(WORDS),
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 40,
        },
        "visual": {
            "region_size": region_size,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 40,
        },
        "co_attention": {"hidden_size": 64, "num_attention_heads": 2},
        "text_layers_before": [1, 3],
        "visual_layers_before": [1, 2],
        "tasks": 0 if task is None else 20,
    }
    config = {
        "format": 1,
        "encoder": "vilbert",
        "architecture": architecture,
        "task": task,
        "context_length": 37,
        "vocabulary": WORDS,
        "lowercase": True,
        "constants": {"regions": "tiny"},
        "source": {"licence": "MIT"},
    }
    # Of a standard deviation at which features of texts differ visibly.
    return seams.network("vilbert", config, drawn(seams.shapes("vilbert", config), 5, spread=0.12))


def drawn(shapes: Mapping[str, torch.Tensor], seed: int, spread: float = 0.0) -> Tensors:
    """Seeded tensors of these shapes, of the size that layers begin a training with, plus `spread`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape.shape, generator=generator)
        if shape.ndim == 1:
            is_scale = name.endswith("weight")  # of a norm
            tensors[name] = torch.ones(shape.shape) if is_scale else values * 0.1
        else:
            size = 1.0 if "embeddings" in name and "region" not in name else (3 * shape.shape[1]) ** -0.5
            tensors[name] = values * (size**2 + spread**2) ** 0.5
    return tensors


def made_up_boxes(count: int, width: int = 64, seed: int = 0) -> dict[str, Any]:
    """Random box features of an image of 320x240."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform([0, 0], [200, 150], (count, 2))
    return {
        "boxes": np.concatenate([corners, corners + rng.uniform(5, 90, (count, 2))], axis=1).astype(
            np.float32
        ),
        "features": rng.uniform(0, 2, (count, width)).astype(np.float32),
        "size": (320, 240),
        "scores": np.sort(rng.uniform(0.3, 1, count))[::-1].astype(np.float32),
    }


X152_CONFIG: dict[str, Any] = {
    "format": 1,
    "encoder": "x152",
    "architecture": {
        **{"layers": [1, 2, 1, 1], "stem_width": 4, "width": 4, "groups": 2, "out_width": 8},
        **{"pyramid_width": 6, "anchors": 2, "feature_width": 10, "classes": 5},
    },
    "preprocessing": {"shortest_side": 64, "longest_side": 96, "mean": [102.9801, 115.9465, 122.7717]},
    "proposals": {
        **{"before_nms": 60, "after_nms": 20, "most": 40, "overlap": 0.7},
        "delta_weights": [1.0, 1.0, 1.0, 1.0],
    },
    "detections": {"most": 8, "overlap": 0.5, "threshold": 0.0},
}


@cache
def x152_tensors() -> dict[str, torch.Tensor]:
    """Seeded weights of the ResNeXt FPN detector; treat them as read-only."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name, tensor in seams.shapes("x152", X152_CONFIG).items():
        values = torch.randn(tensor.shape, generator=generator)
        if name == "head.anchors":
            sides = torch.tensor([4.0, 8, 16, 32, 64])[:, None, None]
            values = sides * torch.tensor([[-0.5, -0.5, 1, 1], [-1, -0.25, 1.5, 0.75]])
        elif "running_var" in name or (tensor.ndim == 1 and name.endswith("weight")):
            values = 1 + values.abs() / 4
        elif tensor.ndim > 1:
            gain = {"body.stem.conv1.weight": 1 / 64, "head.anchor_deltas.weight": 0.2}.get(name, 1)
            values *= gain * tensor[0].numel() ** -0.5
        else:
            values *= 0.1
        found[name] = values
    return found


@cache
def x152(dtype: str = "float32") -> Any:
    """The seeded ResNeXt FPN detector, on the CPU."""
    return seams.network("x152", X152_CONFIG, x152_tensors(), dtype=dtype)


def x152_checkpoint(path: Path, **more: torch.Tensor) -> Path:
    """The seeded weights under the release's names, with what it holds beside."""
    named = {}
    for name, tensor in x152_tensors().items():
        if name == "head.anchors":
            for level, cells in enumerate(tensor):
                named[f"rpn.anchor_generator.cell_anchors.{level}"] = cells.clone()
            continue
        for ours, theirs in (
            ("body.", "backbone.body."),
            ("head.objectness_logits.", "rpn.head.cls_logits."),
            ("head.anchor_deltas.", "rpn.head.bbox_pred."),
            ("head.", "rpn.head."),
            ("fc", "roi_heads.box.feature_extractor.fc"),
            ("cls_score.", "roi_heads.box.predictor.cls_score."),
        ):
            if name.startswith(ours):
                named[theirs + name.removeprefix(ours)] = tensor
                break
        else:
            _, kind, index, _, leaf = name.split(".")
            named[f"backbone.fpn.fpn_{kind.removesuffix('_blocks')}{int(index) + 1}.{leaf}"] = tensor
    predictor = "roi_heads.box.predictor."
    named |= {
        f"{predictor}bbox_pred.weight": torch.ones(24, 10),
        f"{predictor}bbox_pred.bias": torch.ones(24),
    }
    named |= {f"{predictor}attr_linear1.weight": torch.ones(3, 3)}
    module = {f"module.{name}": tensor for name, tensor in named.items()}
    torch.save({"model": module | more, "iteration": 7}, path)
    return path


@cache
def eva_tensors(half: bool = False) -> Tensors:
    """An EVA-CLIP checkpoint in its authors' naming; treat it as read-only."""
    return {name: tensor.half() if half else tensor for name, tensor in seeded().items()}


@cache
def eva_release(norm: str = "post", half: bool = False) -> Any:
    """The converted EVA-CLIP; treat it as read-only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seeded.pt"
        torch.save(eva_tensors(half), path)
        return seams.convert("eva_clip", path, head_width=Sizes().head_width, norm=norm)


@cache
def eva(norm: str = "post", dtype: str = "float32", half: bool = False) -> Any:
    """The seeded EVA-CLIP, on the CPU."""
    found = eva_release(norm, half)
    return seams.network("eva_clip", found.config, found.tensors, dtype=dtype)


TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2, "mlp_ratio": 3.0}
TOWER = {
    "timm_model_name": "test_vit",
    "timm_model_pretrained": False,
    "timm_pool": "token",
    "timm_proj": "linear",
    "image_size": 160,
}
PREPROCESS = {
    "size": 160,
    "mean": [0.0, 0.0, 0.0],
    "std": [1.0, 1.0, 1.0],
    "interpolation": "bilinear",
    "resize_mode": "shortest",
}


def open_clip_repository(folder: Path, *, custom: bool = True, quick: bool = False, **vision: Any) -> Path:
    """A seeded model with an image tower of timm's, in open_clip's format."""
    from open_clip.model import CLIP, CustomTextCLIP

    model_cfg = {"embed_dim": 24, "vision_cfg": {**TOWER, **vision}, "text_cfg": TEXT, "custom_text": custom}
    model_cfg |= {"quick_gelu": True} if quick else {}
    torch.manual_seed(5)
    kind = CustomTextCLIP if custom else CLIP
    model = kind(24, TOWER, TEXT)
    folder.mkdir()
    save_file(
        {name: t.contiguous() for name, t in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    stated = {name: own for name, own in PREPROCESS.items() if not (quick and name == "interpolation")}
    config = {"model_cfg": model_cfg, "preprocess_cfg": stated}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def siglip_repository(folder: Path, resize: str = "squash") -> Path:
    """A seeded SigLIP by open_clip's own classes, with a small unigram tokenizer, in open_clip's format."""
    from open_clip.model import CustomTextCLIP
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.pre_tokenizers import Metaspace
    from tokenizers.processors import TemplateProcessing

    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *LETTERS, "\u2581a", "\u2581dog", "\u2581the", "ing", "ed"]
    tokenizer = Tokenizer(Unigram([(piece, -1.0 - 0.1 * i) for i, piece in enumerate(pieces)], unk_id=2))
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    vision = {**TOWER, "timm_pool": "map", "timm_proj": "none"}
    text = {
        "context_length": 20,
        "vocab_size": len(pieces),
        "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
        "tokenizer_kwargs": {"clean": "canonicalize"},
        "width": 32,
        "heads": 4,
        "layers": 2,
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
        "norm_kwargs": {"eps": 1e-6},
    }
    torch.manual_seed(7)
    model = CustomTextCLIP(64, vision, text, init_logit_bias=-10)
    folder.mkdir()
    tensors = {}
    for name, tensor in model.state_dict().items():
        # Biases begin at zero, and the query of the attention pool near it, where no test would see them.
        noise = torch.randn(tensor.shape) * 0.1 if name.endswith("bias") else 0
        factor = 10 if "attn_pool" in name and tensor.ndim > 1 else 1
        tensors[name] = (tensor * factor + noise).contiguous()
    save_file(tensors, folder / "open_clip_model.safetensors")
    config = {
        "model_cfg": {
            "embed_dim": 64,
            "init_logit_bias": -10,
            "custom_text": True,
            "vision_cfg": vision,
            "text_cfg": text,
        },
        "preprocess_cfg": {
            "size": 160,
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "interpolation": "bicubic",
            "resize_mode": resize,
        },
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**marks, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder
