"""Splits captions into sentences."""

from __future__ import annotations

import re

from capeval_core.phrases.english import ABBREVIATIONS, MAY_END

_CLOSERS = "\"'”’»)\\]}"
_END = re.compile(rf"(?P<mark>\.{{2,}}|…|[.!?]+|[。！？]+)(?P<closers>[{_CLOSERS}]*)(?=\s|$|(?<=[。！？]))")
_BULLET = re.compile(r"^\s*(?:[-*•‣▪–—]|\(?\d{1,3}[.)]|\(?[a-zA-Z]\))\s+(?=\S)")
_LINE = re.compile(r"[\r\n\u2028\u2029]+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, in order; every word of the text is in one of them.

    A new line ends a sentence, and the mark of a list ("1.", "-", "•") is left out. A full stop ends none
    where it belongs to an abbreviation ("Dr. Who"), an initial ("J. Smith") or a number ("2.5 m"); an
    ellipsis does only before a capital letter or a digit. A text without any word gives no sentence.

    >>> sentences('A dog runs. "Stop!" says Mr. Fox... and 2.5 cats wait.')
    ['A dog runs.', '"Stop!" says Mr. Fox... and 2.5 cats wait.']
    >>> sentences("On the street:\\n- a red car\\n- two dogs")
    ['On the street:', 'a red car', 'two dogs']
    """
    parts: list[str] = []
    for line in _LINE.split(text):
        line = _BULLET.sub("", line)
        start = 0
        for match in _END.finditer(line):
            if _ends(line, match):
                parts.append(line[start : match.end()])
                start = match.end()
        parts.append(line[start:])
    stripped = [" ".join(sentence.split()) for sentence in parts]
    return [sentence for sentence in stripped if any(map(str.isalnum, sentence))]


def _ends(line: str, match: re.Match[str]) -> bool:
    after = line[match.end() :].lstrip()
    if not after:
        return True
    opening = after.lstrip("\"'“‘«([{")[:1]
    begins = opening.isupper() or opening.isdigit() or not opening.islower()
    mark = match["mark"]
    if mark in ("…",) or mark.startswith(".."):
        return begins
    if mark != ".":
        # "Stop!" says the man: the quotation ends, the sentence does not.
        return begins or not match["closers"]
    word = re.search(r"[\w.]*$", line[: match.start()])
    last = word[0] if word else ""
    if last.lower() in ABBREVIATIONS:
        return last.lower() in MAY_END and begins and not (last.lower() == "no" and opening.isdigit())
    initial = re.fullmatch(r"[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z]", last)
    return initial is None
