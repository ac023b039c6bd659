"""Scenes as arrays to learn from: small images, token ids of captions and foils, places of objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.synthetic import KINDS, Scene, describe, draw, foil, sample_scene
from capeval_core.synthetic.captions import read
from capeval_core.synthetic.scenes import COLOURS, MOST_ALIKE, MOST_OBJECTS, SHAPES, SIZES

LONGEST = 48
"""Room for the tokens of a caption, prompt included; the longest caption of three groups needs fewer."""
WORDINGS = 2
"""True captions per scene: the second one serves the text-to-text term and the other passes."""
_DRAWN_AT = (72, 96, 128, 192, 256)
_REGIONS = ("left", "right", "top", "bottom")

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FACTS = (len(SHAPES) + len(SIZES) + MOST_ALIKE + len(_REGIONS)) * len(COLOURS) + len(SHAPES) * MOST_ALIKE
"""Yes-or-no questions about a scene, see `_numbers`."""


@dataclass(frozen=True)
class Lessons:
    """N scenes as arrays. `side` is the image's side, `cells` its patches per side."""

    pixels: npt.NDArray[np.uint8]
    """(N, side, side, 3)"""
    tokens: Ints
    """(N, WORDINGS, 1 + kinds, LONGEST): the caption, then a foil of each kind, with zeros behind."""
    lengths: Ints
    """(N, WORDINGS, 1 + kinds): tokens that count; 0 where the caption allows no foil of this kind."""
    members: Ints
    """(N,): one bit for each pair of shape and colour in the scene."""
    groups: Ints
    """(N,): number of groups, 1 to 3."""
    objects: Ints
    """(N, MOST_OBJECTS, 5): patch of the centre, shape, colour, size, number of others alike; -1 behind."""
    stated: Bools
    """(N, WORDINGS, 1 + kinds, facts): the facts that a caption or foil states, true or not."""
    facts: npt.NDArray[np.float32]
    """(N, facts): 1 where the fact is true of the scene."""


def shrink(image: Image.Image, side: int) -> npt.NDArray[np.uint8]:
    """A square image at `side` pixels as the encoder's preprocessing makes it: Pillow's bicubic resize."""
    return np.array(image.resize((side, side), Image.Resampling.BICUBIC))


def make_lessons(
    count: int, rng: np.random.Generator, encode: Callable[[str], list[int]], side: int, cells: int
) -> Lessons:
    """Sample, draw and describe `count` scenes. `encode` gives a caption's token ids, prompt included."""
    texts = 1 + len(KINDS)
    lessons = Lessons(
        pixels=np.zeros((count, side, side, 3), np.uint8),
        tokens=np.zeros((count, WORDINGS, texts, LONGEST), np.int64),
        lengths=np.zeros((count, WORDINGS, texts), np.int64),
        members=np.zeros(count, np.int64),
        groups=np.zeros(count, np.int64),
        objects=np.full((count, MOST_OBJECTS, 5), -1, np.int64),
        stated=np.zeros((count, WORDINGS, texts, _FACTS), np.bool_),
        facts=np.zeros((count, _FACTS), np.float32),
    )
    for index in range(count):
        scene = sample_scene(rng)
        drawn_at = _DRAWN_AT[int(rng.integers(len(_DRAWN_AT)))]
        lessons.pixels[index] = shrink(draw(scene, drawn_at), side)
        for wording in range(WORDINGS):
            caption = describe(scene, rng)
            foils = [foil_if_any(scene, caption, kind, rng) for kind in KINDS]
            for slot, text in enumerate([caption, *foils]):
                if text is not None:
                    write(encode(text), lessons.tokens, lessons.lengths, (index, wording, slot))
                    lessons.stated[index, wording, slot, _stated(text)] = True
        groups = scene.groups()
        lessons.groups[index] = len(groups)
        lessons.members[index] = sum(1 << kind_of(group[0].shape, group[0].colour) for group in groups)
        members = [(thing, len(group)) for group in groups for thing in group]
        for slot, (thing, alike) in enumerate(members):
            column, row = (min(int(value * cells), cells - 1) for value in thing.centre)
            lessons.objects[index, slot] = (
                row * cells + column,
                SHAPES.index(thing.shape),
                list(COLOURS).index(thing.colour),
                list(SIZES).index(thing.size),
                alike - 1,
            )
        lessons.facts[index, _facts(scene)] = 1
    return lessons


def foil_if_any(scene: Scene, caption: str, kind: str, rng: np.random.Generator) -> str | None:
    """A foil of a true caption, or None where the caption says nothing of this kind."""
    try:
        return foil(scene, caption, kind, rng)
    except ValueError:
        return None


def write(ids: list[int], tokens: Ints, lengths: Ints, place: tuple[int, ...]) -> None:
    """Put the ids of a text, and their number, at its place in arrays of texts."""
    lengths[place] = len(ids)
    tokens[place][: len(ids)] = ids


def kind_of(shape: str, colour: str) -> int:
    """The number of a pair of shape and colour."""
    return SHAPES.index(shape) * len(COLOURS) + list(COLOURS).index(colour)


def _facts(scene: Scene) -> list[int]:
    """The numbers of the facts that are true, group by group."""
    true = []
    for group in scene.groups():
        sides = (
            all(thing.centre[0] < 0.45 for thing in group),
            all(thing.centre[0] > 0.55 for thing in group),
            all(thing.centre[1] < 0.45 for thing in group),
            all(thing.centre[1] > 0.55 for thing in group),
        )
        regions = [region for region, yes in zip(_REGIONS, sides, strict=True) if yes]
        true += _numbers(group[0].colour, group[0].shape, group[0].size, len(group), regions)
    return true


def _stated(caption: str) -> list[int]:
    """The numbers of the facts that the caption states."""
    stated = []
    for phrase in read(caption)[0]:
        regions = [region for region in _REGIONS if region in (phrase.region or "").split()]
        stated += _numbers(phrase.colour, phrase.shape, phrase.size, phrase.number, regions)
    return stated


def _numbers(colour: str, shape: str, size: str | None, count: int, regions: list[str]) -> list[int]:
    """Numbers of facts: which shape, size, count, side go with which colour; which count with which shape."""
    column, row = list(COLOURS).index(colour), SHAPES.index(shape)
    rows = [row, len(SHAPES) + len(SIZES) + count - 1]
    if size is not None:
        rows.append(len(SHAPES) + list(SIZES).index(size))
    beyond = len(SHAPES) + len(SIZES) + MOST_ALIKE
    rows += [beyond + _REGIONS.index(region) for region in regions]
    last = (beyond + len(_REGIONS)) * len(COLOURS)
    return [*(fact * len(COLOURS) + column for fact in rows), last + row * MOST_ALIKE + count - 1]
