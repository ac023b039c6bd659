"""Names of tensors: those of the originals' code -> those of transformers' SAM and timm's backbones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Rule = tuple[str, str | Callable[[re.Match[str]], str]]


def _shifted(found: re.Match[str]) -> str:
    return f"stages.{int(found[1]) + 1}.downsample."


def _stem(found: re.Match[str]) -> str:
    place = int(found[1])
    return f"stem.res{place - 1}." if place else "stem.in_conv."


def _block(found: re.Match[str]) -> str:
    return f"stages.{int(found[1]) - 1}.blocks."


ENCODER: dict[str, list[Rule]] = {
    "tiny_vit_5m": [
        (r"^patch_embed\.seq\.0\.", "patch_embed.conv1."),
        (r"^patch_embed\.seq\.2\.", "patch_embed.conv2."),
        (r"^layers\.(\d+)\.blocks\.", r"stages.\1.blocks."),
        (r"^layers\.(\d+)\.downsample\.", _shifted),  # timm counts it to the stage that it leads to
        (r"\.c\.weight$", ".conv.weight"),
    ],
    "efficientvit_l2": [
        (r"^backbone\.stages\.0\.op_list\.(\d+)\.", _stem),
        (r"^backbone\.stages\.(\d+)\.op_list\.", _block),
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
TOLD_BY = {
    "patch_embed.seq.0.c.weight": "tiny_vit_5m",
    "backbone.stages.0.op_list.0.conv.weight": "efficientvit_l2",
    "patch_embed.proj.weight": "vit",
}
"""A tensor of the original that tells the kind of image encoder."""
GAUSSIAN = "shared_image_embedding.positional_embedding"
DECODER: list[Rule] = [
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", GAUSSIAN),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"\.mask_downscaling\.0\.", ".mask_embed.conv1."),
    (r"\.mask_downscaling\.1\.", ".mask_embed.layer_norm1."),
    (r"\.mask_downscaling\.3\.", ".mask_embed.conv2."),
    (r"\.mask_downscaling\.4\.", ".mask_embed.layer_norm2."),
    (r"\.mask_downscaling\.6\.", ".mask_embed.conv3."),
    (r"\.transformer\.layers\.(\d+)\.norm(\d)\.", r".transformer.layers.\1.layer_norm\2."),
    (r"\.norm_final_attn\.", ".layer_norm_final_attn."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
]
_LAYER = re.compile(r"(.*(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.(\d+)\.(\w+)")


def renamed(name: str, rules: Iterable[Rule]) -> str:
    """The name after every rule.

    >>> renamed("layers.0.downsample.conv1.c.weight", ENCODER["tiny_vit_5m"])
    'stages.1.downsample.conv1.conv.weight'
    >>> renamed("backbone.stages.2.op_list.1.main.point_conv.norm.bias", ENCODER["efficientvit_l2"])
    'stages.1.blocks.1.main.point_conv.norm.bias'
    """
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def decoder_names(names: Iterable[str]) -> dict[str, str]:
    """Original name -> name in transformers' SAM, of prompt encoder and mask decoder."""
    names = list(names)
    layers = [found for name in names if (found := _LAYER.fullmatch(name))]
    last: dict[str, int] = {}
    for found in layers:
        last[found[1]] = max(last.get(found[1], 0), int(found[2]))

    def ours(name: str) -> str:
        found = _LAYER.fullmatch(name)
        if not found:
            return renamed(name, DECODER)
        place = int(found[2])
        if place == 0:
            return f"{found[1]}.proj_in.{found[3]}"
        return (
            f"{found[1]}."
            + ("proj_out" if place == last[found[1]] else f"layers.{place - 1}")
            + f".{found[3]}"
        )

    return {name: ours(name) for name in names}
