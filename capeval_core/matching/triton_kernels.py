# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Greedy matching on CUDA: from rows to maxima, with no similarity matrix in memory.

A program matches one pair of sets, or a block of rows of a large one. Rows are read once, their norms are
found as they pass, and each tile of similarities lives in registers and yields both directions: maxima of its
rows, and maxima of its columns. Sets of up to `SIZES[-1]` rows are one tile; of larger ones a program holds a
block of rows and walks over the other set, and columns meet in memory by an atomic maximum on one 64-bit
number, ordered as the similarity and then as the smaller index, so that no order of execution changes it.

Products are added up in float32; 16-bit rows go through the tensor cores, float32 rows are multiplied in full
("ieee"), since TF32 keeps ten bits of them only. This file needs torch, Triton and NumPy, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]

SIZES = {2: (16, 32, 64, 128), 4: (16, 32, 64)}
"""Rows of a tile's sides, by the bytes of a number: a set takes the smallest that holds it."""
LOWEST = -(1 << 63)
FIELDS = 8
"""Numbers that tell a program its work; see `_work`."""


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
def match_kernel(
    x, y, x_scale, y_scale, work, x_best, y_best, x_index, y_index, y_codes, odd,
    WIDTH: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_D: tl.constexpr,  # noqa: N803
    MEASURED: tl.constexpr, INDICES: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Program p does line p of `work`: up to BLOCK_X rows of an x set with all rows of a y set.

    x, y: (n, WIDTH) rows; MEASURED: with their scales, else 1 / norm is found here. SPLIT: a y set may take
    several blocks, and an x set several programs, so that maxima of its columns go to y_codes.
    """
    line = work + tl.program_id(0).to(tl.int64) * 8
    x_first, x_rows, x_at = tl.load(line).to(tl.int64), tl.load(line + 1), tl.load(line + 2)
    y_first, y_rows, y_at = tl.load(line + 3).to(tl.int64), tl.load(line + 4), tl.load(line + 5)
    x_offset = tl.load(line + 6)
    rows = tl.arange(0, BLOCK_X)
    in_x = rows < x_rows
    dims = tl.arange(0, BLOCK_D)
    a_place = x + x_first * WIDTH + (rows[:, None] * WIDTH + dims[None, :])
    best = tl.full((BLOCK_X,), float("-inf"), tl.float32)
    match = tl.zeros((BLOCK_X,), tl.int32)
    for first in range(0, y_rows if SPLIT else 1, BLOCK_Y):
        columns = tl.arange(0, BLOCK_Y)
        in_y = first + columns < y_rows
        b_place = y + (y_first + first) * WIDTH + (columns[:, None] * WIDTH + dims[None, :])
        tile = tl.zeros((BLOCK_X, BLOCK_Y), tl.float32)
        x_squares = tl.zeros((BLOCK_X, BLOCK_D // 8), tl.float32)
        y_squares = tl.zeros((BLOCK_Y, BLOCK_D // 8), tl.float32)
        for d in range(0, WIDTH, BLOCK_D):
            a_inside, b_inside = in_x[:, None], in_y[:, None]
            if WIDTH % BLOCK_D != 0:
                in_d = (d + dims < WIDTH)[None, :]
                a_inside, b_inside = a_inside & in_d, b_inside & in_d
            a = tl.load(a_place + d, mask=a_inside, other=0.0)
            b = tl.load(b_place + d, mask=b_inside, other=0.0)
            if not MEASURED:
                x_squares += _squares(a, BLOCK_X, BLOCK_D)
                y_squares += _squares(b, BLOCK_Y, BLOCK_D)
            if PRECISION == "ieee":
                tile = tl.dot(a, tl.trans(b), tile, input_precision=PRECISION)
            else:  # tensor cores add with truncation, so few products at a time
                tile = tl.fma(tl.dot(a, tl.trans(b), input_precision=PRECISION), 1.0, tile)
        if MEASURED:
            scale_x = tl.load(x_scale + x_first + rows, mask=in_x, other=0.0)
            scale_y = tl.load(y_scale + y_first + first + columns, mask=in_y, other=0.0)
        else:
            scale_x, scale_y = _scale(x_squares, in_x, odd), _scale(y_squares, in_y, odd)
        tile = tl.where(
            in_x[:, None] & in_y[None, :], tile * scale_x[:, None] * scale_y[None, :], float("-inf")
        )
        if INDICES:
            nearest, which = tl.max(tile, axis=1, return_indices=True)
            match = tl.where(nearest > best, which + first, match)
        else:
            nearest = tl.max(tile, axis=1)
        best = tl.maximum(nearest, best)
        if SPLIT:
            nearest, which = tl.max(tile, axis=0, return_indices=True)
            tl.atomic_max(y_codes + y_at + first + columns, _code(nearest, which + x_offset), mask=in_y)
        elif INDICES:
            nearest, which = tl.max(tile, axis=0, return_indices=True)
            tl.store(y_best + y_at + columns, nearest, mask=in_y)
            tl.store(y_index + y_at + columns, which.to(tl.int64), mask=in_y)
        else:
            tl.store(y_best + y_at + columns, tl.max(tile, axis=0), mask=in_y)
    tl.store(x_best + x_at + rows, best, mask=in_x)
    if INDICES:
        tl.store(x_index + x_at + rows, match.to(tl.int64), mask=in_x)


# With TRITON_INTERPRET=1, set before triton is imported, kernels run as Python, on tensors of the CPU too.
INTERPRETED = not isinstance(match_kernel, triton.JITFunction)


@dataclass(frozen=True)
class Tile:
    """How a kernel is compiled for sides of these sizes."""

    x: int
    y: int
    depth: int
    warps: int
    stages: int
    precision: str = "ieee"

    @classmethod
    def of(cls, x: int, y: int, width: int, size: int) -> Tile:
        """The tile for sides of x and y rows of `width` numbers of `size` bytes."""
        # 128 bytes of each row at once, fewer where rows begin where no wide load can: the unrolled narrow
        # ones would need more registers than there are.
        aligned = math.gcd(width * size, 16)
        depth = min(max(16, 8 * aligned // size), max(16, triton.next_power_of_2(width)))
        cells, stages = x * y, 3
        if size == 4:
            warps = 1 if cells <= 512 else 2 if cells <= 2048 else 4
        else:
            warps = 1 if cells <= 512 else 2 if cells <= 1024 else 4 if cells <= 8192 else 8
            if cells >= 8192:  # so that two programs and more fit a multiprocessor
                depth, stages = max(16, depth // 2), 4
        return cls(x, y, depth, warps, stages)

    def options(self) -> dict[str, int | str | bool]:
        """Arguments of the launch."""
        return {
            "BLOCK_X": self.x, "BLOCK_Y": self.y, "BLOCK_D": self.depth, "PRECISION": self.precision,
            "num_warps": self.warps, "num_stages": self.stages,
            # Fused multiply-add is asked for by name, since Triton is changing its default.
            "enable_fp_fusion": True,
        }  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One side of all pairs, on the host: its sets' lengths, and the set of each pair."""

    lengths: Integers
    of_pair: Integers

    def work(self) -> tuple[Integers, Integers, Integers]:
        """(pairs,) where the rows of each pair's set begin, how many they are, where their maxima go."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[self.of_pair]
        return starts[self.of_pair], lengths, np.cumsum(lengths) - lengths


def match(
    x: Tensor,
    y: Tensor,
    x_side: Side,
    y_side: Side,
    *,
    indices: bool = False,
    scales: tuple[Tensor, Tensor] | None = None,
    odd: Tensor | None = None,
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    """Largest cosine of each row of each pair with a row of the pair's other set, and which row that is.

    x, y: (rows, D) float16, bfloat16 or float32 on one GPU, packed set after set. Gives ((x rows of all
    pairs,) float32, int64 or None) and the same for y, in the order of the pairs; 0 and -1 where the other
    set is empty. Indices count from the start of the other set; of equal ones the first. With `scales`, one
    float32 for each row, similarities are products times these; else products over norms, and `odd` (1,)
    int32 becomes 1 if any norm is not within 1e-15 to 1e15. Nothing here waits for the GPU.
    """
    if INTERPRETED and x.dtype == torch.bfloat16:  # which the interpreter multiplies as whole numbers
        x, y = x.float(), y.float()
    device, width = x.device, x.shape[1]
    odd = torch.zeros(1, dtype=torch.int32, device=device) if odd is None else odd
    x_first, x_rows, x_at = x_side.work()
    y_first, y_rows, y_at = y_side.work()
    sizes = SIZES[x.element_size()]
    kinds, work = _work((x_first, x_rows, x_at), (y_first, y_rows, y_at), sizes)
    small = max(len(x), len(y), int(x_rows.sum()), int(y_rows.sum())) < 1 << 31
    table = torch.from_numpy(work.astype(np.int32) if small else work).to(device, non_blocking=True)
    empty = bool((x_rows == 0).any() or (y_rows == 0).any())
    answers = []
    for lengths in (x_rows, y_rows):
        total = int(lengths.sum())
        maxima = (torch.zeros if empty else torch.empty)(total, dtype=torch.float32, device=device)
        found = torch.full((total if indices else 1,), -1, dtype=torch.int64, device=device)
        answers.append((maxima, found))
    large = any(kind.split for kind in kinds)
    codes = [
        torch.full((len(best) if large else 1,), LOWEST, dtype=torch.int64, device=device)
        for best, _ in answers
    ]
    given = (x, scales[0] if scales else x), (y, scales[1] if scales else y)
    for kind in kinds:
        one, other = (1, 0) if kind.swapped else (0, 1)
        tile = Tile.of(kind.x, kind.y, width, x.element_size())
        # Kernels run on the current GPU, which need not be that of the rows.
        with torch.cuda.device(x.get_device()):
            match_kernel[(kind.stop - kind.start,)](
                given[one][0], given[other][0], given[one][1], given[other][1], table[kind.start : kind.stop],
                answers[one][0], answers[other][0], answers[one][1], answers[other][1], codes[other], odd,
                WIDTH=width, MEASURED=scales is not None, INDICES=indices, SPLIT=kind.split,
                **tile.options(),
            )  # fmt: skip
    if large:
        for (maxima, found), code in zip(answers, codes, strict=True):
            _decode(code, maxima, found if indices else None)
    (x_best, x_index), (y_best, y_index) = answers
    return (x_best, x_index if indices else None), (y_best, y_index if indices else None)


@dataclass(frozen=True)
class Kind:
    """Lines of `work` that one launch does: its tile's sides, and whether y sets are on its first side."""

    start: int
    stop: int
    x: int
    y: int
    swapped: bool
    split: bool


def _work(
    x: tuple[Integers, ...], y: tuple[Integers, ...], sizes: tuple[int, ...]
) -> tuple[list[Kind], Integers]:
    """(lines, FIELDS) what each program does, by kind, and the kinds.

    A line holds, of the side with the larger block, first row, rows, first maximum; the same of the other
    side; and which row of its set the first one is. Pairs with an empty set have no line.
    """
    many = len(sizes)
    bounds = np.array(sizes)
    x_kind, y_kind = (np.searchsorted(bounds, side[1]) for side in (x, y))
    kind = (x_kind * (many + 1) + y_kind).astype(np.uint8)
    kind[(x[1] == 0) | (y[1] == 0)] = 255
    order = np.argsort(kind, kind="stable")
    counts = np.bincount(kind, minlength=256)
    lines, kinds, start, line = [], [], 0, 0
    for which in np.flatnonzero(counts[:255]).tolist():
        chosen = order[start : start + counts[which]]
        start += counts[which]
        one, other = divmod(which, many + 1)
        swapped, split = one < other, max(one, other) == many
        left, right = (y, x) if swapped else (x, y)
        part = np.zeros((len(chosen), FIELDS), np.int64)
        for column, values in enumerate((*left, *right)):
            part[:, column] = values[chosen]
        wide, low = (sizes[-1],) * 2 if split else (sizes[max(one, other)], sizes[min(one, other)])
        if split:
            part = _blocks(part, wide)
        lines.append(part)
        kinds.append(Kind(line, line + len(part), wide, low, swapped, split))
        line += len(part)
    return kinds, np.concatenate(lines) if lines else np.zeros((0, FIELDS), np.int64)


def _blocks(part: Integers, size: int) -> Integers:
    """A line for each block of so many rows; those of a pair are neighbours, and share its other set."""
    blocks = -(-part[:, 1] // size)
    ends = np.cumsum(blocks)
    part = np.repeat(part, blocks, axis=0)
    offset = (np.arange(len(part)) - np.repeat(ends - blocks, blocks)) * size
    part[:, 0] += offset
    part[:, 1] = np.minimum(part[:, 1] - offset, size)
    part[:, 2] += offset
    part[:, 6] = offset
    return part


def _decode(codes: Tensor, maxima: Tensor, indices: Tensor | None) -> None:
    """Put what `_code` made one where it belongs; the rest of the maxima is there already."""
    there = codes != LOWEST
    bits = (codes >> 32).to(torch.int32)
    values = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)
    torch.where(there, values, maxima, out=maxima)
    if indices is not None:
        torch.where(there, 0x7FFFFFFF - (codes & 0xFFFFFFFF), indices, out=indices)
