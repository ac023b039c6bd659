"""Greedy matching on one thread of a CPU.

Rows are never padded or normalised, and copied only to widen 16 bits: pairs that share one set and whose
other sets lie side by side are one matrix product of slices (a run), and the products of many runs go into
one small grid, which is scaled and reduced at once. That saves memory traffic and the fixed price of a call:
numpy does the products, since one of 12 x 12 x 768 takes 16 us through torch and 8 us through it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped, unused-ignore]

from capeval_core.limits import LIMITS
from capeval_core.matching.sets import Best, OddRowError, Sets, ordinary
from capeval_core.ragged import Integers, ranges, starts_of

_NARROWEST = 16  # numbers of a grid's row at least, as it counts: its limit bounds its rows as well
_ALONE: Any = Lock()  # the number of threads of a product is a setting of the whole process
if hasattr(os, "register_at_fork"):  # a child that is forked while another thread holds it must not wait
    os.register_at_fork(after_in_child=_ALONE._at_fork_reinit)


@cache
def _products_threads() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def best_matches(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.reference`."""
    plan, other = _Plan(x, y, of_x, of_y), _Plan(y, x, of_y, of_x)
    if len(plan.runs) <= len(other.runs):
        return plan.match(indices)
    best_of_y, best_of_x = other.match(indices)
    return best_of_x, best_of_y


class _Plan:
    """The order in which pairs are matched, smallest x sets first, and where the runs begin in it."""

    def __init__(self, x: Sets, y: Sets, of_x: Integers, of_y: Integers) -> None:
        self.x, self.y, self.of_x, self.of_y = x, y, of_x, of_y
        there = np.flatnonzero((x.lengths[of_x] > 0) & (y.lengths[of_y] > 0))
        order = np.lexsort((of_y[there], of_x[there], x.lengths[of_x[there]]))
        self.order = there[order]
        self.one, self.other = of_x[self.order], of_y[self.order]
        begins = y.starts[self.other]
        breaks = self.one[1:] != self.one[:-1]
        breaks |= begins[1:] != (begins + y.lengths[self.other])[:-1]
        self.runs = np.append(0, np.flatnonzero(breaks) + 1)[: len(order)]

    def match(self, indices: bool) -> tuple[Best, Best]:
        """The best of each row; the answers go back to the order that was asked for."""
        x, y = self.x, self.y
        self.widths, self.heights = x.lengths[self.one], y.lengths[self.other]
        self.x_ends, self.y_ends = (np.append(0, np.cumsum(n)) for n in (self.widths, self.heights))
        self.x_starts, self.y_starts = x.starts[self.one], y.starts[self.other]
        self.dtype, self.narrow = x.rows.dtype, x.rows.dtype in (torch.float16, torch.bfloat16)
        rows = (side.rows.view(torch.int16) if self.narrow else side.rows for side in (x, y))
        self.x_rows, self.y_rows = (side.numpy() for side in rows)
        self.x_scale, self.y_scale = x.scale.numpy(), y.scale.numpy()
        ends = self.x_ends[-1], self.y_ends[-1]
        maxima = [np.empty(end, self.x_scale.dtype) for end in ends]
        found = [np.empty(end, np.int64) for end in ends] if indices else []
        # A weight of 0 times -inf, where no column counts, is no number; nor may be what is not measured.
        with _ALONE, _products_threads().limit(limits=1), np.errstate(all="ignore"):
            for part in self._parts():
                self._fill(*part, maxima, found)
        answers = []
        for i, (side, which) in enumerate(((x, self.of_x), (y, self.of_y))):
            best, lengths = side.unmatched(which, indices), side.lengths[which]
            places = ranges(starts_of(lengths)[self.order], lengths[self.order])
            best[0].numpy()[places] = maxima[i]
            if best[1] is not None:
                best[1].numpy()[places] = found[i]
            answers.append(best)
        return answers[0], answers[1]

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Parts of the pairs, widths ascending, whose products fit the grid; at least one pair each."""
        start = 0
        while start < len(self.widths):
            first = start

            def cells(stop: int, first: int = first) -> int:
                rows = int(self.y_ends[stop] - self.y_ends[first])
                return rows * max(int(self.widths[stop - 1]), _NARROWEST)

            ends = range(len(self.y_ends))
            start = bisect_right(ends, LIMITS.slice_cells, lo=first + 2, key=cells) - 1
            yield first, start

    def _fill(self, start: int, stop: int, best: Sequence[NDArray[Any]], found: Sequence[Integers]) -> None:
        """The best of the rows of some pairs."""
        # Rows of the grid are y's, columns x's; a column beyond the x set of its row is -inf and stays so.
        grid = self._grid(start, stop)
        part = slice(start, stop)
        of_x, of_y = (slice(ends[start], ends[stop]) for ends in (self.x_ends, self.y_ends))
        tall, begins = self.heights[part], self.y_ends[part] - self.y_ends[start]
        inside = np.arange(grid.shape[1]) < self.widths[part, None]
        scale = np.ones(inside.shape, grid.dtype)
        scale[inside] = _scale(self.x, ranges(self.x_starts[part], self.widths[part]))
        grid *= np.repeat(scale, tall, axis=0)
        scale = _scale(self.y, ranges(self.y_starts[part], tall))
        if found:
            maxima, nearest = (values.numpy() for values in torch.from_numpy(grid).max(1))
            found[1][of_y] = np.where(scale == 0, 0, nearest)  # as similar to all
        else:
            maxima = torch.from_numpy(grid).amax(1).numpy()  # many times as fast as numpy's on short rows
        np.multiply(maxima, scale, out=best[1][of_y])
        grid *= scale[:, None]
        maxima = np.maximum.reduceat(grid, begins, axis=0)
        best[0][of_x] = maxima[inside]
        if found:
            hits = grid == np.repeat(maxima, tall, axis=0)
            rows = np.where(hits, (np.arange(len(grid)) - np.repeat(begins, tall))[:, None], len(grid))
            found[0][of_x] = np.minimum.reduceat(rows, begins, axis=0)[inside]

    def _grid(self, start: int, stop: int) -> NDArray[Any]:
        """(rows of all y sets, rows of the largest x set): every y row times its x set, and -inf."""
        widths = self.widths[start:stop]
        grid = np.empty((self.y_ends[stop] - self.y_ends[start], widths[-1]), self.x_scale.dtype)
        if widths[0] < widths[-1]:
            grid.fill(-np.inf)
        inner = self.runs[slice(*np.searchsorted(self.runs, (start + 1, stop)))]
        runs = [start, *inner.tolist(), stop]
        first = np.array(runs[:-1])
        ends = (self.y_ends[runs] - self.y_ends[start]).tolist()
        firsts = (values[first].tolist() for values in (self.x_starts, self.widths, self.y_starts))
        for a, width, b, (top, bottom) in zip(*firsts, pairwise(ends), strict=True):
            left, right = self.y_rows[b : b + bottom - top], self.x_rows[a : a + width]
            if self.narrow:  # widened as they are met
                left, right = (
                    torch.from_numpy(rows).view(self.dtype).float().numpy() for rows in (left, right)
                )
            if not self.x.measured:  # which brings the rows into the cache: the product is a third faster
                np.vecdot(left, left, out=self.y_scale[b : b + bottom - top])
                np.vecdot(right, right, out=self.x_scale[a : a + width])
            np.matmul(left, right.T, out=grid[top:bottom, :width])
        return grid


def _scale(sets: Sets, rows: Integers) -> NDArray[Any]:
    """The scale of such rows, of their squares where it is not measured."""
    values: NDArray[Any] = sets.scale.numpy()[rows]
    if sets.measured:
        return values
    without = np.flatnonzero(values == 0)
    if len(without):
        if sets.rows[torch.from_numpy(rows[without])].any():  # squares too small for a number
            raise OddRowError
        values[without] = 1
    norms = torch.from_numpy(np.sqrt(values))
    if not ordinary(norms).all():
        raise OddRowError
    return norms.reciprocal_().numpy()
