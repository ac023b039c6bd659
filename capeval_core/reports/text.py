"""Text in drawn images: fonts, and lines that fit a width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from PIL import ImageFont

from capeval_core.phrases.spans import Span

FINER = 2
"""How many times larger than the result everything is drawn, for smooth edges."""
_SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "arial.ttf",
    "msyh.ttc",
    "Hiragino Sans GB.ttc",
)
"""Fonts of common systems, for characters that Pillow's own font lacks (most beyond English)."""
_MISSING = "\uffff"
_PROBE_SIZE = 16.0  # size at which fonts are searched for characters
_NO_FONT = ""
_PIECE = re.compile(r"\s+|[^\s]+")
_ELLIPSIS = "..."


def font_of(text: str, size: float, whole: str = "") -> tuple[str, ImageFont.FreeTypeFont]:
    """The text, and a font that has all its characters; if none has, the text without accents, or as it is.

    `whole` is the text that this one is a part of, so that all parts have one font, if any has all of it.
    """
    for name in dict.fromkeys((_font_name(whole), _font_name(text))):
        font = None if name is _NO_FONT else _font(name, size)
        if font is not None:
            return text, font
    default = _font(None, size)
    assert default is not None
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return (plain, default) if _font_name(plain) is None else (text, _font(_SYSTEM_FONTS[0], size) or default)


@lru_cache(maxsize=4096)
def _font_name(text: str) -> str | None:
    """The first font that has all characters of a text: None for Pillow's own, `_NO_FONT` if none has."""
    for name in (None, *_SYSTEM_FONTS):
        font = _font(name, _PROBE_SIZE)
        if font is not None and all(
            _has(font, character) for character in set(text) if not character.isspace()
        ):
            return name
    return _NO_FONT


@cache
def _font(name: str | None, size: float) -> ImageFont.FreeTypeFont | None:
    try:
        font = ImageFont.load_default(size) if name is None else ImageFont.truetype(name, size)
    except OSError:
        return None
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


@cache
def _has(font: ImageFont.FreeTypeFont, character: str) -> bool:
    return bytes(font.getmask(character)) != bytes(font.getmask(_MISSING))


@dataclass(frozen=True)
class Piece:
    """A part of a line: its text, offset and width in pixels, whether it is marked, and the whole text."""

    text: str
    x: float
    width: float
    marked: bool = False
    whole: str = ""


def width_of(text: str, size: float, whole: str = "") -> float:
    """Width of a text in pixels; `whole` is as for `font_of`."""
    written, font = font_of(text, size * FINER, whole)
    return font.getlength(written) / FINER


def lines_of(text: str, size: float, width: float, marks: Sequence[Span] = ()) -> list[list[Piece]]:
    """A text as lines of at most `width` pixels; wider words are broken, white space counts as one space.

    `marks` are spans of characters; a piece is marked as a whole or not at all.
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
            for piece in _broken(part, size, width, text):
                wide = width_of(piece, size, text)
                if x and x + wide > width:
                    lines.append([])
                    x = 0.0
                lines[-1].append(Piece(piece, x, wide, marked, text))
                x += wide
    return lines


def shortened(lines: list[list[Piece]], max_lines: int, size: float, width: float) -> list[list[Piece]]:
    """The first `max_lines` lines; if any are left out, the last one ends in an ellipsis."""
    if len(lines) <= max_lines:
        return lines
    last = list(lines[max_lines - 1])
    room = width - width_of(_ELLIPSIS, size)
    while len(last) > 1 and last[-1].x + last[-1].width > room:
        last.pop()
    end = last[-1].x + last[-1].width
    return [*lines[: max_lines - 1], [*last, Piece(_ELLIPSIS, min(end, room), width_of(_ELLIPSIS, size))]]


def _parts(word: str, start: int, marks: Sequence[Span]) -> list[tuple[str, bool]]:
    """A word split where marks begin and end, each part with whether it is marked."""
    cuts = {0, len(word)}
    for mark in marks:
        cuts |= {cut - start for cut in (mark.start, mark.end) if 0 < cut - start < len(word)}
    bounds = sorted(cuts)
    return [
        (word[a:b], any(mark.start <= start + a < mark.end for mark in marks)) for a, b in pairwise(bounds)
    ]


def _broken(word: str, size: float, width: float, whole: str) -> list[str]:
    """A word split into parts that are no wider than a line."""
    if width_of(word, size, whole) <= width:
        return [word]
    pieces = [""]
    for character in word:
        if pieces[-1] and width_of(pieces[-1] + character, size, whole) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces
