"""Scenes of coloured shapes: what is in an image, the image itself, and the mask of every object.

A scene is a handful of objects on a plain background. The objects come in groups: "three small red stars"
is one group of three equal objects. No two groups share both colour and shape, and objects never overlap,
so that every caption of `tools.captions` is either true or false of a scene, never a matter of taste.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "star", "heart", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (216, 38, 38),
    "yellow": (250, 206, 32),
    "green": (40, 158, 68),
    "blue": (36, 98, 222),
    "purple": (132, 56, 184),
    "pink": (250, 128, 186),
    "brown": (138, 84, 44),
    "black": (34, 34, 40),
}
"""No colour begins with a vowel: a one-word change of colour never leaves a wrong article behind."""
SIZES: dict[str, tuple[float, float]] = {"small": (0.16, 0.2), "large": (0.28, 0.34)}
"""The range of an object's extent, as a share of the image's side."""
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255),
    "cream": (250, 243, 224),
    "mist": (232, 236, 240),
    "mint": (226, 242, 232),
    "lilac": (238, 232, 248),
}
MOST_OBJECTS = 6
CROWD_SIDE = 7
"""Cells a side of a crowd, each of which holds one object at most."""
_CROWD_SIZES: dict[str, tuple[float, float]] = {"small": (0.075, 0.09), "large": (0.115, 0.13)}
_BORDER = 0.02
_GAP = 0.025


@dataclass(frozen=True)
class SceneObject:
    """One shape in the image.

    `centre` is (x, y) and `extent` the side of the enclosing square, all as shares of the image's side,
    with the origin at the top left.
    """

    shape: str
    colour: str
    size: str
    centre: tuple[float, float]
    extent: float


@dataclass(frozen=True)
class Scene:
    """What an image shows: its objects, group after group, and the name of its background."""

    objects: tuple[SceneObject, ...]
    background: str

    def groups(self) -> list[tuple[SceneObject, ...]]:
        """The objects of equal shape, colour and size, in order of first appearance."""
        groups: dict[tuple[str, str, str], list[SceneObject]] = {}
        for thing in self.objects:
            groups.setdefault((thing.shape, thing.colour, thing.size), []).append(thing)
        return [tuple(group) for group in groups.values()]


def sample_scene(rng: np.random.Generator, groups: int | None = None) -> Scene:
    """A random scene: one to three groups, or so many, of one to four objects, six objects at most.

    The same generator state always gives the same scene.

    >>> scene = sample_scene(np.random.default_rng(3))
    >>> scene == sample_scene(np.random.default_rng(3))
    True
    >>> len(scene.objects) <= MOST_OBJECTS
    True
    """
    while (scene := _try_scene(rng, groups)) is None:  # a draw without room for an object is thrown away
        pass
    return scene


def sample_crowd(rng: np.random.Generator, count: int) -> Scene:
    """A scene of up to 48 single objects, no two alike in both colour and shape, each in a cell of its own.

    >>> len(sample_crowd(np.random.default_rng(3), 40).groups())
    40
    """
    kinds = rng.permutation(len(SHAPES) * len(COLOURS))[:count]
    cells = rng.permutation(CROWD_SIDE**2)[:count]
    objects = []
    for kind, cell in zip(kinds.tolist(), cells.tolist(), strict=True):
        size = list(_CROWD_SIZES)[int(rng.integers(2))]
        extent = float(rng.uniform(*_CROWD_SIZES[size]))
        room = 1 / CROWD_SIDE - extent
        row, column = divmod(cell, CROWD_SIDE)
        x, y = (
            (place + 0.5) / CROWD_SIDE + room * (float(lot) - 0.5)
            for place, lot in zip((column, row), rng.random(2), strict=True)
        )
        shape = SHAPES[kind % len(SHAPES)]
        colour = list(COLOURS)[kind // len(SHAPES)]
        objects.append(SceneObject(shape, colour, size, (round(x, 4), round(y, 4)), round(extent, 4)))
    return Scene(tuple(objects), list(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))])


def _pick(rng: np.random.Generator, weights: tuple[float, ...]) -> int:
    """An index drawn with these weights (they sum to one)."""
    lot = float(rng.random())
    for index, weight in enumerate(weights):
        lot -= weight
        if lot < 0:
            return index
    return len(weights) - 1


def _try_scene(rng: np.random.Generator, groups: int | None) -> Scene | None:
    """A random scene; None where an object found no room, or there are too many."""
    groups = groups or 1 + _pick(rng, (0.3, 0.4, 0.3))
    kinds: set[tuple[str, str]] = set()
    placed: list[SceneObject] = []
    while len(kinds) < groups:
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        colour = list(COLOURS)[int(rng.integers(len(COLOURS)))]
        if (shape, colour) in kinds:
            continue
        kinds.add((shape, colour))
        count = 1 + _pick(rng, (0.49, 0.17, 0.17, 0.17))
        size = list(SIZES)[int(rng.integers(len(SIZES)))]
        # Half of the groups keep to one side, so that captions can say where a whole group is.
        side = ("anywhere", "left", "right", "top", "bottom")[_pick(rng, (0.5, 0.125, 0.125, 0.125, 0.125))]
        for _ in range(count):
            thing = _place(rng, shape, colour, size, side, placed)
            if thing is None:
                return None
            placed.append(thing)
    if len(placed) > MOST_OBJECTS:
        return None
    background = list(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))]
    return Scene(tuple(placed), background)


def _place(
    rng: np.random.Generator, shape: str, colour: str, size: str, side: str, placed: list[SceneObject]
) -> SceneObject | None:
    """An object on a side of the image, apart from those that are placed; None after 40 vain draws."""
    smallest, largest = SIZES[size]
    for _ in range(40):
        extent = smallest + (largest - smallest) * float(rng.random())
        low = _BORDER + extent / 2
        room = 1 - 2 * _BORDER - extent
        x, y = (low + room * float(lot) for lot in rng.random(2))
        if side in ("left", "right") and (x > 0.42 if side == "left" else x < 0.58):
            continue
        if side in ("top", "bottom") and (y > 0.42 if side == "top" else y < 0.58):
            continue
        if all(_is_apart(x, y, extent, thing) for thing in placed):
            return SceneObject(shape, colour, size, (round(x, 4), round(y, 4)), round(extent, 4))
    return None


def _is_apart(x: float, y: float, extent: float, thing: SceneObject) -> bool:
    """True if a square about (x, y) leaves a gap to an object."""
    distance = max(abs(x - thing.centre[0]), abs(y - thing.centre[1]))
    return distance > (extent + thing.extent) / 2 + _GAP


_FINER = 4
"""Shapes are drawn this many times larger and averaged down: smooth edges."""


def draw(scene: Scene, size: int = 192) -> Image.Image:
    """The scene as a square RGB image of `size` pixels, with smooth edges and a faint shadow under each
    object.

    >>> scene = Scene((SceneObject("square", "red", "large", (0.5, 0.5), 0.3),), "white")
    >>> image = draw(scene, 96)
    >>> image.mode, image.size, image.getpixel((48, 48))
    ('RGB', (96, 96), (216, 38, 38))
    """
    from PIL import Image, ImageDraw

    side = size * _FINER
    background = BACKGROUNDS[scene.background]
    canvas = Image.new("RGB", (side, side), background)
    pen = ImageDraw.Draw(canvas)
    shade = tuple(round(0.9 * value) for value in background)
    for thing in scene.objects:
        _outline(pen, thing, side, shade, shift=0.012)
    for thing in scene.objects:
        _outline(pen, thing, side, COLOURS[thing.colour])
    return canvas.reduce(_FINER)


def masks(scene: Scene, size: int = 192) -> npt.NDArray[np.bool_]:
    """The mask of every object: boolean, (objects, size, size), in the order of `scene.objects`.

    A pixel belongs to an object that covers at least half of it; shadows belong to none. Where objects of a
    hand-made scene overlap, the pixel belongs to the later one, which is drawn over the other.
    """
    from PIL import Image, ImageDraw

    visible = np.zeros((len(scene.objects), size, size), dtype=np.bool_)
    for index, thing in enumerate(scene.objects):
        canvas = Image.new("L", (size * _FINER, size * _FINER), 0)
        _outline(ImageDraw.Draw(canvas), thing, size * _FINER, 255)
        visible[index] = np.asarray(canvas.reduce(_FINER)) >= 128
        visible[:index] &= ~visible[index]
    return visible


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
        angle = math.pi * corner / 5
        radius = 1.05 if corner % 2 == 0 else 0.45
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
