# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Greedy matching on CUDA: a program for a pair of sets, from rows to maxima, no similarity matrix in memory.

A program holds a block of x rows and walks over the y rows, block by block, and over D inside. Each tile of
similarities lives in registers and yields both directions at once: maxima of its rows are carried along,
maxima of its columns are complete when all x rows are in the block, and are met in memory by an atomic
maximum otherwise. Similarity and index are one 64-bit number, ordered as the similarity and then as the
smaller index, so that the result depends on no order of execution. Products are added up in float32; 16-bit
rows go through the tensor cores, float32 rows are multiplied in full ("ieee"), since TF32 keeps ten bits of
them only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capeval_core.matching.sets import Best, Pairs, Sets, expand, starts_of

SIZES = (16, 32, 64)  # rows of a block: a set takes the smallest that holds it, or several of the largest
LOWEST = -(1 << 63)
NOTHING = 1 << 31  # the code of similarity 0 with row -1


@triton.jit
def _code(similarity, index):
    """One number for both, larger if the similarity is, or if it is equal and the index is smaller."""
    similarity = tl.where(similarity == 0, 0.0, similarity)  # one zero, not two
    bits = similarity.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def match_kernel(
    x, y, x_scale, y_scale, x_start, y_start, x_length, y_length, x_at, y_at, x_best, y_best, width,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Program (p, b) matches block b of the x rows of pair p with all its y rows.

    x, y: (n, width) rows with their scales. x_start, x_length: (pairs,) where the set of each pair begins and
    how many rows it has; x_at: (pairs,) where its maxima begin in x_best. SPLIT: some x set takes several
    blocks.
    """
    pair = tl.program_id(0)
    offset = tl.program_id(1) * BLOCK_X
    x_rows = tl.load(x_length + pair).to(tl.int32)
    y_rows = tl.load(y_length + pair).to(tl.int32)
    if offset < x_rows:
        x_first = tl.load(x_start + pair)
        y_first = tl.load(y_start + pair)
        rows = offset + tl.arange(0, BLOCK_X)
        in_x = rows < x_rows
        scale_x = tl.load(x_scale + x_first + rows, mask=in_x, other=0.0)
        best = tl.full((BLOCK_X,), float("-inf"), tl.float32)
        match = tl.zeros((BLOCK_X,), tl.int32)
        for first in range(0, y_rows, BLOCK_Y):
            columns = first + tl.arange(0, BLOCK_Y)
            in_y = columns < y_rows
            tile = tl.zeros((BLOCK_X, BLOCK_Y), tl.float32)
            for d in range(0, width, BLOCK_D):
                dims = d + tl.arange(0, BLOCK_D)
                in_d = dims < width
                a = tl.load(
                    x + (x_first + rows)[:, None] * width + dims[None, :],
                    mask=in_x[:, None] & in_d[None, :],
                    other=0.0,
                )
                b = tl.load(
                    y + (y_first + columns)[None, :] * width + dims[:, None],
                    mask=in_y[None, :] & in_d[:, None],
                    other=0.0,
                )
                tile = tl.dot(a, b, tile, input_precision="ieee")
            scale_y = tl.load(y_scale + y_first + columns, mask=in_y, other=0.0)
            tile = tl.where(
                in_x[:, None] & in_y[None, :], tile * scale_x[:, None] * scale_y[None, :], float("-inf")
            )
            nearest, which = tl.max(tile, axis=1, return_indices=True)
            match = tl.where(nearest > best, which + first, match)
            best = tl.maximum(nearest, best)
            nearest, which = tl.max(tile, axis=0, return_indices=True)
            codes = _code(nearest, which + offset)
            place = y_best + tl.load(y_at + pair) + columns
            if SPLIT:
                tl.atomic_max(place, codes, mask=in_y)
            else:
                tl.store(place, codes, mask=in_y)
        tl.store(x_best + tl.load(x_at + pair) + rows, _code(best, match), mask=in_x)


# With TRITON_INTERPRET=1, set before triton is imported, kernels run as Python, on tensors of the CPU too.
INTERPRETED = not isinstance(match_kernel, triton.JITFunction)


def launch_options(dtype: torch.dtype, block_x: int, block_y: int) -> dict[str, int]:
    """Block of D and warps for a tile of this size."""
    cells = block_x * block_y
    warps = 1 if cells <= 512 else 2 if cells <= 1024 else 4
    step = 32 if dtype == torch.float32 else 64
    # Fused multiply-add is asked for by name, since Triton is changing its default.
    return {"BLOCK_D": step, "num_warps": warps, "num_stages": 3, "enable_fp_fusion": True}


def best_matches(x: Sets, y: Sets, pairs: Pairs, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.Path`."""
    x_rows, y_rows = x.rows, y.rows
    if INTERPRETED and x_rows.dtype == torch.bfloat16:  # which the interpreter multiplies as whole numbers
        x_rows, y_rows = x_rows.float(), y_rows.float()
    x_lengths, y_lengths = x.lengths[pairs.x], y.lengths[pairs.y]
    x_at, y_at = starts_of(x_lengths), starts_of(y_lengths)
    x_best, y_best = (lengths.new_full((int(lengths.sum()),), NOTHING) for lengths in (x_lengths, y_lengths))
    edges = torch.tensor(SIZES[:-1], device=x_lengths.device)
    kind = torch.bucketize(x_lengths, edges) * len(SIZES) + torch.bucketize(y_lengths, edges)
    kind = torch.where((x_lengths > 0) & (y_lengths > 0), kind, -1)
    for found in torch.unique(kind).tolist():
        if found < 0:
            continue
        chosen = torch.nonzero(kind == found).flatten()
        block_x, block_y = SIZES[found // len(SIZES)], SIZES[found % len(SIZES)]
        blocks = triton.cdiv(int(x_lengths[chosen].max()), block_x)
        if blocks > 1:
            y_best[expand(y_at[chosen], y_lengths[chosen])] = LOWEST
        x_sets, y_sets = pairs.x[chosen], pairs.y[chosen]
        # Kernels run on the current GPU, which need not be that of the rows.
        with torch.cuda.device(x_rows.get_device()):
            match_kernel[(len(chosen), blocks)](
                x_rows, y_rows, x.scale, y.scale, x.starts[x_sets], y.starts[y_sets],
                x_lengths[chosen], y_lengths[chosen], x_at[chosen], y_at[chosen],
                x_best, y_best, x_rows.shape[1],
                BLOCK_X=block_x, BLOCK_Y=block_y, SPLIT=blocks > 1,
                **launch_options(x_rows.dtype, block_x, block_y),
            )  # fmt: skip
    return _decoded(x_best, indices), _decoded(y_best, indices)


def _decoded(codes: Tensor, indices: bool) -> Best:
    """What `_code` made one."""
    bits = (codes >> 32).to(torch.int32)
    maxima = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)
    return Best(maxima, 0x7FFFFFFF - (codes & 0xFFFFFFFF) if indices else None)
