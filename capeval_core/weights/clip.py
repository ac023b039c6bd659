"""CLIP: original PAC-S checkpoints and open_clip's repositories in our format, sizes read off the tensors.

The releases of PAC-S differ in wrapping (``{"state_dict": ...}`` or bare), precision, prefixes and, for
PAC-S++, in low-rank adapters; all of them are one CLIP underneath.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from capeval_core.errors import InputError, Problem, option_name, setting, wrong_option
from capeval_core.options import option
from capeval_core.weights.adapters import Adapters, is_adapter, merge_adapters
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.conversion import (
    Conversion,
    Shapes,
    Tensors,
    as_float32,
    clip_preprocessing,
    count_blocks,
    shape_of,
    side_of,
)
from capeval_core.weights.folder import OPEN_CLIP_CONFIG, WeightsError

Activation = Literal["quick_gelu", "gelu"]

HEAD_WIDTH = 64
"""Of the attention heads in CLIP's towers, up to ViT-L/14; in wider ones it differs (80, 88, 104, ...)."""
_WIDEST_REGULAR = 1024
_RESNET_STRIDE = 32
"""The modified ResNet shrinks the image as many times before its attention pool."""
# The order in which a class registers the parts of a block is the order in which it saves them.
_OPENAI_BLOCK = ("attn", "ln_1", "mlp", "ln_2")
_OPEN_CLIP_BLOCK = ("ln_1", "attn", "ln_2", "mlp")
_PART = re.compile(r"((?:visual\.)?transformer\.resblocks\.\d+)\.(attn|ln_1|ln_2|mlp)\.")


@dataclass(frozen=True, kw_only=True)
class ClipConversion(Conversion):
    """PAC-S or PAC-S++ in OpenAI's or open_clip's naming, with or without adapters."""

    encoder = "clip"
    title = "CLIP"
    anchors = ("visual.conv1.weight",)
    unused = r"(input_resolution|context_length|vocab_size|attn_mask)$"

    activation: Activation | None = option(
        None,
        "of the transformer blocks; None: as adapters (they exist in OpenAI's code only) or the order of the "
        "tensors show",
    )
    head_width: int | None = option(None, "width of the vision tower's heads; None: 64", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    adapters: Adapters = option(
        "released", "low-rank adapters to merge: those that the released PAC-S++ script applies, all, or none"
    )

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        return merge_adapters(as_float32(content, notes), self.adapters, notes)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        heads = {"head_width": self.head_width, "text_heads": self.text_heads}
        architecture = read_architecture(shapes, notes, **heads)
        activation, evidence = _infer_activation(list(content), self.activation)
        resnet = isinstance(architecture["vision"]["layers"], list)
        notes.append(evidence + ("; it concerns the text tower, the ResNet has ReLU" if resnet else ""))
        return {
            "architecture": architecture,
            "activation": activation,
            "preprocessing": clip_preprocessing(architecture["vision"]["image_size"]),
            "constants": {"prompt": PROMPT},
        }


def _infer_activation(names: list[str], option: Activation | None) -> tuple[Activation, str]:
    """The activation of the blocks, and the sentence that gives the reason."""
    if option is not None:
        return option, f"activation: {option}, as given"
    if any(is_adapter(name) for name in names):
        return "quick_gelu", "activation: quick_gelu, because adapters exist in OpenAI's code only"
    orders = _block_orders(names)
    shown = f"because the order of the tensors ({', '.join(next(iter(orders), ()))}) is that of"
    if orders == {_OPENAI_BLOCK}:
        return "quick_gelu", f"activation: quick_gelu, {shown} OpenAI's code"
    if orders == {_OPEN_CLIP_BLOCK}:
        return "gelu", (
            f"activation: gelu, {shown} open_clip, whose models have the exact GELU unless built with "
            "quick_gelu; if this one holds OpenAI's weights, convert it again with activation='quick_gelu'"
        )
    found = (
        "the activation cannot be inferred: shapes do not show it, and the order of the tensors is neither "
        "that of OpenAI's code nor that of open_clip. "
    )
    released = setting("activation", "quick_gelu", "Pass ")
    more = " (OpenAI's models and what was tuned from them) or 'gelu' (open_clip's own)"
    raise InputError(Problem("", f"{found}{released}{more}"))


def _block_orders(names: Iterable[str]) -> set[tuple[str, ...]]:
    """The orders of first appearance of a block's four parts that occur in the checkpoint."""
    blocks: dict[str, dict[str, None]] = {}
    for name in names:
        if part := _PART.match(name):
            blocks.setdefault(part[1], {})[part[2]] = None
    return {tuple(parts) for parts in blocks.values()}


def read_architecture(
    shapes: Shapes, notes: list[str], *, head_width: int | None = None, text_heads: int | None = None
) -> dict[str, Any]:
    """Architecture (keys of open_clip's configuration) of the CLIP with tensors of these shapes.

    Head counts leave no trace in shapes: they are width / 64 unless they are given.
    """
    text = read_text(shapes, notes, text_heads)
    embed_dim = shape_of(shapes, "text_projection", 2)[1]
    read_vision = _read_resnet if "visual.layer1.0.conv1.weight" in shapes else _read_vit
    return {"embed_dim": embed_dim, "vision": read_vision(shapes, notes, head_width), "text": text}


def read_text(shapes: Shapes, notes: list[str], text_heads: int | None = None) -> dict[str, Any]:
    """Architecture of the text tower; otherwise as `read_architecture`."""
    context, width = shape_of(shapes, "positional_embedding", 2)
    vocabulary, _ = shape_of(shapes, "token_embedding.weight", 2)
    if text_heads is not None and width % text_heads:
        raise wrong_option("text_heads", text_heads, f"the text width {width}", verb="does not divide")
    heads = text_heads or _heads(width, None, "text", "text_heads")
    given = "as given" if text_heads else f"width {width} / {HEAD_WIDTH}; not visible in the tensors"
    notes.append(f"text heads: {heads} ({given})")
    return {
        "context_length": context,
        "vocab_size": vocabulary,
        "width": width,
        "heads": heads,
        "layers": count_blocks(shapes, r"transformer\.resblocks\.(\d+)\."),
        "mlp_ratio": _mlp_ratio(shapes, "transformer", width),
    }


def _read_vit(shapes: Shapes, notes: list[str], head_width: int | None) -> dict[str, Any]:
    width, _, patch, _ = shape_of(shapes, "visual.conv1.weight", 4)
    positions, _ = shape_of(shapes, "visual.positional_embedding", 2)
    size = side_of(positions - 1, "visual.positional_embedding") * patch
    if head_width is None and width > _WIDEST_REGULAR:
        fix = (
            f"above {_WIDEST_REGULAR} the attention heads of published models are not {HEAD_WIDTH} wide "
            "(ViT-H 80, ViT-g 88, ViT-bigG 104), and the tensors do not show them; pass "
            f"{option_name('head_width')}"
        )
        raise InputError(Problem("", f"the vision tower is {width} wide", fix))
    heads = _heads(width, head_width, "vision", "head_width")
    layers = count_blocks(shapes, r"visual\.transformer\.resblocks\.(\d+)\.")
    kind = f"ViT, {layers} layers, width {width}, patch {patch}, image {size}, {heads} heads"
    notes.append(f"vision tower: {kind} ({_head_note(head_width)})")
    return {
        "image_size": size,
        "patch_size": patch,
        "width": width,
        "layers": layers,
        "head_width": head_width or HEAD_WIDTH,
        "mlp_ratio": _mlp_ratio(shapes, "visual.transformer", width),
    }


def _read_resnet(shapes: Shapes, notes: list[str], head_width: int | None) -> dict[str, Any]:
    width = shape_of(shapes, "visual.layer1.0.conv1.weight", 4)[0]
    positions, features = shape_of(shapes, "visual.attnpool.positional_embedding", 2)
    size = side_of(positions - 1, "visual.attnpool.positional_embedding") * _RESNET_STRIDE
    heads = _heads(features, head_width, "vision", "head_width")
    layers = [count_blocks(shapes, rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)]
    kind = (
        f"modified ResNet, blocks {layers}, width {width}, image {size}, {heads} heads in the attention pool"
    )
    notes.append(f"vision tower: {kind} ({_head_note(head_width)})")
    return {"image_size": size, "width": width, "layers": layers, "head_width": head_width or HEAD_WIDTH}


def _mlp_ratio(shapes: Shapes, tower: str, width: int) -> float:
    hidden = shape_of(shapes, f"{tower}.resblocks.0.mlp.c_fc.weight", 2)[0]
    ratio = hidden / width
    # The model has int(width * ratio) hidden units: step over the rounding that would lose one.
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def _heads(width: int, head_width: int | None, tower: str, option: str) -> int:
    if head_width is None and width % HEAD_WIDTH:
        found = f"the {tower} tower is {width} wide, no multiple of {HEAD_WIDTH}"
        fix = f"the tensors do not show the number of heads, pass {option_name(option)}"
        raise InputError(Problem("", found, fix))
    if head_width is not None and width % head_width:
        raise wrong_option(option, head_width, f"the {tower} width {width}", verb="does not divide")
    return width // (head_width or HEAD_WIDTH)


def _head_note(head_width: int | None) -> str:
    if head_width is None:
        return f"heads {HEAD_WIDTH} wide; not visible in the tensors"
    return f"heads {head_width} wide, as given"


def translate_open_clip(config: dict[str, Any]) -> dict[str, Any]:
    """open_clip's repository format in ours."""
    try:
        model, preprocess = config["model_cfg"], config["preprocess_cfg"]
        vision, text = model["vision_cfg"], model["text_cfg"]
        for name, part in (("vision_cfg", vision), ("text_cfg", text), ("preprocess_cfg", preprocess)):
            if not isinstance(part, dict):
                raise WeightsError(f"{OPEN_CLIP_CONFIG}: {name} is no object")
        if not isinstance(quick_gelu := model.get("quick_gelu", False), bool):
            raise WeightsError(f"{OPEN_CLIP_CONFIG}: quick_gelu is {quick_gelu!r}, expected true or false")
        size = preprocess.get("size", vision["image_size"])
        if isinstance(size, list):
            if not size or any(side != size[0] for side in size):
                raise WeightsError(f"size {size} is not square, as CLIP's images are")
            size = size[0]
        if (mode := preprocess.get("resize_mode", "shortest")) != "shortest":
            raise WeightsError(f"resize_mode {mode!r} is not CLIP's 'shortest'")
        statistics = {"mean": preprocess["mean"], "std": preprocess["std"]}
        interpolation = preprocess.get("interpolation", "bicubic")
        return {
            "format": 1,
            "encoder": "clip",
            "architecture": {"embed_dim": model["embed_dim"], "vision": vision, "text": text},
            "activation": "quick_gelu" if quick_gelu else "gelu",
            "preprocessing": {"image_size": size, **statistics, "interpolation": interpolation},
        }
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{OPEN_CLIP_CONFIG} lacks {error}") from error
