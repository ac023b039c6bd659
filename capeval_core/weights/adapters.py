"""The low-rank adapters of PAC-S++ checkpoints, merged into the weights that they change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import torch

Adapters = Literal["released", "all", "none"]

ALPHA = 1.0
"""The scale of an update is alpha / r; PAC-S++ was trained with alpha = 1."""

_NAME = re.compile(
    r"(?P<owner>visual\.conv1"
    r"|(?:visual\.)?transformer\.resblocks\.\d+\.(?:attn\.in_proj_weight|attn\.out_proj|mlp\.c_fc|mlp\.c_proj))"
    r"[._]lora_(?P<half>[AB])"
)
_MODES = (
    "A checkpoint written in training mode needs adapters='all' to give the model that was trained; one "
    "written in evaluation mode has them in its MLP weights already, and 'all' would add them twice (compare "
    "mlp.c_fc.weight with the CLIP that was tuned: equal means not yet added)"
)


def is_adapter(name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an adapter rather than to the model."""
    return "lora" in name.lower()


def low_rank_update(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The change of `weight` that an adapter stands for: ``(B @ A) * alpha / r`` in float64.

    For a matrix (out, in), `a` is (r, in) and `b` (out, r). For a convolution (out, in, k, k), `a` is
    (r*k, in*k), `b` (out*k, r*k), and the product is read row by row as (out, in, k, k).
    """
    kernel = weight.shape[-1] if weight.ndim == 4 else 1
    rows, columns = (weight.shape[0] * kernel, weight.shape[1] * kernel) if weight.ndim >= 2 else (0, 0)
    rank, odd = divmod(a.shape[0], kernel) if a.ndim == 2 else (0, 1)
    if odd or rank < 1 or tuple(a.shape[1:]) != (columns,) or tuple(b.shape) != (rows, a.shape[0]):
        raise ValueError(
            f"an adapter of a weight {tuple(weight.shape)} needs A (r*{kernel}, {columns}) and B ({rows}, "
            f"r*{kernel}), found A {tuple(a.shape)} and B {tuple(b.shape)}"
        )
    return (b.double() @ a.double()).reshape(weight.shape) * (ALPHA / rank)


def merge_adapters(
    tensors: Mapping[str, torch.Tensor], adapters: Adapters, notes: list[str]
) -> dict[str, torch.Tensor]:
    """Tensors of the plain model, with the chosen adapters added to their weights.

    `adapters` is ``"released"`` (those that the released PAC-S++ script applies: attention and patch
    embedding, not the MLP), ``"all"`` or ``"none"``. Sums are made in float64 and kept as float32.
    """
    plain = {name: tensor for name, tensor in tensors.items() if not is_adapter(name)}
    pairs = _pair_up([name for name in tensors if is_adapter(name)])
    merged = 0
    for target, (a, b) in pairs.items():
        if target not in plain:
            raise ValueError(f"adapter {a} has no weight to change: {target} is not in the checkpoint")
        try:
            update = low_rank_update(plain[target], tensors[a], tensors[b])
        except ValueError as error:
            raise ValueError(f"adapter {a}: {error}") from None
        if adapters == "all" or (adapters == "released" and ".mlp." not in target):
            plain[target] = (plain[target].double() + update).float()
            merged += 1
    notes += _notes(adapters, merged, len(pairs) - merged)
    return plain


def _pair_up(names: list[str]) -> dict[str, tuple[str, str]]:
    """Weight -> the names of its A and B, in the order of the checkpoint."""
    pairs: dict[str, dict[str, str]] = {}
    for name in names:
        parts = _NAME.fullmatch(name)
        if parts is None:
            known = "attn.in_proj_weight, attn.out_proj, mlp.c_fc, mlp.c_proj and visual.conv1"
            raise ValueError(f"unknown adapter {name}: PAC-S++ has them at {known}")
        owner = parts["owner"]
        target = owner if owner.endswith("in_proj_weight") else f"{owner}.weight"
        pairs.setdefault(target, {})[parts["half"]] = name
    for target, halves in pairs.items():
        if len(halves) == 1:
            ((half, name),) = halves.items()
            raise ValueError(f"adapter {name} lacks its other half, lora_{'AB'[half == 'A']} of {target}")
    return {target: (halves["A"], halves["B"]) for target, halves in pairs.items()}


def _notes(adapters: Adapters, merged: int, ignored: int) -> list[str]:
    if not merged + ignored:
        return ["no adapters in the checkpoint: its weights are taken as they are"]
    notes = [f"{merged} low-rank adapters were merged into their weights, {ignored} ignored ({adapters})"]
    if adapters == "released" and ignored:
        notes.append(
            "the released script ignores adapters of MLP layers: it enters evaluation mode before it loads "
            "the checkpoint, which marks these layers as merged"
        )
    return notes if adapters == "none" else [*notes, _MODES]
