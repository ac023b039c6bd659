"""The sizes of a CLIP, read off the shapes of its tensors; and the tensors that a CLIP of given sizes has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from open_clip.model import CLIP

from capeval_core.errors import Argument, InputError, Problem, wrong_option

Shape = tuple[int, ...]

# CLIP's towers have attention heads of this width, up to ViT-L/14; wider ones differ (80, 88, 104, ...).
HEAD_WIDTH = 64
WIDEST_REGULAR = 1024
# The modified ResNet shrinks the image 32 times before its attention pool.
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
    text, about_text = read_text(shapes, text_heads)
    _, embed_dim = shape_of(shapes, "text_projection", 2)
    read_vision = _read_resnet if "visual.layer1.0.conv1.weight" in shapes else _read_vit
    vision, note = read_vision(shapes, head_width)
    return {"embed_dim": embed_dim, "vision": vision, "text": text}, [note, about_text]


def read_text(shapes: Mapping[str, Shape], text_heads: int | None = None) -> tuple[dict[str, Any], str]:
    """Architecture of the text tower with these tensors, and a note on its heads.

    Raises:
        ValueError: as for `read_architecture`.
    """
    context, width = shape_of(shapes, "positional_embedding", 2)
    vocabulary, _ = shape_of(shapes, "token_embedding.weight", 2)
    if text_heads is None:
        heads = _heads(width, HEAD_WIDTH, "text", "text_heads")
        note = f"text heads: {heads} (width {width} / {HEAD_WIDTH}; not visible in the tensors)"
    elif text_heads < 1 or width % text_heads:
        raise wrong_option("text_heads", text_heads, f"the text width {width}", verb="does not divide")
    else:
        heads, note = text_heads, f"text heads: {text_heads}, as given"
    text = {
        "context_length": context,
        "vocab_size": vocabulary,
        "width": width,
        "heads": heads,
        "layers": count_blocks(shapes, r"transformer\.resblocks\.(\d+)\."),
        "mlp_ratio": _mlp_ratio(shapes, "transformer", width),
    }
    return text, note


def expected_shapes(architecture: Mapping[str, Any]) -> dict[str, Shape]:
    """Names and shapes of every tensor in the state dict of open_clip's CLIP of this architecture."""
    with torch.device("meta"):  # shapes alone, no memory
        model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"])
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _read_vit(shapes: Mapping[str, Shape], head_width: int | None) -> tuple[dict[str, Any], str]:
    width, _, patch, _ = shape_of(shapes, "visual.conv1.weight", 4)
    positions, _ = shape_of(shapes, "visual.positional_embedding", 2)
    grid = side_of(positions - 1, "visual.positional_embedding")
    if head_width is None and width > WIDEST_REGULAR:
        fix = (
            f"above {WIDEST_REGULAR} the attention heads of published models are not {HEAD_WIDTH} wide "
            "(ViT-H 80, ViT-g 88, ViT-bigG 104), and the tensors cannot tell; pass ",
            Argument("head_width"),
        )
        raise InputError(Problem("", None, f"the vision tower is {width} wide", fix, verb=""))
    heads = _heads(width, head_width or HEAD_WIDTH, "vision", "head_width", given=head_width is not None)
    vision = {
        "image_size": grid * patch,
        "patch_size": patch,
        "width": width,
        "layers": count_blocks(shapes, r"visual\.transformer\.resblocks\.(\d+)\."),
        "head_width": head_width or HEAD_WIDTH,
        "mlp_ratio": _mlp_ratio(shapes, "visual.transformer", width),
    }
    return vision, (
        f"vision tower: ViT, {vision['layers']} layers, width {width}, patch {patch}, image {grid * patch}, "
        f"{heads} heads ({_whence(head_width)})"
    )


def _read_resnet(shapes: Mapping[str, Shape], head_width: int | None) -> tuple[dict[str, Any], str]:
    width = shape_of(shapes, "visual.layer1.0.conv1.weight", 4)[0]
    positions, features = shape_of(shapes, "visual.attnpool.positional_embedding", 2)
    grid = side_of(positions - 1, "visual.attnpool.positional_embedding")
    heads = _heads(features, head_width or HEAD_WIDTH, "vision", "head_width", given=head_width is not None)
    vision = {
        "image_size": grid * RESNET_STRIDE,
        "width": width,
        "layers": [count_blocks(shapes, rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)],
        "head_width": head_width or HEAD_WIDTH,
    }
    return vision, (
        f"vision tower: modified ResNet, blocks {vision['layers']}, width {width}, image "
        f"{grid * RESNET_STRIDE}, {heads} heads in the attention pool ({_whence(head_width)})"
    )


def shape_of(shapes: Mapping[str, Shape], name: str, dimensions: int) -> Shape:
    shape = shapes.get(name)
    if shape is None:
        raise ValueError(f"{name} is not in the checkpoint: it is needed to tell the sizes of the model")
    if len(shape) != dimensions or 0 in shape:
        raise ValueError(f"{name} has shape {shape}: expected {dimensions} dimensions, none of them zero")
    return shape


def count_blocks(shapes: Mapping[str, Shape], pattern: str) -> int:
    return len({found[1] for name in shapes if (found := re.match(pattern, name))})


def _mlp_ratio(shapes: Mapping[str, Shape], tower: str, width: int) -> float:
    hidden = shape_of(shapes, f"{tower}.resblocks.0.mlp.c_fc.weight", 2)[0]
    ratio = hidden / width
    # The model has int(width * ratio) hidden units: step over the rounding that would lose one.
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def side_of(positions: int, name: str) -> int:
    side = math.isqrt(max(positions, 0))
    if side < 1 or side * side != positions:
        raise ValueError(
            f"{name} has {positions} image positions, not a square: only square images are known"
        )
    return side


def _heads(width: int, head_width: int, tower: str, option: str, given: bool = False) -> int:
    if head_width < 1 or width % head_width:
        if given:
            raise wrong_option(option, head_width, f"the {tower} width {width}", verb="does not divide")
        found = f"the {tower} tower is {width} wide, no multiple of {head_width}"
        fix = ("the number of heads cannot be told from the tensors, pass ", Argument(option))
        raise InputError(Problem("", None, found, fix, verb=""))
    return width // head_width


def _whence(head_width: int | None) -> str:
    return (
        "heads 64 wide; not visible in the tensors"
        if head_width is None
        else f"heads {head_width} wide, as given"
    )
