"""Sets of vectors, packed row after row: what all ways of matching share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.ragged import starts_of

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Sets:
    """Sets of rows: `rows` (n, D), one set after the other; set s is lengths[s] rows from starts[s] on.

    `scale` (n,) turns a product of rows into a cosine: 1 / norm, or 1 for an all-zero row. It may hold a
    weight as well, so that weighted similarities need nothing more. It is float64 for float64 rows, else
    float32. Where it is not `measured` yet it means nothing: paths that take such sets find norms beside the
    products (`slices` writes their squares there). A row without an ordinary norm needs a second look:
    `slices` raises OddRowError for one, and kernels set `odd` (1,) to 1, which is read at the end.

    `rows`, `scale` and `odd` are on the device of the rows.
    """

    rows: Tensor
    scale: Tensor
    lengths: Integers
    measured: bool = True
    odd: Tensor | None = None

    @cached_property
    def starts(self) -> Integers:
        return starts_of(self.lengths)


class OddRowError(Exception):
    """A row has no ordinary norm."""


def ordinary(norms: Tensor) -> Tensor:
    """Which rows 1 / norm may scale: not all zero, and no square of theirs left the range of numbers."""
    limit = 1e150 if norms.dtype == torch.float64 else 1e15
    return (norms > 1 / limit) & (norms < limit)


@dataclass(frozen=True)
class Best:
    """One side: best similarity of each row of each pair, packed in the order of pairs, and with which row.

    `indices` count from the start of the other set; where that is empty, similarity is 0 and index -1.
    """

    maxima: Tensor
    indices: Tensor | None

    @classmethod
    def of_nothing(cls, sets: Sets, which: Integers, indices: bool) -> Best:
        """The answer for rows that meet an empty set, to be overwritten for all others."""
        size, device = int(sets.lengths[which].sum()), sets.rows.device
        unmatched = torch.full((size,), -1, dtype=torch.int64, device=device) if indices else None
        return cls(torch.zeros(size, dtype=sets.scale.dtype, device=device), unmatched)


Path = Callable[[Sets, Sets, Integers, Integers, bool], tuple[Best, Best]]
"""A way of matching: sets of x and of y, which of them pair p has, whether indices are wanted -> the best of
each side."""
