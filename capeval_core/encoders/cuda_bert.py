# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A kernel of BERT's layers on CUDA: a residual sum and the layer norm behind it, in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capeval_core.encoders.cuda_kernels import _normalised, norm_options


@triton.jit
def add_norm_kernel(
    x, before, weight, bias, out, rows, width, epsilon,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """out = layer norm of x + before: x, before, out (rows, width); weight, bias (width,)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (columns < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + columns[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(before + place, mask=inside, other=0.0).to(tl.float32)
    values = _normalised(values, columns, inside, weight, bias, width, epsilon)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer norm of x + before, contiguous (rows, width) each; the sum is not rounded."""
    rows, width = x.shape
    out, options = torch.empty_like(x), norm_options(width)
    add_norm_kernel[(triton.cdiv(rows, options["ROWS"]),)](
        x, before, weight, bias, out, rows, width, epsilon, **options
    )
    return out
