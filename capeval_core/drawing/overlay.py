"""A picture with its regions outlined and marked; those that nothing said fits dashed and hatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from capeval_core.drawing.badges import place_badges
from capeval_core.drawing.canvas import Canvas, check_width
from capeval_core.drawing.colours import INK, PAPER, Rgb
from capeval_core.drawing.marks import RegionMark
from capeval_core.drawing.outlines import Line, dashes, outlines
from capeval_core.drawing.text import FINER
from capeval_core.regions.regions import Regions

_OUTLINE, _CASING = 2.5, 5.0  # a coloured line in a white one, seen on any ground
_DASH = (8.0, 6.0)
_TINT = 40  # of 255: how much of a region's colour lies on it
_HATCH = 9.0  # pixels between the lines on what is not mentioned
_CROWDED = 20  # regions from which badges are smaller
_DESIGNED = 440  # width at which lines and badges of a picture alone have their size; they grow with it


@dataclass(frozen=True)
class OutlinedPicture:
    """A picture, its regions, and the mark of each."""

    image: Image.Image
    regions: Regions
    marks: Sequence[RegionMark]

    def drawn(self, width: int) -> Image.Image:
        """The picture alone, `width` pixels wide; narrower where it would be more than twice as high as wide.

        Raises:
            ValueError: the width is below `NARROWEST`.
        """
        check_width(width)
        shown = max(1.0, min(1.0, 2 * self.image.width / self.image.height) * _DESIGNED)
        return self.canvas(shown, FINER * width / _DESIGNED).finished()

    def canvas(self, width: float, finer: float = FINER) -> Canvas:
        """The picture, `width` pixels wide, to be put on another canvas; `finer` is as for `Canvas`."""
        height = max(1.0, width * self.image.height / self.image.width)
        canvas = Canvas(width, height, PAPER, finer)
        shown = self.image.convert("RGB").resize(canvas.image.size, Image.Resampling.LANCZOS)
        canvas.paste(shown, 0, 0)
        size = (canvas.width, canvas.height)
        lines = [[line * size for line in outlines(runs, self.regions.size)] for runs in self.regions.runs]
        for index in np.argsort(-self.regions.areas, kind="stable").tolist():  # small ones lie on large ones
            mark = self.marks[index]
            _fill(canvas, lines[index], mark.colour, hatched=mark.unmentioned)
            for line in lines[index]:
                _outline(canvas, line, mark.colour, dashed=mark.unmentioned)
        radius = 11.0 if len(self.regions) < _CROWDED else 9.0
        places = place_badges([found[0] for found in lines], size, radius)
        for index, place in enumerate(places):
            mark = self.marks[index]
            if place.is_apart(radius):
                canvas.line([(place.x, place.y), place.anchor], PAPER, 3.5)
                canvas.line([(place.x, place.y), place.anchor], mark.colour, 1.5)
            mark.draw(canvas, place.x, place.y, radius)
        return canvas


def _outline(canvas: Canvas, line: Line, colour: Rgb, *, dashed: bool) -> None:
    closed = np.concatenate([line, line[:2]])
    canvas.line(closed, PAPER, _CASING)
    for piece in dashes(line, *_DASH) if dashed else [closed]:
        canvas.line(piece, colour, _OUTLINE)


def _fill(canvas: Canvas, lines: Sequence[Line], colour: Rgb, *, hatched: bool) -> None:
    """A tint of the inside, without the holes, or white lines across it."""
    low = np.floor(np.min([line.min(axis=0) for line in lines], axis=0) * canvas.finer).astype(int)
    high = np.ceil(np.max([line.max(axis=0) for line in lines], axis=0) * canvas.finer).astype(int) + 1
    inside = Image.new("1", (int(high[0] - low[0]), int(high[1] - low[1])))
    for line in lines:  # what lies in an even number of outlines is a hole
        other = Image.new("1", inside.size)
        ImageDraw.Draw(other).polygon([(x, y) for x, y in (line * canvas.finer - low).tolist()], fill=1)
        inside = Image.fromarray(np.asarray(inside) ^ np.asarray(other))
    strength = np.asarray(inside).astype(np.uint8) * _TINT
    ground = Image.new("RGB", inside.size, colour)
    if hatched:
        y, x = np.mgrid[low[1] : high[1], low[0] : high[0]]
        across = (x + y) % round(_HATCH * canvas.finer * np.sqrt(2))
        strength = np.where((across < 2 * canvas.finer) & np.asarray(inside), 130, strength).astype(np.uint8)
        ground = Image.fromarray(
            np.where((across < 2 * canvas.finer)[..., None], PAPER, INK).astype(np.uint8)
        )
    canvas.paste(ground, low[0] / canvas.finer, low[1] / canvas.finer, Image.fromarray(strength))
