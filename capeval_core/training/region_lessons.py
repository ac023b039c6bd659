"""Scenes as arrays to learn regions from: images, masks of objects, captions, phrases true of an object.

Phrases are those that the rules of `capeval_core.phrases` find in captions, so that the weights know what the
metric will ask; some are worded as scene-graph parsers word them ("circle is red"). False phrases are those
that a one-word foil of the caption has and the caption has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.phrases.chunks import chunks
from capeval_core.synthetic import KINDS, describe, draw, masks, sample_scene
from capeval_core.synthetic.captions import read
from capeval_core.synthetic.scenes import COLOURS, MOST_OBJECTS
from capeval_core.training.lessons import LONGEST, WORDINGS, Bools, Ints, foil_if_any, kind_of, shrink, write

PHRASES, FALSE = 10, 8
"""Room for the true and the false phrases of a scene."""
_DRAWN_AT = (72, 96, 128, 192)
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
    """(N, PHRASES + FALSE, LONGEST): token ids of true phrases, then of false ones."""
    phrase_lengths: Ints
    """(N, PHRASES + FALSE): tokens that count; 0 where there is no phrase."""
    kinds: Ints
    """(N, PHRASES + FALSE): the bits of the kinds that a phrase may be true of, in any scene."""


def make_region_lessons(
    count: int, rng: np.random.Generator, encode: Callable[[str], list[int]], side: int
) -> RegionLessons:
    """Sample, draw and describe `count` scenes. `encode` gives a text's token ids."""
    texts, room = 1 + len(KINDS), PHRASES + FALSE
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
        drawn_at = _DRAWN_AT[int(rng.integers(len(_DRAWN_AT)))]
        lessons.pixels[index] = shrink(draw(scene, drawn_at), side)
        for slot, mask in enumerate(masks(scene, drawn_at)):
            seen = _part(mask, rng) if rng.random() < _IN_PART else mask
            covered = Image.fromarray(seen.astype(np.uint8) * 255)
            lessons.masks[index, slot] = np.asarray(covered.resize((side, side), Image.Resampling.BILINEAR))
            lessons.objects[index, slot] = _bits(scene.objects[slot].shape, scene.objects[slot].colour)
        lessons.members[index] = np.bitwise_or.reduce(lessons.objects[index])
        true: dict[str, int] = {}
        false: dict[str, int] = {}
        for wording in range(WORDINGS):
            caption = describe(scene, rng)
            said = dict(_phrases(caption, rng))
            true |= said
            for slot, kind in enumerate((None, *KINDS)):
                text = caption if kind is None else foil_if_any(scene, caption, kind, rng)
                if text is not None:
                    write(encode(text), lessons.captions, lessons.lengths, (index, wording, slot))
                    false |= {phrase: bits for phrase, bits in _plain(text) if phrase not in said}
        wrong = {text: bits for text, bits in false.items() if text not in true}
        for first, most, some in ((0, PHRASES, true), (PHRASES, FALSE, wrong)):
            order = rng.permutation(len(some))[:most]
            for slot, which in enumerate(order, first):
                text, bits = list(some.items())[which]
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
    """The phrases of a true caption, and by lot some of them in other words."""
    found = _plain(caption)
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
            if shapes.count(phrase.shape) == 1:  # or it would not be told which one is meant
                ways.append((f"{phrase.shape} is {word}", _bits(phrase.shape, None)))
            ways += [(f"a {word} {phrase.colour} {phrase.shape}", both)] if one else []
        found.append(ways[int(rng.integers(len(ways)))])
    phrases, relations = read(caption)
    for subject, relation in relations:
        if rng.random() < 0.5:
            left, right = phrases[subject], phrases[subject + 1]
            by = f"{relation} of" if relation in ("left", "right") else relation
            kinds = _bits(left.shape, left.colour) | _bits(right.shape, right.colour)
            found.append((f"{left.colour} {left.shape} {by} {right.colour} {right.shape}", kinds))
    return found


def _bits(shape: str, colour: str | None) -> int:
    colours = list(COLOURS) if colour is None else [colour]
    return sum(1 << kind_of(shape, each) for each in colours)
