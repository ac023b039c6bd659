"""Images and masks to what an image tower takes, step for step as the original code of each network.

For a mask there are several ways (`MaskTransform`):

`square_crop`: both are cropped alike to the central square and then resized, so that they line up; the
original's evaluation code does this. `released`: the usage that the original documents: the image as CLIP
has it (shorter side resized, centre cropped), the mask squashed to the square without a crop, so that the two
do not line up unless the image is square. `released_no_antialias`: the same with the resize of masks that
torchvision had before 0.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.inputs.images import square_pixels
from capeval_core.models.config import Closed, Deviations, Means, Side
from capeval_core.models.device import on_device
from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD

MaskTransform = Literal["square_crop", "released", "released_no_antialias"]

_DECODED = 1 << 22  # pixels of masks that are decoded at a time, of 16 bytes each while they are


@dataclass(frozen=True)
class Preprocessing(Closed):
    """How an image becomes a tensor: resize of the shorter side, centre crop, RGB, scaling. The image is
    resized in its own mode and converted to RGB only afterwards, so palettes are resized by nearest neighbour
    and alpha is premultiplied, then dropped; EXIF orientation is ignored."""

    image_size: Side
    mean: Means = CLIP_MEAN
    std: Deviations = CLIP_STD
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """(3, image_size, image_size) uint8, before scaling."""
        return square_pixels(image, self.image_size, self.method)

    @property
    def method(self) -> Image.Resampling:
        """Pillow's filter of the interpolation."""
        return Image.Resampling[self.interpolation.upper()]


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Pixels in [0, 1], (..., 3, s, s), less the mean and divided by the deviation of each channel."""
    shift, scale = (
        on_device(torch.tensor(v, dtype=torch.float32, device="cpu"), pixels.device) for v in (mean, std)
    )
    return (pixels - shift.view(3, 1, 1)) / scale.view(3, 1, 1)


def image_pixels(image: Image.Image, preprocessing: Preprocessing, transform: MaskTransform) -> Tensor:
    """(3, n, n) float32, in [0, 1] but for what the bicubic filter of `square_crop` overshoots."""
    image = image.convert("RGB")
    if transform != "square_crop":
        return torch.from_numpy(preprocessing.pixels(image)).float() / 255
    top, left, side = central_square(image.height, image.width)
    square = np.array(image.crop((left, top, left + side, top + side)))
    pixels = torch.from_numpy(square).permute(2, 0, 1)[None].float().div_(255)  # no second copy of it
    n = preprocessing.image_size
    return functional.interpolate(pixels, (n, n), mode="bicubic", antialias=True)[0]


def central_square(height: int, width: int) -> tuple[int, int, int]:
    """Top, left and side of the largest square in the middle."""
    side = min(height, width)
    return height // 2 - side // 2, width // 2 - side // 2, side


def window_of(height: int, width: int, transform: MaskTransform) -> tuple[int, int, int, int]:
    """Top, left, height and width of what the image tower gets to see of a mask."""
    if transform != "square_crop":
        return 0, 0, height, width
    top, left, side = central_square(height, width)
    return top, left, side, side


def resize_masks(masks: Tensor, size: int, transform: MaskTransform) -> Tensor:
    """(k, 1, size, size) float32 shares of each cell that a mask (k, h, w) covers, on the masks' device."""
    shares = masks[:, None].float()
    antialias = transform != "released_no_antialias"
    return functional.interpolate(shares, (size, size), mode="bilinear", antialias=antialias)


class RunMask(NamedTuple):
    """A mask by the pixels at which it changes, counted column by column, until it is on a GPU. A mask of 12
    megapixels is 12 MB as an array and some kilobytes so: threads hand it over, and it is decoded, cropped
    and resized on the device. bounds: (2k,) int32, where each of k runs of ones begins and ends. size:
    (height, width) of the mask. transform: how it comes to the image tower's size."""

    bounds: NDArray[np.int32]
    size: tuple[int, int]
    transform: MaskTransform

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
    shares = []
    for ((height, width), transform), group in groupby(masks, key=lambda mask: mask[1:]):
        alike, pixels = list(group), height * width
        top, left, high, wide = window_of(height, width, transform)
        at_once = max(1, _DECODED // pixels)
        for start in range(0, len(alike), at_once):
            chunk = alike[start : start + at_once]
            own = np.concatenate([mask.bounds + np.int32(i * pixels) for i, mask in enumerate(chunk)])
            index, row, column = (
                torch.arange(n, dtype=torch.int32, device=device) for n in (len(chunk), high, wide)
            )
            place = (column + left) * height + (row + top)[:, None] + (index * pixels)[:, None, None]
            # A pixel is one where the number of bounds up to it is odd; each mask has an even number of them.
            counts = torch.searchsorted(on_device(own, device), place, right=True, out_int32=True)
            shares.append(resize_masks(counts & 1, side, transform))
    return torch.cat(shares)
