"""Images to CLIP pixels, step for step as the original CLIP preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.resizing import resized
from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD

INTERPOLATIONS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a tensor: resize of the shorter side, centre crop, RGB, scaling.

    The image is resized in its own mode and converted to RGB only afterwards, so palettes are
    resized by nearest neighbour and alpha is premultiplied, then dropped; EXIF orientation is ignored.
    """

    image_size: int
    mean: Sequence[float] = CLIP_MEAN
    std: Sequence[float] = CLIP_STD
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"preprocessing.interpolation is {self.interpolation!r}, but only "
                f"{' and '.join(map(repr, INTERPOLATIONS))} are known: "
                "use weights that were trained with CLIP's own preprocessing"
            )

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """(3, image_size, image_size) uint8, before scaling."""
        n = self.image_size
        width, height = image.size
        size = (n, int(n * height / width)) if width <= height else (int(n * width / height), n)
        sized = resized(image, size, INTERPOLATIONS[self.interpolation])
        left, top = round((size[0] - n) / 2.0), round((size[1] - n) / 2.0)
        cropped = sized.crop((left, top, left + n, top + n)).convert("RGB")
        return np.ascontiguousarray(np.asarray(cropped).transpose(2, 0, 1))
