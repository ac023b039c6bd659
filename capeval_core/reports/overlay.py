"""An image with its regions outlined and numbered; regions that no phrase mentions are dashed.

Outlines only: a tint would show objects in other colours than a caption names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from capeval_core.regions import rle
from capeval_core.regions.regions import Regions

Rgb = tuple[int, int, int]
_Points = NDArray[np.float64]

_PAPER: Rgb = (255, 255, 255)
INK: Rgb = (28, 32, 44)
FAINT: Rgb = (104, 112, 130)
UNMENTIONED: Rgb = (112, 120, 136)
REGIONS: tuple[Rgb, ...] = (
    (38, 98, 217),
    (217, 119, 6),
    (13, 148, 136),
    (134, 72, 214),
    (190, 60, 140),
    (76, 130, 40),
    (2, 132, 199),
    (146, 94, 46),
    (79, 70, 229),
    (160, 110, 10),
)
"""Colours of regions, repeated after the last. No red, which marks mistakes."""
_NARROWEST = 320
"""Least width of a drawn explanation, in pixels."""
_DESIGNED = 440
"""Width for which the sizes below are given."""
_SOFT = 1.7  # of the blur, in which an outline is a band of values
_LINE, _CASING = 68, 109  # how far from the middle the band of the line and of its white edge reach
_DASH = 7.0
_GREY, _DIMMED = (128, 128, 128), 0.7  # of the part that is not visible, and how grey it is
_CROWDED = 20  # number of regions from which badges are smaller
_CANDIDATES = 96  # points of an outline that are tried for a badge


def region_colour(index: int, unmentioned: bool = False) -> Rgb:
    """The colour of region `index`."""
    return UNMENTIONED if unmentioned else REGIONS[index % len(REGIONS)]


def check_width(width: int) -> None:
    """Raise ValueError for a drawing that is too narrow to be read."""
    if width < _NARROWEST:
        raise ValueError(f"width={width}: expected at least {_NARROWEST} pixels")


def outlined(
    image: Image.Image,
    regions: Regions,
    unmentioned: Sequence[bool],
    width: int,
    visible: Sequence[float] | None = None,
) -> Image.Image:
    """The image, `width` pixels wide; narrower where it would be more than twice as high as wide.

    visible: x0, y0, x1, y1 in pixels; what lies outside is dimmed. None: everything is visible.
    """
    drawn, scale = _enlarged(image, width)
    if visible is not None:
        _dim(drawn, [side * drawn.width / image.width for side in visible], scale)
    edges: dict[int, _Points] = {}
    for index in np.argsort(-regions.areas, kind="stable").tolist():  # small ones lie on large ones
        mask = rle.decode(regions.runs[index], regions.size)
        band = _band(mask, drawn.size, scale)
        drawn.paste(_PAPER, mask=Image.fromarray(_alpha(band, _CASING)))
        line = _alpha(band, _LINE)
        if unmentioned[index]:
            down, across = np.indices(line.shape) // round(_DASH * scale)
            line = line * ((down + across) % 2).astype(np.uint8)
        drawn.paste(region_colour(index, unmentioned[index]), mask=Image.fromarray(line))
        edges[index] = np.argwhere(band < _LINE)[:, ::-1].astype(np.float64)
    radius = scale * (11.0 if len(regions) < _CROWDED else 9.0)
    lines = [edges[index] for index in range(len(regions))]
    for index, (x, y) in enumerate(_place_badges(lines, drawn.size, radius)):
        _badge(drawn, index, x, y, radius, region_colour(index, unmentioned[index]))
    return drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS)


def boxed(
    image: Image.Image, boxes: Sequence[Sequence[float]], places: Sequence[int], width: int
) -> Image.Image:
    """The image with these of its boxes outlined and numbered, the first on top."""
    drawn, scale = _enlarged(image, width)
    draw = ImageDraw.Draw(drawn)
    sides = [[side * drawn.width / image.width for side in boxes[place]] for place in places]
    for place, box in reversed(list(zip(places, sides, strict=True))):
        draw.rectangle(box, outline=_PAPER, width=round(3.5 * scale))
        inner = [box[0] + scale, box[1] + scale, max(box[0], box[2] - scale), max(box[1], box[3] - scale)]
        if inner[2] > inner[0] and inner[3] > inner[1]:
            draw.rectangle(inner, outline=region_colour(place), width=round(1.5 * scale))
    corners = [np.array([[box[0], box[1]], [box[2], box[1]], [box[0], box[3]]]) for box in sides]
    for place, (x, y) in zip(places, _place_badges(corners, drawn.size, 8 * scale), strict=True):
        _badge(drawn, place, x, y, 8 * scale, region_colour(place))
    return drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS)


def _place_badges(
    regions: Sequence[_Points], size: tuple[float, float], radius: float
) -> list[tuple[float, float]]:
    """A place for each region's badge, on its outline, as far to the top left as there is room.

    Where the whole outline is covered by other badges, the nearest free place in the image (width, height).
    Badges overlap only in an image that is too small for all of them.
    """
    order = np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable")
    low, high = np.full(2, radius + 1), np.asarray(size) - radius - 1
    axes = [np.arange(radius + 1, max(side - radius, radius + 2), radius) for side in size]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    placed = np.empty((0, 2))
    found: dict[int, tuple[float, float]] = {}
    for index in order.tolist():  # the smallest first: they have the least choice
        points = regions[index]
        first = np.clip(points[:: max(1, len(points) // _CANDIDATES)], low, np.maximum(low, high))
        first = first[np.argsort(first.sum(axis=1), kind="stable")]
        nearest = grid[np.argsort(np.hypot(*(grid - first[0]).T), kind="stable")]
        candidates = np.concatenate([first, nearest])
        apart = np.hypot(*(candidates[:, None] - placed[None]).transpose(2, 0, 1)) >= 2 * radius + 1
        centre = candidates[int(apart.all(axis=1).argmax())]
        found[index] = (float(centre[0]), float(centre[1]))
        placed = np.concatenate([placed, centre[None]])
    return [found[index] for index in range(len(regions))]


def _enlarged(image: Image.Image, width: int) -> tuple[Image.Image, float]:
    """The image at twice the size at which it is shown, for smooth edges, and the scale of what is drawn."""
    check_width(width)
    across = 2 * width * min(1.0, 2 * image.width / image.height)
    size = max(2, round(across)), max(2, round(across * image.height / image.width))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS), 2 * width / _DESIGNED


def _band(mask: NDArray[np.bool_], size: tuple[int, int], scale: float) -> NDArray[np.float64]:
    """How far each pixel is from the mask's edge: 0 on it, up to 128."""
    shares = Image.fromarray(np.ascontiguousarray(mask).view(np.uint8) * 255)
    edge = round(4 * _SOFT * scale)
    padded = Image.new("L", (size[0] + 2 * edge, size[1] + 2 * edge))
    padded.paste(shares.resize(size, Image.Resampling.BILINEAR), (edge, edge))
    soft = np.asarray(padded.filter(ImageFilter.GaussianBlur(_SOFT * scale)), dtype=np.float64)
    soft = soft[edge:-edge, edge:-edge]
    most = soft.max(initial=1.0)
    return np.abs(soft * (255 / most if most < 200 else 1) - 127.5)  # a thin mask is blurred away


def _alpha(band: NDArray[np.float64], reach: float) -> NDArray[np.uint8]:
    return (np.clip((reach - band) / 12, 0, 1) * 255).astype(np.uint8)


def _dim(drawn: Image.Image, box: Sequence[float], scale: float) -> None:
    """Dim everything outside a box, and draw the edge of the box."""
    corners = [round(side) for side in box]
    if corners[2] - corners[0] >= drawn.width - 1 and corners[3] - corners[1] >= drawn.height - 1:
        return
    inside = drawn.crop((corners[0], corners[1], corners[2], corners[3]))
    drawn.paste(Image.blend(drawn, Image.new("RGB", drawn.size, _GREY), _DIMMED))
    drawn.paste(inside, (corners[0], corners[1]))
    draw = ImageDraw.Draw(drawn)
    for colour, line in ((_PAPER, 3.0), (INK, 1.0)):
        draw.rectangle(corners, outline=colour, width=round(line * scale))


def _badge(drawn: Image.Image, index: int, x: float, y: float, radius: float, colour: Rgb) -> None:
    draw, label = ImageDraw.Draw(drawn), str(index + 1)
    for extra, fill in ((1.14, _PAPER), (1.0, colour)):
        reach = radius * extra
        draw.ellipse([x - reach, y - reach, x + reach, y + reach], fill=fill)
    font = ImageFont.load_default(radius * (1.3 if len(label) == 1 else 1.1))
    draw.text((x, y), label, _PAPER, font, anchor="mm", stroke_width=radius / 30)
