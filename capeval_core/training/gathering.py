"""Rows of all processes, with gradients: what a loss over the global batch needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Gather(torch.autograd.Function):
    """All processes' rows; the gradient of a process's own rows is the sum of what all processes give."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, accelerator: Any) -> Tensor:
        ctx.accelerator, ctx.count = accelerator, len(rows)
        gathered: Tensor = accelerator.gather(rows.to(accelerator.device).contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total: Tensor = ctx.accelerator.reduce(gradient.contiguous(), "sum")
        start = ctx.accelerator.process_index * ctx.count
        return total[start : start + ctx.count], None


def gather_rows(rows: Tensor, accelerator: Any) -> Tensor:
    """(n * processes, ...) the rows of all processes in their order; each process has n of them.

    Where every process computes the same loss from them and gradients are then averaged over processes, the
    result is the gradient of that loss: each process's rows get as many equal parts as there are processes.
    """
    if accelerator.num_processes == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows, accelerator)
    return gathered
