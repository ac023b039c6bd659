"""Checkpoints as their authors release them, small and seeded, and weights in other formats than ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.golden import recipe
from tests.support.seeded import CASES, WORDS, release, uniter

UMIC = (
    ("region_embeddings.feature_norm.", "uniter.img_embeddings.img_layer_norm."),
    ("region_embeddings.feature.", "uniter.img_embeddings.img_linear."),
    ("region_embeddings.position_norm.", "uniter.img_embeddings.pos_layer_norm."),
    ("region_embeddings.position.", "uniter.img_embeddings.pos_linear."),
    ("region_embeddings.norm.", "uniter.img_embeddings.LayerNorm."),
    ("embeddings.", "uniter.embeddings."),
    ("layers.", "uniter.encoder.layer."),
    ("pooler.", "uniter.pooler.dense."),
    ("matching_head.", "itm_output."),
    ("ranking_head.", "rank_output."),
)
"""Our names, and those of UMIC's release."""


def manifest(case: str, file: str = "manifest") -> dict[str, torch.Tensor]:
    """The seeded checkpoint of a golden case, under its original names and in their order."""
    return dict(_manifest(case, file))


@cache
def _manifest(case: str, file: str) -> dict[str, torch.Tensor]:
    arrays = recipe.state_dict(CASES / case / f"{file}.json", seed=3)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def umic_tensors(network: Any = None) -> dict[str, torch.Tensor]:
    """A seeded UNITER under the original's names."""
    tensors = {"uniter.img_embeddings.mask_embedding.weight": torch.zeros(2, 64)}
    for name, tensor in (network or uniter()).model.state_dict().items():
        ours, theirs = next(pair for pair in UMIC if name.startswith(pair[0]))
        tensors[name.replace(ours, theirs, 1)] = tensor
    return tensors


def umic_checkpoint(folder: Path, network: Any = None) -> Path:
    """UMIC's checkpoint, beside its vocabulary."""
    torch.save(umic_tensors(network), folder / "umic.pt")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder / "umic.pt"


@pytest.fixture(scope="session")
def open_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact-GELU model in open_clip's own repository format."""
    return write_open_clip(tmp_path_factory.mktemp("open_clip"), "pacs-openclip-tiny")


def write_open_clip(folder: Path, case: str) -> Path:
    """The model of a golden case in open_clip's own repository format."""
    from open_clip.model import CLIP

    converted = release(case)
    architecture, preprocessing = converted.config["architecture"], converted.config["preprocessing"]
    vision, text = architecture["vision"], architecture["text"]
    model = CLIP(architecture["embed_dim"], vision, text)
    model.load_state_dict(converted.tensors)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    quick = {"quick_gelu": True} if converted.config["activation"] == "quick_gelu" else {}
    config = {
        "model_cfg": {
            "embed_dim": architecture["embed_dim"],
            "vision_cfg": vision,
            "text_cfg": text,
            **quick,
        },
        "preprocess_cfg": {
            "mean": preprocessing["mean"],
            "std": preprocessing["std"],
            "size": [64, 64],
            "mode": "RGB",
            "interpolation": "bicubic",
            "resize_mode": "shortest",
            "fill_color": 0,
        },
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder
