"""How an image and its masks come to the size that the image tower of Alpha-CLIP takes.

`square_crop`: both are cropped alike to the central square and then resized, so that they line up; the
original's evaluation code does this. `released`: the usage that the original documents: the image as CLIP
has it (shorter side resized, centre cropped), the mask squashed to the square without a crop, so that the two
do not line up unless the image is square. `released_no_antialias`: the same with the resize of masks that
torchvision had before 0.17.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.preprocessing import Preprocessing

Geometry = Literal["square_crop", "released", "released_no_antialias"]


def check_geometry(geometry: str) -> None:
    """
    Raises:
        ValueError: there is no such geometry.
    """
    if geometry not in get_args(Geometry):
        choices = ", ".join(map(repr, get_args(Geometry)))
        raise ValueError(f"geometry={geometry!r}: expected one of {choices}")


def image_pixels(image: Image.Image, preprocessing: Preprocessing, geometry: Geometry) -> Tensor:
    """(3, n, n) float32, in [0, 1] but for what the bicubic filter of `square_crop` overshoots."""
    image = image.convert("RGB")
    if geometry != "square_crop":
        return torch.from_numpy(preprocessing.pixels(image)).float() / 255
    top, left, side = central_square(image.height, image.width)
    square = np.array(image.crop((left, top, left + side, top + side)))
    pixels = torch.from_numpy(square).permute(2, 0, 1)[None].float().div_(255)  # no second copy of it
    n = preprocessing.image_size
    return functional.interpolate(pixels, (n, n), mode="bicubic", antialias=True)[0]


def crop_masks(masks: NDArray[np.bool_], geometry: Geometry) -> NDArray[np.bool_]:
    """Of masks (k, h, w) what the image tower gets to see: (k, side, side), or all of them."""
    if geometry != "square_crop":
        return masks
    top, left, side = central_square(*masks.shape[1:])
    return masks[:, top : top + side, left : left + side]


def resize_masks(masks: Tensor, size: int, geometry: Geometry) -> Tensor:
    """(k, 1, size, size) float32 shares of each cell that a mask (k, h, w) covers, on the masks' device."""
    shares = masks[:, None].float()
    antialias = geometry != "released_no_antialias"
    return functional.interpolate(shares, (size, size), mode="bilinear", antialias=antialias)


def central_square(height: int, width: int) -> tuple[int, int, int]:
    """Top, left and side of the largest square in the middle.

    >>> central_square(100, 151)
    (0, 25, 100)
    """
    side = min(height, width)
    return height // 2 - side // 2, width // 2 - side // 2, side
