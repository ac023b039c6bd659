"""Captions of drawn scenes: true ones, one-word foils that are false, and `holds`, which decides.

`holds` reads the small language that `describe` writes: phrases such as "two small red stars on
the left", and relations such as "to the left of" or "above" between two of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from tools.scenes import COLOURS, SHAPES, Scene, SceneObject

KINDS: tuple[str, ...] = ("colour", "shape", "size", "count", "position", "relation")
"""What a foil may change."""
MARGIN = 0.08
"""How far beyond the middle line a centre lies before a caption says so, as a share of the image's side."""

_NUMBERS = {"a": 1, "one": 1, "two": 2, "three": 3, "four": 4}
_SIZE_WORDS = {"small": "small", "little": "small", "large": "large", "big": "large"}
_PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}
_SHAPE_WORDS = {word: shape for shape, plural in _PLURALS.items() for word in (shape, plural)}
_CORNERS = ("top left", "top right", "bottom left", "bottom right")
_OPPOSITE = {"left": "right", "top": "bottom", "above": "below"}
_OPPOSITE |= {second: first for first, second in _OPPOSITE.items()}

_PHRASE = (
    rf"\b(?P<number>{'|'.join(_NUMBERS)}) (?:(?P<size>{'|'.join(_SIZE_WORDS)}) )?"
    rf"(?P<colour>{'|'.join(COLOURS)}) (?P<shape>{'|'.join(_SHAPE_WORDS)})\b"
)
_POSITION = (
    rf"\bin the (?P<corner>{'|'.join(_CORNERS)}) corner\b|\bon the (?P<across>left|right)(?: side)?\b"
    r"|\b(?:at|near) the (?P<down>top|bottom)\b|\bin the (?P<middle>middle)\b"
)
_RELATION = r"\bto the (?P<beside>left|right) of\b|\b(?P<stacked>above|below)\b"
_ELEMENT = re.compile(f"{_PHRASE}|(?:{_POSITION})(?P<fronted> there (?:is|are)| (?:is|are))?|{_RELATION}")


@dataclass(frozen=True)
class Phrase:
    """One phrase of a caption: "two small red stars on the left". What the caption leaves out is None."""

    number: int
    size: str | None
    colour: str
    shape: str
    region: str | None = None

    def fits(self, thing: SceneObject) -> bool:
        alike = (thing.colour, thing.shape) == (self.colour, self.shape)
        return alike and self.size in (None, thing.size)


def describe(scene: Scene, rng: np.random.Generator) -> str:
    """A true caption of the scene, in random words.

    Every group is named with its count, colour and shape; sizes, positions in the image and the relation
    between two single objects are mentioned now and then.

    >>> from tools.scenes import sample_scene
    >>> scene = sample_scene(np.random.default_rng(7))
    >>> holds(scene, describe(scene, np.random.default_rng(0)))
    True
    """
    groups = scene.groups()
    groups = [groups[int(index)] for index in rng.permutation(len(groups))]
    relation = None
    if rng.random() < 0.4:
        groups.sort(key=lambda group: len(group) > 1)  # single objects first: relations are between them
        relation = _relation_words(groups, rng)
    parts: list[str] = []
    plural = len(groups[0]) > 1
    if relation is not None:
        parts.append(f"{_noun(groups[0], rng)} {relation} {_noun(groups[1], rng)}")
        groups = groups[2:]
    for group in groups:
        noun = _noun(group, rng)
        position = _position_words(group, rng) if rng.random() < 0.6 else None
        if position is None:
            parts.append(noun)
        elif rng.random() < 0.2 and not parts:
            parts.append(f"{position} {'are' if len(group) > 1 else 'is'} {noun}")
        else:
            parts.append(f"{noun} {position}")
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    if not re.match(r"(on|in|at|near) ", text):
        opening = ("", "", "", "there are " if plural else "there is ", "a picture of ")[int(rng.integers(5))]
        text = opening + text
    return text + ("", "", "", "", " on a plain background")[int(rng.integers(5))]


def facts_of(scene: Scene, rng: np.random.Generator) -> list[str]:
    """True phrases about a scene of single objects, one of each in random order: "a small red star".

    Joined by commas they are a caption; every one is in the language of `holds`.
    """
    places = rng.random() < 0.5
    facts = []
    for index in rng.permutation(len(scene.objects)).tolist():
        alone = (scene.objects[index],)
        position = _position_words(alone, rng) if places and rng.random() < 0.7 else None
        facts.append(f"{_noun(alone, rng)} {position}" if position else _noun(alone, rng))
    return facts


def wrong_fact(scene: Scene, fact: str, rng: np.random.Generator) -> str:
    """The fact with another colour or shape, of which the scene has no object."""
    pairs = {(thing.colour, thing.shape) for thing in scene.objects}
    false = []
    for text in [*_changes(fact, "colour"), *_changes(fact, "shape")]:
        phrase = read(text)[0][0]
        if (phrase.colour, phrase.shape) not in pairs:
            false.append(text)
    return false[int(rng.integers(len(false)))] if false else fact


def _noun(group: tuple[SceneObject, ...], rng: np.random.Generator) -> str:
    """The words of a group: number, perhaps size, colour and shape."""
    thing = group[0]
    count = len(group)
    words = [("a", "two", "three", "four")[count - 1] if count > 1 or rng.random() < 0.85 else "one"]
    if rng.random() < 0.6:
        words.append((thing.size, "little" if thing.size == "small" else "big")[int(rng.random() < 0.3)])
    words += [thing.colour, thing.shape if count == 1 else _PLURALS[thing.shape]]
    return " ".join(words)


def _position_words(group: tuple[SceneObject, ...], rng: np.random.Generator) -> str | None:
    """The words of a region in which the whole group lies, if there is one."""
    true = []
    for region in ("left", "right", "top", "bottom", "middle", *_CORNERS):
        if min(_depth(region, thing) for thing in group) >= MARGIN:
            true.append(region)
    if not true:
        return None
    region = true[int(rng.integers(len(true)))]
    if region in ("left", "right"):
        return f"on the {region}" + ("", " side")[int(rng.random() < 0.25)]
    if region in ("top", "bottom"):
        return f"{('at', 'near')[int(rng.random() < 0.25)]} the {region}"
    return f"in the {region}" + (" corner" if region in _CORNERS else "")


def _relation_words(groups: list[tuple[SceneObject, ...]], rng: np.random.Generator) -> str | None:
    """The relation of the first group to the second, where both are single objects."""
    if len(groups) < 2 or len(groups[0]) > 1 or len(groups[1]) > 1:
        return None
    words = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "below"}
    true = []
    for name, text in words.items():
        if _apart(name, groups[0][0], groups[1][0]) >= MARGIN:
            true.append(text)
    return true[int(rng.integers(len(true)))] if true else None


def _depth(region: str, thing: SceneObject) -> float:
    """The distance of the object's centre from the region's edge, within it; negative outside."""
    x = thing.centre[0] - 0.5
    y = thing.centre[1] - 0.5
    if region == "middle":
        return 0.22 - max(abs(x), abs(y))
    if " " in region:
        return min(_depth(side, thing) for side in region.split()) - 0.1
    return {"left": -x, "right": x, "top": -y, "bottom": y}[region]


def _apart(relation: str, first: SceneObject, second: SceneObject) -> float:
    """The distance of the first object's centre from the second's, to that side of it."""
    x = second.centre[0] - first.centre[0]
    y = second.centre[1] - first.centre[1]
    return {"left": x, "right": -x, "above": y, "below": -y}[relation]


@lru_cache(maxsize=4096)
def read(caption: str) -> tuple[tuple[Phrase, ...], tuple[tuple[int, str], ...]]:
    """The phrases of a caption, and its relations as (index of the phrase before, name).

    Raises ValueError for a caption that `describe` could not have written.
    """
    phrases: list[Phrase] = []
    relations: list[tuple[int, str]] = []
    ahead: str | None = None
    for element in _ELEMENT.finditer(caption.lower()):
        words = element.groupdict()
        region = words["corner"] or words["across"] or words["down"] or words["middle"]
        if words["colour"]:
            size = _SIZE_WORDS[words["size"]] if words["size"] else None
            number = _NUMBERS[words["number"]]
            phrases.append(Phrase(number, size, words["colour"], _SHAPE_WORDS[words["shape"]], ahead))
            ahead = None
        elif region and words["fronted"]:
            ahead = region
        elif region and phrases:
            last = phrases[-1]
            phrases[-1] = Phrase(last.number, last.size, last.colour, last.shape, region)
        elif phrases:
            relations.append((len(phrases) - 1, words["beside"] or words["stacked"]))
    if not phrases:
        raise ValueError(
            f"caption {caption!r} is not in the language of describe(): no phrase such as 'a red circle'"
        )
    return tuple(phrases), tuple(relations)


def holds(scene: Scene, caption: str, margin: float = MARGIN) -> bool:
    """True if the caption is true of the scene.

    "a red star on the left" holds if there is at least one such star there, "two red stars" if there are
    exactly two. `margin` is how far inside a region, or to a side of the other object, a centre must lie; 0
    accepts everything that could be called true, which is what a foil must fail. Raises ValueError for a
    caption that `describe` could not have written.

    >>> from tools.scenes import SceneObject
    >>> scene = Scene((SceneObject("star", "red", "small", (0.2, 0.5), 0.15),), "white")
    >>> holds(scene, "a small red star on the left"), holds(scene, "two red stars")
    (True, False)
    """
    phrases, relations = read(caption)
    for phrase in phrases:
        count = sum(
            phrase.fits(thing) and (phrase.region is None or _depth(phrase.region, thing) >= margin)
            for thing in scene.objects
        )
        if count == 0 or (phrase.number > 1 and count != phrase.number):
            return False
    for before, relation in relations:
        if before + 1 >= len(phrases):
            raise ValueError(f"caption {caption!r} ends after a relation")
        pairs = permutations(scene.objects, 2)
        if not any(_related(phrases[before], phrases[before + 1], pair, relation, margin) for pair in pairs):
            return False
    return True


def _related(
    first: Phrase, second: Phrase, pair: tuple[SceneObject, SceneObject], relation: str, margin: float
) -> bool:
    """True if the phrases fit these two objects, and the first lies in the relation to the second."""
    return first.fits(pair[0]) and second.fits(pair[1]) and _apart(relation, *pair) >= margin


def foils(scene: Scene, caption: str, kind: str) -> list[str]:
    """Every caption that differs from this one in a single word of that kind and is false of the scene.

    `kind` is one of `KINDS`. The list is empty where the caption has no such word.

    >>> from tools.scenes import SceneObject
    >>> scene = Scene((SceneObject("star", "red", "small", (0.2, 0.5), 0.15),), "white")
    >>> foils(scene, "a red star on the left", "position")
    ['a red star on the right']
    """
    return [text for text in _changes(caption, kind) if not holds(scene, text, margin=0.0)]


def foil(scene: Scene, caption: str, kind: str, rng: np.random.Generator) -> str:
    """A random one of `foils`; ValueError where there is none."""
    changes = _changes(caption, kind)
    for index in rng.permutation(len(changes)):
        if not holds(scene, changes[int(index)], margin=0.0):
            return changes[int(index)]
    raise ValueError(f"no word of kind {kind!r} can be changed to make {caption!r} false of this scene")


def _changes(caption: str, kind: str) -> list[str]:
    """Every caption that differs in one word of that kind."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    words = caption.split(" ")
    changed = []
    for index, word in enumerate(words):
        bare = word.rstrip(",")
        relational = bare in ("above", "below") or (index + 1 < len(words) and words[index + 1] == "of")
        for substitute in _substitutes(bare, kind, relational):
            new_word = substitute + word[len(bare) :]
            changed.append(" ".join([*words[:index], new_word, *words[index + 1 :]]))
    return changed


def _substitutes(word: str, kind: str, relational: bool) -> list[str]:
    """The words of a kind that can stand in the place of a word; none for a word of another kind."""
    if kind == "colour" and word in COLOURS:
        return [colour for colour in COLOURS if colour != word]
    if kind == "shape" and word in _SHAPE_WORDS:
        plural = word not in SHAPES
        return [_PLURALS[shape] if plural else shape for shape in SHAPES if shape != _SHAPE_WORDS[word]]
    if kind == "size" and word in _SIZE_WORDS:
        return [text for text, size in _SIZE_WORDS.items() if size != _SIZE_WORDS[word]]
    if kind == "count" and _NUMBERS.get(word, 1) > 1:
        return [text for text, number in _NUMBERS.items() if number > 1 and text != word]
    if kind == ("relation" if relational else "position") and word in _OPPOSITE:
        return [_OPPOSITE[word]]
    return []
