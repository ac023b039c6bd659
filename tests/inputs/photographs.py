"""Images to test with, made on the spot."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def photograph(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """Smooth colours with some noise: compresses, and every half of the file matters."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype="uint8"))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(smooth + random.integers(-9, 9, smooth.shape), 0, 255).astype("uint8"))


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned() -> bytes:
    """A JPEG whose EXIF says that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(photograph(), exif=exif)
