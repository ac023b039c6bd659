"""Small pictures of images and videos, as metrics see them, for pages and logs."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from capeval_core.inputs.images import Source, Upright, image_source
from capeval_core.inputs.videos import Sampling, video_source

THUMBNAIL = 320  # pixels of a picture's longer side
FRAMES = 4  # of a video, side by side
_FRAME_HEIGHT = 130  # pixels


def thumbnail(
    value: object, medium: str = "image", *, upright: bool = False, side: int = THUMBNAIL
) -> Image.Image:
    """A picture of an image, or frames of a video side by side; ImageError where it cannot be read.

    value: anything that a metric takes for one, or its `Source`. upright: turned as its EXIF says.
    """
    if medium == "video":
        return _frames_side_by_side(value)
    source: Any = value if isinstance(value, Source) else image_source(value)
    if upright:
        source = Upright(source)
    return _bare(source.decode(), side, side)


def _frames_side_by_side(value: object) -> Image.Image:
    """A few frames of a video in one picture, with white between them."""
    source: Any = value if isinstance(value, Source) else video_source(value)
    reading = source.read(str(value), Sampling(max_frames=FRAMES))
    frames = [np.asarray(_bare(frame, 4 * _FRAME_HEIGHT, _FRAME_HEIGHT)) for _, frame in reading]
    tallest = max(map(len, frames))
    padded = []
    for frame in frames:
        gap = ((0, tallest - len(frame)), (4, 0), (0, 0))  # below, and to the left
        padded.append(np.pad(frame, gap, constant_values=255))
    return Image.fromarray(np.hstack(padded)[:, 4:])


def _bare(image: Image.Image, width: int, height: int) -> Image.Image:
    """The pixels alone, on white, within a box."""
    # A page is passed on: a photograph's metadata says where and when it was taken.
    pixels = image.convert("RGBA")
    pixels.thumbnail((width, height), Image.Resampling.LANCZOS)
    return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels).convert("RGB")
