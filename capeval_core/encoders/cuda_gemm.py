# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A matrix product whose activation is applied before it leaves the multiprocessor, for GPUs from Hopper on.

cuBLAS adds a bias on the way out, but knows neither QuickGELU nor exact GELU: after it they cost a pass over
the widest tensor of a block, to and from memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from capeval_core.encoders.cuda_kernels import activated


class Tiles(NamedTuple):
    """How the product is cut. persistent: a program for each multiprocessor, which loads the next tile while
    one is activated and stored; else a program for each tile."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    persistent: bool


TILES = (
    Tiles(128, 256, 64, 8, 4, persistent=False),
    Tiles(128, 256, 64, 8, 3, persistent=True),
    Tiles(128, 128, 64, 4, 3, persistent=False),  # two programs on a multiprocessor
    Tiles(128, 128, 64, 8, 3, persistent=False),
    Tiles(128, 128, 64, 4, 5, persistent=True),
)
"""The first is the default; `benchmarks/cuda/towers.py` times all."""


@triton.jit
def _tile(
    number, x, weight, bias, out, rows, columns, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, QUICK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    # Tiles that run together share rows of both, 8 tiles high, so that they meet them in the cache.
    high, wide = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    band = number // (8 * wide)
    height = tl.minimum(high - band * 8, 8)
    row = (band * 8 + number % (8 * wide) % height) * ROWS
    column = number % (8 * wide) // height * COLUMNS
    tile = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, depth, DEPTH):
        a = x.load([row, k])
        b = weight.load([column, k])
        tile = tl.dot(a, b.T, tile)
    at = column + tl.arange(0, COLUMNS)
    tile += tl.load(bias + at, mask=at < columns, other=0.0).to(tl.float32)[None, :]
    out.store([row, column], activated(tile, QUICK).to(out.dtype))


@triton.jit
def product_kernel(
    x, weight, bias, out, rows, columns, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, QUICK: tl.constexpr,  # noqa: N803
    PERSISTENT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """out = activation(x @ weight.T + bias); x, weight and out are descriptors of contiguous tensors.

    x: (rows, depth). weight: (columns, depth). bias: (columns,). out: (rows, columns).
    """
    number = tl.program_id(0)
    if PERSISTENT:
        count = tl.cdiv(rows, ROWS) * tl.cdiv(columns, COLUMNS)
        for each in tl.range(number, count, tl.num_programs(0), flatten=True):
            _tile(each, x, weight, bias, out, rows, columns, depth, ROWS, COLUMNS, DEPTH, QUICK)
    else:
        _tile(number, x, weight, bias, out, rows, columns, depth, ROWS, COLUMNS, DEPTH, QUICK)


def linear_activated(x: Tensor, weight: Tensor, bias: Tensor, quick: bool, tiles: Tiles = TILES[0]) -> Tensor:
    """(rows, columns) QuickGELU, or exact GELU, of x (rows, depth) @ weight (columns, depth).T + bias."""
    (rows, depth), columns = x.shape, len(weight)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    programs = triton.cdiv(rows, tiles.rows) * triton.cdiv(columns, tiles.columns)
    if tiles.persistent:
        programs = min(programs, torch.cuda.get_device_properties(x.device).multi_processor_count)
    product_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [tiles.rows, tiles.depth]),
        TensorDescriptor.from_tensor(weight, [tiles.columns, tiles.depth]),
        bias,
        TensorDescriptor.from_tensor(out, [tiles.rows, tiles.columns]),
        rows, columns, depth,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, QUICK=quick,
        PERSISTENT=tiles.persistent, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out
