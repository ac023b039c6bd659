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
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.inputs.images import Resize, central_square, square_pixels
from capeval_core.models.config import Closed, Deviations, Means, Side
from capeval_core.models.device import on_device
from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD

MaskTransform = Literal["square_crop", "released", "released_no_antialias"]


@dataclass(frozen=True)
class Preprocessing(Closed):
    """The way from an image to a tensor: resize, RGB, scaling. The image is resized in its own mode and
    converted to RGB only afterwards, so palettes are resized by nearest neighbour and alpha is premultiplied,
    then dropped; EXIF orientation is ignored.

    resize: how it becomes a square. "shortest": its shorter side is resized, then its centre cut out;
    "squash": both sides are resized; "longest": its longer side is resized, then margins are added in black.
    """

    image_size: Side
    mean: Means = CLIP_MEAN
    std: Deviations = CLIP_STD
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize: Resize = "shortest"

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """(3, image_size, image_size) uint8, before scaling."""
        return square_pixels(image, *self.square)

    @property
    def square(self) -> tuple[int, Image.Resampling, Resize]:
        """The arguments of `square_pixels`, which can be sent to another process."""
        # Plain values: a decoder's process does not import torch, which this module does.
        return self.image_size, self.method, self.resize

    @property
    def method(self) -> Image.Resampling:
        """Pillow's filter of the interpolation."""
        return Image.Resampling[self.interpolation.upper()]


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Pixels in [0, 1], (..., 3, s, s), less the mean and divided by the deviation of each channel."""
    # Made on the CPU and copied without waiting: a constant made on a GPU would hold up its queue.
    scaling = torch.tensor((mean, std), dtype=torch.float32, device="cpu").view(2, 3, 1, 1)
    scaling = on_device(scaling, pixels.device)
    return (pixels - scaling[0]) / scaling[1]


def image_pixels(image: Image.Image, preprocessing: Preprocessing, transform: MaskTransform) -> Tensor:
    """(3, n, n) float32, in [0, 1] but for what the bicubic filter of `square_crop` overshoots."""
    image = image.convert("RGB")
    if transform != "square_crop":
        return torch.from_numpy(preprocessing.pixels(image)).float() / 255
    y, x, side = central_square(image.height, image.width)
    square = np.array(image.crop((x, y, x + side, y + side)))
    pixels = torch.from_numpy(square).permute(2, 0, 1)[None].float().div_(255)  # no second copy of it
    n = preprocessing.image_size
    # By torch, not by Pillow: the original resizes tensors here, whose bicubic filter is not rounded
    # to bytes between its passes and may leave [0, 1].
    return functional.interpolate(pixels, (n, n), mode="bicubic", antialias=True)[0]


def window_of(height: int, width: int, transform: MaskTransform) -> tuple[slice, slice]:
    """Rows and columns of a mask that the image tower gets to see."""
    if transform != "square_crop":
        return slice(height), slice(width)
    y, x, side = central_square(height, width)
    return slice(y, y + side), slice(x, x + side)


def resize_masks(masks: Tensor, size: int, transform: MaskTransform) -> Tensor:
    """(k, 1, size, size) float32 shares of each cell that a mask (k, h, w) covers, on the masks' device."""
    shares = masks[:, None].float()
    # Without antialiasing four pixels decide on a cell, however many the mask has there.
    antialias = transform != "released_no_antialias"
    return functional.interpolate(shares, (size, size), mode="bilinear", antialias=antialias)
