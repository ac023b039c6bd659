"""Phrases of a caption, and the words that one came from; a parser drops articles and changes endings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_LINKS = frozenset(["a", "an", "the", "is", "are", "was", "were", "be", "of"])
_STEM = 3  # letters that two forms of a word share at least
_ENDINGS = frozenset(["", "s", "es", "d", "ed", "ing", "e", "y", "ies", "ning", "ting", "ping"])


class Span(NamedTuple):
    """Characters `start` to `end` (excluded) of a caption."""

    start: int
    end: int


class Phrases(NamedTuple):
    """The phrases of one caption, in its order, at least one, without duplicates; the sentences that are
    longer than the parser reads, and those that are their own phrase."""

    phrases: tuple[str, ...]
    truncated: int = 0
    fallback: int = 0


def wrong_words(caption: str, wrong: Sequence[str], right: Sequence[str]) -> list[Span]:
    """The spans of a caption to mark as wrong, in its order: words that a wrong phrase shares with a right
    one are not, unless it has no other word in the caption."""
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
    places = {target: [i for i, word in enumerate(words) if _alike(word, target)] for target in targets}
    targets = [target for target in targets if places[target]]
    targets = [target for target in targets if target not in _LINKS] or targets
    if not targets:
        return []
    stretches = []
    for start in places[targets[0]]:
        stretch = [start]
        for target in targets[1:]:
            stretch += [i for i in places[target] if i > stretch[-1]][:1]
        if len(stretch) == len(targets):
            stretches.append(stretch)
    if stretches:
        return min(stretches, key=lambda stretch: stretch[-1] - stretch[0])
    return sorted({places[target][0] for target in targets})


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
