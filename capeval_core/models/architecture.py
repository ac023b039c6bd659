"""What a config says of a network: sizes that can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capeval_core.models.config import is_number, is_whole, shown

_LAYERS = range(1, 1_001)
_SIDE = range(1, 4_097)
_WIDTH = range(1, (1 << 20) + 1)
_INDEX = range(1 << 20)
_SIZES: dict[str, range] = {
    **dict.fromkeys(("layers", "num_hidden_layers", "cross_attention_frequency", "iou_head_depth"), _LAYERS),
    **dict.fromkeys(("image_size", "patch_size", "context_length", "num_query_tokens"), _SIDE),
    **dict.fromkeys(("width", "embed_dim", "head_width", "heads", "mlp_width", "vocab_size"), _WIDTH),
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads", "mlp_dim"), _WIDTH),
    **dict.fromkeys(("encoder_hidden_size", "max_position_embeddings", "image_text_hidden_size"), _WIDTH),
    **dict.fromkeys(("iou_head_hidden_dim", "mask_input_channels", "projection_dim", "region_size"), _WIDTH),
    **dict.fromkeys(("attention_downsample_rate", "num_multimask_outputs"), _SIDE),
    **dict.fromkeys(("pad_token_id", "window_size"), _INDEX),
}
"""Whole numbers of the networks here, and their bounds: far beyond any published network, and far below what
would take all memory, or hours, before a file is even looked at."""
_FACTORS = {"mlp_ratio": 64.0, "layer_norm_eps": 1.0}
"""Numbers above 0, and their bounds."""


def size_problems(section: Any, where: str) -> list[str]:
    """What is wrong with the sizes of a part of a config and of the parts inside it, in words.

    Whether anything is missing, and whether the tensors have these sizes, is asked elsewhere.

    >>> size_problems({"vision": {"layers": 12, "width": "wide"}}, "architecture")
    ["architecture.vision.width is 'wide', expected a whole number from 1 to 1,048,576"]
    """
    if not isinstance(section, Mapping):
        return []
    problems = []
    for name, value in section.items():
        key = f"{where}.{name}" if where else str(name)
        if value is not None and name in _SIZES:
            stages = value if name == "layers" and isinstance(value, list) and len(value) == 4 else [value]
            if not all(is_whole(each, _SIZES[name]) for each in stages):
                low, high = _SIZES[name][0], _SIZES[name][-1]
                problems.append(f"{key} is {shown(value)}, expected a whole number from {low} to {high:,}")
        elif value is not None and name in _FACTORS and not is_number(value, 0, _FACTORS[name]):
            problems.append(f"{key} is {shown(value)}, expected a number above 0, at most {_FACTORS[name]:g}")
        elif isinstance(value, Mapping):
            problems += size_problems(value, key)
    return problems


def scaling_problems(section: Mapping[str, Any]) -> list[str]:
    """What is wrong with the mean and the deviation by which pixels are scaled, in words."""
    problems = []
    for name, above, most in (("mean", -1e3, 1e3), ("std", 1e-4, 1e3)):
        values = section.get(name, [0.5, 0.5, 0.5])
        three = isinstance(values, (list, tuple)) and len(values) == 3
        if not three or not all(is_number(value, above, most) for value in values):
            problems.append(
                f"preprocessing.{name} is {shown(values)}, expected three numbers, one per channel"
                + (", above 0" if name == "std" else "")
            )
    return problems
