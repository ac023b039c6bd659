"""Where one sentence of a caption ends and the next begins."""

from __future__ import annotations

import re

_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e approx no vol fig inc ltd co corp mt ft ave blvd rd a.m p.m "
    "u.s u.k jan feb mar apr jun jul aug sep sept oct nov dec min max cm mm km kg lb lbs oz in".split()
)
# Words that often end a sentence too: a capital after them begins a new one.
_MAY_END = frozenset(
    "etc inc ltd co corp a.m p.m u.s u.k ave blvd rd jr sr in min max cm mm km kg lb lbs oz ft no".split()
)
_CLOSERS = "\"'”’»)\\]}"
_END = re.compile(rf"(?P<mark>\.{{2,}}|…|[.!?]+|[。！？]+)(?P<closers>[{_CLOSERS}]*)(?=\s|$|(?<=[。！？]))")
_BULLET = re.compile(r"^\s*(?:[-*•‣▪–—]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+")
_LINE = re.compile(r"[\r\n\u2028\u2029]+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, in order; every word of the text is in one of them.

    A new line ends a sentence, and the mark of a list ("1.", "-", "•") is left out. A full stop does not where
    it belongs to an abbreviation ("Dr. Who"), an initial ("J. Smith") or a number ("2.5 m"); an ellipsis
    does only before a capital letter or a digit. A text without any word gives no sentence.

    >>> sentences('A dog runs. "Stop!" says Mr. Fox... and 2.5 cats wait.')
    ['A dog runs.', '"Stop!" says Mr. Fox... and 2.5 cats wait.']
    >>> sentences("Seen here:\\n- a red car\\n- two dogs")
    ['Seen here:', 'a red car', 'two dogs']
    """
    found: list[str] = []
    for line in _LINE.split(text):
        line = _BULLET.sub("", line)
        start = 0
        for match in _END.finditer(line):
            if _ends(line, match):
                found.append(line[start : match.end()])
                start = match.end()
        found.append(line[start:])
    stripped = [" ".join(sentence.split()) for sentence in found]
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
    last = word[0].lower() if word else ""
    if last in _ABBREVIATIONS:
        return last in _MAY_END and begins and not (last == "no" and opening.isdigit())
    if re.fullmatch(r"[a-z]|(?:[a-z]\.)+[a-z]", last) and last not in ("i",):
        return False  # an initial
    return True
