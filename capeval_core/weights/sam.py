"""SAM, MobileSAM and MobileSAMv2: original checkpoints, in the names of transformers' SAM and of timm.

SAM's own releases and MobileSAM's `mobile_sam.pt` hold a whole model: `image_encoder`, `prompt_encoder`,
`mask_decoder`. MobileSAMv2 comes in two files: an image encoder (`l2.pt`), and the decoder that is tuned
for boxes (`Prompt_guided_Mask_Decoder.pt`, with the parts `PromtEncoder` [sic] and `MaskDecoder`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from capeval_core.errors import InputError, Problem, setting
from capeval_core.options import option
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.conversion import (
    Conversion,
    Names,
    Shapes,
    Tensors,
    as_float32,
    count_blocks,
    renamed,
)

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
"""Of SAM's pixels, in levels of 255."""
GAUSSIAN = "shared_image_embedding.positional_embedding"
COPY = "prompt_encoder.shared_embedding.positional_embedding"
"""Where transformers keeps the Gaussian matrix a second time."""

_HEADS = 8
_ENCODER, _OURS = "image_encoder.", "vision_encoder."
_PARTS = {"PromtEncoder": "prompt_encoder", "MaskDecoder": "mask_decoder"}
_KINDS = {
    "patch_embed.seq.0.c.weight": "tiny_vit_5m",
    "backbone.stages.0.op_list.0.conv.weight": "efficientvit_l2",
    "patch_embed.proj.weight": "vit",
}
"""A tensor of the original -> the kind of image encoder that has it."""


def _moved(pattern: str, step: int) -> Callable[[re.Match[str]], str]:
    """The name with another number: timm counts a downsample to the stage that it leads to, and the stem."""
    return lambda name: pattern.format(int(name[1]) + step)


ENCODER_NAMES: Mapping[str, Names] = {
    "tiny_vit_5m": [
        (r"^patch_embed\.seq\.0\.", "patch_embed.conv1."),
        (r"^patch_embed\.seq\.2\.", "patch_embed.conv2."),
        (r"^layers\.(\d+)\.blocks\.", r"stages.\1.blocks."),
        (r"^layers\.(\d+)\.downsample\.", _moved("stages.{}.downsample.", 1)),
        (r"\.c\.weight$", ".conv.weight"),
    ],
    "efficientvit_l2": [
        (r"^backbone\.stages\.0\.op_list\.0\.", "stem.in_conv."),
        (r"^backbone\.stages\.0\.op_list\.(\d+)\.", _moved("stem.res{}.", -1)),
        (r"^backbone\.stages\.(\d+)\.op_list\.", _moved("stages.{}.blocks.", -1)),
        (r"^neck\.input_ops\.(\d+)\.op_list\.0\.", r"neck.inputs.\1."),
        (r"^neck\.middle\.op_list\.(\d+)\.main\.(spatial|point)_conv\.", r"neck.middle.\1.\2."),
        (r"^neck\.output_ops\.0\.op_list\.0\.conv\.", "neck.output."),
    ],
    "vit": [
        (r"^patch_embed\.proj\.", "patch_embed.projection."),
        (r"^blocks\.", "layers."),
        (r"\.norm([12])\.", r".layer_norm\1."),
        (r"^neck\.0\.", "neck.conv1."),
        (r"^neck\.1\.", "neck.layer_norm1."),
        (r"^neck\.2\.", "neck.conv2."),
        (r"^neck\.3\.", "neck.layer_norm2."),
    ],
}
"""By kind of image encoder."""
_HEAD = r"^(.*(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\."
DECODER_NAMES: Names = [
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", GAUSSIAN),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    *(
        (rf"\.mask_downscaling\.{number}\.", f".mask_embed.{part}.")
        for number, part in ((0, "conv1"), (1, "layer_norm1"), (3, "conv2"), (4, "layer_norm2"), (6, "conv3"))
    ),
    (r"\.transformer\.layers\.(\d+)\.norm(\d)\.", r".transformer.layers.\1.layer_norm\2."),
    (r"\.norm_final_attn\.", ".layer_norm_final_attn."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (rf"{_HEAD}0\.", r"\1.proj_in."),
    (rf"{_HEAD}1\.", r"\1.layers.0."),
    (rf"{_HEAD}2\.", r"\1.proj_out."),
]


@dataclass(frozen=True, kw_only=True)
class SamConversion(Conversion):
    """A SAM in one file, or an image encoder and a decoder in two."""

    encoder = "sam"
    title = "SAM"
    unused = r"image_encoder\.(norm_)?head\."  # a classifier

    decoder: str | PathLike[str] | None = option(
        None,
        "checkpoint of the decoder, where CHECKPOINT has none or another one shall be used: MobileSAMv2's "
        "Prompt_guided_Mask_Decoder.pt",
    )
    decoder_heads: int | None = option(None, "attention heads of the mask decoder; None: 8", minimum=1)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        files = [path] if self.decoder is None else [path, Path(self.decoder)]
        parts = [_parts(read_checkpoint(file), file) for file in files]
        encoder, decoder = parts[0][0], parts[-1][1]
        if not encoder:
            raise ValueError(f"{path} has no image encoder: give mobile_sam.pt, l2.pt or a SAM here")
        if not decoder:
            other = setting("decoder", "Prompt_guided_Mask_Decoder.pt", "pass ")
            fix = f"{other}, the other file of MobileSAMv2"
            raise InputError(Problem("", f"{files[-1]} has no mask decoder", fix))
        return encoder | decoder, files

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        if self.decoder is not None:
            notes.append(f"decoder: of {Path(self.decoder).name}")
        return super().select(content, notes)

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        encoder_names = ENCODER_NAMES[str(_kind(content))]
        tensors: Tensors = {}
        for name, tensor in as_float32(content, notes).items():
            bare = name.removeprefix(_ENCODER)
            new = renamed(name, DECODER_NAMES) if bare == name else _OURS + renamed(bare, encoder_names)
            tensors[new] = tensor
        if GAUSSIAN in tensors:
            tensors[COPY] = tensors[GAUSSIAN]
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        heads = self.decoder_heads or _HEADS
        evidence = "as given" if self.decoder_heads else "as in every release, since no tensor shows them"
        notes.append(f"decoder: {heads} attention heads, {evidence}")
        kind = _kind(content)
        sizes = _read_vit(shapes) if kind == "vit" else {"image_size": 1024, "patch_size": 16}
        return {
            "architecture": {"kind": kind, **sizes, "decoder": _read_decoder(shapes, heads)},
            "preprocessing": {"mean": list(MEAN), "std": list(STD)},
        }


def _kind(content: Mapping[str, Any]) -> str | None:
    return next((kind for name, kind in _KINDS.items() if _ENCODER + name in content), None)


def _parts(content: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Image encoder and decoder of a checkpoint; either may be empty."""
    encoder: dict[str, Any] = {}
    decoder: dict[str, Any] = {}
    outside: dict[str, Any] = {}
    for name, tensor in content.items():
        name = name.removeprefix("model.")
        first, _, rest = name.partition(".")
        if first == "image_encoder":
            encoder[name] = tensor
        elif first in ("prompt_encoder", "mask_decoder", *_PARTS):
            decoder[f"{_PARTS.get(first, first)}.{rest}"] = tensor
        elif name not in ("pixel_mean", "pixel_std"):
            outside[name] = tensor
    if outside and not encoder and any(name in outside for name in _KINDS):  # an image encoder alone
        encoder, outside = {_ENCODER + name: tensor for name, tensor in outside.items()}, {}
    if outside or not encoder | decoder:
        parts = "image_encoder, prompt_encoder or mask_decoder"
        raise ValueError(f"{path} is no SAM: expected names under {parts}, found {name_some(outside)}")
    if encoder and not _kind(encoder):
        kinds = "neither a ViT, nor TinyViT, nor EfficientViT-L2"
        raise ValueError(f"{path}: the image encoder is {kinds} (it has {name_some(encoder)})")
    return encoder, decoder


def _read_decoder(shapes: Shapes, heads: int) -> dict[str, int]:
    block = "mask_decoder.transformer.layers.0"
    width = shapes["mask_decoder.iou_token.weight"][1]
    return {
        "hidden_size": width,
        "mlp_dim": shapes[f"{block}.mlp.lin1.weight"][0],
        "num_hidden_layers": count_blocks(shapes, r"mask_decoder\.transformer\.layers\.(\d+)\."),
        "num_attention_heads": heads,
        "attention_downsample_rate": width // shapes[f"{block}.cross_attn_token_to_image.q_proj.weight"][0],
        "num_multimask_outputs": shapes["mask_decoder.mask_tokens.weight"][0] - 1,
        "iou_head_depth": count_blocks(shapes, r"mask_decoder\.iou_prediction_head\.layers\.(\d+)\.") + 2,
        "iou_head_hidden_dim": shapes["mask_decoder.iou_prediction_head.proj_in.weight"][0],
        "mask_input_channels": shapes["prompt_encoder.mask_embed.conv2.weight"][0],
    }


def _read_vit(shapes: Shapes) -> dict[str, Any]:
    width, _, patch, _ = shapes["vision_encoder.patch_embed.projection.weight"]
    grid = shapes["vision_encoder.pos_embed"][1]
    layers = count_blocks(shapes, r"vision_encoder\.layers\.(\d+)\.")
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
