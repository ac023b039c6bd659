"""Outlines of masks as smooth closed lines, and dashes along them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from capeval_core.regions import rle
from capeval_core.regions.rle import Mask, Runs

Line = NDArray[np.float64]

_TRACED = 720  # pixels of the longer side at which outlines are traced, about as large as they are shown
_SPECK = 16  # edges of an outline below which it is dust, unless there is no longer one
_SOFTENED = 0.5  # of a pixel of a mask that is enlarged
_SMOOTHING = 5  # neighbours that a point is averaged with: pixels make stairs


def outlines(runs: Runs, size: tuple[int, int]) -> list[Line]:
    """The closed outlines (k, 2) of a mask, x and y as shares of the image's width and height.

    The longest comes first; holes have outlines too. The last point leads back to the first.

    >>> (square,) = outlines(rle.of_rectangle(2, 2, 6, 6, (8, 8)), (8, 8))
    >>> square.min(axis=0).round(2).tolist(), square.max(axis=0).round(2).tolist()
    ([0.25, 0.25], [0.75, 0.75])
    """
    scale = _TRACED / max(size)
    mask = rle.decode(runs, size)
    step = max(1, int(0.5 / scale))
    if step > 1 and mask[::step, ::step].any():  # of a large image twice what is traced is enough
        mask = mask[::step, ::step]
    mask = _resized(mask, max(1, round(size[1] * scale)), max(1, round(size[0] * scale)))
    height, width = mask.shape
    loops = sorted(_loops(mask), key=len, reverse=True)
    kept = [loop for loop in loops if len(loop) >= _SPECK] or loops[:1]
    return [_smoothed(loop) / (width, height) for loop in kept]


def dashes(line: Line, on: float, off: float) -> list[Line]:
    """Pieces of a closed line, `on` long with `off` between them, stretched so that they come out even."""
    closed = np.concatenate([line, line[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    count = max(1, round(along[-1] / (on + off)))
    period = along[-1] / count
    pieces = []
    for start in np.arange(count) * period:
        end = start + period * on / (on + off)
        inside = along[(along > start) & (along < end)]
        at = np.concatenate([[start], inside, [end]])
        pieces.append(np.stack([np.interp(at, along, closed[:, axis]) for axis in (0, 1)], axis=1))
    return pieces


def _resized(mask: Mask, width: int, height: int) -> Mask:
    image = Image.fromarray(np.ascontiguousarray(mask).view(np.uint8) * 255)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    if width > mask.shape[1]:  # without the stairs of enlarged pixels
        image = image.filter(ImageFilter.GaussianBlur(_SOFTENED * width / mask.shape[1]))
    shares = np.asarray(image)
    found: Mask = shares >= 128
    return found if found.any() else shares == shares.max()  # a thin mask vanishes below the half


def _loops(mask: Mask) -> list[Line]:
    """The edges between inside and outside, linked to closed loops of corners (x, y), in pixels."""
    padded = np.pad(mask, 1)
    corners = mask.shape[1] + 1
    y, x = np.nonzero(padded[:-1, 1:-1] != padded[1:, 1:-1])  # horizontal edges, below row y
    left, right = y * corners + x, y * corners + x + 1
    forward = padded[y + 1, x + 1]  # the inside lies on the right hand
    starts, ends = [np.where(forward, left, right)], [np.where(forward, right, left)]
    y, x = np.nonzero(padded[1:-1, :-1] != padded[1:-1, 1:])
    upper, lower = y * corners + x, (y + 1) * corners + x
    forward = padded[y + 1, x]
    starts.append(np.where(forward, upper, lower))
    ends.append(np.where(forward, lower, upper))
    following: dict[int, list[int]] = {}
    for start, end in zip(np.concatenate(starts).tolist(), np.concatenate(ends).tolist(), strict=True):
        following.setdefault(start, []).append(end)
    loops = []
    while following:
        first = corner = next(iter(following))
        loop = []
        while corner in following:
            loop.append(corner)
            onward = following[corner]
            after = onward.pop()
            if not onward:
                del following[corner]
            corner = after
            if corner == first:
                break
        loops.append(np.stack(np.divmod(np.array(loop), corners)[::-1], axis=1).astype(np.float64))
    return loops


def _smoothed(loop: Line) -> Line:
    reach = min(_SMOOTHING, len(loop)) // 2
    mean = np.mean([np.roll(loop, shift, axis=0) for shift in range(-reach, reach + 1)], axis=0)
    smoothed: Line = mean  # straight edges stay where they are, corners become round
    return smoothed
