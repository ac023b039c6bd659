"""Greedy matching on one thread of a CPU.

Rows are never padded or normalised, and copied only to widen 16 bits: pairs that share one set and whose
other sets lie side by side are one matrix product of slices (a run), and the products of many runs go into
one small grid, which is scaled and reduced at once. That saves memory traffic and the fixed price of a call:
numpy does the products, since one of 12 x 12 x 768 takes 16 us through torch and 8 us through it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped, unused-ignore]

from capeval_core.limits import LIMITS
from capeval_core.matching.ragged_sets import Best, OddRowError, Sets, ordinary
from capeval_core.ragged import Integers, ranges, starts_of

# A process that is forked while a thread holds this lock gets a copy that nobody will ever release: the child
# starts with a free one. CPython has no public function for it (`test_a_fork_does_not_wait_for_its_parent`).
_ONE_PRODUCT_AT_A_TIME: Any = Lock()  # the number of threads of a product is a setting of the whole process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ONE_PRODUCT_AT_A_TIME._at_fork_reinit)

_MIN_COLUMNS = 16
"""Columns that a row of the grid counts for at least, so that the limit on cells bounds its rows as well."""


@cache
def _products_threads() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def best_matches(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `ragged_sets.reference`."""
    plan = _Plan(x, y, of_x, of_y)
    turned = _Plan(y, x, of_y, of_x)
    # Fewer runs are fewer and larger products.
    if len(plan.runs) <= len(turned.runs):
        return plan.match(indices)
    best_of_y, best_of_x = turned.match(indices)
    return best_of_x, best_of_y


class _Plan:
    """The order in which pairs are matched, smallest x sets first, and where the runs begin in it.

    A grid holds the products of some consecutive pairs: here an x set of 2 rows with y sets of 1 and 2, and
    one of 4 rows with a y set of 1.

                          columns: rows of the x set
                          0      1      2      3
        pair 0   y row 0  0.8    0.1   -inf   -inf     pairs 0 and 1 share their x set, and their y sets are
        pair 1   y row 0  0.3    0.9   -inf   -inf     neighbours in memory: a run, one matrix product
                 y row 1  0.2    0.4   -inf   -inf
        pair 2   y row 0  0.5    0.7    0.6    0.1     the next run

    The maximum of a row is the best match of a y row; the maxima of the columns within the rows of a pair (by
    `reduceat`) are the best matches of its x rows. Cells beyond an x set are -inf, which is no maximum.
    """

    def __init__(self, x: Sets, y: Sets, of_x: Integers, of_y: Integers) -> None:
        self.x = x
        self.y = y
        self.of_x = of_x
        self.of_y = of_y
        both_have_rows = np.flatnonzero((x.lengths[of_x] > 0) & (y.lengths[of_y] > 0))
        by_width = np.lexsort((of_y[both_have_rows], of_x[both_have_rows], x.lengths[of_x[both_have_rows]]))
        self.order = both_have_rows[by_width]
        self.x_sets = of_x[self.order]
        self.y_sets = of_y[self.order]
        first_rows = y.starts[self.y_sets]
        rows_behind = first_rows + y.lengths[self.y_sets]
        breaks = self.x_sets[1:] != self.x_sets[:-1]
        breaks |= first_rows[1:] != rows_behind[:-1]
        self.runs = np.append(0, np.flatnonzero(breaks) + 1)[: len(self.order)]

    def match(self, indices: bool) -> tuple[Best, Best]:
        """The best of each row; the answers go back to the order that was asked for."""
        x = self.x
        y = self.y
        self.widths = x.lengths[self.x_sets]
        self.heights = y.lengths[self.y_sets]
        self.x_ends = np.append(0, np.cumsum(self.widths))
        self.y_ends = np.append(0, np.cumsum(self.heights))
        self.x_starts = x.starts[self.x_sets]
        self.y_starts = y.starts[self.y_sets]
        self.dtype = x.rows.dtype
        self.is_narrow = self.dtype in (torch.float16, torch.bfloat16)
        self.x_rows = self._as_numpy(x)
        self.y_rows = self._as_numpy(y)
        self.x_scale = x.scale.numpy()
        self.y_scale = y.scale.numpy()
        x_maxima = np.empty(self.x_ends[-1], self.x_scale.dtype)
        y_maxima = np.empty(self.y_ends[-1], self.y_scale.dtype)
        x_nearest = np.empty(self.x_ends[-1], np.int64) if indices else None
        y_nearest = np.empty(self.y_ends[-1], np.int64) if indices else None
        # A weight of 0 times -inf, where no column counts, is no number; nor may be what is not measured.
        with _ONE_PRODUCT_AT_A_TIME, _products_threads().limit(limits=1), np.errstate(all="ignore"):
            for start, stop in self._parts():
                self._match_part(start, stop, x_maxima, y_maxima, x_nearest, y_nearest)
        return self._answer(x, self.of_x, x_maxima, x_nearest), self._answer(
            y, self.of_y, y_maxima, y_nearest
        )

    def _as_numpy(self, sets: Sets) -> NDArray[Any]:
        """The rows of sets without a copy; numpy has no bfloat16, so 16 bits come as whole numbers."""
        rows = sets.rows.view(torch.int16) if self.is_narrow else sets.rows
        return rows.numpy()

    def _answer(
        self, sets: Sets, set_of_pair: Integers, maxima: NDArray[Any], nearest: Integers | None
    ) -> Best:
        """One side's answer in the order of the pairs that was asked for."""
        best = sets.unmatched(set_of_pair, nearest is not None)
        lengths = sets.lengths[set_of_pair]
        places = ranges(starts_of(lengths)[self.order], lengths[self.order])
        best[0].numpy()[places] = maxima
        if best[1] is not None:
            best[1].numpy()[places] = nearest
        return best

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Parts of the pairs, widths ascending, whose products fit the grid; at least one pair each."""
        start = 0
        while start < len(self.widths):
            first = start

            def cells(stop: int, first: int = first) -> int:
                rows = int(self.y_ends[stop] - self.y_ends[first])
                return rows * max(int(self.widths[stop - 1]), _MIN_COLUMNS)

            stops = range(len(self.y_ends))
            start = bisect_right(stops, LIMITS.slice_cells, lo=first + 2, key=cells) - 1
            yield first, start

    def _match_part(
        self,
        start: int,
        stop: int,
        x_maxima: NDArray[Any],
        y_maxima: NDArray[Any],
        x_nearest: Integers | None,
        y_nearest: Integers | None,
    ) -> None:
        """Write the best of the rows of some pairs."""
        grid = self._grid(start, stop)
        part = slice(start, stop)
        x_part = slice(self.x_ends[start], self.x_ends[stop])
        y_part = slice(self.y_ends[start], self.y_ends[stop])
        heights = self.heights[part]
        first_rows = self.y_ends[part] - self.y_ends[start]
        valid_columns = np.arange(grid.shape[1]) < self.widths[part, None]
        x_scale = np.ones(valid_columns.shape, grid.dtype)
        x_scale[valid_columns] = _scale(self.x, ranges(self.x_starts[part], self.widths[part]))
        grid *= np.repeat(x_scale, heights, axis=0)
        y_scale = _scale(self.y, ranges(self.y_starts[part], heights))
        # A y row has one scale for all its columns: it is their maximum that is multiplied, before the cells.
        if y_nearest is None:
            row_maxima = torch.from_numpy(grid).amax(1).numpy()  # many times as fast as numpy's on short rows
        else:
            row_maxima, columns = (values.numpy() for values in torch.from_numpy(grid).max(1))
            y_nearest[y_part] = np.where(y_scale == 0, 0, columns)  # as similar to all
        np.multiply(row_maxima, y_scale, out=y_maxima[y_part])
        grid *= y_scale[:, None]
        column_maxima = np.maximum.reduceat(grid, first_rows, axis=0)
        x_maxima[x_part] = column_maxima[valid_columns]
        if x_nearest is not None:
            hits = grid == np.repeat(column_maxima, heights, axis=0)
            row_in_pair = np.arange(len(grid)) - np.repeat(first_rows, heights)
            # The smallest row that holds the maximum; what is no hit is larger than any.
            rows = np.where(hits, row_in_pair[:, None], len(grid))
            x_nearest[x_part] = np.minimum.reduceat(rows, first_rows, axis=0)[valid_columns]

    def _grid(self, start: int, stop: int) -> NDArray[Any]:
        """(rows of all y sets, rows of the largest x set): every y row times its x set, and -inf."""
        widths = self.widths[start:stop]
        grid = np.empty((self.y_ends[stop] - self.y_ends[start], widths[-1]), self.x_scale.dtype)
        if widths[0] < widths[-1]:
            grid.fill(-np.inf)
        begun_inside = self.runs[slice(*np.searchsorted(self.runs, (start + 1, stop)))]
        runs = [start, *begun_inside.tolist(), stop]
        first_pairs = np.array(runs[:-1])
        # Plain lists: numpy's numbers would cost as much as the product of a short run.
        x_starts = self.x_starts[first_pairs].tolist()
        run_widths = self.widths[first_pairs].tolist()
        y_starts = self.y_starts[first_pairs].tolist()
        grid_rows = pairwise((self.y_ends[runs] - self.y_ends[start]).tolist())
        for x_start, width, y_start, (top, bottom) in zip(
            x_starts, run_widths, y_starts, grid_rows, strict=True
        ):
            y_stop = y_start + bottom - top
            y_rows = self.y_rows[y_start:y_stop]
            x_rows = self.x_rows[x_start : x_start + width]
            if self.is_narrow:  # widened as they are met, so that no wide copy of all sets is made
                y_rows = torch.from_numpy(y_rows).view(self.dtype).float().numpy()
                x_rows = torch.from_numpy(x_rows).view(self.dtype).float().numpy()
            if not self.x.measured:  # which brings the rows into the cache: the product is a third faster
                np.vecdot(y_rows, y_rows, out=self.y_scale[y_start:y_stop])
                np.vecdot(x_rows, x_rows, out=self.x_scale[x_start : x_start + width])
            np.matmul(y_rows, x_rows.T, out=grid[top:bottom, :width])
        return grid


def _scale(sets: Sets, rows: Integers) -> NDArray[Any]:
    """The scale of such rows, of their squares where it is not measured."""
    values: NDArray[Any] = sets.scale.numpy()[rows]
    if sets.measured:
        return values
    zero_squares = np.flatnonzero(values == 0)
    if len(zero_squares):
        if sets.rows[torch.from_numpy(rows[zero_squares])].any():  # squares too small for a number
            raise OddRowError
        values[zero_squares] = 1
    norms = torch.from_numpy(np.sqrt(values))
    if not ordinary(norms).all():
        raise OddRowError
    return norms.reciprocal_().numpy()
