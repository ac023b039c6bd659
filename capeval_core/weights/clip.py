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
    heads_of,
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
        notes.append(f"activation: {activation}, {evidence}")
        return {
            "architecture": architecture,
            "activation": activation,
            "preprocessing": clip_preprocessing(architecture["vision"]["image_size"]),
            "constants": {"prompt": PROMPT},
        }


def _infer_activation(names: list[str], option: Activation | None) -> tuple[Activation, str]:
    """The activation of the blocks, and the reason."""
    if option is not None:
        return option, "as given"
    if any(is_adapter(name) for name in names):
        return "quick_gelu", "because adapters exist in OpenAI's code only"
    orders = _block_orders(names)
    if orders == {_OPENAI_BLOCK}:
        return "quick_gelu", "because the order of the tensors is that of OpenAI's code"
    if orders == {_OPEN_CLIP_BLOCK}:
        return "gelu", (
            "because the order of the tensors is that of open_clip, whose models have the exact GELU unless "
            "built with quick_gelu; if this one holds OpenAI's weights, convert it again with "
            "activation='quick_gelu'"
        )
    released = setting("activation", "quick_gelu", "pass ")
    found = "the activation cannot be inferred: neither shapes nor the order of the tensors show it"
    more = f"{released} (OpenAI's models and what was tuned from them) or 'gelu' (open_clip's own)"
    raise InputError(Problem("", found, more))


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
    notes.append(f"heads of the image tower: {head_width or HEAD_WIDTH} wide (not visible in the tensors)")
    return {"embed_dim": embed_dim, "vision": read_vision(shapes, head_width), "text": text}


def read_text(shapes: Shapes, notes: list[str], text_heads: int | None = None) -> dict[str, Any]:
    """Architecture of the text tower; otherwise as `read_architecture`."""
    context, width = shape_of(shapes, "positional_embedding", 2)
    heads = heads_of(width, text_heads, HEAD_WIDTH, "text_heads")
    notes.append(f"text heads: {heads} of width {width // heads} (not visible in the tensors)")
    return {
        "context_length": context,
        "vocab_size": shape_of(shapes, "token_embedding.weight", 2)[0],
        "width": width,
        "heads": heads,
        "layers": count_blocks(shapes, r"transformer\.resblocks\.(\d+)\."),
        "mlp_ratio": _mlp_ratio(shapes, "transformer", width),
    }


def _read_vit(shapes: Shapes, head_width: int | None) -> dict[str, Any]:
    width, _, patch, _ = shape_of(shapes, "visual.conv1.weight", 4)
    positions, _ = shape_of(shapes, "visual.positional_embedding", 2)
    if head_width is None and width > _WIDEST_REGULAR:
        fix = (
            f"above {_WIDEST_REGULAR} the attention heads of published models are not {HEAD_WIDTH} wide "
            "(ViT-H 80, ViT-g 88, ViT-bigG 104), and the tensors do not show them; pass "
            f"{option_name('head_width')}"
        )
        raise InputError(Problem("", f"the vision tower is {width} wide", fix))
    return {
        "image_size": side_of(positions - 1, "visual.positional_embedding") * patch,
        "patch_size": patch,
        "width": width,
        "layers": count_blocks(shapes, r"visual\.transformer\.resblocks\.(\d+)\."),
        "head_width": head_width_of(width, head_width or HEAD_WIDTH),
        "mlp_ratio": _mlp_ratio(shapes, "visual.transformer", width),
    }


def _read_resnet(shapes: Shapes, head_width: int | None) -> dict[str, Any]:
    positions, features = shape_of(shapes, "visual.attnpool.positional_embedding", 2)
    return {
        "image_size": side_of(positions - 1, "visual.attnpool.positional_embedding") * _RESNET_STRIDE,
        "width": shape_of(shapes, "visual.layer1.0.conv1.weight", 4)[0],
        "layers": [count_blocks(shapes, rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)],
        "head_width": head_width_of(features, head_width or HEAD_WIDTH),
    }


def head_width_of(width: int, own: int) -> int:
    """The width of the heads of an image tower, which must share its width."""
    if width % own:
        raise wrong_option("head_width", own, f"the width {width} of the image tower", verb="does not divide")
    return own


def _mlp_ratio(shapes: Shapes, tower: str, width: int) -> float:
    hidden = shape_of(shapes, f"{tower}.resblocks.0.mlp.c_fc.weight", 2)[0]
    ratio = hidden / width
    # The model has int(width * ratio) hidden units: step over the rounding that would lose one.
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def translate_open_clip(config: dict[str, Any]) -> dict[str, Any]:
    """open_clip's repository format in ours."""
    try:
        model, preprocess = config["model_cfg"], config["preprocess_cfg"]
        vision, text = model["vision_cfg"], model["text_cfg"]
        sizes = preprocess.get("size", vision["image_size"])
        sizes = sizes if isinstance(sizes, list) else [sizes]
        expected = {
            "vision_cfg and text_cfg": isinstance(vision, dict) and isinstance(text, dict),
            "quick_gelu": isinstance(model.get("quick_gelu", False), bool),
            "size, which is square in CLIP": len(set(sizes)) == 1,
            "resize_mode, which is 'shortest' in CLIP": preprocess.get("resize_mode", "shortest")
            == "shortest",
        }
        if wrong := [name for name, well in expected.items() if not well]:
            raise WeightsError(f"{OPEN_CLIP_CONFIG} has another {wrong[0]}")
        return {
            "format": 1,
            "encoder": "clip",
            "architecture": {"embed_dim": model["embed_dim"], "vision": vision, "text": text},
            "activation": "quick_gelu" if model.get("quick_gelu", False) else "gelu",
            "preprocessing": {
                "image_size": sizes[0],
                "mean": preprocess["mean"],
                "std": preprocess["std"],
                "interpolation": preprocess.get("interpolation", "bicubic"),
            },
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{OPEN_CLIP_CONFIG} lacks {error}") from error
