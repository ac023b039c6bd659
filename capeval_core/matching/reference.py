"""Greedy matching said plainly, pair after pair: on any device, and in float64 the measure of the others."""

from __future__ import annotations

from torch import Tensor

from capeval_core.matching.sets import Best, Pairs, Sets


def best_matches(x: Sets, y: Sets, pairs: Pairs, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.Path`."""
    of_x, of_y = Best.of_nothing(x, pairs.x, indices), Best.of_nothing(y, pairs.y, indices)
    x_ends, y_ends = x.lengths.cumsum(0).tolist(), y.lengths.cumsum(0).tolist()
    x_at = y_at = 0
    for i, j in zip(pairs.x.tolist(), pairs.y.tolist(), strict=True):
        similarity = _scaled(x, i, x_ends) @ _scaled(y, j, y_ends).T
        rows, columns = similarity.shape
        if rows and columns:
            for best, at, axis in ((of_x, x_at, 1), (of_y, y_at, 0)):
                maxima, found = similarity.max(axis)
                best.maxima[at : at + len(maxima)] = maxima
                if best.indices is not None:
                    best.indices[at : at + len(maxima)] = found
        x_at, y_at = x_at + rows, y_at + columns
    return of_x, of_y


def _scaled(sets: Sets, which: int, ends: list[int]) -> Tensor:
    """The rows of a set, scaled before they are multiplied: so no product leaves the range of numbers."""
    part = slice(ends[which - 1] if which else 0, ends[which])
    return sets.rows[part].to(sets.scale.dtype) * sets.scale[part, None]
