# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Pillow's resize on CUDA, to the same bytes: images of any sizes in one copy and two kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import triton
import triton.language as tl
from PIL import Image
from torch import Tensor

from capeval_core.inputs.resampling import BITS, Pixels, Taps, Unresized
from capeval_core.models.copies import indices_on_device, packed_on_device, stacked_on_device

OPTIONS = {"BITS": BITS, "ROWS": 4, "num_warps": 4}
_FIELDS = 10  # numbers per image in the plan


@triton.jit
def _rounded(total, BITS: tl.constexpr):  # noqa: N803
    """Sums of weights times bytes as bytes, half a unit being in them already."""
    return tl.minimum(tl.maximum(total >> BITS, 0), 255).to(tl.uint8)


@triton.jit
def across_kernel(
    pixels, plan, out,
    SIZE: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Along rows: pixels of all images -> out (rows of all images, 3, SIZE), some rows of one channel.

    plan: per image the place of its pixels, its width, channels and rows, its first row in `out`, its place
    in the batch; then places in the plan and number of its taps along a row and along a column.
    """
    image = plan + tl.program_id(0) * 10
    rows = tl.load(image + 3)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(1) * ROWS < rows:
        channel = tl.program_id(2)
        width, channels, place = tl.load(image + 1), tl.load(image + 2), tl.load(image + 6)
        column = tl.arange(0, BLOCK)
        start = tl.load(plan + place + column, mask=column < SIZE, other=0)
        source = pixels + tl.load(image).to(tl.int64) + tl.minimum(channel, channels - 1)
        inside = (row < rows)[:, None] & (column < SIZE)[None, :]
        total = tl.full((ROWS, BLOCK), 1 << (BITS - 1), tl.int32)
        for tap in range(tl.load(image + 7)):
            weight = tl.load(plan + place + (tap + 1) * SIZE + column, mask=column < SIZE, other=0)
            at = tl.minimum(start + tap, width - 1)
            value = tl.load(source + (row[:, None] * width + at[None, :]) * channels, mask=inside, other=0)
            total += value.to(tl.int32) * weight[None, :]
        target = ((tl.load(image + 4) + row).to(tl.int64) * 3 + channel) * SIZE
        tl.store(out + target[:, None] + column[None, :], _rounded(total, BITS), mask=inside)


@triton.jit
def down_kernel(
    pixels, plan, out,
    SIZE: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Along columns: `out` of the other kernel -> out (images, 3, SIZE, SIZE), some rows of one channel."""
    image, channel = plan + tl.program_id(0) * 10, tl.program_id(2)
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    rows, place = tl.load(image + 3), tl.load(image + 8)
    start = tl.load(plan + place + row, mask=row < SIZE, other=0)
    source = pixels + (tl.load(image + 4).to(tl.int64) * 3 + channel) * SIZE
    inside = (row < SIZE)[:, None] & (column < SIZE)[None, :]
    total = tl.full((ROWS, BLOCK), 1 << (BITS - 1), tl.int32)
    for tap in range(tl.load(image + 9)):
        weight = tl.load(plan + place + (tap + 1) * SIZE + row, mask=row < SIZE, other=0)
        at = tl.minimum(start + tap, rows - 1)
        value = tl.load(source + at[:, None] * (3 * SIZE) + column[None, :], mask=inside, other=0)
        total += value.to(tl.int32) * weight[:, None]
    target = ((tl.load(image + 5).to(tl.int64) * 3 + channel) * SIZE + row) * SIZE
    tl.store(out + target[:, None] + column[None, :], _rounded(total, BITS), mask=inside)


def resize(images: Sequence[Unresized], places: Sequence[int], out: Tensor, method: Image.Resampling) -> None:
    """Resize images into `out`, (n, 3, size, size) uint8, each at its place; nothing waits for the device."""
    size = out.shape[-1]
    axes = [image.taps(size, method) for image in images]
    shared: dict[int, int] = {}  # where taps are in the plan, by identity: images of one size have one
    parts: list[np.ndarray] = [np.empty(0, np.int32)]
    end = _FIELDS * len(images)
    for axis in (axis for both in axes for axis in both):
        if id(axis) not in shared:
            shared[id(axis)] = end
            parts += [axis.starts, axis.weights.ravel()]
            end += size * (1 + len(axis.weights))

    def tapped(axis: Taps) -> tuple[int, int]:
        return shared[id(axis)], len(axis.weights)

    heights = [len(image.part) for image in images]
    firsts = list(accumulate(heights, initial=0))
    begins = list(accumulate((image.part.size for image in images), initial=0))
    table = [
        (begin, *image.part.shape[1:], len(image.part), first, place, *tapped(columns), *tapped(rows))
        for begin, image, first, place, (columns, rows) in zip(
            begins, images, firsts, places, axes, strict=False
        )
    ]
    parts[0] = np.array(table, dtype=np.int32).ravel()
    plan = packed_on_device(out.device, parts)
    pixels = packed_on_device(out.device, [image.part for image in images])
    wide = torch.empty((firsts[-1], 3, size), dtype=torch.uint8, device=out.device)
    options = {"SIZE": size, "BLOCK": triton.next_power_of_2(size), **OPTIONS}
    across_kernel[(len(images), triton.cdiv(max(heights), OPTIONS["ROWS"]), 3)](pixels, plan, wide, **options)
    down_kernel[(len(images), triton.cdiv(size, OPTIONS["ROWS"]), 3)](wide, plan, out, **options)


def squares(pixels: Sequence[Pixels], size: int, device: torch.device, method: Image.Resampling) -> Tensor:
    """(n, 3, size, size) uint8 on a device, of images that are resized and images that are not."""
    ready = {i: each for i, each in enumerate(pixels) if not isinstance(each, Unresized)}
    images = {i: each for i, each in enumerate(pixels) if isinstance(each, Unresized)}
    out = torch.empty((len(pixels), 3, size, size), dtype=torch.uint8, device=device)
    if ready:
        (places,) = indices_on_device(device, list(ready))
        out.index_copy_(0, places, stacked_on_device(device, list(ready.values())))
    if images:
        resize(list(images.values()), list(images), out, method)
    return out
