"""Greedy matching on one thread of a CPU.

Rows are never padded or normalised, and copied only to widen 16 bits: pairs that share one set and whose
other sets lie side by side are one matrix product of slices (a run), and the products of many runs go into
one small grid, which is scaled and reduced at once. What is saved is memory traffic and the fixed price of a
call, which for small sets cost more than the arithmetic: a 12 x 12 x 768 product takes 16 us through torch
and 8 us through numpy, so numpy does them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from capeval_core.limits import LIMITS
from capeval_core.matching.sets import Best, OddRowError, Pairs, Sets, expand, ordinary, starts_of

Integers = NDArray[np.int64]

# Similarities held at once: they stay in a core's cache. A row counts as NARROWEST at least, which bounds the
# rows as well.
NARROWEST = 16

_ALONE = Lock()  # the number of threads of a product is a setting of the whole process


def _alone_in_child() -> None:
    """A process that is forked while another thread holds the lock would wait for ever."""
    global _ALONE
    _ALONE = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone_in_child)


@cache
def _products_threads() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


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


def gain_by_own_norms(x_lengths: Integers, y_lengths: Integers, pairs: Pairs) -> bool:
    """Whether norms found beside the products, rather than before, spare time.

    Sets must be large; all must be met, since a row that is no number must not be missed; and few more than
    once, since their norms are found each time.
    """
    rows = 0.0
    for lengths, of_pair in ((x_lengths, pairs.x), (y_lengths, pairs.y)):
        met = np.bincount(of_pair.numpy(), minlength=len(lengths))
        if not len(lengths) or not lengths.min() or not met.min():
            return False
        if (met * lengths).sum() > 1.5 * lengths.sum():
            return False
        rows += float(lengths.mean())
    return rows >= LIMITS.norms_from


def best_matches(x: Sets, y: Sets, pairs: Pairs, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.Path`."""
    plan, other = Plan.of(x, y, pairs), Plan.of(y, x, pairs.swapped)
    if len(plan.run_starts) <= len(other.run_starts):
        return _match(x, y, pairs, plan, indices)
    of_y, of_x = _match(y, x, pairs.swapped, other, indices)
    return of_x, of_y


def _match(x: Sets, y: Sets, pairs: Pairs, plan: Plan, indices: bool) -> tuple[Best, Best]:
    """Pairs in the order of the plan, part by part; the answers go back to the order that was asked for."""
    one, other = pairs.x[plan.order], pairs.y[plan.order]
    widths, heights = x.lengths[one].numpy(), y.lengths[other].numpy()
    x_ends, y_ends = (np.append(0, np.cumsum(lengths)) for lengths in (widths, heights))
    x_rows, y_rows = (
        expand(side.starts[which], side.lengths[which]).numpy() for side, which in ((x, one), (y, other))
    )
    x_maxima, y_maxima = (np.empty(ends[-1], x.scale.numpy().dtype) for ends in (x_ends, y_ends))
    x_found, y_found = (np.empty(ends[-1] if indices else 0, np.int64) for ends in (x_ends, y_ends))
    products = _Products(x, y, plan, one, other)

    def fill(start: int, stop: int) -> None:
        # Rows of the grid are y's, columns x's; a column beyond the x set of its row is -inf and stays so.
        grid = products.grid(start, stop)
        of_x, of_y = slice(x_ends[start], x_ends[stop]), slice(y_ends[start], y_ends[stop])
        tall, begins = heights[start:stop], y_ends[start:stop] - y_ends[start]
        inside = np.arange(grid.shape[1]) < widths[start:stop, None]
        scale = np.ones(inside.shape, grid.dtype)
        scale[inside] = _scale(x, x_rows[of_x])
        grid *= np.repeat(scale, tall, axis=0)
        scale = _scale(y, y_rows[of_y])
        if indices:
            maxima, found = (values.numpy() for values in torch.from_numpy(grid).max(1))
            y_found[of_y] = np.where(scale == 0, 0, found)  # as similar to all
        else:
            maxima = torch.from_numpy(grid).amax(1).numpy()  # many times as fast as numpy's on short rows
        np.multiply(maxima, scale, out=y_maxima[of_y])
        grid *= scale[:, None]
        maxima = np.maximum.reduceat(grid, begins, axis=0)
        x_maxima[of_x] = maxima[inside]
        if indices:
            hits = grid == np.repeat(maxima, tall, axis=0)
            within = np.arange(len(grid)) - np.repeat(begins, tall)
            x_found[of_x] = np.minimum.reduceat(np.where(hits, within[:, None], len(grid)), begins, axis=0)[
                inside
            ]

    # A weight of 0 times -inf, in columns that do not count, is no number; nor may be what is not measured.
    with _ALONE, _products_threads().limit(limits=1), np.errstate(all="ignore"):
        for part in _parts(widths, y_ends):
            fill(*part)

    answers = []
    for side, which, maxima, found in ((x, pairs.x, x_maxima, x_found), (y, pairs.y, y_maxima, y_found)):
        best, lengths = Best.of_nothing(side, which, indices), side.lengths[which]
        places = expand(starts_of(lengths)[plan.order], lengths[plan.order])
        best.maxima[places] = torch.from_numpy(maxima)
        if best.indices is not None:
            best.indices[places] = torch.from_numpy(found)
        answers.append(best)
    return answers[0], answers[1]


def _scale(sets: Sets, rows: Integers) -> NDArray[Any]:
    """The scale of such rows, of their squares where it is not measured."""
    values = sets.scale.numpy()[rows]
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


def _parts(widths: Integers, y_ends: Integers) -> Iterator[tuple[int, int]]:
    """Parts of the pairs, widths ascending, whose products fit the grid; at least one pair each."""
    start = 0
    while start < len(widths):
        first = start

        def cells(stop: int, first: int = first) -> int:
            return int((y_ends[stop] - y_ends[first]) * max(widths[stop - 1], NARROWEST))

        start = bisect_right(range(len(y_ends)), LIMITS.slice_cells, lo=first + 2, key=cells) - 1
        yield first, start


class _Products:
    """The products of all pairs of a plan, a part of them at a time."""

    def __init__(self, x: Sets, y: Sets, plan: Plan, one: Tensor, other: Tensor) -> None:
        self.plan = plan
        self.dtype, self.narrow = x.rows.dtype, x.rows.dtype in (torch.float16, torch.bfloat16)
        rows = (side.rows.view(torch.int16) if self.narrow else side.rows for side in (x, y))
        self.x_rows, self.y_rows = (side.numpy() for side in rows)
        self.x_starts, self.y_starts = x.starts[one].numpy(), y.starts[other].numpy()
        self.x_lengths = x.lengths[one].numpy()
        self.y_ends = np.append(0, np.cumsum(y.lengths[other].numpy()))
        self.x_squares, self.y_squares = (side.scale.numpy() for side in (x, y))
        self.measured, self.wide = x.measured, self.x_squares.dtype

    def grid(self, start: int, stop: int) -> NDArray[Any]:
        """(rows of all y sets, rows of the largest x set): every y row times its x set, and -inf."""
        widths = self.x_lengths[start:stop]
        grid = np.empty((self.y_ends[stop] - self.y_ends[start], widths[-1]), self.wide)
        if widths[0] < widths[-1]:
            grid.fill(-np.inf)
        starts = self.plan.run_starts
        runs = [start, *starts[slice(*np.searchsorted(starts, (start + 1, stop)))].tolist(), stop]
        first = np.array(runs[:-1])
        ends = (self.y_ends[runs] - self.y_ends[start]).tolist()
        x_starts, x_lengths, y_starts = (
            values[first].tolist() for values in (self.x_starts, self.x_lengths, self.y_starts)
        )
        for a, width, b, (top, bottom) in zip(x_starts, x_lengths, y_starts, pairwise(ends), strict=True):
            left, right = self.y_rows[b : b + bottom - top], self.x_rows[a : a + width]
            if self.narrow:  # widened as they are met
                left, right = (torch.from_numpy(r).view(self.dtype).float().numpy() for r in (left, right))
            if not self.measured:  # which brings the rows into the cache, where the product is a third faster
                np.vecdot(left, left, out=self.y_squares[b : b + bottom - top])
                np.vecdot(right, right, out=self.x_squares[a : a + width])
            np.matmul(left, right.T, out=grid[top:bottom, :width])
        return grid
