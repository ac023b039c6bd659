"""From a scene to an image, and to the mask of each object."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capeval_core.synthetic.scenes import BACKGROUNDS, COLOURS, Scene, SceneObject

if TYPE_CHECKING:
    from PIL import Image

_FINER = 4
"""Shapes are drawn this many times larger and averaged down: smooth edges."""


def draw(scene: Scene, size: int = 192) -> Image.Image:
    """The scene as a square RGB image of `size` pixels, with smooth edges and a faint shadow under each
    object.

    >>> from capeval_core.synthetic.scenes import SceneObject
    >>> scene = Scene((SceneObject("square", "red", "large", (0.5, 0.5), 0.3),), "white")
    >>> image = draw(scene, 96)
    >>> image.mode, image.size, image.getpixel((48, 48))
    ('RGB', (96, 96), (216, 38, 38))
    """
    from PIL import Image, ImageDraw

    _check_size(size)
    side = size * _FINER
    background = BACKGROUNDS[scene.background]
    canvas = Image.new("RGB", (side, side), background)
    pen = ImageDraw.Draw(canvas)
    for thing in scene.objects:
        _outline(pen, thing, side, _scaled(background, 0.9), shift=0.012)
    for thing in scene.objects:
        _outline(pen, thing, side, COLOURS[thing.colour])
    return canvas.reduce(_FINER)


def masks(scene: Scene, size: int = 192) -> npt.NDArray[np.bool_]:
    """Which pixels show which object: boolean, (objects, size, size), in the order of `scene.objects`.

    A pixel belongs to an object that covers at least half of it; shadows belong to none. Where objects of a
    hand-made scene overlap, the pixel belongs to the later one, which is drawn over the other.
    """
    from PIL import Image, ImageDraw

    _check_size(size)
    found = np.zeros((len(scene.objects), size, size), dtype=np.bool_)
    for index, thing in enumerate(scene.objects):
        canvas = Image.new("L", (size * _FINER, size * _FINER), 0)
        _outline(ImageDraw.Draw(canvas), thing, size * _FINER, 255)
        found[index] = np.asarray(canvas.reduce(_FINER)) >= 128
        found[:index] &= ~found[index]
    return found


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size={size}: an image has at least 1 pixel a side")


def _scaled(rgb: tuple[int, int, int], factor: float) -> tuple[int, int, int]:
    red, green, blue = (round(value * factor) for value in rgb)
    return red, green, blue


def _outline(pen: Any, thing: SceneObject, side: int, fill: Any, shift: float = 0.0) -> None:
    """Fill the object's shape on a canvas of `side` pixels, moved down and right by `shift` of the side."""
    x, y = ((value + shift) * side for value in thing.centre)
    half = thing.extent * side / 2
    if thing.shape == "circle":
        pen.ellipse((x - half, y - half, x + half, y + half), fill=fill)
    elif thing.shape == "square":
        reach = 0.9 * half
        pen.rectangle((x - reach, y - reach, x + reach, y + reach), fill=fill)
    else:
        pen.polygon([(x + half * dx, y + half * dy) for dx, dy in _POLYGONS[thing.shape]], fill=fill)


def _star() -> list[tuple[float, float]]:
    points = []
    for corner in range(10):
        angle, radius = math.pi * corner / 5, (1.05 if corner % 2 == 0 else 0.45)
        points.append((radius * math.sin(angle), 0.07 - radius * math.cos(angle)))
    return points


def _heart() -> list[tuple[float, float]]:
    points = []
    for step in range(40):
        t = 2 * math.pi * step / 40
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 16, -(y + 2.5) / 15))
    return points


def _cross(arm: float = 0.34) -> list[tuple[float, float]]:
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    points = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return points


_POLYGONS: dict[str, list[tuple[float, float]]] = {
    "triangle": [(0.0, -0.92), (1.0, 0.85), (-1.0, 0.85)],
    "star": _star(),
    "heart": _heart(),
    "cross": _cross(),
}
"""Corners in units of half the extent, about the centre, y downwards."""
