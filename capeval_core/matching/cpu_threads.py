"""Greedy matching on several threads of a CPU.

Pairs of like sizes go through torch's batched operations together, which share them among its threads. Rows
are gathered for it, into a space that stays in the cache, where products are a third faster; a set
shorter than the longest repeats its last row, which changes no maximum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from capeval_core.limits import LIMITS
from capeval_core.matching.ragged_sets import Best, Sets
from capeval_core.ragged import Integers, ranges, starts_of


def best_matches(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `ragged_sets.reference`."""
    both_have_rows = np.flatnonzero((x.lengths[of_x] > 0) & (y.lengths[of_y] > 0))
    order, ends = _buckets(x.lengths[of_x[both_have_rows]], y.lengths[of_y[both_have_rows]])
    pairs = both_have_rows[order]
    counts = np.diff(ends, prepend=0)
    x_side = _Gathered(x, of_x, pairs, counts, indices)
    y_side = _Gathered(y, of_y, pairs, counts, indices)
    # One piece of memory for all buckets, each of which overwrites it: it stays in the cache.
    most_cells = int((counts * x_side.longest * y_side.longest).max(initial=0))
    cells = torch.empty(most_cells, dtype=x.scale.dtype, device="cpu")
    for bucket, count in enumerate(counts.tolist()):
        x_rows = x_side.batch(bucket)
        y_rows = y_side.batch(bucket)
        shape = (count, x_rows.shape[1], y_rows.shape[1])
        similarity = cells[: shape[0] * shape[1] * shape[2]].view(shape)
        torch.bmm(x_rows, y_rows.transpose(1, 2), out=similarity)
        similarity *= x_side.of_bucket(x_side.scale, bucket)[:, :, None]
        similarity *= y_side.of_bucket(y_side.scale, bucket)[:, None, :]
        x_side.take(similarity, 2, bucket)
        y_side.take(similarity, 1, bucket)
    return x_side.answer(y_side.lengths), y_side.answer(x_side.lengths)


def _buckets(widths: Integers, heights: Integers) -> tuple[Integers, Integers]:
    """An order of the pairs in which those of like sizes are neighbours, and where each bucket ends in it."""
    # By width, cut into strata, and by height in each: were all sizes equally frequent, so many strata would
    # spare both sides the same share of padding.
    order = np.argsort(widths, kind="stable")
    rows = np.cumsum((widths + heights)[order])
    total = int(rows[-1]) if len(rows) else 0
    strata = max(1, round(max(total / LIMITS.bucket_rows, len(rows) / LIMITS.bucket_pairs) ** 0.5))
    stratum = rows * strata // (total + 1)
    inner = np.lexsort((heights[order], stratum))
    order = order[inner]
    ends = np.fromiter(_cuts(widths[order], heights[order], stratum), np.int64)
    return order, ends


def _cuts(widths: Integers, heights: Integers, stratum: Integers) -> Iterator[int]:
    """The ends of buckets: those of a stratum have at most so many rows and pairs, but one pair at least."""
    threads = torch.get_num_threads()
    bounds = np.flatnonzero(np.diff(stratum, append=-1)) + 1
    start = 0
    for bound in bounds.tolist():
        width = int(widths[start:bound].max())
        while start < bound:
            first = start
            most = min(start + LIMITS.bucket_pairs, bound)

            def rows(stop: int, first: int = first, width: int = width) -> int:
                return (stop - first) * (width + int(heights[stop - 1]))

            count = bisect_right(range(most + 1), LIMITS.bucket_rows, lo=first + 2, key=rows) - 1 - first
            if threads < count < bound - first:
                count -= count % threads  # so that no thread waits for the last pairs of another
            start += count
            yield start


class _Gathered:
    """One side of all buckets: its rows, bucket by bucket, and the best of each, padding included.

    Sets of 2, 3 and 1 rows in a bucket, each padded to the longest by its last row:

        a0 a1 a1 | b0 b1 b2 | c0 c0 c0
    """

    def __init__(self, sets: Sets, which: Integers, order: Integers, counts: Integers, indices: bool) -> None:
        self.sets = sets
        self.which = which
        self.order = order
        ordered_sets = which[order]
        self.lengths = sets.lengths[ordered_sets]
        begins = starts_of(counts)
        self.longest = np.maximum.reduceat(self.lengths, begins) if len(counts) else counts
        self.padded = np.repeat(self.longest, counts)
        first_rows = sets.starts[ordered_sets]
        last_rows = np.repeat(first_rows + self.lengths - 1, self.padded)
        self.rows = torch.from_numpy(np.minimum(ranges(first_rows, self.padded), last_rows))
        self.scale = sets.scale[self.rows]
        self.ends = np.append(0, np.cumsum(counts * self.longest)).tolist()
        self.maxima = torch.empty_like(self.scale)
        self.nearest = torch.empty_like(self.rows) if indices else None
        # A bucket of one pair is a slice of the sets, and needs no space.
        most_rows = int((counts * self.longest)[counts > 1].max(initial=0))
        self.space = torch.empty(most_rows, sets.rows.shape[1], dtype=sets.rows.dtype, device="cpu")
        self.wide = self.space if self.scale.dtype == self.space.dtype else self.space.to(self.scale.dtype)

    def of_bucket(self, values: Tensor, bucket: int) -> Tensor:
        """(pairs, longest) of values of all padded rows."""
        part = values[self.ends[bucket] : self.ends[bucket + 1]]
        return part.view(-1, int(self.longest[bucket]))

    def batch(self, bucket: int) -> Tensor:
        """(pairs, longest, D), in a space that the next one overwrites."""
        rows = self.of_bucket(self.rows, bucket)
        if len(rows) == 1:
            start = int(rows[0, 0])
            return self.sets.rows[None, start : start + rows.shape[1]].to(self.scale.dtype)
        space = self.space[: rows.numel()]
        wide = self.wide[: rows.numel()]
        torch.index_select(self.sets.rows, 0, rows.flatten(), out=space)
        if wide.dtype != space.dtype:
            wide.copy_(space)
        return wide.view(*rows.shape, -1)

    def take(self, similarity: Tensor, axis: int, bucket: int) -> None:
        """Keep the best over that axis of a bucket's similarities (pairs, x rows, y rows)."""
        maxima = self.of_bucket(self.maxima, bucket)
        if self.nearest is None:
            torch.amax(similarity, axis, out=maxima)
        else:
            torch.max(similarity, axis, out=(maxima, self.of_bucket(self.nearest, bucket)))

    def answer(self, partner_lengths: Integers) -> Best:
        """The best of the rows themselves, as the pairs were asked for."""
        best = self.sets.unmatched(self.which, self.nearest is not None)
        maxima, indices = best
        starts = starts_of(self.sets.lengths[self.which])[self.order]
        places = torch.from_numpy(ranges(starts, self.lengths))
        without_padding = torch.from_numpy(ranges(starts_of(self.padded), self.lengths))
        maxima[places] = self.maxima[without_padding]
        if indices is not None and self.nearest is not None:
            # A match beyond the partner is its last row too, which may come first by a rounding.
            last = torch.from_numpy(np.repeat(partner_lengths - 1, self.lengths))
            indices[places] = torch.minimum(self.nearest[without_padding], last)
        return best
