# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Greedy matching on CUDA: from rows to maxima, with no similarity matrix in memory.

A program matches one pair of sets, or a block of rows of both where they are large: it reads rows once, finds
their norms, and takes both directions from one tile in registers. Maxima of large sets meet in memory by an
atomic maximum on one 64-bit number, ordered as the similarity and then as the smaller index, so that no order
of execution changes it. Products of float32 are made in full ("ieee"), since TF32 keeps ten bits only.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from capeval_core.matching.ragged_sets import Best, Sets
from capeval_core.ragged import Integers, starts_of

Work = NDArray[Any]

# Rows of a tile's sides, by the bytes of a number: a set takes the smallest that holds it.
SIZES = {2: (16, 32, 64, 128), 4: (16, 32, 64)}
LOWEST = -(1 << 63)
FIELDS = 8  # numbers that tell a program its work; see `_work`


@triton.jit
def _code(similarity, index):
    """One number for both, larger if the similarity is, or if it is equal and the index is smaller."""
    similarity = tl.where(similarity == 0, 0.0, similarity)  # one zero, not two
    bits = similarity.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def _squares(rows, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    """(BLOCK, WIDTH / 8) sums of eight squares, which a thread has at hand."""
    wide = rows.to(tl.float32)
    return tl.sum(tl.reshape(wide * wide, (BLOCK, WIDTH // 8, 8)), axis=2)


@triton.jit
def _scale(squares, inside, odd):
    """1 / norm; `odd` is set where that is no ordinary number: a row to look at more closely."""
    norms = tl.sqrt_rn(tl.sum(squares, axis=1))
    ordinary = (norms > 1e-15) & (norms < 1e15)
    strange = tl.sum(tl.where(inside & (ordinary == 0), 1, 0), axis=0)
    tl.store(odd, 1, mask=strange > 0)
    return tl.div_rn(1.0, tl.where(ordinary, norms, 1.0))


@triton.jit
def _best(
    tile, axis: tl.constexpr, place, offset, inside, best, index, codes,
    INDICES: tl.constexpr, SPLIT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Keep the largest similarities over an axis of the tile, of which others hold more if it is SPLIT."""
    if SPLIT:
        nearest, which = tl.max(tile, axis=axis, return_indices=True)
        tl.atomic_max(codes + place, _code(nearest, which + offset), mask=inside)
    elif INDICES:
        nearest, which = tl.max(tile, axis=axis, return_indices=True)
        tl.store(best + place, nearest, mask=inside)
        tl.store(index + place, which.to(tl.int64), mask=inside)
    else:
        tl.store(best + place, tl.max(tile, axis=axis), mask=inside)


@triton.jit
def match_kernel(
    x, y, x_scale, y_scale, work, x_best, y_best, x_index, y_index, x_codes, y_codes, odd,
    WIDTH: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_D: tl.constexpr,  # noqa: N803
    MEASURED: tl.constexpr, INDICES: tl.constexpr, SPLIT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Program p does line p of `work`: up to BLOCK_X rows of an x set with up to BLOCK_Y of a y set. x, y:
    (n, WIDTH) rows; MEASURED: with their scales, else 1 / norm is found here. SPLIT: the sets have more rows,
    of which other programs take theirs, so that maxima meet in x_codes and y_codes."""
    line = work + tl.program_id(0).to(tl.int64) * 8
    x_first = tl.load(line).to(tl.int64)
    x_rows = tl.load(line + 1)
    x_at = tl.load(line + 2)
    y_first = tl.load(line + 3).to(tl.int64)
    y_rows = tl.load(line + 4)
    y_at = tl.load(line + 5)
    x_offset = tl.load(line + 6)
    y_offset = tl.load(line + 7)
    rows = tl.arange(0, BLOCK_X)
    columns = tl.arange(0, BLOCK_Y)
    dims = tl.arange(0, BLOCK_D)
    in_x = rows < x_rows
    in_y = columns < y_rows
    a_place = x + x_first * WIDTH + (rows[:, None] * WIDTH + dims[None, :])
    b_place = y + y_first * WIDTH + (columns[:, None] * WIDTH + dims[None, :])
    tile = tl.zeros((BLOCK_X, BLOCK_Y), tl.float32)
    x_squares = tl.zeros((BLOCK_X, BLOCK_D // 8), tl.float32)
    y_squares = tl.zeros((BLOCK_Y, BLOCK_D // 8), tl.float32)
    for d in range(0, WIDTH, BLOCK_D):
        a_inside = in_x[:, None]
        b_inside = in_y[:, None]
        if WIDTH % BLOCK_D != 0:
            in_d = (d + dims < WIDTH)[None, :]
            a_inside = a_inside & in_d
            b_inside = b_inside & in_d
        a = tl.load(a_place + d, mask=a_inside, other=0.0)
        b = tl.load(b_place + d, mask=b_inside, other=0.0)
        if not MEASURED:
            x_squares += _squares(a, BLOCK_X, BLOCK_D)
            y_squares += _squares(b, BLOCK_Y, BLOCK_D)
        tile = tl.dot(a, tl.trans(b), tile, input_precision="ieee")
    if MEASURED:
        scale_x = tl.load(x_scale + x_first + rows, mask=in_x, other=0.0)
        scale_y = tl.load(y_scale + y_first + columns, mask=in_y, other=0.0)
    else:
        scale_x = _scale(x_squares, in_x, odd)
        scale_y = _scale(y_squares, in_y, odd)
    tile = tile * scale_x[:, None] * scale_y[None, :]
    tile = tl.where(in_x[:, None] & in_y[None, :], tile, float("-inf"))
    _best(tile, 1, x_at + rows, y_offset, in_x, x_best, x_index, x_codes, INDICES, SPLIT)
    _best(tile, 0, y_at + columns, x_offset, in_y, y_best, y_index, y_codes, INDICES, SPLIT)


# With TRITON_INTERPRET=1, set before triton is imported, kernels run as Python, on tensors of the CPU too.
INTERPRETED = not isinstance(match_kernel, triton.JITFunction)


class Kind(NamedTuple):
    """Lines of `work` that one launch does: its tile's sides, and whether y sets are on its first side."""

    start: int
    stop: int
    x: int
    y: int
    swapped: bool
    split: bool


def _options(x: int, y: int, width: int, size: int) -> dict[str, int | bool]:
    """The launch of the kernel for sides of x and y rows of `width` numbers of `size` bytes."""
    # 128 bytes of each row at once, fewer where rows begin where no wide load can: the unrolled narrow
    # ones would need more registers than there are.
    aligned = math.gcd(width * size, 16)
    depth = min(max(16, 8 * aligned // size), max(16, triton.next_power_of_2(width)))
    cells = x * y
    stages = 3
    if size == 4:
        warps = 1 if cells <= 512 else 2 if cells <= 2048 else 8
    else:
        warps = 1 if cells <= 512 else 2 if cells <= 1024 else 4 if cells <= 8192 else 8
        if cells >= 8192:  # so that two programs and more fit a multiprocessor
            depth = max(16, depth // 2)
            stages = 4
    if aligned < 8:
        warps *= 2
    # Fused multiply-add is asked for by name, since Triton is changing its default.
    launch = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return {"BLOCK_X": x, "BLOCK_Y": y, "BLOCK_D": depth, **launch}


def match(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways, of float16, bfloat16 or float32 rows on one GPU; see
    `ragged_sets.reference`. Of equal similarities the first counts. Nothing here waits for the GPU."""
    rows = x.rows, y.rows
    if INTERPRETED and rows[0].dtype == torch.bfloat16:  # which the interpreter multiplies as whole numbers
        rows = x.rows.float(), y.rows.float()
    device = rows[0].device
    width = rows[0].shape[1]
    size = rows[0].element_size()
    best = x.unmatched(of_x, indices), y.unmatched(of_y, indices)
    maxima = [values for values, _ in best]
    number = np.int32 if max(map(len, (*rows, *maxima))) < 1 << 31 else np.int64
    sides = []
    for sets, which in ((x, of_x), (y, of_y)):
        lengths = sets.lengths[which]
        sides.append(np.stack([sets.starts[which], lengths, starts_of(lengths)]).astype(number))
    kinds, work = _work(sides[0], sides[1], SIZES[size])
    table = torch.from_numpy(work).to(device, non_blocking=True)
    odd = torch.zeros(1, dtype=torch.int32, device=device) if x.odd is None else x.odd
    split = any(kind.split for kind in kinds)
    sizes = [len(values) if split else 1 for values in maxima]
    codes = [torch.full((count,), LOWEST, dtype=torch.int64, device=device) for count in sizes]
    nearest = [code if index is None else index for code, (_, index) in zip(codes, best, strict=True)]
    scale = (x.scale, y.scale) if x.measured else rows
    for kind in kinds:
        large, small = (1, 0) if kind.swapped else (0, 1)  # the side with the larger block comes first
        match_kernel[(kind.stop - kind.start,)](
            rows[large], rows[small], scale[large], scale[small], table[kind.start : kind.stop],
            maxima[large], maxima[small], nearest[large], nearest[small], codes[large], codes[small], odd,
            WIDTH=width, MEASURED=x.measured, INDICES=indices, SPLIT=kind.split,
            **_options(kind.x, kind.y, width, size),
        )  # fmt: skip
    for code, (values_of_side, index) in zip(codes, best, strict=True) if split else ():
        has_value = code != LOWEST
        bits = (code >> 32).to(torch.int32)
        values = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)
        torch.where(has_value, values, values_of_side, out=values_of_side)
        if index is not None:
            torch.where(has_value, 0x7FFFFFFF - (code & 0xFFFFFFFF), index, out=index)
    return best


def _work(x: Work, y: Work, sizes: tuple[int, ...]) -> tuple[list[Kind], Work]:
    """(lines, FIELDS) what each program does, by kind, and the kinds; pairs with an empty set have no line.
    x, y: (3, pairs) first row, rows, first maximum. A line holds those of the side with the larger block, of
    the other side, and which rows of their sets the first ones are."""
    many = len(sizes)
    # The smallest block that holds so many rows, by their number.
    block_of = np.searchsorted(sizes, np.arange(sizes[-1] + 2)).astype(np.uint8)
    x_kind, y_kind = (block_of[np.minimum(side[1], sizes[-1] + 1)] for side in (x, y))
    swapped = x_kind < y_kind
    kind = x_kind * np.uint8(many + 1) + y_kind
    kind[(x[1] == 0) | (y[1] == 0)] = 255
    counts = np.bincount(kind, minlength=256)
    table = np.zeros((len(kind), FIELDS), np.result_type(*x, *y))
    for column, (of_x, of_y) in enumerate(zip(x, y, strict=True)):
        table[:, column] = np.where(swapped, of_y, of_x)
        table[:, column + 3] = np.where(swapped, of_x, of_y)
    if counts.max(initial=0) < len(kind):
        table = table[np.argsort(kind, kind="stable")]
    kinds = []
    parts = []
    start = 0
    line = 0
    for which in np.flatnonzero(counts[:255]).tolist():
        part = table[start : start + counts[which]]
        start += counts[which]
        small, large = sorted(divmod(which, many + 1))
        split = large == many
        if split:
            small = large = many - 1
            part = _blocks(part, sizes[-1])
        parts.append(part)
        swap = which // (many + 1) < which % (many + 1)
        kinds.append(Kind(line, line + len(part), sizes[large], sizes[small], swap, split))
        line += len(part)
    is_table = line == len(table) and not any(kind.split for kind in kinds)  # spares a copy
    return kinds, table if is_table else np.concatenate([table[:0], *parts])


def _blocks(part: Work, size: int) -> Work:
    """A line for each two blocks of so many rows; those of a pair are neighbours."""
    for first, rows, at, offset in ((0, 1, 2, 6), (3, 4, 5, 7)):
        blocks = -(-part[:, rows] // size)
        ends = np.cumsum(blocks)
        part = np.repeat(part, blocks, axis=0)
        skipped = (np.arange(len(part)) - np.repeat(ends - blocks, blocks)) * size
        part[:, offset] = skipped
        part[:, rows] = np.minimum(part[:, rows] - skipped, size)
        part[:, first] += skipped
        part[:, at] += skipped
    return part
