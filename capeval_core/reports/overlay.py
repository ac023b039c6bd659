"""An image with its regions outlined and marked; regions that no phrase mentions are dashed.

Outlines only: a tint would show objects in other colours than a caption names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from capeval_core.regions import rle
from capeval_core.regions.regions import Regions
from capeval_core.regions.rle import Mask, Runs
from capeval_core.reports.canvas import INK, PAPER, Canvas, Rgb, check_width
from capeval_core.reports.marks import RegionMark, place_badges
from capeval_core.reports.text import FINER

_OUTLINE, _CASING = 2.5, 5.0  # a coloured line in a white one, visible on any background
_DASH = (8.0, 6.0)
_GREY, _DIMMED = (128, 128, 128), 0.7  # of the part that is not visible, and how grey it is
_CROWDED = 20  # number of regions from which badges are smaller
_LOW = 220  # height below which lines and badges are smaller, as objects are
_LEAST = 6.5  # least radius of a badge
_DESIGNED = 440  # width for which the sizes of lines and badges of an image alone are given


@dataclass(frozen=True)
class OutlinedImage:
    """An image, its regions, and the mark of each.

    visible: x0, y0, x1, y1 in pixels; what lies outside is dimmed. None: everything is visible.
    """

    image: Image.Image
    regions: Regions
    marks: Sequence[RegionMark]
    visible: Sequence[float] | None = None

    def drawn(self, width: int) -> Image.Image:
        """The image, `width` pixels wide; narrower where it would be more than twice as high as wide.

        Raises:
            ValueError: the width is below `NARROWEST`.
        """
        check_width(width)
        shown = max(1.0, min(1.0, 2 * self.image.width / self.image.height) * _DESIGNED)
        return self.canvas(shown, FINER * width / _DESIGNED).finished()

    def canvas(self, width: float, finer: float = FINER) -> Canvas:
        """The image on a canvas `width` pixels wide; `finer` is as for `Canvas`."""
        height = max(1.0, width * self.image.height / self.image.width)
        canvas = Canvas(width, height, PAPER, finer)
        shown = self.image.convert("RGB").resize(canvas.image.size, Image.Resampling.LANCZOS)
        canvas.paste(shown, 0, 0)
        size = (canvas.width, canvas.height)
        if self.visible is not None:
            across, down = canvas.width / self.image.width, canvas.height / self.image.height
            x0, y0, x1, y1 = self.visible
            _dim(canvas, (x0 * across, y0 * down, x1 * across, y1 * down))
        lines = [[line * size for line in outlines(runs, self.regions.size)] for runs in self.regions.runs]
        thin = min(1.0, max(0.5, canvas.height / _LOW))
        for index in np.argsort(-self.regions.areas, kind="stable").tolist():  # small ones lie on large ones
            mark = self.marks[index]
            for line in lines[index]:
                _outline(canvas, line, mark.colour, thin, dashed=mark.unmentioned)
        radius = min(11.0 if len(self.regions) < _CROWDED else 9.0, max(_LEAST, canvas.height / 16))
        badges = place_badges([region_lines[0] for region_lines in lines], size, radius)
        for index, badge in enumerate(badges):
            mark = self.marks[index]
            if badge.is_apart(radius):
                canvas.line([(badge.x, badge.y), badge.anchor], PAPER, 3.5)
                canvas.line([(badge.x, badge.y), badge.anchor], mark.colour, 1.5)
            mark.draw(canvas, badge.x, badge.y, radius)
        return canvas


def _outline(canvas: Canvas, line: Line, colour: Rgb, thin: float, *, dashed: bool) -> None:
    closed = np.concatenate([line, line[:2]])
    canvas.line(closed, PAPER, _CASING * thin)
    for piece in dashes(line, _DASH[0] * thin, _DASH[1] * thin) if dashed else [closed]:
        canvas.line(piece, colour, _OUTLINE * thin)


def _dim(canvas: Canvas, box: Sequence[float]) -> None:
    """Dim everything outside a box, and draw the edge of the box."""
    image = canvas.image
    corners = [round(value * canvas.finer) for value in box]
    if corners[2] - corners[0] >= image.width - 1 and corners[3] - corners[1] >= image.height - 1:
        return
    inside = image.crop((corners[0], corners[1], corners[2], corners[3]))
    canvas.paste(Image.blend(image, Image.new("RGB", image.size, _GREY), _DIMMED), 0, 0)
    image.paste(inside, (corners[0], corners[1]))
    x0, y0, x1, y1 = box
    for edge in ([(x0, y0), (x0, y1)], [(x1, y0), (x1, y1)], [(x0, y0), (x1, y0)], [(x0, y1), (x1, y1)]):
        canvas.line(edge, PAPER, 3.0)
        canvas.line(edge, INK, 1.0)


Line = NDArray[np.float64]

_TRACED = 720  # longer side, in pixels, at which outlines are traced, about the size at which they are shown
_SPECK = 16  # outlines of fewer edges are left out, unless there is no longer one
_SOFTENED = 0.5  # radius of the blur of an enlarged mask, in pixels of the mask
_SMOOTHING = 5  # neighbours that a point is averaged with


def outlines(runs: Runs, size: tuple[int, int]) -> list[Line]:
    """The closed outlines (k, 2) of a mask, x and y as shares of the image's width and height.

    The longest comes first; holes have outlines too. The last point leads back to the first.

    >>> (square,) = outlines(rle.of_box((2, 2, 6, 6), (8, 8)), (8, 8))
    >>> square.min(axis=0).round(2).tolist(), square.max(axis=0).round(2).tolist()
    ([0.25, 0.25], [0.75, 0.75])
    """
    scale = _TRACED / max(size)
    mask = rle.decode(runs, size)
    step = max(1, int(0.5 / scale))
    if step > 1 and mask[::step, ::step].any():  # of a large image, twice the traced size is enough
        mask = mask[::step, ::step]
    mask = _resized(mask, max(1, round(size[1] * scale)), max(1, round(size[0] * scale)))
    height, width = mask.shape
    loops = sorted(_loops(mask), key=len, reverse=True)
    kept = [loop for loop in loops if len(loop) >= _SPECK] or loops[:1]
    return [_smoothed(loop) / (width, height) for loop in kept]


def dashes(line: Line, on: float, off: float) -> list[Line]:
    """Pieces of a closed line, `on` long with `off` between them, stretched so that they come out even."""
    closed = np.concatenate([line, line[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(closed, axis=0).T))])
    count = max(1, round(along[-1] / (on + off)))
    period = along[-1] / count
    pieces = []
    for start in np.arange(count) * period:
        end = start + period * on / (on + off)
        inside = along[(along > start) & (along < end)]
        at = np.concatenate([[start], inside, [end]])
        pieces.append(np.stack([np.interp(at, along, closed[:, axis]) for axis in (0, 1)], axis=1))
    return pieces


def _resized(mask: Mask, width: int, height: int) -> Mask:
    image = Image.fromarray(np.ascontiguousarray(mask).view(np.uint8) * 255)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    if width > mask.shape[1]:  # blurs the steps of enlarged pixels
        image = image.filter(ImageFilter.GaussianBlur(_SOFTENED * width / mask.shape[1]))
    shares = np.asarray(image)
    inside: Mask = shares >= 128
    return inside if inside.any() else shares == shares.max()  # a thin mask vanishes below the half


def _loops(mask: Mask) -> list[Line]:
    """Closed loops of corners (x, y), in pixels, around the inside of a mask."""
    padded = np.pad(mask, 1)
    corners = mask.shape[1] + 1
    y, x = np.nonzero(padded[:-1, 1:-1] != padded[1:, 1:-1])  # horizontal edges, below row y
    left, right = y * corners + x, y * corners + x + 1
    forward = padded[y + 1, x + 1]  # the inside lies on the right hand
    starts, ends = [np.where(forward, left, right)], [np.where(forward, right, left)]
    y, x = np.nonzero(padded[1:-1, :-1] != padded[1:-1, 1:])
    upper, lower = y * corners + x, (y + 1) * corners + x
    forward = padded[y + 1, x]
    starts.append(np.where(forward, upper, lower))
    ends.append(np.where(forward, lower, upper))
    following: dict[int, list[int]] = {}
    for start, end in zip(np.concatenate(starts).tolist(), np.concatenate(ends).tolist(), strict=True):
        following.setdefault(start, []).append(end)
    loops = []
    while following:
        first = corner = next(iter(following))
        loop = []
        while corner in following:
            loop.append(corner)
            ends_here = following[corner]
            next_corner = ends_here.pop()
            if not ends_here:
                del following[corner]
            corner = next_corner
            if corner == first:
                break
        loops.append(np.stack(np.divmod(np.array(loop), corners)[::-1], axis=1).astype(np.float64))
    return loops


def _smoothed(loop: Line) -> Line:
    reach = min(_SMOOTHING, len(loop)) // 2
    mean = np.mean([np.roll(loop, shift, axis=0) for shift in range(-reach, reach + 1)], axis=0)
    smoothed: Line = mean  # straight edges stay where they are, corners become round
    return smoothed
