"""Weights in other formats than ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.support.seeded import release


@pytest.fixture(scope="session")
def open_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact-GELU model in open_clip's own repository format."""
    return write_open_clip(tmp_path_factory.mktemp("open_clip"), "pacs-openclip-tiny")


def write_open_clip(folder: Path, case: str) -> Path:
    """The model of a golden case in open_clip's own repository format."""
    from open_clip.model import CLIP

    converted = release(case)
    architecture, preprocessing = converted.config["architecture"], converted.config["preprocessing"]
    cfg = {
        "embed_dim": architecture["embed_dim"],
        "vision_cfg": architecture["vision"],
        "text_cfg": architecture["text"],
    }
    if converted.config["activation"] == "quick_gelu":
        cfg["quick_gelu"] = True
    model = CLIP(cfg["embed_dim"], cfg["vision_cfg"], cfg["text_cfg"])
    model.load_state_dict(converted.tensors)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    preprocess = {
        "mean": preprocessing["mean"],
        "std": preprocessing["std"],
        "size": [64, 64],
        "mode": "RGB",
        "interpolation": "bicubic",
        "resize_mode": "shortest",
        "fill_color": 0,
    }
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": cfg, "preprocess_cfg": preprocess})
    )
    return folder
