"""A picture with its regions outlined and numbered; those that no phrase mentions dashed and hatched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from capeval_core.drawing.badges import place_badges
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import INK, PAPER, Rgb, region_colour
from capeval_core.drawing.outlines import Line, dashes, outlines
from capeval_core.drawing.text import FINER
from capeval_core.regions.regions import Regions

_OUTLINE, _CASING = 2.5, 5.0  # a coloured line in a white one, seen on any ground
_DASH = (8.0, 6.0)
_TINT = 40  # of 255: how much of a region's colour lies on it
_HATCH = 9.0  # pixels between the lines on what no phrase mentions
_CROWDED = 20  # regions from which badges are smaller


def badge_radius(regions: int) -> float:
    """The radius of the badges of so many regions, in pixels."""
    return 11.0 if regions < _CROWDED else 9.0


def draw_badge(canvas: Canvas, x: float, y: float, radius: float, number: int, colour: Rgb) -> None:
    """A region's number (from 1) on its colour."""
    canvas.disc(x, y, radius + 1.5, PAPER)
    canvas.disc(x, y, radius, colour)
    size = radius * (1.2 if number < 10 else 1.05)
    canvas.text(x, y + size * 0.36, str(number), size, PAPER, bold=True, anchor="ms")


def draw_regions(
    image: Image.Image, regions: Regions, unmentioned: Sequence[bool], width: float, finer: float = FINER
) -> Canvas:
    """The picture, `width` pixels wide, with its regions; `finer` is as for `Canvas`."""
    height = max(1.0, width * image.height / image.width)
    canvas = Canvas(width, height, PAPER, finer)
    shown = image.convert("RGB").resize(canvas.image.size, Image.Resampling.LANCZOS)
    canvas.paste(shown, 0, 0)
    size = (canvas.width, canvas.height)
    lines = [[line * size for line in outlines(runs, regions.size)] for runs in regions.runs]
    for index in np.argsort(-regions.areas, kind="stable").tolist():  # small ones lie on top of large ones
        colour = region_colour(index, unmentioned[index])
        _fill(canvas, lines[index], colour, hatched=unmentioned[index])
        for line in lines[index]:
            _outline(canvas, line, colour, dashed=unmentioned[index])
    radius = badge_radius(len(regions))
    for index, place in enumerate(place_badges([found[0] for found in lines], size, radius)):
        colour = region_colour(index, unmentioned[index])
        if place.is_apart(radius):
            canvas.line([(place.x, place.y), place.anchor], PAPER, 3.5)
            canvas.line([(place.x, place.y), place.anchor], colour, 1.5)
        draw_badge(canvas, place.x, place.y, radius, index + 1, colour)
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
