"""Masks that stay run lengths until they are on the device: decoded, cropped and resized there.

A mask of 12 megapixels is 12 MB as an array and some kilobytes as run lengths, so threads hand over the runs,
and one copy takes those of a whole batch to the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.encoders.preprocessing import MaskTransform, resize_masks, window_of
from capeval_core.models.copies import on_device
from capeval_core.regions.rle import Runs

_DECODED = 1 << 22
"""Pixels that are decoded at a time, of 16 bytes each while they are."""


class RunMask(NamedTuple):
    """A mask by the pixels at which it changes, counted column by column.

    bounds: (2k,) int32, where each of k runs of ones begins and ends.
    size: (height, width) of the mask. transform: how it comes to the image tower's size.
    """

    bounds: NDArray[np.int32]
    size: tuple[int, int]
    transform: MaskTransform

    @classmethod
    def of(cls, runs: Runs, size: tuple[int, int], transform: MaskTransform) -> RunMask:
        """A run-length encoded mask."""
        bounds = np.cumsum(runs, dtype=np.int64).astype(np.int32)
        return cls(bounds[: len(bounds) // 2 * 2], size, transform)

    @classmethod
    def full(cls, side: int, transform: MaskTransform) -> RunMask:
        """The mask of a square that is one everywhere."""
        return cls(np.array([0, side * side], dtype=np.int32), (side, side), transform)

    @property
    def visible(self) -> bool:
        """Whether the image tower sees any of its pixels."""
        top, left, high, wide = window_of(*self.size, self.transform)
        height = self.size[0]
        starts = np.maximum(self.bounds[0::2], left * height)
        ends = np.minimum(self.bounds[1::2], (left + wide) * height)
        row = starts % height
        # A run that begins in no row of the window reaches one if it is long enough.
        reached = ((row >= top) & (row < top + high)) | ((top - row) % height < ends - starts)
        return bool((reached & (ends > starts)).any())


def shares_of(masks: Sequence[RunMask], side: int, device: torch.device) -> Tensor:
    """(n, 1, side, side) float32 shares of each cell that a mask covers, as `resize_masks` gives them."""
    chunks = list(_alike(masks))
    offsets = [np.arange(len(chunk)) * (chunk[0].size[0] * chunk[0].size[1]) for chunk in chunks]
    bounds = [
        mask.bounds + np.int32(offset)
        for chunk, own in zip(chunks, offsets, strict=True)
        for mask, offset in zip(chunk, own, strict=True)
    ]
    ends = np.cumsum([0, *(sum(len(mask.bounds) for mask in chunk) for chunk in chunks)])
    copied = on_device(torch.from_numpy(np.concatenate(bounds)), device)
    shares = []
    for chunk, start, end in zip(chunks, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        decoded = _decoded(copied[start:end], len(chunk), chunk[0])
        shares.append(resize_masks(decoded, side, chunk[0].transform))
    return torch.cat(shares)


def _alike(masks: Sequence[RunMask]) -> Iterator[list[RunMask]]:
    """Consecutive masks of one size and transform, few enough to be decoded at once."""
    chunk: list[RunMask] = []
    for mask in masks:
        pixels = mask.size[0] * mask.size[1]
        if chunk and (chunk[0][1:] != mask[1:] or (len(chunk) + 1) * pixels > _DECODED):
            yield chunk
            chunk = []
        chunk.append(mask)
    if chunk:
        yield chunk


def _decoded(bounds: Tensor, count: int, like: RunMask) -> Tensor:
    """(count, h, w) of zeros and ones: what the tower sees of masks whose bounds follow each other."""
    height, width = like.size
    top, left, high, wide = window_of(height, width, like.transform)
    index, row, column = (
        torch.arange(n, dtype=torch.int32, device=bounds.device) for n in (count, high, wide)
    )
    pixels = (column + left) * height + (row + top)[:, None]
    pixels = pixels + (index * (height * width))[:, None, None]
    # A pixel is one where the number of bounds up to it is odd; each mask has an even number of them.
    return torch.searchsorted(bounds, pixels, right=True, out_int32=True) & 1
