"""An image with its regions outlined and numbered; regions that no phrase mentions are dashed.

Outlines only: a tint would show objects in other colours than a caption names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from capeval_core.regions import rle
from capeval_core.regions.regions import Regions

Rgb = tuple[int, int, int]
_Points = NDArray[np.float64]

_PAPER: Rgb = (255, 255, 255)
INK: Rgb = (28, 32, 44)
FAINT: Rgb = (104, 112, 130)
_UNMENTIONED: Rgb = (112, 120, 136)
_SHADES = "2662d9 d97706 0d9488 8648d6 be3c8c 4c822a 0284c7 925e2e 4f46e5 a06e0a"
REGIONS = [
    (code >> 16, code >> 8 & 255, code & 255) for code in (int(shade, 16) for shade in _SHADES.split())
]
"""Colours of regions, repeated after the last. No red, which marks mistakes."""
_DESIGNED = 440
"""Width for which the sizes below are given."""
_SOFT = 1.7  # of the blur, in which an outline is a band of values
_LINE, _CASING = 68, 109  # how far from the middle the band of the line and of its white edge reach
_DASH = 7.0
_CANDIDATES = 96  # points of an outline that are tried for a badge


def region_colour(index: int, unmentioned: bool = False) -> Rgb:
    """The colour of region `index`."""
    return _UNMENTIONED if unmentioned else REGIONS[index % len(REGIONS)]


def outlined(
    image: Image.Image, regions: Regions, unmentioned: Sequence[bool], width: int, visible: Sequence[float]
) -> Image.Image:
    """The image with outlines, at most `width` pixels wide; what lies outside of `visible` is dimmed."""
    # Drawn at twice the size at which it is shown, for smooth edges.
    across = 2 * width * min(1.0, 2 * image.width / image.height)
    size = max(2, round(across)), max(2, round(across * image.height / image.width))
    drawn, scale = image.convert("RGB").resize(size, Image.Resampling.LANCZOS), 2 * width / _DESIGNED
    x0, y0, x1, y1 = (round(side * drawn.width / image.width) for side in visible)
    if x1 - x0 < drawn.width - 1 or y1 - y0 < drawn.height - 1:
        sharp = drawn.crop((x0, y0, x1, y1))
        drawn = Image.blend(drawn, Image.new("RGB", drawn.size, (128, 128, 128)), 0.7)
        drawn.paste(sharp, (x0, y0))
        for colour, line in ((_PAPER, 3.0), (INK, 1.0)):
            ImageDraw.Draw(drawn).rectangle((x0, y0, x1, y1), outline=colour, width=round(line * scale))
    edges: list[_Points] = [np.empty((0, 2))] * len(regions)
    colours = [region_colour(index, missed) for index, missed in enumerate(unmentioned)]
    for index in np.argsort(-regions.areas, kind="stable").tolist():  # small ones lie on large ones
        band = _band(rle.decode(regions.runs[index], regions.size), drawn.size, scale)
        for reach, shade in ((_CASING, _PAPER), (_LINE, colours[index])):
            alpha = np.clip((reach - band) / 12, 0, 1) * 255
            if unmentioned[index] and reach == _LINE:
                alpha *= (np.indices(alpha.shape) // round(_DASH * scale)).sum(axis=0) % 2
            drawn.paste(shade, mask=Image.fromarray(alpha.astype(np.uint8)))
        edges[index] = np.argwhere(band < _LINE)[:, ::-1].astype(np.float64)
    radius, draw = scale * (11 if len(regions) < 20 else 9), ImageDraw.Draw(drawn)
    for number, (left, top) in enumerate(_place_badges(edges, drawn.size, radius)):
        for half, fill in ((1.14 * radius, _PAPER), (radius, colours[number])):
            draw.ellipse([left - half, top - half, left + half, top + half], fill=fill)
        font = ImageFont.load_default(radius * (1.3 if number < 9 else 1.1))
        draw.text((left, top), str(number + 1), _PAPER, font, anchor="mm", stroke_width=radius / 30)
    return drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS)


def _band(mask: NDArray[np.bool_], size: tuple[int, int], scale: float) -> _Points:
    """How far each pixel is from the mask's edge: 0 on it, up to 128."""
    shares = Image.fromarray(mask.astype(np.uint8) * 255).resize(size, Image.Resampling.BILINEAR)
    edge = round(4 * _SOFT * scale)
    padded = ImageOps.expand(shares, edge).filter(ImageFilter.GaussianBlur(_SOFT * scale))
    soft = np.asarray(ImageOps.crop(padded, edge), dtype=np.float64)
    most = soft.max(initial=1.0)
    return np.abs(soft * (255 / most if most < 200 else 1) - 127.5)  # a thin mask is blurred away


def _place_badges(regions: Sequence[_Points], size: tuple[int, int], radius: float) -> _Points:
    """A place for each region's badge: on its outline, to the top left, else the nearest free one."""
    low, high = np.full(2, radius + 1), np.maximum(np.asarray(size) - radius - 1, radius + 1)
    grid = np.mgrid[low[0] : high[0] + 1 : radius, low[1] : high[1] + 1 : radius].reshape(2, -1).T
    found = np.full((len(regions), 2), np.inf)
    # The smallest first: they have the least choice.
    for index in np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable"):
        points = np.clip(regions[index][:: max(1, len(regions[index]) // _CANDIDATES)], low, high)
        points = points[np.argsort(points.sum(axis=1), kind="stable")]
        nearest = grid[np.argsort(np.hypot(*(grid - points[0]).T), kind="stable")]
        candidates = np.concatenate([points, nearest])
        apart = np.hypot(*(candidates[:, None] - found).transpose(2, 0, 1)) >= 2 * radius + 1
        found[index] = candidates[apart.all(axis=1).argmax()]
    return found
