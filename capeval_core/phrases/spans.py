"""Phrases of a caption, and the words that one came from; a parser drops articles and changes endings."""

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


@dataclass(frozen=True)
class Phrases:
    """The phrases of one caption, in its order, at least one, without duplicates.

    truncated: sentences that are longer than the parser reads. fallback: those that are their own phrase.
    """

    phrases: tuple[str, ...]
    truncated: int = 0
    fallback: int = 0


def wrong_words(caption: str, wrong: Sequence[str], right: Sequence[str]) -> list[Span]:
    """The spans of a caption to mark as wrong, in its order.

    Words that a wrong phrase shares with a right one are not marked, unless it has no other word in the
    caption.
    """
    words = list(_WORD.finditer(caption))
    spelt = [word[0].casefold() for word in words]
    right_words = {index for phrase in right for index in _indices(spelt, phrase)}
    marked: set[int] = set()
    for phrase in wrong:
        indices = set(_indices(spelt, phrase))
        marked |= (indices - right_words) or indices
    return _joined(caption, [Span(*words[index].span()) for index in sorted(marked)])


def _indices(words: Sequence[str], phrase: str) -> list[int]:
    """The words of a phrase: the shortest stretch with all of them in order, else the first of each."""
    targets = [word.casefold() for word in _WORD.findall(phrase)]
    targets = [target for target in targets if any(_alike(word, target) for word in words)]
    targets = [target for target in targets if target not in _LINKS] or targets
    if not targets:
        return []
    starts = [start for start, word in enumerate(words) if _alike(word, targets[0])]
    stretches = [stretch for start in starts if (stretch := _in_order(words, targets, start))]
    if stretches:
        return min(stretches, key=lambda stretch: stretch[-1] - stretch[0])
    return sorted({next(i for i, word in enumerate(words) if _alike(word, target)) for target in targets})


def _in_order(words: Sequence[str], targets: Sequence[str], start: int) -> list[int]:
    """The next word like each target from `start` on; empty if one is missing."""
    indices = [start]
    for target in targets[1:]:
        index = next((i for i in range(indices[-1] + 1, len(words)) if _alike(words[i], target)), None)
        if index is None:
            return []
        indices.append(index)
    return indices


def _alike(word: str, other: str) -> bool:
    """Whether two words are forms of one word: `dog` and `dogs`, `ride` and `riding`."""
    if word == other:
        return True
    shared = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), None)
    shared = min(len(word), len(other)) if shared is None else shared
    return shared >= _STEM and word[shared:] in _ENDINGS and other[shared:] in _ENDINGS


def _joined(caption: str, spans: Iterable[Span]) -> list[Span]:
    """Spans with only spaces and small words between them become one."""
    joined: list[Span] = []
    for span in spans:
        between = caption[joined[-1].end : span.start].casefold().split() if joined else [""]
        if _LINKS.issuperset(between):
            span = Span(joined.pop().start, span.end)
        joined.append(span)
    return joined
