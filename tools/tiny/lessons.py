"""Scenes as arrays to learn from: images, token ids of captions, foils and phrases, masks of objects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.phrases.chunks import chunks
from tools.captions import KINDS, describe, foil, read
from tools.scenes import COLOURS, MOST_ALIKE, MOST_OBJECTS, SHAPES, SIZES, Scene, draw, masks, sample_scene

LONGEST = 48
"""Room for the tokens of a caption, prompt included; the longest caption of three groups needs fewer."""
WORDINGS = 2
"""True captions per scene: the second one serves the text-to-text term and the other passes."""
_DRAWN_AT = (72, 96, 128, 192, 256)  # sides in pixels, at random
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
    """A foil of a true caption, or None where the caption has no word of this kind."""
    try:
        return foil(scene, caption, kind, rng)
    except ValueError:
        return None


def write(ids: list[int], tokens: Ints, lengths: Ints, index: tuple[int, ...]) -> None:
    """Write the ids of a text, and their number, into arrays of texts."""
    lengths[index] = len(ids)
    tokens[index][: len(ids)] = ids


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


PHRASES, FALSE_PHRASES = 10, 8
"""Room for the true and the false phrases of a scene."""
_MASKED_AT = _DRAWN_AT[:4]
_IN_PART = 0.15
"""How often a mask shows only a part of its object, as segmenters' masks do."""


@dataclass(frozen=True)
class RegionLessons:
    """N scenes as arrays. A bit of a kind stands for one pair of shape and colour."""

    pixels: npt.NDArray[np.uint8]
    """(N, side, side, 3)"""
    masks: npt.NDArray[np.uint8]
    """(N, MOST_OBJECTS, side, side): the share of each pixel that the object covers, of 255."""
    objects: Ints
    """(N, MOST_OBJECTS): the bit of its kind; 0 behind."""
    members: Ints
    """(N,): the bits of all kinds in the scene."""
    captions: Ints
    """(N, WORDINGS, 1 + kinds, LONGEST): token ids of a caption, then of a foil of each kind."""
    lengths: Ints
    """(N, WORDINGS, 1 + kinds): tokens that count; 0 where the caption allows no such foil."""
    phrases: Ints
    """(N, PHRASES + FALSE_PHRASES, LONGEST): token ids of true phrases, then of false ones."""
    phrase_lengths: Ints
    """(N, PHRASES + FALSE_PHRASES): tokens that count; 0 where there is no phrase."""
    kinds: Ints
    """(N, PHRASES + FALSE_PHRASES): the bits of the kinds that a phrase may be true of, in any scene."""


def make_region_lessons(
    count: int, rng: np.random.Generator, encode: Callable[[str], list[int]], side: int
) -> RegionLessons:
    """Sample, draw and describe `count` scenes. `encode` gives a text's token ids."""
    texts, room = 1 + len(KINDS), PHRASES + FALSE_PHRASES
    lessons = RegionLessons(
        pixels=np.zeros((count, side, side, 3), np.uint8),
        masks=np.zeros((count, MOST_OBJECTS, side, side), np.uint8),
        objects=np.zeros((count, MOST_OBJECTS), np.int64),
        members=np.zeros(count, np.int64),
        captions=np.zeros((count, WORDINGS, texts, LONGEST), np.int64),
        lengths=np.zeros((count, WORDINGS, texts), np.int64),
        phrases=np.zeros((count, room, LONGEST), np.int64),
        phrase_lengths=np.zeros((count, room), np.int64),
        kinds=np.zeros((count, room), np.int64),
    )
    for index in range(count):
        scene = sample_scene(rng)
        drawn_at = _MASKED_AT[int(rng.integers(len(_MASKED_AT)))]
        lessons.pixels[index] = shrink(draw(scene, drawn_at), side)
        for slot, mask in enumerate(masks(scene, drawn_at)):
            visible = _part(mask, rng) if rng.random() < _IN_PART else mask
            covered = Image.fromarray(visible.astype(np.uint8) * 255)
            lessons.masks[index, slot] = np.asarray(covered.resize((side, side), Image.Resampling.BILINEAR))
            lessons.objects[index, slot] = _bits(scene.objects[slot].shape, scene.objects[slot].colour)
        lessons.members[index] = np.bitwise_or.reduce(lessons.objects[index])
        true: dict[str, int] = {}
        false: dict[str, int] = {}
        for wording in range(WORDINGS):
            caption = describe(scene, rng)
            stated = dict(_phrases(caption, rng))
            true |= stated
            for slot, kind in enumerate((None, *KINDS)):
                text = caption if kind is None else foil_if_any(scene, caption, kind, rng)
                if text is not None:
                    write(encode(text), lessons.captions, lessons.lengths, (index, wording, slot))
                    false |= {phrase: bits for phrase, bits in _plain(text) if phrase not in stated}
        wrong = {text: bits for text, bits in false.items() if text not in true}
        for first, most, phrases in ((0, PHRASES, true), (PHRASES, FALSE_PHRASES, wrong)):
            order = rng.permutation(len(phrases))[:most]
            for slot, index_of_phrase in enumerate(order, first):
                text, bits = list(phrases.items())[index_of_phrase]
                write(encode(text), lessons.phrases, lessons.phrase_lengths, (index, slot))
                lessons.kinds[index, slot] = bits
    return lessons


def _part(mask: Bools, rng: np.random.Generator) -> Bools:
    """The side of a mask that lies beyond a line through its middle."""
    rows, columns = np.nonzero(mask)
    angle = rng.random() * 2 * np.pi
    beyond = (rows - rows.mean()) * np.sin(angle) + (columns - columns.mean()) * np.cos(angle) >= 0
    part = np.zeros_like(mask)
    part[rows[beyond], columns[beyond]] = True
    return part


def _plain(caption: str) -> list[tuple[str, int]]:
    """The phrases of a caption, and the bits of the kinds that each is about."""
    nouns = [_bits(phrase.shape, phrase.colour) for phrase in read(caption)[0]]
    return [
        (chunk.text, nouns[chunk.subject] | (nouns[chunk.object] if chunk.object is not None else 0))
        for chunk in chunks(caption)
    ]


def _phrases(caption: str, rng: np.random.Generator) -> list[tuple[str, int]]:
    """The phrases of a true caption, and each object once more in random other words."""
    phrases = _plain(caption)
    shapes = [phrase.shape for phrase in read(caption)[0]]
    for phrase in read(caption)[0]:
        size, one = phrase.size, phrase.number == 1
        both = _bits(phrase.shape, phrase.colour)
        ways = [
            (f"{phrase.colour} {phrase.shape}", both),
            (f"a {phrase.colour} {phrase.shape}", both),
            (f"{phrase.shape} is {phrase.colour}", both),
            (phrase.shape, _bits(phrase.shape, None)),
        ]
        if size is not None:
            word = ("little" if size == "small" else "big") if rng.random() < 0.3 else size
            ways.append((f"{word} {phrase.colour} {phrase.shape}", both))
            if shapes.count(phrase.shape) == 1:  # else two shapes could be meant
                ways.append((f"{phrase.shape} is {word}", _bits(phrase.shape, None)))
            ways += [(f"a {word} {phrase.colour} {phrase.shape}", both)] if one else []
        phrases.append(ways[int(rng.integers(len(ways)))])
    stated, relations = read(caption)
    for subject, relation in relations:
        if rng.random() < 0.5:
            left, right = stated[subject], stated[subject + 1]
            by = f"{relation} of" if relation in ("left", "right") else relation
            kinds = _bits(left.shape, left.colour) | _bits(right.shape, right.colour)
            phrases.append((f"{left.colour} {left.shape} {by} {right.colour} {right.shape}", kinds))
    return phrases


def _bits(shape: str, colour: str | None) -> int:
    colours = list(COLOURS) if colour is None else [colour]
    return sum(1 << kind_of(shape, name) for name in colours)


def alike(members: Ints) -> Bools:
    """(B, B), true where the caption of the column may also be true of the image of the row.

    members (B,) are the bits of the kinds in each scene. A caption names every group of its scene, so it can
    be true only where all of them are.

    >>> alike(np.array([0b01, 0b11]))
    array([[ True, False],
           [ True,  True]])
    """
    may: Bools = (members[None, :] & ~members[:, None]) == 0
    return may


def choose_foils(lengths: Ints, most: int, rng: np.random.Generator, seldom: Collection[str] = ()) -> Ints:
    """(B, most) random foils of each scene, as indices of its texts; missing ones come last.

    lengths (B, 1 + kinds) are those of a caption and its foils, 0 where there is none; foils of the kinds
    `seldom` come up less often.
    """
    lots = rng.random((len(lengths), len(KINDS))) + np.isin(KINDS, list(seldom)) * 0.5
    return 1 + np.argsort(lots + 2 * (lengths[:, 1:] == 0), axis=1)[:, :most]


class Captions(NamedTuple):
    """Which captions a step reads: of each of B scenes one in either wording, and F foils of the first."""

    rows: Ints
    """(B,): the scenes."""
    wording: int
    foils: Ints
    """(B, F): which foils, as indices of the scene's texts."""
    present: Bools
    """(B, F): false where the caption allows no such foil."""
    alike: Bools
    """(B, B): see `alike`."""

    @staticmethod
    def choose(
        lessons: Lessons | RegionLessons,
        rows: Ints,
        wording: int,
        most: int,
        rng: np.random.Generator,
        seldom: Collection[str] = (),
    ) -> Captions:
        """The captions of these scenes, with foils from `choose_foils`."""
        lengths = lessons.lengths[rows, wording]
        foils = choose_foils(lengths, most, rng, seldom)
        present = np.take_along_axis(lengths, foils, axis=1) > 0
        return Captions(rows, wording, foils, present, alike(lessons.members[rows]))

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of the lessons, (N, WORDINGS, 1 + kinds, ...), at these captions.

        (B + B + B * F, ...): those of the wording, those of the other one, the foils.
        """
        foils = values[self.rows[:, None], self.wording, self.foils]
        return np.concatenate(
            [
                values[self.rows, self.wording, 0],
                values[self.rows, 1 - self.wording, 0],
                foils.reshape(self.foils.size, *foils.shape[2:]),
            ]
        )
