"""An image with its regions outlined and marked; those that nothing said fits dashed.

Outlines only: a tint would show objects in other colours than a caption names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from capeval_core.drawing.badges import place_badges
from capeval_core.drawing.canvas import Canvas, check_width
from capeval_core.drawing.colours import INK, PAPER, Rgb
from capeval_core.drawing.marks import RegionMark
from capeval_core.drawing.outlines import Line, dashes, outlines
from capeval_core.drawing.text import FINER
from capeval_core.regions.regions import Regions

_OUTLINE, _CASING = 2.5, 5.0  # a coloured line in a white one, seen on any ground
_DASH = (8.0, 6.0)
_GREY, _DIMMED = (128, 128, 128), 0.7  # what is not seen, and how little of the image it shows
_CROWDED = 20  # regions from which badges are smaller, as they are on a low image, down to
_LOW = 220  # height below which lines are thinner: the objects of a low image are small
_LEAST = 6.5  # pixels of their radius
_DESIGNED = 440  # width at which lines and badges of an image alone have their size; they grow with it


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
        """The image alone, `width` pixels wide; narrower where it would be more than twice as high as wide.

        Raises:
            ValueError: the width is below `NARROWEST`.
        """
        check_width(width)
        shown = max(1.0, min(1.0, 2 * self.image.width / self.image.height) * _DESIGNED)
        return self.canvas(shown, FINER * width / _DESIGNED).finished()

    def canvas(self, width: float, finer: float = FINER) -> Canvas:
        """The image, `width` pixels wide, to be put on another canvas; `finer` is as for `Canvas`."""
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
        places = place_badges([found[0] for found in lines], size, radius)
        for index, place in enumerate(places):
            mark = self.marks[index]
            if place.is_apart(radius):
                canvas.line([(place.x, place.y), place.anchor], PAPER, 3.5)
                canvas.line([(place.x, place.y), place.anchor], mark.colour, 1.5)
            mark.draw(canvas, place.x, place.y, radius)
        return canvas


def _outline(canvas: Canvas, line: Line, colour: Rgb, thin: float, *, dashed: bool) -> None:
    closed = np.concatenate([line, line[:2]])
    canvas.line(closed, PAPER, _CASING * thin)
    for piece in dashes(line, _DASH[0] * thin, _DASH[1] * thin) if dashed else [closed]:
        canvas.line(piece, colour, _OUTLINE * thin)


def _dim(canvas: Canvas, box: Sequence[float]) -> None:
    """Make everything outside a box grey, and draw its edge."""
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
