"""Clips of coloured shapes: a scene whose objects move, appear, vanish or change, in two moments.

What happens is one event for one group of objects. In frames between the moments an object that moves is on
its way, and one that changes does so from one frame to the next. A caption names both moments in order, "a
red star on the left, then a red star on the right", in the language of `tools.captions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np

from tools.captions import KINDS, describe, foils, holds
from tools.scenes import COLOURS, SHAPES, Scene, SceneObject, draw, sample_scene

if TYPE_CHECKING:
    from PIL import Image

EVENTS = ("move", "appear", "vanish", "change")
THEN = ", then "
"""Between the moments of a caption."""


@dataclass(frozen=True)
class Clip:
    """Two moments and the event between them; `still` frames of each, and `between` of what lies between."""

    moments: tuple[Scene, Scene]
    event: str
    still: int
    between: int

    def scenes(self) -> Iterator[Scene]:
        """The scene of every frame."""
        first, last = self.moments
        yield from [first] * self.still
        for step in range(1, self.between + 1):
            yield _between(first, last, step / (self.between + 1))
        yield from [last] * self.still

    def frames(self, size: int = 192) -> list[Image.Image]:
        """The frames as square RGB images."""
        return [draw(scene, size) for scene in self.scenes()]


def _between(first: Scene, last: Scene, share: float) -> Scene:
    """Objects on their way; where the moments do not have the same ones, the scene of the nearer moment."""
    if len(first.objects) != len(last.objects):
        return first if share < 0.5 else last
    objects = []
    for before, after in zip(first.objects, last.objects, strict=True):
        x, y = before.centre
        x_after, y_after = after.centre
        centre = (x + (x_after - x) * share, y + (y_after - y) * share)
        objects.append(replace(before if share < 0.5 else after, centre=centre))
    return Scene(tuple(objects), first.background)


def sample_clip(rng: np.random.Generator) -> Clip:
    """A random clip of 4 to 12 frames in which one of `EVENTS` happens.

    >>> clip = sample_clip(np.random.default_rng(0))
    >>> clip.moments[0] != clip.moments[1], len(list(clip.scenes())) == 2 * clip.still + clip.between
    (True, True)
    """
    event = EVENTS[int(rng.integers(len(EVENTS)))]
    while (clip := _try_clip(rng, event)) is None:
        pass
    return clip


def _try_clip(rng: np.random.Generator, event: str) -> Clip | None:
    """A clip, None where the scene that was drawn has no room for the event."""
    scene = sample_scene(rng)
    groups = scene.groups()
    background_objects = list(chain.from_iterable(groups[1:]))  # the event is the first group's
    still = int(rng.integers(2, 6))
    between = int(rng.integers(0, 3))
    if event in ("appear", "vanish"):
        if not background_objects:
            return None
        scene_without = Scene(tuple(background_objects), scene.background)
        moments = (scene_without, scene) if event == "appear" else (scene, scene_without)
        return Clip(moments, event, still, between)
    change = _moved if event == "move" else _changed
    changed = change(rng, groups[0], background_objects)
    if changed is None:
        return None
    first = Scene((*groups[0], *background_objects), scene.background)
    last = Scene((*changed, *background_objects), scene.background)
    return Clip((first, last), event, still, between)


def _moved(
    rng: np.random.Generator, group: tuple[SceneObject, ...], background_objects: list[SceneObject]
) -> tuple[SceneObject, ...] | None:
    """The group mirrored to another side, where that is free."""
    axis = int(rng.integers(2))
    moved = []
    for thing in group:
        centre = list(thing.centre)
        if abs(centre[axis] - 0.5) < 0.15:
            return None
        centre[axis] = round(1 - centre[axis], 4)
        moved.append(replace(thing, centre=(centre[0], centre[1])))
    for pair in product(moved, background_objects):
        if _overlap(*pair):
            return None
    return tuple(moved)


def _overlap(first: SceneObject, second: SceneObject) -> bool:
    """True if the enclosing squares of two objects overlap."""
    across = abs(first.centre[0] - second.centre[0])
    down = abs(first.centre[1] - second.centre[1])
    return max(across, down) <= (first.extent + second.extent) / 2


def _changed(
    rng: np.random.Generator, group: tuple[SceneObject, ...], background_objects: list[SceneObject]
) -> tuple[SceneObject, ...] | None:
    """The group in another colour or shape, which no other group has."""
    colour = group[0].colour
    shape = group[0].shape
    if rng.random() < 0.5:
        colour = [name for name in COLOURS if name != colour][int(rng.integers(len(COLOURS) - 1))]
    else:
        shape = [name for name in SHAPES if name != shape][int(rng.integers(len(SHAPES) - 1))]
    if any((thing.colour, thing.shape) == (colour, shape) for thing in background_objects):
        return None
    return tuple(replace(thing, colour=colour, shape=shape) for thing in group)


def describe_clip(clip: Clip, rng: np.random.Generator) -> str:
    """A true caption: of the first moment, then of the second.

    >>> clip = sample_clip(np.random.default_rng(0))
    >>> holds_of_clip(clip, describe_clip(clip, np.random.default_rng(1)))
    True
    """
    return THEN.join(_plain(moment, rng) for moment in clip.moments)


def _plain(scene: Scene, rng: np.random.Generator) -> str:
    """A caption without a frame around it, such as "a picture of ..."."""
    while True:
        text = describe(scene, rng)
        if not text.startswith(("there ", "a picture ")) and not text.endswith(" background"):
            return text


def holds_of_clip(clip: Clip, caption: str, margin: float = 0.0) -> bool:
    """True if what a caption says of each moment is true of it."""
    parts = caption.split(THEN)
    return all(holds(scene, part, margin) for scene, part in zip(clip.moments, parts, strict=True))


def foils_of_clip(clip: Clip, caption: str) -> list[tuple[str, str]]:
    """Every kind and caption that differs in one word, and in that is false of both moments."""
    parts = caption.split(THEN)
    foils_with_kinds = []
    for place, (scene, part) in enumerate(zip(clip.moments, parts, strict=True)):
        for kind in KINDS:
            for text in foils(scene, part, kind):
                if not holds(clip.moments[1 - place], text, margin=0.0):
                    caption_of_foil = THEN.join([*parts[:place], text, *parts[place + 1 :]])
                    foils_with_kinds.append((kind, caption_of_foil))
    return foils_with_kinds
