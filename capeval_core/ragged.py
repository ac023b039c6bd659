"""Ragged arrays: lists of numbers of different lengths, one per row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """n lists of numbers, one after the other.

    values: (sum of lengths,) float64. lengths: (n,) of each list, 0 allowed.

    >>> lists = Ragged.of(pa.array([[1.0, 3.0], [], [2.0]]))
    >>> lists.mean(), lists.max(), lists.argmax()
    (array([2., 0., 2.]), array([ 3., -inf,  2.]), array([ 1, -1,  2]))
    """

    values: Doubles
    lengths: Integers

    @classmethod
    def of(cls, column: pa.ListArray | pa.ChunkedArray) -> Ragged:
        """The lists of a column, also of a slice of one; a null counts as an empty list."""
        lists, lengths = inner(column)
        return cls(lists.to_numpy(zero_copy_only=False).astype(np.float64), lengths)

    @cached_property
    def owner(self) -> Integers:
        """(sum of lengths,) the list that each value belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def sum(self) -> Doubles:
        return np.bincount(self.owner, self.values, len(self.lengths)).astype(np.float64)

    def mean(self, weights: Ragged | None = None) -> Doubles:
        """(n,) means, weighted by lists of the same lengths; 0 where a list is empty, or without weight."""
        if weights is None:
            return self.sum() / np.maximum(self.lengths, 1)
        total = weights.sum()
        weighted = Ragged(self.values * weights.values, self.lengths).sum()
        return np.divide(weighted, total, out=np.zeros_like(total), where=total > 0)

    def max(self) -> Doubles:
        """(n,) maxima, minus infinity of an empty list, NaN of one that holds NaN."""
        maxima = np.full(len(self.lengths), -np.inf)
        with np.errstate(invalid="ignore"):
            np.maximum.at(maxima, self.owner, self.values)
        return maxima

    def argmax(self) -> Integers:
        """(n,) position in `values` of each list's first maximum, -1 of an empty list."""
        positions = np.full(len(self.lengths), -1, dtype=np.int64)
        maxima = np.flatnonzero(self.values == self.max()[self.owner])
        from_the_end = maxima[::-1]  # so that the first of several is written last, and stays
        positions[self.owner[from_the_end]] = from_the_end
        return positions

    def take(self, rows: Integers) -> Ragged:
        lengths = self.lengths[rows]
        places = ranges(starts_of(self.lengths)[rows], lengths)
        return Ragged(self.values[places], lengths)


def starts_of(lengths: Integers) -> Integers:
    """The place where each of consecutive lists begins."""
    return np.cumsum(lengths) - lengths


def ranges(starts: Integers, lengths: Integers) -> Integers:
    """All positions of several ranges, one range after the other."""
    return np.arange(lengths.sum()) + np.repeat(starts - starts_of(lengths), lengths)


def inner(column: pa.ListArray | pa.ChunkedArray) -> tuple[pa.Array, Integers]:
    """The values of the lists of a column, one after the other, and the length of each list."""
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lists.flatten(), lengths
