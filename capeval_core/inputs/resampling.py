"""Pillow's resize as numbers: which pixels and weights each pixel comes of, for a device that sums them.

Pillow resizes 8-bit images in whole numbers: weights in 22 bits, sums rounded to a byte, first along rows,
then along columns. So the same sums give the same bytes wherever they are made, not just close ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.decoding import central_box, square_pixels

Resize = Literal["cpu", "device"]
"""Where images are resized."""
BITS = 22
"""Binary places of the weights."""
_HEADER = struct.Struct("<5I")


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(x < 1, 1 - x, 0.0)


_FILTERS: dict[Image.Resampling, tuple[float, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    Image.Resampling.BICUBIC: (2.0, _bicubic),
    Image.Resampling.BILINEAR: (1.0, _bilinear),
}


@dataclass(frozen=True, eq=False)
class Taps:
    """What some neighbouring pixels of a resized side are sums of.

    window: begin and end of the pixels that are needed, of the side before.
    starts: (n,) int32 the first pixel of each sum, counted from the window's begin.
    weights: (most taps, n) int32, in units of 2 ** -`BITS`; 0 behind the last tap of a sum.
    """

    window: tuple[int, int]
    starts: NDArray[np.int32]
    weights: NDArray[np.int32]


@lru_cache(1024)
def taps(length: int, resized: int, first: int, count: int, method: Image.Resampling) -> Taps:
    """The taps of `count` pixels from `first`, of a side of `length` pixels that is resized.

    >>> halved = taps(4, 2, 0, 2, Image.Resampling.BILINEAR)
    >>> halved.window, halved.starts.tolist(), (halved.weights[:3] / 2**BITS).round(2).tolist()
    ((0, 4), [0, 1], [[0.43, 0.14], [0.43, 0.43], [0.14, 0.43]])
    """
    radius, kernel = _FILTERS[method]
    scale = length / resized
    stretch = max(scale, 1.0)
    support = radius * stretch
    centres = (np.arange(first, first + count) + 0.5) * scale
    begins = np.maximum(np.trunc(centres - support + 0.5), 0).astype(np.int64)
    ends = np.minimum(np.trunc(centres + support + 0.5), length).astype(np.int64)
    offsets = np.arange((ends - begins).max())[:, None]
    inside = offsets < ends - begins
    weights = kernel(np.abs((offsets + begins - centres + 0.5) * (1.0 / stretch))) * inside
    weights /= np.cumsum(weights, axis=0)[-1]  # one after another, as Pillow adds them: not `sum`
    whole = np.trunc(weights * 2**BITS + np.copysign(0.5, weights)).astype(np.int32)
    window = int(begins.min()), int(ends.max())
    return Taps(window, (begins - window[0]).astype(np.int32), whole)


@dataclass(frozen=True, eq=False)
class Unresized:
    """The part of an image from which its central square is resized.

    size: width and height of the whole image. part: (height, width, 1 or 3) uint8.
    """

    size: tuple[int, int]
    part: NDArray[np.uint8]

    def taps(self, size: int, method: Image.Resampling) -> tuple[Taps, Taps]:
        """Those of the columns, and those of the rows, of the central square of `size` pixels."""
        return _taps_of(self.size, size, method)


def _taps_of(whole: tuple[int, int], size: int, method: Image.Resampling) -> tuple[Taps, Taps]:
    sides, (left, top, _, _) = central_box(whole, size)
    return taps(whole[0], sides[0], left, size, method), taps(whole[1], sides[1], top, size, method)


Pixels = NDArray[np.uint8] | Unresized
"""An image as it goes to a device: resized, (3, size, size), or to be resized there."""


def unresized_pixels(image: Image.Image, size: int, method: Image.Resampling, most: int) -> Pixels:
    """An image that a device resizes; `square_pixels` of one of another mode or of more than `most` bytes."""
    if most and image.mode in ("RGB", "L"):
        (left, right), (top, bottom) = (axis.window for axis in _taps_of(image.size, size, method))
        if (right - left) * (bottom - top) * len(image.getbands()) <= most:
            part = np.asarray(image.crop((left, top, right, bottom)))
            return Unresized(image.size, part.reshape(*part.shape[:2], -1))
    return square_pixels(image, size, method)


def packed_pixels(pixels: Pixels) -> bytes:
    """Pixels as bytes for another process, which `unpacked_pixels` reads."""
    if isinstance(pixels, Unresized):
        return _HEADER.pack(*pixels.size, *pixels.part.shape) + pixels.part.tobytes()
    return _HEADER.pack(0, 0, *pixels.shape) + pixels.tobytes()


def unpacked_pixels(data: bytearray) -> Pixels:
    """What `packed_pixels` was given; the pixels can be written to.

    >>> unpacked_pixels(bytearray(packed_pixels(np.zeros((3, 2, 2), np.uint8)))).shape
    (3, 2, 2)
    """
    width, height, *shape = _HEADER.unpack_from(data)
    pixels = np.frombuffer(data, np.uint8, offset=_HEADER.size).reshape(shape)
    return Unresized((width, height), pixels) if width else pixels
