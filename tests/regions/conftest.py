"""Tiny seeded models in transformers' format, saved as they lie on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tools.scenes import draw, sample_scene


def save_sam(folder: Path, seed: int = 0, *, sure: bool = False) -> Path:
    """sure: it takes every mask for a good one."""
    from transformers import SamConfig, SamImageProcessor, SamModel

    torch.manual_seed(seed)
    common = {"image_size": 128, "patch_size": 16}
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_channels": 32}
    vision |= {"num_pos_feats": 16, "window_size": 3, "global_attn_indexes": [1]}
    decoder = {"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 2, "iou_head_hidden_dim": 32}
    config: Any = SamConfig(
        vision_config={**vision, **common},
        prompt_encoder_config={"hidden_size": 32, **common},
        mask_decoder_config=decoder,
    )
    model: Any = SamModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "layer_norm" not in name:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
        if sure:
            model.mask_decoder.iou_prediction_head.proj_out.bias += 9
            for head in model.mask_decoder.output_hypernetworks_mlps:
                head.proj_out.weight *= 1000
    model.save_pretrained(folder)
    SamImageProcessor(size={"longest_edge": 128}).save_pretrained(folder)
    return folder


def save_owlv2(folder: Path, seed: int = 0, *, less_sure_by: float = 0) -> Path:
    from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config: Any = Owlv2Config(
        text_config={**sizes, "vocab_size": 99, "max_position_embeddings": 8},
        vision_config={**sizes, "image_size": 96, "patch_size": 16, "initializer_range": 0.3},
        projection_dim=32,
    )
    model: Any = Owlv2ForObjectDetection(config)
    with torch.no_grad():
        for parameter in (*model.box_head.parameters(), *model.objectness_head.parameters()):
            parameter.normal_(std=0.3)
        model.objectness_head.dense2.bias -= less_sure_by
    model.save_pretrained(folder)
    Owlv2ImageProcessor(size={"height": 96, "width": 96}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sam_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sam(tmp_path_factory.mktemp("models") / "tiny-sam")


@pytest.fixture(scope="session")
def owlv2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_owlv2(tmp_path_factory.mktemp("models") / "tiny-owlv2")


@pytest.fixture
def image() -> Image.Image:
    return draw(sample_scene(np.random.default_rng(5)), 160).crop((0, 20, 160, 120))
