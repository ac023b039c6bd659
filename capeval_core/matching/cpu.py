"""Greedy matching on the CPU.

Rows are never copied, padded or normalised: pairs that share one set and whose other sets lie side by side
are one matrix product of slices (a run), and the products of many runs go into one small grid, which is
scaled and reduced at once. What is saved is memory traffic and the fixed price of a call, which for small
sets cost more than the arithmetic: a 12 x 12 x 768 product takes 16 us through torch and 8 us through numpy,
so numpy does them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.matching.sets import Best, Pairs, Sets, expand, starts_of

Integers = NDArray[np.int64]

# Similarities held at once: with their scales they stay in a core's cache. A row counts as NARROWEST at
# least, which bounds the rows as well.
GRID, NARROWEST = 1 << 16, 16


@dataclass(frozen=True)
class Plan:
    """The order in which pairs are matched, smallest x sets first, and where the runs begin in it."""

    order: Tensor
    run_starts: Integers

    @classmethod
    def of(cls, x: Sets, y: Sets, pairs: Pairs) -> Plan:
        there = torch.nonzero((x.lengths[pairs.x] > 0) & (y.lengths[pairs.y] > 0)).flatten()
        one, other = pairs.x[there], pairs.y[there]
        order = torch.from_numpy(np.lexsort((other.numpy(), one.numpy(), x.lengths[one].numpy())))
        one, other = one[order], other[order]
        begins = y.starts[other]
        breaks = (one[1:] != one[:-1]) | (begins[1:] != (begins + y.lengths[other])[:-1])
        run_starts = np.append(0, np.flatnonzero(breaks.numpy()) + 1)
        return cls(there[order], run_starts[: len(order)])


def best_matches(x: Sets, y: Sets, pairs: Pairs, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.Path`."""
    plan, other = Plan.of(x, y, pairs), Plan.of(y, x, pairs.swapped)
    if len(plan.run_starts) <= len(other.run_starts):
        return _match(x, y, pairs, plan, indices)
    of_y, of_x = _match(y, x, pairs.swapped, other, indices)
    return of_x, of_y


def _match(x: Sets, y: Sets, pairs: Pairs, plan: Plan, indices: bool) -> tuple[Best, Best]:
    of_x, of_y = Best.of_nothing(x, pairs.x, indices), Best.of_nothing(y, pairs.y, indices)
    x_at, y_at = starts_of(x.lengths[pairs.x]), starts_of(y.lengths[pairs.y])
    for start, stop in _parts(x.lengths[pairs.x[plan.order]], y.lengths[pairs.y[plan.order]]):
        chosen = plan.order[start:stop]
        one, other = pairs.x[chosen], pairs.y[chosen]
        widths, heights = x.lengths[one], y.lengths[other]
        inner = plan.run_starts[slice(*np.searchsorted(plan.run_starts, (start + 1, stop)))]
        grid = _products(x, y, one, other, np.concatenate([[start], inner, [stop]]) - start)

        # Rows of the grid are y's, columns x's; a column beyond the x set of its row never wins.
        columns = torch.arange(grid.shape[1])
        inside = columns < widths[:, None]
        owner = torch.repeat_interleave(torch.arange(stop - start), heights)
        x_rows = (x.starts[one][:, None] + columns).clamp_(max=len(x.rows) - 1)
        grid.mul_(y.scale[expand(y.starts[other], heights)][:, None])
        grid.mul_(x.scale[x_rows].index_select(0, owner))
        if widths[0] < widths[-1]:
            grid.masked_fill_(~inside.index_select(0, owner), -torch.inf)

        best_of_x = torch.segment_reduce(grid, "max", lengths=heights, unsafe=True)
        x_places = (x_at[chosen][:, None] + columns)[inside]
        y_places = expand(y_at[chosen], heights)
        of_x.maxima[x_places] = best_of_x[inside]
        if of_x.indices is None or of_y.indices is None:
            of_y.maxima[y_places] = grid.amax(1)
        else:
            of_y.maxima[y_places], of_y.indices[y_places] = grid.max(1)
            hits = grid == best_of_x.index_select(0, owner)
            within = expand(torch.zeros_like(heights), heights)[:, None]
            found = np.where(hits.numpy(), within.numpy(), len(grid))
            first = np.minimum.reduceat(found, starts_of(heights).numpy(), axis=0)
            of_x.indices[x_places] = torch.from_numpy(first)[inside]
    return of_x, of_y


def _parts(widths: Tensor, heights: Tensor) -> Iterator[tuple[int, int]]:
    """Parts of the pairs, widths ascending, whose products fit the grid; at least one pair each."""
    ends, width = np.append(0, heights.cumsum(0).numpy()), widths.numpy()
    start = 0
    while start < len(width):
        first = start

        def cells(stop: int, first: int = first) -> int:
            return int((ends[stop] - ends[first]) * max(width[stop - 1], NARROWEST))

        start = bisect_right(range(len(ends)), GRID, lo=first + 2, key=cells) - 1
        yield first, start


def _products(x: Sets, y: Sets, one: Tensor, other: Tensor, runs: Integers) -> Tensor:
    """(rows of all y sets, rows of the largest x set): every y row times its x set; other cells are anything.

    Run k holds the pairs runs[k] to runs[k + 1].
    """
    ends = np.append(0, y.lengths[other].cumsum(0).numpy())
    grid = torch.empty((int(ends[-1]), int(x.lengths[one].max())), dtype=x.scale.dtype)
    cells, narrow = grid.numpy(), x.rows.dtype in (torch.float16, torch.bfloat16)
    x_rows, y_rows = (side.rows.view(torch.int16).numpy() if narrow else side.rows.numpy() for side in (x, y))
    first = torch.from_numpy(runs[:-1])
    x_begin, y_begin = x.starts[one[first]], y.starts[other[first]]
    x_end = x_begin + x.lengths[one[first]]
    for a, b, c, (top, bottom) in zip(
        x_begin.tolist(), x_end.tolist(), y_begin.tolist(), pairwise(ends[runs].tolist()), strict=True
    ):
        left, right = y_rows[c : c + bottom - top], x_rows[a:b]
        if narrow:  # widened as they are met
            left, right = (torch.from_numpy(r).view(x.rows.dtype).float().numpy() for r in (left, right))
        np.matmul(left, right.T, out=cells[top:bottom, : b - a])
    return grid
