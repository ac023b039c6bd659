# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Kernels of transformers on CUDA: what PyTorch does in several passes over memory, in one.

Each computes in float32 and rounds once, whatever the type of its tensors. Products of float32 are made in
full ("ieee"), since TF32 keeps ten bits only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def norm_kernel(
    x, added, weight, bias, out, rows, width, epsilon,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """out = layer norm of x + added: x, out (rows, width); weight, bias (width,). added: (width,), or with
    EACH (rows, width)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (columns < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + columns[None, :]  # int64: rows * width may pass 2^31
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if EACH:
        values += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
    else:
        values += tl.load(added + columns, mask=columns < width, other=0.0)[None, :]
    centred = tl.where(inside, values - (tl.sum(values, axis=1) / width)[:, None], 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=1) / width + epsilon)
    weights = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    biases = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    values = centred * scale[:, None] * weights[None, :] + biases[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def activation_kernel(x, count, QUICK: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """QuickGELU, or exact GELU, of `count` contiguous numbers, in place."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32)
    if QUICK:
        values = values / (1.0 + tl.exp(-1.702 * values))
    else:
        values = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    tl.store(x + place, values.to(x.dtype.element_ty), mask=place < count)


@triton.jit
def patch_kernel(
    pixels, out, count, mean_r, mean_g, mean_b, std_r, std_g, std_b,
    SIZE: tl.constexpr, PATCH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Patches of images, scaled: pixels (n, 3, SIZE, SIZE) of bytes -> out (n * grid * grid, PADDED). A row
    holds a patch as (3, PATCH, PATCH), then zeros."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = place // PADDED
    column = (place % PADDED).to(tl.int32)
    grid: tl.constexpr = SIZE // PATCH
    image = row // (grid * grid)
    cell = (row % (grid * grid)).to(tl.int32)
    channel = column // (PATCH * PATCH)
    inner = column % (PATCH * PATCH)
    y = cell // grid * PATCH + inner // PATCH
    x = cell % grid * PATCH + inner % PATCH
    real = (place < count) & (channel < 3)
    value = tl.load(pixels + ((image * 3 + channel) * SIZE + y) * SIZE + x, mask=real, other=0)
    mean = tl.where(channel == 0, mean_r, tl.where(channel == 1, mean_g, mean_b))
    std = tl.where(channel == 0, std_r, tl.where(channel == 1, std_g, std_b))
    scaled = tl.div_rn(tl.div_rn(value.to(tl.float32), 255.0) - mean, std)
    tl.store(out + place, tl.where(real, scaled, 0.0).to(out.dtype.element_ty), mask=place < count)


@triton.jit
def attention_kernel(
    query, keys, values, out, firsts, lengths, prefix, query_step, keys_step, values_step, width, scale,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    PREFIX: tl.constexpr, LAST: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Program (i, h): causal attention of sequence i in head h, whose keys all fit into one tile. Sequence i
    has `lengths[i]` rows from row `firsts[i]`; it sees the `prefix` rows at the front before its own. With
    LAST its only query is its last position's, in row i."""
    i = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(firsts + i).to(tl.int64)
    length = tl.load(lengths + i).to(tl.int32)
    dims = tl.arange(0, BLOCK_HEAD)
    real = (dims < HEAD)[None, :]
    at = head * HEAD + dims
    query_rows = tl.arange(0, QUERIES)
    if LAST:
        # `tl.dot` takes 16 rows at least, of which one is real.
        position = tl.zeros((QUERIES,), tl.int32) + length - 1
        rows = tl.zeros((QUERIES,), tl.int64) + i
        in_query = query_rows < 1
    else:
        position = query_rows
        rows = first + query_rows
        in_query = query_rows < length
    q = tl.load(query + rows[:, None] * query_step + at[None, :], mask=in_query[:, None] & real, other=0.0)
    key_rows = tl.arange(0, BLOCK)
    in_keys = (key_rows < length)[:, None] & real
    k = tl.load(keys + (first + key_rows)[:, None] * keys_step + at[None, :], mask=in_keys, other=0.0)
    v = tl.load(values + (first + key_rows)[:, None] * values_step + at[None, :], mask=in_keys, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    sees = (key_rows[None, :] <= position[:, None]) & (key_rows < length)[None, :]
    scores = tl.where(sees, scores, float("-inf"))
    highest = tl.max(scores, axis=1)
    # A row beyond the sequence sees its keys too, so that no maximum is minus infinity.
    if PREFIX:
        before = tl.arange(0, PREFIX)
        in_front = before < prefix
        in_prefix = in_front[:, None] & real
        k = tl.load(keys + before[:, None] * keys_step + at[None, :], mask=in_prefix, other=0.0)
        scores_before = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores_before = tl.where(in_front[None, :], scores_before, float("-inf"))
        highest = tl.maximum(highest, tl.max(scores_before, axis=1))
    weights = tl.exp(scores - highest[:, None])
    total = tl.sum(weights, axis=1)
    attended = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    if PREFIX:
        weights = tl.exp(scores_before - highest[:, None])
        total += tl.sum(weights, axis=1)
        v = tl.load(values + before[:, None] * values_step + at[None, :], mask=in_prefix, other=0.0)
        attended = tl.dot(weights.to(v.dtype), v, attended, input_precision="ieee")
    attended = attended / total[:, None]
    place = out + rows[:, None] * width + at[None, :]
    tl.store(place, attended.to(out.dtype.element_ty), mask=in_query[:, None] & real)


# With TRITON_INTERPRET=1, set before triton is imported, kernels run as Python, on tensors of the CPU too.
INTERPRETED = not isinstance(norm_kernel, triton.JITFunction)


def norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Layer norm of contiguous x (rows, width) + added, (width,) or of each row; the sum is not rounded."""
    rows, width = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    each = max(1, min(8, 8192 // block))  # a warp has a row, or two narrow ones: its sums need no other warp
    norm_kernel[(triton.cdiv(rows, each),)](
        x, added, weight, bias, out, rows, width, epsilon,
        EACH=added.dim() == 2, BLOCK=block, ROWS=each, num_warps=4,
    )  # fmt: skip
    return out


def activate(x: Tensor, quick: bool) -> Tensor:
    """QuickGELU, or exact GELU, of a contiguous tensor, in place."""
    activation_kernel[(triton.cdiv(x.numel(), 4096),)](x, x.numel(), QUICK=quick, BLOCK=4096, num_warps=8)
    return x


def patches(
    pixels: Tensor, patch: int, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """(n * grid * grid, columns) scaled patches of pixels (n, 3, s, s), uint8; columns padded to 16 bytes."""
    images = len(pixels)
    size = pixels.shape[-1]
    columns = triton.cdiv(3 * patch * patch, 8) * 8
    out = torch.empty(images * (size // patch) ** 2, columns, dtype=dtype, device=pixels.device)
    patch_kernel[(triton.cdiv(out.numel(), 1024),)](
        pixels, out, out.numel(), *mean, *std, SIZE=size, PATCH=patch, PADDED=columns, BLOCK=1024, num_warps=4
    )
    return out


def runs_of(lengths: Sequence[int]) -> list[tuple[slice, int]]:
    """Runs of sorted lengths whose tiles have as many rows, and how many."""
    runs: list[tuple[slice, int]] = []
    start = 0
    for i, length in enumerate(lengths):
        rows = max(16, triton.next_power_of_2(length))  # of a tile: `tl.dot` takes 16 at least
        if i + 1 == len(lengths) or max(16, triton.next_power_of_2(lengths[i + 1])) != rows:
            runs.append((slice(start, i + 1), rows))
            start = i + 1
    return runs


def causal_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    firsts: Tensor,
    lengths: Tensor,
    runs: Sequence[tuple[slice, int]],
    prefix: int,
    last: bool,
) -> Tensor:
    """(rows of query, width) causal attention of packed sequences; see `attention_kernel`."""
    width = query.shape[1]
    head = width // heads
    sizes = {"HEAD": head, "BLOCK_HEAD": max(16, triton.next_power_of_2(head)), "LAST": last}
    sizes["PREFIX"] = max(16, triton.next_power_of_2(prefix)) if prefix else 0
    # Rows that belong to no sequence stay unwritten: those of the prefix, without `last`.
    out = query.new_empty(query.shape)
    for part, block in runs:
        run_query = query
        run_out = out
        queries = block
        if last:
            # Row i of the query belongs to sequence i, so each run gets its own part.
            run_query = query[part]
            run_out = out[part]
            queries = 16
        # A small tile has work for one warp only.
        warps = 1 if queries * block <= 512 else 4 if queries * block <= 4096 else 8
        attention_kernel[(part.stop - part.start, heads)](
            run_query, keys, values, run_out, firsts[part], lengths[part], prefix,
            query.stride(0), keys.stride(0), values.stride(0), width, head**-0.5,
            QUERIES=queries, BLOCK=block, num_warps=warps, **sizes,
        )  # fmt: skip
    return out
