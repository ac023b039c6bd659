"""transformers' SAM, with its own image encoder or another one: sizes read off tensors, models built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.regions.sam_names import GAUSSIAN
from capeval_core.regions.vision import CHANNELS, SIDE, VISION

Shapes = Mapping[str, tuple[int, ...]]

COPY = "prompt_encoder.shared_embedding.positional_embedding"
"""Where transformers keeps the Gaussian matrix a second time."""
_RELEASED_EPS = 1e-5
"""Of the layer norms in the decoder's transformer: PyTorch's default, as the original has it. Configurations
on the Hub say 1e-6, which moves logits by up to 6e-4."""


def read_architecture(shapes: Shapes, kind: str, heads: int) -> dict[str, Any]:
    """The architecture of tensors with transformers' and timm's names.

    Args:
        shapes: tensor name -> shape.
        kind: of the image encoder.
        heads: attention heads of the mask decoder, which no shape shows.

    Raises:
        ValueError: a tensor is missing that tells a size.
    """
    try:
        decoder = _decoder(shapes, heads)
        if kind == "vit":
            return {"kind": kind, **_vit(shapes), "decoder": decoder}
    except KeyError as error:
        raise ValueError(f"not a complete SAM: {error.args[0]!r} is missing") from None
    return {"kind": kind, "image_size": 1024, "patch_size": 1024 // SIDE, "decoder": decoder}


def _decoder(shapes: Shapes, heads: int) -> dict[str, int]:
    block = "mask_decoder.transformer.layers.0"
    width = shapes["mask_decoder.iou_token.weight"][1]
    layers = [name for name in shapes if name.startswith("mask_decoder.transformer.layers.")]
    head = [name for name in shapes if name.startswith("mask_decoder.iou_prediction_head.layers.")]
    return {
        "hidden_size": width,
        "mlp_dim": shapes[f"{block}.mlp.lin1.weight"][0],
        "num_hidden_layers": _count(layers, 3),
        "num_attention_heads": heads,
        "attention_downsample_rate": width // shapes[f"{block}.cross_attn_token_to_image.q_proj.weight"][0],
        "num_multimask_outputs": shapes["mask_decoder.mask_tokens.weight"][0] - 1,
        "iou_head_depth": _count(head, 3) + 2,
        "iou_head_hidden_dim": shapes["mask_decoder.iou_prediction_head.proj_in.weight"][0],
        "mask_input_channels": shapes["prompt_encoder.mask_embed.conv2.weight"][0],
    }


def _vit(shapes: Shapes) -> dict[str, Any]:
    width, _, patch, _ = shapes["vision_encoder.patch_embed.projection.weight"]
    grid = shapes["vision_encoder.pos_embed"][1]
    layers = _count([name for name in shapes if name.startswith("vision_encoder.layers.")], 2)
    rows = [shapes[f"vision_encoder.layers.{layer}.attn.rel_pos_h"] for layer in range(layers)]
    reach = [(length + 1) // 2 for length, _ in rows]  # of relative positions: the side of a window
    windows = [side for side in reach if side != grid]
    return {
        "image_size": grid * patch,
        "patch_size": patch,
        "vision": {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // rows[0][1],
            "mlp_dim": shapes["vision_encoder.layers.0.mlp.lin1.weight"][0],
            "window_size": windows[0] if windows else grid,
            "global_attn_indexes": [layer for layer, side in enumerate(reach) if side == grid],
        },
    }


def _count(names: list[str], place: int) -> int:
    return len({name.split(".")[place] for name in names})


def build(architecture: Mapping[str, Any]) -> nn.Module:
    """The model of an architecture, with random weights, in evaluation mode.

    The Gaussian matrix stands twice among its tensors, not tied.
    """
    from transformers import SamConfig, SamModel

    decoder = dict(architecture["decoder"])
    masks = decoder.pop("mask_input_channels")
    width = decoder["hidden_size"]
    common = {"image_size": architecture["image_size"], "patch_size": architecture["patch_size"]}
    foreign = VISION.get(architecture["kind"])
    vision = {"num_hidden_layers": 0, "hidden_size": width} if foreign else dict(architecture["vision"])
    config = SamConfig(
        vision_config={**vision, **common, "output_channels": width, "num_pos_feats": width // 2},
        prompt_encoder_config={**common, "hidden_size": width, "mask_input_channels": masks},
        mask_decoder_config={**decoder, "layer_norm_eps": _RELEASED_EPS},
    )
    model: Any = SamModel(config)
    if foreign:
        if width != CHANNELS:
            raise ValueError(f"a decoder of width {width}, but the image encoder gives {CHANNELS} channels")
        model.vision_encoder = foreign()
    return _untied(model)


def build_transformers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model of a SAM repository in transformers' format, filled strictly, in evaluation mode.

    Raises:
        ValueError: the tensors are not those of the config.
    """
    model = empty_transformers(config)
    fill(model, with_copy(tensors))
    return model


def empty_transformers(config: Mapping[str, Any]) -> nn.Module:
    """The model of a SAM repository in transformers' format, with random weights, in evaluation mode."""
    from transformers import SamConfig, SamModel

    read: Any = SamConfig(**config)
    read.mask_decoder_config.layer_norm_eps = _RELEASED_EPS
    return _untied(SamModel(read))


def with_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file in transformers' format, which keeps the tied ones once, by all names."""
    content = dict(tensors)
    if GAUSSIAN in content:
        content.setdefault(COPY, content[GAUSSIAN])
    return content


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors, exactly those of the model.

    Raises:
        ValueError: the first few lines of what does not fit.
    """
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError("; ".join(line.strip()[:200] for line in str(error).splitlines()[1:4])) from None


def expected_shapes(architecture: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, of an architecture."""
    with torch.device("meta"):
        model = build(architecture)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _untied(model: Any) -> nn.Module:
    gaussian = model.shared_image_embedding.positional_embedding
    model.prompt_encoder.shared_embedding.positional_embedding = nn.Parameter(gaussian.detach().clone())
    evaluated: nn.Module = model.eval()
    return evaluated
