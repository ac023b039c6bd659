"""Seeded weights of full size, drawn on the device: no file, and no copy of gigabytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cuda.measuring import Gpu


def drawn(gpu: Gpu, empty: nn.Module, *, seed: int = 0) -> dict[str, Tensor]:
    """Tensors for every name of a model on the meta device, float32, in one order for one seed.

    Matrices have the deviation that keeps the length of what they are applied to, norms are near one, biases
    near zero.
    """
    tensors = {}
    for index, (name, shape) in enumerate((name, t.shape) for name, t in empty.state_dict().items()):
        values = gpu.random(*shape or (1,), seed=seed + index)
        if not shape:
            values = torch.ones_like(values)[0]
        elif len(shape) > 1:
            values *= (shape[0] / values.numel()) ** 0.5
        else:
            values = values * 0.02 + float(is_norm(name))
        tensors[name] = values
    return tensors


def is_norm(name: str) -> bool:
    """Whether a vector is the weight of a norm, by the names of open_clip and transformers."""
    *_, module, kind = name.split(".") if "." in name else ("", name)
    return kind == "weight" and ("ln_" in module or "norm" in module.lower())


def encoder_of(
    gpu: Gpu,
    kind: Any,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    dtype: str,
    device: str | None = None,
) -> Any:
    """An encoder of these tensors, on the device that is measured or another one."""
    where = device or str(gpu.device)
    return kind(
        config, {k: t.to(where) for k, t in tensors.items()}, checksum="drawn", device=where, dtype=dtype
    )
