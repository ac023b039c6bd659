"""Text for images: fonts, and lines that fit a width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from PIL import ImageFont

from capeval_core.phrases.places import Span

FINER = 2
"""How much larger than the result everything is drawn, so that edges become smooth."""
_ELSEWHERE = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "arial.ttf",
    "msyh.ttc",
    "Hiragino Sans GB.ttc",
)
"""Fonts of common systems, for what Pillow's own font cannot write; it has little beside plain English."""
_MISSING = "\uffff"
_ASKED = 16.0  # the size at which a font is asked what it can write
_NONE = ""
_PIECE = re.compile(r"\s+|[^\s]+")
_ELLIPSIS = "..."


def font_of(text: str, size: float, whole: str = "") -> tuple[str, ImageFont.FreeTypeFont]:
    """A font that can write all of a text, and the text; where there is none, without accents or as it is.

    `whole` is what the text is a part of, so that all parts have one font, if any can write the whole.
    """
    for name in dict.fromkeys((_able(whole), _able(text))):
        font = None if name is _NONE else _font(name, size)
        if font is not None:
            return text, font
    own = _font(None, size)
    assert own is not None
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return (plain, own) if _able(plain) is None else (text, _font(_ELSEWHERE[0], size) or own)


@lru_cache(maxsize=4096)
def _able(text: str) -> str | None:
    """The name of the first font that can write a text, None for Pillow's own; `_NONE` where none can."""
    for name in (None, *_ELSEWHERE):
        font = _font(name, _ASKED)
        if font is not None and all(
            _has(font, character) for character in set(text) if not character.isspace()
        ):
            return name
    return _NONE


@cache
def _font(name: str | None, size: float) -> ImageFont.FreeTypeFont | None:
    try:
        found = ImageFont.load_default(size) if name is None else ImageFont.truetype(name, size)
    except OSError:
        return None
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


@cache
def _has(font: ImageFont.FreeTypeFont, character: str) -> bool:
    return bytes(font.getmask(character)) != bytes(font.getmask(_MISSING))


@dataclass(frozen=True)
class Piece:
    """Some text of one line: how far from its start, how wide, whether it is marked, and the whole text."""

    text: str
    x: float
    width: float
    marked: bool = False
    whole: str = ""


def width_of(text: str, size: float, whole: str = "") -> float:
    """How wide a text is written in that size; `whole` is as for `font_of`."""
    written, font = font_of(text, size * FINER, whole)
    return font.getlength(written) / FINER


def lines_of(text: str, size: float, width: float, marks: Sequence[Span] = ()) -> list[list[Piece]]:
    """A text in lines of at most `width`; wider words are broken, and white space counts as one space.

    `marks` are spans of its characters; a piece is marked wholly or not at all.
    """
    lines: list[list[Piece]] = [[]]
    x = 0.0
    space = width_of(" ", size, text)
    for word in _PIECE.finditer(text):
        if word[0].isspace():
            x += space if x else 0.0
            continue
        parts = _parts(word[0], word.start(), marks)
        wide = sum(width_of(part, size, text) for part, _ in parts)
        if x and x + wide > width:
            lines.append([])
            x = 0.0
        for part, marked in parts:
            for some in _broken(part, size, width, text):
                wide = width_of(some, size, text)
                if x and x + wide > width:
                    lines.append([])
                    x = 0.0
                lines[-1].append(Piece(some, x, wide, marked, text))
                x += wide
    return lines


def shortened(lines: list[list[Piece]], most: int, size: float, width: float) -> list[list[Piece]]:
    """At most so many lines; where some are left out, the last one ends in an ellipsis."""
    if len(lines) <= most:
        return lines
    last = list(lines[most - 1])
    room = width - width_of(_ELLIPSIS, size)
    while len(last) > 1 and last[-1].x + last[-1].width > room:
        last.pop()
    end = last[-1].x + last[-1].width
    return [*lines[: most - 1], [*last, Piece(_ELLIPSIS, min(end, room), width_of(_ELLIPSIS, size))]]


def _parts(word: str, start: int, marks: Sequence[Span]) -> list[tuple[str, bool]]:
    """A word cut where marks begin and end."""
    cuts = {0, len(word)}
    for mark in marks:
        cuts |= {cut - start for cut in (mark.start, mark.end) if 0 < cut - start < len(word)}
    places = sorted(cuts)
    return [
        (word[a:b], any(mark.start <= start + a < mark.end for mark in marks)) for a, b in pairwise(places)
    ]


def _broken(word: str, size: float, width: float, whole: str) -> list[str]:
    """A word in pieces that are no wider than a line."""
    if width_of(word, size, whole) <= width:
        return [word]
    pieces = [""]
    for character in word:
        if pieces[-1] and width_of(pieces[-1] + character, size, whole) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces
