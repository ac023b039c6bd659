"""Greedy matching said plainly, pair after pair: on any device, and in float64 the measure of the others."""

from __future__ import annotations

import torch

from capeval_core.matching.sets import Best, Pairs, Sets


def best_matches(x: Sets, y: Sets, pairs: Pairs, indices: bool) -> tuple[Best, Best]:
    """The best of each row, both ways; see `sets.Path`."""
    of_x, of_y = Best.of_nothing(x, pairs.x, indices), Best.of_nothing(y, pairs.y, indices)
    # Scaled first, so that no product leaves the range of numbers.
    x_sets, y_sets = (
        torch.split_with_sizes(side.rows.to(side.scale.dtype) * side.scale[:, None], side.lengths.tolist())
        for side in (x, y)
    )
    x_at = y_at = 0
    for i, j in zip(pairs.x.tolist(), pairs.y.tolist(), strict=True):
        similarity = x_sets[i] @ y_sets[j].T
        rows, columns = similarity.shape
        if rows and columns:
            for best, at, axis in ((of_x, x_at, 1), (of_y, y_at, 0)):
                maxima, found = similarity.max(axis)
                best.maxima[at : at + len(maxima)] = maxima
                if best.indices is not None:
                    best.indices[at : at + len(maxima)] = found
        x_at, y_at = x_at + rows, y_at + columns
    return of_x, of_y
