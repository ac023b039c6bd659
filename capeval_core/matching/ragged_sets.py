"""Sets of vectors, packed row after row, and the plain way of matching them: the measure of the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from capeval_core.ragged import Integers, starts_of

# One side: best similarity of each row of each pair, packed in their order, and, if asked for, with which row
# of the other set, counted from its start; 0 and -1 where that is empty.
Best = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Sets:
    """Sets of rows: `rows` (n, D), one set after the other; set s is lengths[s] rows from starts[s] on.
    `scale` (n,) turns a product of rows into a cosine: 1 / norm, or 1 for an all-zero row. It may hold a
    weight as well, so that weighted similarities need nothing more. It is float64 for float64 rows, else
    float32. Where it is not `measured` yet it means nothing: paths that take such sets find norms along with
    the products (`slices` writes their squares there). A row without an ordinary norm needs a second look:
    `slices` raises OddRowError for one, and kernels set `odd` (1,) to 1, which is read at the end."""

    rows: Tensor
    scale: Tensor
    lengths: Integers
    measured: bool = True
    odd: Tensor | None = None

    @cached_property
    def starts(self) -> Integers:
        return starts_of(self.lengths)

    def unmatched(self, which: Integers, indices: bool) -> Best:
        """The answer for rows of these sets that meet an empty set, to be overwritten for all others."""
        size = int(self.lengths[which].sum())
        device = self.rows.device
        maxima = torch.zeros(size, dtype=self.scale.dtype, device=device)
        nearest = torch.full((size,), -1, dtype=torch.int64, device=device) if indices else None
        return maxima, nearest

    def scaled(self, which: int) -> Tensor:
        """The rows of a set, scaled before they are multiplied: so no product leaves the range of numbers."""
        part = slice(int(self.starts[which]), int(self.starts[which] + self.lengths[which]))
        return self.rows[part].to(self.scale.dtype) * self.scale[part, None]


class OddRowError(Exception):
    """A row has no ordinary norm."""


def ordinary(norms: Tensor) -> Tensor:
    """True for rows that 1 / norm may scale: not all zero, and no square left the range of numbers."""
    limit = 1e150 if norms.dtype == torch.float64 else 1e15
    return (norms > 1 / limit) & (norms < limit)


def reference(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    """The best of each side, pair after pair, on any device. x, y: the sets. of_x, of_y: which of them pair p
    has. indices: whether they are wanted."""
    best = (x.unmatched(of_x, indices), y.unmatched(of_y, indices))
    x_starts = starts_of(x.lengths[of_x]).tolist()
    y_starts = starts_of(y.lengths[of_y]).tolist()
    pairs = zip(of_x.tolist(), of_y.tolist(), x_starts, y_starts, strict=True)
    for x_set, y_set, x_start, y_start in pairs:
        similarity = x.scaled(x_set) @ y.scaled(y_set).T  # (x rows, y rows)
        if not similarity.numel():  # torch has no maximum of nothing: `unmatched` has the answer
            continue
        for (maxima, nearest), start, axis in zip(best, (x_start, y_start), (1, 0), strict=True):
            values, indices_of_values = similarity.max(axis)
            maxima[start : start + len(values)] = values
            if nearest is not None:
                nearest[start : start + len(values)] = indices_of_values
    return best
