"""Small pictures of images and videos within an HTML page, each stored once, up to a size in all."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from typing import Any

from PIL import Image, ImageOps

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.videos import InputFrames, Sampling
from capeval_core.reports.explanations import drawing

FRAMES = 4
"""Frames of a video, side by side."""
_SIDE, _FRAME_HEIGHT, _DRAWN = 320, 130, 640  # pixels: of a picture, a frame and a drawn explanation
_SLIMMEST, _WIDEST = 0.4, 3.2  # width through height of what is shown; a panorama is cut no further


class Pictures:
    """The pictures of a page, and how many were left out since it would have become too large.

    thumbnails, drawings: characters for each kind, so that drawings take no room from pictures.
    """

    def __init__(self, visual: str, thumbnails: int = 3_000_000, drawings: int = 1_500_000) -> None:
        self.visual = visual
        self.left_out = 0
        self._room = {"thumbnails": thumbnails, "drawings": drawings}
        # By path or identity, what shows it, "" where it cannot be shown; and the value, which keeps its
        # identity from going to another one.
        self._shown: dict[Any, tuple[str, Any]] = {}
        self._symbols: list[str] = []

    def of(self, value: Any, description: str) -> str:
        """The picture of an image, or frames of a video; "" if it cannot be read or there is no room."""
        from markupsafe import Markup

        key = os.fspath(value) if isinstance(value, (str, os.PathLike)) else id(value)
        if key not in self._shown:
            self._shown[key] = self._stored(value), value
        return Markup(self._shown[key][0]).format(description)

    def drawing(self, picture: Callable[[int], Image.Image] | None, text: str) -> str:
        """A picture of an explanation; "" if there is none, or no room."""
        if self._room["drawings"] < 0:
            self.left_out += bool(picture)
            return ""
        try:
            shown = drawing(picture, text, _DRAWN, quality=80)
        except (ImageError, ValueError):  # an image that is no longer there, boxes without an image
            return ""
        return shown if self._fits("drawings", shown) else ""

    def symbols(self) -> str:
        """What all pictures refer to, once in a page."""
        from markupsafe import Markup

        return Markup(f'<svg class="symbols" aria-hidden="true">{"".join(self._symbols)}</svg>')

    def _stored(self, value: Any) -> str:
        """A reference to the picture, with a place for its description."""
        if self._room["thumbnails"] < 0:
            self.left_out += 1
            return ""
        try:
            image = _frame_strip(value) if self.visual == "video" else _thumbnail(value)
        except (ImageError, TypeError, ValueError):
            return ""
        width, height = image.size
        written = BytesIO()
        image.save(written, "JPEG", quality=78)
        name = f"picture-{len(self._symbols)}"
        symbol = (
            f'<symbol id="{name}" viewBox="0 0 {width} {height}"><image width="{width}" height="{height}" '
            f'href="data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"/></symbol>'
        )
        if not self._fits("thumbnails", symbol):
            return ""
        self._symbols.append(symbol)
        label = 'role="img" aria-label="{}"'
        return f'<svg {label} viewBox="0 0 {width} {height}"><use href="#{name}"/></svg>'

    def _fits(self, kind: str, content: str) -> bool:
        self._room[kind] -= len(content)
        self.left_out += self._room[kind] < 0
        return self._room[kind] >= 0


def _thumbnail(value: Any) -> Image.Image:
    """An image as metrics see it, small and without metadata."""
    image = InputImage.of(value).load()
    return _bare(image, min(_SIDE, image.width), min(_SIDE, image.height))


def _frame_strip(value: Any) -> Image.Image:
    """Some frames of a video side by side, the first and the last among them."""
    reading = InputFrames.of(value).load().read(Sampling(max_frames=FRAMES))
    frames = [_bare(frame, 4 * _FRAME_HEIGHT, _FRAME_HEIGHT) for _, frame in islice(reading, FRAMES)]
    gap = 4
    strip = Image.new("RGB", (sum(f.width for f in frames) + gap * (len(frames) - 1), _FRAME_HEIGHT), "white")
    left = 0
    for frame in frames:
        strip.paste(frame, (left, 0))
        left += frame.width + gap
    return strip


def _bare(image: Image.Image, width: int, height: int) -> Image.Image:
    """The pixels alone, on white, as large as they fit into a box; slim ones keep their middle."""
    shape = min(max(image.width / image.height, _SLIMMEST), _WIDEST)
    whole = (round(min(image.width, image.height * shape)), round(min(image.height, image.width / shape)))
    pixels = image.convert("RGBA" if image.has_transparency_data else "RGB")
    scale = min(width / whole[0], height / whole[1])
    size = (max(1, round(whole[0] * scale)), max(1, round(whole[1] * scale)))
    pixels = ImageOps.fit(pixels, size, Image.Resampling.LANCZOS)
    bare = Image.new("RGB", pixels.size, "white")
    bare.paste(pixels, mask=pixels if pixels.mode == "RGBA" else None)
    return bare
