"""COCO's run-length encoding of masks: column by column, alternating runs of zeros and ones, zeros first.

mask   0 1    columns 0 0 | 1 1    runs [2, 2]
       0 1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Runs = NDArray[np.uint32]


def encode(mask: Mask) -> Runs:
    """The runs of a boolean mask (h, w); their sum is h * w."""
    flat = np.ascontiguousarray(mask.T).reshape(-1)
    if not flat.size:
        return np.zeros(0, dtype=np.uint32)
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    # A mask that begins with a one has an empty run of zeros before it.
    first = [0, 0] if flat[0] else [0]
    return np.diff(np.concatenate([first, changes, [flat.size]])).astype(np.uint32)


def of_intervals(starts: NDArray[np.int64], ends: NDArray[np.int64], size: tuple[int, int]) -> Runs:
    """The runs of a mask (h, w) of intervals of pixels, counted column by column, which ascend."""
    # Intervals that touch become one, else a run of zeros of no length would lie between them.
    apart = starts[1:] != ends[:-1]
    starts = starts[np.append(True, apart)]
    ends = ends[np.append(apart, True)]
    bounds = np.concatenate([[0], np.stack([starts, ends], axis=1).reshape(-1)])
    if bounds[-1] < size[0] * size[1]:
        bounds = np.append(bounds, size[0] * size[1])
    return np.diff(bounds).astype(np.uint32)


def decode(runs: Runs, size: tuple[int, int]) -> Mask:
    """The mask (h, w) of runs that sum to h * w."""
    values = (np.arange(len(runs)) % 2).astype(np.bool_)  # zeros and ones in turn
    mask: Mask = np.repeat(values, runs).reshape(size[::-1]).T
    return mask


def of_box(box: Sequence[float], size: tuple[int, int]) -> Runs:
    """The runs of the pixels whose centres are in the box x0, y0, x1, y1, inside (h, w)."""
    height, width = size
    first, last = np.ceil(np.asarray(box, dtype=np.float64).reshape(2, 2) - 0.5)
    (x0, y0), (x1, y1) = np.clip([first, last], 0, (width, height)).astype(np.int64)
    if x0 >= x1 or y0 >= y1:
        return np.array([height * width], dtype=np.uint32)
    columns = np.arange(x0, x1) * height
    return of_intervals(columns + y0, columns + y1, size)


def area(runs: Runs) -> int:
    """The number of pixels of the mask."""
    return int(runs[1::2].sum(dtype=np.int64))


def bounding_box(runs: Runs, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """x0, y0, x1, y1 of the smallest box around the mask, ends excluded; zeros for an empty one."""
    height = size[0]
    bounds = np.cumsum(runs, dtype=np.int64)
    starts = bounds[:-1:2]
    ends = bounds[1::2]
    has_pixels = ends > starts
    starts = starts[has_pixels]
    ends = ends[has_pixels]
    if not len(starts):
        return 0, 0, 0, 0
    x0 = int(starts[0] // height)
    x1 = int((ends[-1] - 1) // height) + 1
    # A run over the end of a column covers the last row and the first.
    if (starts // height != (ends - 1) // height).any():
        return x0, 0, x1, height
    y0 = int((starts % height).min())
    y1 = int(((ends - 1) % height).max()) + 1
    return x0, y0, x1, y1


def decompress(text: str) -> list[int]:
    """The runs of COCO's compact text; ValueError: another character, or a number that is not complete."""
    runs: list[int] = []
    value = shift = 0
    for index, character in enumerate(text):
        bits = ord(character) - 48  # five of a number, and one that tells whether more follow
        if not 0 <= bits < 64:
            raise ValueError(f"has damaged counts: {character!r} at {index} is none of COCO's characters")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:  # a negative number
            value -= 1 << shift
        # From the fourth run on, the text holds differences to the run before the last.
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("has damaged counts, which end inside a number")
    return runs
