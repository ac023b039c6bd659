"""Where a caption says its phrases: a parser drops articles and changes endings, so words are looked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_LINKS = frozenset(["a", "an", "the", "is", "are", "was", "were", "be", "of"])
_STEM = 3  # letters that two forms of a word share at least
_ENDINGS = frozenset(["", "s", "es", "d", "ed", "ing", "e", "y", "ies", "ning", "ting", "ping"])


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (excluded) of a caption."""

    start: int
    end: int


def wrong_words(caption: str, wrong: Sequence[str], right: Sequence[str]) -> list[Span]:
    """What to mark in a caption of which some phrases are wrong and others right, in its order.

    Words of a wrong phrase that a right one says too are not marked, for they are not what is wrong; unless
    nothing would be left to mark. Words that the caption does not contain cannot be.

    >>> text = "a red circle above two blue stars"
    >>> spans = wrong_words(text, ["red circle above two blue stars"], ["red circle", "two blue stars"])
    >>> [text[span.start : span.end] for span in spans]
    ['above']
    """
    words = list(_WORD.finditer(caption))
    spelt = [word[0].casefold() for word in words]
    sound = {place for phrase in right for place in _places(spelt, phrase)}
    marked: set[int] = set()
    for phrase in wrong:
        places = set(_places(spelt, phrase))
        marked |= (places - sound) or places
    return _joined(caption, [Span(*words[place].span()) for place in sorted(marked)])


def _places(words: Sequence[str], phrase: str) -> list[int]:
    """Which words say the phrase: in its order in the shortest stretch, else wherever each comes first."""
    wanted = [word.casefold() for word in _WORD.findall(phrase)]
    wanted = [word for word in wanted if any(_alike(word, other) for other in words)]
    content = [word for word in wanted if word not in _LINKS]
    wanted = content or wanted
    if not wanted:
        return []
    found = [_from(words, wanted, start) for start, word in enumerate(words) if _alike(word, wanted[0])]
    whole = [places for places in found if places]
    if whole:
        return min(whole, key=lambda places: places[-1] - places[0])
    return sorted({next(i for i, word in enumerate(words) if _alike(word, one)) for one in wanted})


def _from(words: Sequence[str], wanted: Sequence[str], start: int) -> list[int]:
    places, place = [start], start
    for word in wanted[1:]:
        place = next((i for i in range(place + 1, len(words)) if _alike(words[i], word)), -1)
        if place < 0:
            return []
        places.append(place)
    return places


def _alike(word: str, other: str) -> bool:
    """Whether two words are forms of one: `dog` and `dogs`, `ride` and `riding`."""
    if word == other:
        return True
    shared = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), None)
    shared = min(len(word), len(other)) if shared is None else shared
    return shared >= _STEM and word[shared:] in _ENDINGS and other[shared:] in _ENDINGS


def _joined(caption: str, spans: Iterable[Span]) -> list[Span]:
    """Neighbours with nothing but spaces and small words between them become one."""
    joined: list[Span] = []
    for span in spans:
        between = caption[joined[-1].end : span.start].casefold().split() if joined else [""]
        if _LINKS.issuperset(between):
            span = Span(joined.pop().start, span.end)
        joined.append(span)
    return joined
