"""Clips of coloured shapes: a scene whose objects move, appear, vanish or change, in two moments.

What happens is one event for one group of objects. In frames between the moments an object that moves is on
its way, and one that changes does so from one frame to the next. A caption names both moments in order, "a
red star on the left, then a red star on the right", in the language of `tools.captions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    for one, other in zip(first.objects, last.objects, strict=True):
        (x, y), (u, v) = one.centre, other.centre
        centre = (x + (u - x) * share, y + (v - y) * share)
        objects.append(replace(one if share < 0.5 else other, centre=centre))
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
    kept = [thing for group in groups[1:] for thing in group]
    still, between = int(rng.integers(2, 6)), int(rng.integers(0, 3))
    if event in ("appear", "vanish"):
        if not kept:
            return None
        other = Scene(tuple(kept), scene.background)
        moments = (other, scene) if event == "appear" else (scene, other)
        return Clip(moments, event, still, between)
    changed = _moved(rng, groups[0], kept) if event == "move" else _changed(rng, groups[0], kept)
    if changed is None:
        return None
    first = Scene((*groups[0], *kept), scene.background)
    return Clip((first, Scene((*changed, *kept), scene.background)), event, still, between)


def _moved(
    rng: np.random.Generator, group: tuple[SceneObject, ...], kept: list[SceneObject]
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
    return tuple(moved) if not any(_overlap(one, other) for one in moved for other in kept) else None


def _overlap(one: SceneObject, other: SceneObject) -> bool:
    apart = max(abs(a - b) for a, b in zip(one.centre, other.centre, strict=True))
    return apart <= (one.extent + other.extent) / 2


def _changed(
    rng: np.random.Generator, group: tuple[SceneObject, ...], kept: list[SceneObject]
) -> tuple[SceneObject, ...] | None:
    """The group in another colour or shape, which no other group has."""
    colour, shape = group[0].colour, group[0].shape
    if rng.random() < 0.5:
        colour = [other for other in COLOURS if other != colour][int(rng.integers(len(COLOURS) - 1))]
    else:
        shape = [other for other in SHAPES if other != shape][int(rng.integers(len(SHAPES) - 1))]
    if any((thing.colour, thing.shape) == (colour, shape) for thing in kept):
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
    """Whether what a caption says of each moment is true of it."""
    parts = caption.split(THEN)
    return all(holds(scene, part, margin) for scene, part in zip(clip.moments, parts, strict=True))


def foils_of_clip(clip: Clip, caption: str) -> list[tuple[str, str]]:
    """Every kind and caption that differs in one word, and in that is false of both moments."""
    parts = caption.split(THEN)
    found = []
    for place, (scene, part) in enumerate(zip(clip.moments, parts, strict=True)):
        for kind in KINDS:
            for text in foils(scene, part, kind):
                if not holds(clip.moments[1 - place], text, margin=0.0):
                    found.append((kind, THEN.join([*parts[:place], text, *parts[place + 1 :]])))
    return found
