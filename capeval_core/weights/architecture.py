"""The sizes of a CLIP, read off the shapes of its tensors; and the tensors that a CLIP of given sizes has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from open_clip.model import CLIP

Shape = tuple[int, ...]

# CLIP's towers have attention heads of this width, up to ViT-L/14; wider ones differ (80, 88, 104, ...).
HEAD_WIDTH = 64
WIDEST_REGULAR = 1024
# The modified ResNet shrinks the picture 32 times before its attention pool.
RESNET_STRIDE = 32


def read_architecture(
    shapes: Mapping[str, Shape], *, head_width: int | None = None, text_heads: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Architecture (keys of open_clip's configuration) of the CLIP with these tensors, and notes.

    `shapes` maps names as in OpenAI's and open_clip's CLIP to shapes. Head counts leave no trace in
    shapes: they are width / 64 unless `head_width` (vision) or `text_heads` are given.

    Raises:
        ValueError: a telling tensor is missing or has an impossible shape, or the heads must be given.
    """
    notes: list[str] = []
    context, text_width = _shape(shapes, "positional_embedding", 2)
    vocabulary, _ = _shape(shapes, "token_embedding.weight", 2)
    _, embed_dim = _shape(shapes, "text_projection", 2)
    if text_heads is None:
        text_heads = _heads(text_width, HEAD_WIDTH, "text", "text_heads")
        notes.append(
            f"text heads: {text_heads} (width {text_width} / {HEAD_WIDTH}; not visible in the tensors)"
        )
    else:
        if text_heads < 1 or text_width % text_heads:
            raise ValueError(f"text_heads={text_heads} does not divide the text width {text_width}")
        notes.append(f"text heads: {text_heads}, as given")
    text = {
        "context_length": context,
        "vocab_size": vocabulary,
        "width": text_width,
        "heads": text_heads,
        "layers": _count(shapes, r"transformer\.resblocks\.(\d+)\."),
        "mlp_ratio": _mlp_ratio(shapes, "transformer", text_width),
    }
    read_vision = _read_resnet if "visual.layer1.0.conv1.weight" in shapes else _read_vit
    vision, note = read_vision(shapes, head_width)
    return {"embed_dim": embed_dim, "vision": vision, "text": text}, [note, *notes]


def expected_shapes(architecture: Mapping[str, Any]) -> dict[str, Shape]:
    """Names and shapes of every tensor in the state dict of open_clip's CLIP of this architecture."""
    with torch.device("meta"):  # shapes alone, no memory
        model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"])
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _read_vit(shapes: Mapping[str, Shape], head_width: int | None) -> tuple[dict[str, Any], str]:
    width, _, patch, _ = _shape(shapes, "visual.conv1.weight", 4)
    positions, _ = _shape(shapes, "visual.positional_embedding", 2)
    grid = _side(positions - 1, "visual.positional_embedding")
    if head_width is None and width > WIDEST_REGULAR:
        raise ValueError(
            f"the vision tower is {width} wide: above {WIDEST_REGULAR} the attention heads of published "
            f"models are not {HEAD_WIDTH} wide (ViT-H 80, ViT-g 88, ViT-bigG 104), and the tensors cannot "
            "tell; pass head_width"
        )
    heads = _heads(width, head_width or HEAD_WIDTH, "vision", "head_width", given=head_width is not None)
    vision = {
        "image_size": grid * patch,
        "patch_size": patch,
        "width": width,
        "layers": _count(shapes, r"visual\.transformer\.resblocks\.(\d+)\."),
        "head_width": head_width or HEAD_WIDTH,
        "mlp_ratio": _mlp_ratio(shapes, "visual.transformer", width),
    }
    return vision, (
        f"vision tower: ViT, {vision['layers']} layers, width {width}, patch {patch}, image {grid * patch}, "
        f"{heads} heads ({_whence(head_width)})"
    )


def _read_resnet(shapes: Mapping[str, Shape], head_width: int | None) -> tuple[dict[str, Any], str]:
    width = _shape(shapes, "visual.layer1.0.conv1.weight", 4)[0]
    positions, features = _shape(shapes, "visual.attnpool.positional_embedding", 2)
    grid = _side(positions - 1, "visual.attnpool.positional_embedding")
    heads = _heads(features, head_width or HEAD_WIDTH, "vision", "head_width", given=head_width is not None)
    vision = {
        "image_size": grid * RESNET_STRIDE,
        "width": width,
        "layers": [_count(shapes, rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)],
        "head_width": head_width or HEAD_WIDTH,
    }
    return vision, (
        f"vision tower: modified ResNet, blocks {vision['layers']}, width {width}, image "
        f"{grid * RESNET_STRIDE}, {heads} heads in the attention pool ({_whence(head_width)})"
    )


def _shape(shapes: Mapping[str, Shape], name: str, dimensions: int) -> Shape:
    shape = shapes.get(name)
    if shape is None:
        raise ValueError(f"{name} is not in the checkpoint: it is needed to tell the sizes of the model")
    if len(shape) != dimensions or 0 in shape:
        raise ValueError(f"{name} has shape {shape}: expected {dimensions} dimensions, none of them zero")
    return shape


def _count(shapes: Mapping[str, Shape], pattern: str) -> int:
    return len({found[1] for name in shapes if (found := re.match(pattern, name))})


def _mlp_ratio(shapes: Mapping[str, Shape], tower: str, width: int) -> float:
    hidden = _shape(shapes, f"{tower}.resblocks.0.mlp.c_fc.weight", 2)[0]
    ratio = hidden / width
    # The model has int(width * ratio) hidden units: step over the rounding that would lose one.
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def _side(positions: int, name: str) -> int:
    side = math.isqrt(max(positions, 0))
    if side < 1 or side * side != positions:
        raise ValueError(
            f"{name} has {positions} picture positions, not a square: only square pictures are known"
        )
    return side


def _heads(width: int, head_width: int, tower: str, option: str, given: bool = False) -> int:
    if head_width < 1 or width % head_width:
        if given:
            raise ValueError(f"{option}={head_width} does not divide the {tower} width {width}")
        raise ValueError(
            f"the {tower} tower is {width} wide, no multiple of {head_width}: the number of heads cannot be "
            f"told from the tensors, pass {option}"
        )
    return width // head_width


def _whence(head_width: int | None) -> str:
    return (
        "heads 64 wide; not visible in the tensors"
        if head_width is None
        else f"heads {head_width} wide, as given"
    )
