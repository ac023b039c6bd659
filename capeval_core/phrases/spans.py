"""Phrases of a caption, and the words of the caption that a phrase came from.

A parser drops articles and changes endings, so words are compared by a small stemmer, `_alike`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_LINKS = frozenset(["a", "an", "the", "is", "are", "was", "were", "be", "of"])
# A stemmer: two words are forms of one if they share a stem and each continues it by one of these endings.
_STEM = 3  # letters of a stem at least
_ENDINGS = frozenset(["", "s", "es", "d", "ed", "ing", "e", "y", "ies", "ning", "ting", "ping"])


class Span(NamedTuple):
    """Characters `start` to `end` (excluded) of a caption."""

    start: int
    end: int


class Phrases(NamedTuple):
    """The phrases of one caption, in its order, at least one, without duplicates."""

    phrases: tuple[str, ...]
    truncated: int = 0  # sentences that are longer than the parser reads
    fallback: int = 0  # sentences that are their own phrase


def wrong_words(caption: str, wrong_phrases: Sequence[str], right_phrases: Sequence[str]) -> list[Span]:
    """The spans of a caption to mark as wrong, in its order.

    Words that a wrong phrase shares with a right one are not marked, unless it has no other word in the
    caption.
    """
    words: list[str] = []
    spans: list[Span] = []
    for match in _WORD.finditer(caption):
        words.append(match[0].casefold())
        spans.append(Span(*match.span()))
    right_words: set[int] = set()
    for phrase in right_phrases:
        right_words.update(_indices(words, phrase))
    marked: set[int] = set()
    for phrase in wrong_phrases:
        indices = set(_indices(words, phrase))
        marked |= (indices - right_words) or indices
    return _joined(caption, [spans[index] for index in sorted(marked)])


def _indices(words: Sequence[str], phrase: str) -> list[int]:
    """The words of a phrase: the shortest stretch with all of them in order, else the first of each."""
    places: dict[str, list[int]] = {}  # of each word of the phrase that the caption has
    targets: list[str] = []
    for target in _WORD.findall(phrase.casefold()):
        places[target] = [index for index, word in enumerate(words) if _alike(word, target)]
        if places[target]:
            targets.append(target)
    # Articles are everywhere: they are looked for only where the caption has nothing else of the phrase.
    targets = [target for target in targets if target not in _LINKS] or targets
    if not targets:
        return []
    stretches = []
    for start in places[targets[0]]:
        stretch = [start]
        for target in targets[1:]:
            position = bisect_right(places[target], stretch[-1])  # the first place behind the word before
            stretch += places[target][position : position + 1]
        if len(stretch) == len(targets):
            stretches.append(stretch)
    if stretches:
        return min(stretches, key=lambda stretch: stretch[-1] - stretch[0])
    return sorted({places[target][0] for target in targets})


def _alike(word: str, target: str) -> bool:
    """Return whether two words are forms of one word: `dog` and `dogs`, `ride` and `riding`."""
    if word == target:
        return True
    shared = 0
    for letter, target_letter in zip(word, target, strict=False):
        if letter != target_letter:
            break
        shared += 1
    return shared >= _STEM and word[shared:] in _ENDINGS and target[shared:] in _ENDINGS


def _joined(caption: str, spans: Iterable[Span]) -> list[Span]:
    """Spans with only spaces and small words between them become one."""
    joined: list[Span] = []
    for span in spans:
        if joined:
            between = caption[joined[-1].end : span.start].casefold().split()
            if _LINKS.issuperset(between):
                span = Span(joined.pop().start, span.end)
        joined.append(span)
    return joined
