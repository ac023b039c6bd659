"""CLIP: original PAC-S checkpoints and open_clip's repositories in our format, sizes read off the tensors.

The releases of PAC-S differ in wrapping (``{"state_dict": ...}`` or bare), precision, prefixes and, for
PAC-S++, in low-rank adapters, which are merged into the weights that they change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from capeval_core.errors import InputError, Problem, setting, wrong_option
from capeval_core.inputs.images import Resize
from capeval_core.options import option
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.conversion import (
    Conversion,
    Shapes,
    Tensors,
    clip_preprocessing,
    count_blocks,
    heads_of,
    joined,
    side_of,
)
from capeval_core.weights.folder import OPEN_CLIP_CONFIG, WeightsError

Activation = Literal["quick_gelu", "gelu"]
Adapters = Literal["released", "all", "none"]

ALPHA = 1.0  # the scale of an adapter's update is alpha / r; PAC-S++ was trained with alpha = 1
_ADAPTER = re.compile(
    r"(visual\.conv1"
    r"|(?:visual\.)?transformer\.resblocks\.\d+\.(?:attn\.in_proj_weight|attn\.out_proj|mlp\.c_fc|mlp\.c_proj))"
    r"[._]lora_([AB])"
)
_MODES = (
    "a checkpoint written in evaluation mode has them in its MLP weights already (compare mlp.c_fc.weight "
    "with the CLIP that was tuned: equal means not yet added); one of training mode needs adapters='all'"
)
# The width of attention heads in CLIP's towers, up to ViT-L/14; in wider ones it differs (80, 88, 104, ...).
_HEAD_WIDTH = 64
_WIDEST_REGULAR = 1024
_CONTEXT = 77
_LONG = re.compile(r"position(al)?_embedding_res$")
# Long-CLIP has two tables of positions: it adds the first 20 of the one, which CLIP's texts have trained
# well, and all others of the second.
_SHORT_POSITIONS = 20
_RESNET_STRIDE = 32  # the modified ResNet shrinks the image as many times before its attention pool
# The order in which a class registers the parts of a block is the order in which it saves them.
_OPENAI_BLOCK = ("attn", "ln_1", "mlp", "ln_2")
_OPEN_CLIP_BLOCK = ("ln_1", "attn", "ln_2", "mlp")
_PART = re.compile(r"((?:visual\.)?transformer\.resblocks\.\d+)\.(attn|ln_1|ln_2|mlp)\.")


def low_rank_update(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The change of `weight` that an adapter stands for: ``(B @ A) * alpha / r`` in float64. For a matrix
    (out, in), `a` is (r, in) and `b` (out, r). For a convolution (out, in, k, k), `a` is (r*k, in*k), `b`
    (out*k, r*k), and the product is read row by row as (out, in, k, k)."""
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    rank = a.shape[0] // kernel
    # In float64: weight and update are rounded once, as their sum, not each.
    update = b.double() @ a.double()
    if update.shape != (weight.shape[0] * kernel, weight.shape[1] * kernel):
        raise ValueError(f"A {tuple(a.shape)} and B {tuple(b.shape)} change no weight {tuple(weight.shape)}")
    return update.reshape(weight.shape) * (ALPHA / rank)


def merge_adapters(tensors: Tensors, adapters: Adapters, notes: list[str]) -> Tensors:
    """Tensors of the plain model, with the chosen adapters added to their weights. `adapters` is
    ``"released"`` (those that the released PAC-S++ script applies: attention and patch embedding, not the
    MLP), ``"all"`` or ``"none"``. Sums are made in float64 and kept as float32."""
    plain: Tensors = {}
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if "lora" not in name.lower():
            plain[name] = tensor
            continue
        parts = _ADAPTER.fullmatch(name)
        if parts is None:
            places = "attn.in_proj_weight, attn.out_proj, mlp.c_fc, mlp.c_proj and visual.conv1"
            raise ValueError(f"unknown adapter {name}: PAC-S++ has them at {places}")
        target = parts[1] if parts[1].endswith("in_proj_weight") else f"{parts[1]}.weight"
        pairs.setdefault(target, {})[parts[2]] = tensor
    merged = 0
    for target, halves in pairs.items():
        try:
            update = low_rank_update(plain[target], halves["A"], halves["B"])
        except (RuntimeError, KeyError, ValueError, IndexError, ZeroDivisionError) as error:
            problem = f"adapter of {target} does not fit it, or lacks a half ({error})"
            raise ValueError(f"{problem}: the checkpoint is not whole") from error
        if adapters == "all" or (adapters == "released" and ".mlp." not in target):
            plain[target] = (plain[target].double() + update).float()
            merged += 1
    ignored = len(pairs) - merged
    if not pairs:
        notes.append("no adapters in the checkpoint: its weights are taken as they are")
        return plain
    notes.append(f"{merged} low-rank adapters were merged into their weights, {ignored} ignored ({adapters})")
    if adapters == "released" and ignored:
        notes.append("the released script ignores adapters of MLP layers, which it takes for merged ones")
    if adapters != "none":
        # No tensor shows in which mode a checkpoint was written, so the user has to know.
        notes.append(_MODES)
    return plain


@dataclass(frozen=True, kw_only=True)
class ClipConversion(Conversion):
    """PAC-S or PAC-S++ in OpenAI's or open_clip's naming, with or without adapters."""

    encoder = "clip"

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
        tensors = super().translate(joined(content), notes)
        if "visual_projection.weight" in content:
            # transformers' projections are linear layers (out, in), OpenAI's are matrices (in, out).
            for name in ("text_projection", "visual.proj"):
                tensors[name] = tensors[name].T.contiguous()
            notes.append("names: transformers', translated into OpenAI's")
        stretched = tensors.pop("positional_embedding_res", None)
        if stretched is not None:
            first_positions = tensors["positional_embedding"][:_SHORT_POSITIONS]
            tensors["positional_embedding"] = torch.cat([first_positions, stretched[_SHORT_POSITIONS:]])
            table = f"the first {_SHORT_POSITIONS} of one table, the others of Long-CLIP's second"
            notes.append(f"positions: {table}")
        return merge_adapters(tensors, self.adapters, notes)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        heads = {"head_width": self.head_width, "text_heads": self.text_heads}
        architecture = read_architecture(shapes, notes, **heads)
        activation, evidence = _infer_activation(list(content), self.activation)
        notes.append(f"activation: {activation}, {evidence}")
        return {
            "architecture": architecture,
            "activation": activation,
            "preprocessing": clip_preprocessing(architecture["vision"]["image_size"]),
            # Each metric puts its own prompt before what Long-CLIP reads.
            "constants": {} if architecture["text"]["context_length"] > _CONTEXT else {"prompt": PROMPT},
        }


def _infer_activation(names: list[str], option: Activation | None) -> tuple[Activation, str]:
    """The activation of the blocks, and the reason."""
    if option is not None:
        return option, "as given"
    if any("lora" in name.lower() for name in names):
        return "quick_gelu", "because adapters exist in OpenAI's code only"
    if any(map(_LONG.search, names)):
        return "quick_gelu", "because Long-CLIP was tuned from OpenAI's models"
    blocks: dict[str, dict[str, None]] = {}  # a dict in place of a set, since the order is what is read
    for name in names:
        part = _PART.match(name)
        if part:
            blocks.setdefault(part[1], {})[part[2]] = None
    orders = {tuple(parts) for parts in blocks.values()}
    if orders == {_OPENAI_BLOCK}:
        return "quick_gelu", "because the order of the tensors is that of OpenAI's code"
    if orders == {_OPEN_CLIP_BLOCK}:
        return "gelu", (
            "because the order of the tensors is that of open_clip, whose models have the exact GELU unless "
            "built with quick_gelu; if this one holds OpenAI's weights, convert it again with "
            f"{setting('activation', 'quick_gelu')}"
        )
    released = setting("activation", "quick_gelu", "pass ")
    problem = "the activation cannot be inferred: neither shapes nor the order of the tensors show it"
    more = f"{released} (OpenAI's models and what was tuned from them) or 'gelu' (open_clip's own)"
    raise InputError(Problem("", problem, more))


def read_architecture(
    shapes: Shapes, notes: list[str], *, head_width: int | None = None, text_heads: int | None = None
) -> dict[str, Any]:
    """Architecture (keys of open_clip's configuration) of the CLIP with tensors of these shapes. Head counts
    leave no trace in shapes: they are width / 64 unless they are given."""
    text = read_text(shapes, notes, text_heads)
    embed_dim = shapes["text_projection"][1]
    read_vision = _read_resnet if "visual.layer1.0.conv1.weight" in shapes else _read_vit
    notes.append(f"heads of the image tower: {head_width or _HEAD_WIDTH} wide (not visible in the tensors)")
    return {"embed_dim": embed_dim, "vision": read_vision(shapes, head_width), "text": text}


def read_text(shapes: Shapes, notes: list[str], text_heads: int | None = None) -> dict[str, Any]:
    """Architecture of the text tower; otherwise as `read_architecture`."""
    context, width = shapes["positional_embedding"]
    heads = heads_of(width, text_heads, _HEAD_WIDTH, "text_heads")
    notes.append(f"text heads: {heads} of width {width // heads} (not visible in the tensors)")
    return {
        "context_length": context,
        "vocab_size": shapes["token_embedding.weight"][0],
        "width": width,
        "heads": heads,
        "layers": count_blocks(shapes, r"transformer\.resblocks\.(\d+)\."),
        "mlp_ratio": _mlp_ratio(shapes, "transformer", width),
    }


def _read_vit(shapes: Shapes, head_width: int | None) -> dict[str, Any]:
    width, _, patch, _ = shapes["visual.conv1.weight"]
    positions, _ = shapes["visual.positional_embedding"]
    if head_width is None and width > _WIDEST_REGULAR:
        fix = (
            f"above {_WIDEST_REGULAR} the attention heads of published models are not {_HEAD_WIDTH} wide "
            "(ViT-H 80, ViT-g 88, ViT-bigG 104), and the tensors do not show them; pass "
            f"{setting('head_width', 'N')}"
        )
        raise InputError(Problem("", f"the vision tower is {width} wide", fix))
    return {
        "image_size": side_of(positions - 1, "visual.positional_embedding") * patch,
        "patch_size": patch,
        "width": width,
        "layers": count_blocks(shapes, r"visual\.transformer\.resblocks\.(\d+)\."),
        "head_width": head_width_of(width, head_width or _HEAD_WIDTH),
        "mlp_ratio": _mlp_ratio(shapes, "visual.transformer", width),
    }


def _read_resnet(shapes: Shapes, head_width: int | None) -> dict[str, Any]:
    # The attention pool is the only part that knows the size of images: a convolution takes any.
    positions, features = shapes["visual.attnpool.positional_embedding"]
    return {
        "image_size": side_of(positions - 1, "visual.attnpool.positional_embedding") * _RESNET_STRIDE,
        "width": shapes["visual.layer1.0.conv1.weight"][0],
        "layers": [count_blocks(shapes, rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)],
        "head_width": head_width_of(features, head_width or _HEAD_WIDTH),
    }


def head_width_of(width: int, head_width: int) -> int:
    """The width of the heads of an image tower, which must share its width."""
    if width % head_width:
        raise wrong_option("head_width", head_width, f"does not divide the width {width} of the image tower")
    return head_width


def _mlp_ratio(shapes: Shapes, tower: str, width: int) -> float:
    hidden = shapes[f"{tower}.resblocks.0.mlp.c_fc.weight"][0]
    ratio = hidden / width
    # The model has int(width * ratio) hidden units: step over the rounding that would lose one.
    while int(width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def translate_open_clip(config: dict[str, Any]) -> dict[str, Any]:
    """open_clip's repository format in ours."""
    try:
        model = config["model_cfg"]
        preprocess = config["preprocess_cfg"]
        vision = model["vision_cfg"]
        text = model["text_cfg"]
        size = preprocess.get("size", vision["image_size"])
        sides = set(size) if isinstance(size, list) else {size}  # a number, or height and width
        resize = preprocess.get("resize_mode", "shortest")
        if len(sides) != 1 or resize not in get_args(Resize):
            expected = " or ".join(get_args(Resize))
            raise ValueError(f"images are {size} by {resize!r}, expected squares by {expected}")
        if resize == "longest" and preprocess.get("fill_color", 0) != 0:
            raise ValueError(f"margins of images are {preprocess['fill_color']!r}, expected 0")
        preprocessing = {
            "image_size": sides.pop(),
            "mean": preprocess["mean"],
            "std": preprocess["std"],
            "interpolation": preprocess.get("interpolation", "bicubic"),
        }
        # The usual way is left out: fingerprints of weights that were opened before stay as they are.
        if resize != "shortest":
            preprocessing["resize"] = resize
        return {
            "format": 1,
            "encoder": "clip",
            "architecture": {"embed_dim": model["embed_dim"], "vision": dict(vision), "text": dict(text)},
            "activation": "quick_gelu" if model.get("quick_gelu", False) else "gelu",
            "preprocessing": preprocessing,
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WeightsError(f"{OPEN_CLIP_CONFIG} cannot be understood ({error!r})") from error
