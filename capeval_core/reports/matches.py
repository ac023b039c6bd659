"""Explanations of scores that match words with words: numbers, and the cosines drawn as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from capeval_core.reports.canvas import FAINT, INK, LINE, PAPER, Canvas, Rgb, check_width
from capeval_core.reports.drawn import DrawnExplanation
from capeval_core.reports.text import FINER, lines_of, shortened, width_of

if TYPE_CHECKING:
    from PIL.Image import Image

_DESIGNED = 720
"""Width for which sizes are given."""
_MARGIN, _TITLE, _FOOT = 24.0, 84.0, 40.0
_TEXT, _SMALL = 13.0, 10.0
_TALLEST = 34.0
"""Most pixels of a row."""
_LEAST_FOR_NUMBERS = 26.0
"""Pixels of a cell that its number fits into."""
_HOT: Rgb = (20, 92, 132)
"""Colour of a cosine of 1; 0 and less is white."""


class WordMatch(TypedDict):
    """A word, the word of the other text that it met, and their cosine; None where the other has no word."""

    word: str
    match: str | None
    cosine: float | None


class WordMatches(TypedDict):
    """A reference with its precision, recall and F, the matches of both texts' words, and all cosines.

    words, reference_words: of caption and reference. cosines: (words, reference words).
    """

    reference: str
    precision: float
    recall: float
    f: float
    caption_matches: list[WordMatch]
    reference_matches: list[WordMatch]
    words: list[str]
    reference_words: list[str]
    cosines: list[list[float]]


def word_matches(
    reference: str,
    words: Sequence[str],
    others: Sequence[str],
    cosines: Sequence[Sequence[float]],
    precision: float,
    recall: float,
    f: float,
) -> WordMatches:
    """What the words of a caption met in a reference, by their cosines (words, others); the first of equals.

    >>> found = word_matches("dog", ["a", "dog"], ["dog"], [[0.25], [1.0]], 0.625, 1.0, 0.77)
    >>> found["caption_matches"][0]
    {'word': 'a', 'match': 'dog', 'cosine': 0.25}
    >>> found["reference_matches"]
    [{'word': 'dog', 'match': 'dog', 'cosine': 1.0}]
    """
    columns = list(map(list, zip(*cosines, strict=True))) if words else [[] for _ in others]
    return {
        "reference": reference,
        "precision": precision,
        "recall": recall,
        "f": f,
        "caption_matches": _matches(words, others, cosines),
        "reference_matches": _matches(others, words, columns),
        "words": list(words),
        "reference_words": list(others),
        "cosines": [list(row) for row in cosines],
    }


def _matches(
    words: Sequence[str], others: Sequence[str], cosines: Sequence[Sequence[float]]
) -> list[WordMatch]:
    found: list[WordMatch] = []
    for word, row in zip(words, cosines, strict=True):
        best = max(range(len(row)), key=row.__getitem__, default=None)
        if best is None:
            found.append({"word": word, "match": None, "cosine": None})
        else:
            found.append({"word": word, "match": others[best], "cosine": row[best]})
    return found


class MatchExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `matches`, a list of `WordMatches`, one per reference,
    of words without regard to their weights; `best`, the position of the reference with the highest F; and
    `error`, the reason where there is no score.

    >>> note = word_matches("dog", ["red", "dog"], ["dog"], [[0.2], [0.9]], 0.55, 0.9, 0.68)
    >>> MatchExplanation({"caption": "red dog", "matches": [note], "best": 0}).plot().size[0]
    1440
    """

    def plot(self, width: int = 2 * _DESIGNED, *, reference: int | None = None) -> Image:
        """The cosines of the caption's words with those of a reference as a heat map, `width` pixels wide.

        A frame marks the word that each caption word met, a dot the one that each reference word met.

        Args:
            width: in pixels.
            reference: position of the reference; None: the best one.

        Raises:
            ValueError: there is no score, or no word on one side, or the width is below 320 pixels.
            IndexError: there is no such reference.
        """
        check_width(width)
        if "error" in self:
            raise ValueError(f"there is no score to draw: {self['error']}")
        notes: list[WordMatches] = self["matches"]
        chosen = self["best"] if reference is None else reference
        if not 0 <= chosen < len(notes):
            raise IndexError(f"reference={chosen}: there are {len(notes)} references")
        note = notes[chosen]
        if not note["words"] or not note["reference_words"]:
            raise ValueError("there are no words to draw: the caption or the reference is empty")
        return _heat_map(self["caption"], note, width)

    def __reduce__(self) -> tuple[Any, ...]:
        return MatchExplanation, (dict(self),)


def _heat_map(caption: str, note: WordMatches, width: int) -> Image:
    """Caption words down, reference words across."""
    rows, columns = note["words"], note["reference_words"]
    side = min(150.0, max(width_of(word, _TEXT) for word in rows) + 14)
    cell = (_DESIGNED - 2 * _MARGIN - side) / len(columns)
    high = min(_TALLEST, max(18.0, cell))
    top = _MARGIN + _TITLE
    canvas = Canvas(_DESIGNED, top + high * len(rows) + _FOOT, PAPER, FINER * width / _DESIGNED)
    inner = _DESIGNED - 2 * _MARGIN
    _write(canvas, _MARGIN, _MARGIN + 12, caption, 16, INK, inner)
    _write(canvas, _MARGIN, _MARGIN + 36, note["reference"], _TEXT, FAINT, inner)
    left = _MARGIN + side
    for column, word in enumerate(columns):
        room = max(cell - 2, _SMALL)
        across = left + column * cell + max(1.0, (cell - width_of(word, _SMALL)) / 2)
        _write(canvas, across, top - 8, word, _SMALL, FAINT, room)
    reference_best = _best([list(column) for column in zip(*note["cosines"], strict=True)])
    caption_best = _best(note["cosines"])
    for row, (word, cosines) in enumerate(zip(rows, note["cosines"], strict=True)):
        y = top + row * high
        _write(canvas, _MARGIN, y + high / 2 + 4, word, _TEXT, INK, side - 8)
        for column, cosine in enumerate(cosines):
            x = left + column * cell
            strength = min(1.0, max(0.0, cosine))
            canvas.box(x, y, cell, high, fill=_between(strength), edge=LINE, thickness=0.5)
            ink = PAPER if strength > 0.5 else INK
            if cell >= _LEAST_FOR_NUMBERS:
                canvas.text(x + cell / 2, y + high / 2 + 3.5, f"{cosine:.2f}", _SMALL, ink, anchor="ms")
            if reference_best[column] == row:
                canvas.disc(x + cell - 5, y + 5, 2, ink)
        canvas.box(left + caption_best[row] * cell, y, cell, high, edge=INK, thickness=1.5)
    scores = f"precision {note['precision']:.3f}, recall {note['recall']:.3f}, F {note['f']:.3f}"
    text = f"{scores}; frame: best for the caption's word, dot: best for the reference's"
    _write(canvas, _MARGIN, canvas.height - 14, text, _SMALL + 1, FAINT, inner)
    return canvas.finished()


def _write(canvas: Canvas, x: float, y: float, text: str, size: float, colour: Rgb, width: float) -> None:
    """One line of text at a baseline, cut where it is wider than `width`."""
    line, *_ = shortened(lines_of(text, size, width), 1, size, width)
    canvas.line_of_text(x, y, line, size, colour)


def _best(cosines: Sequence[Sequence[float]]) -> list[int]:
    """The position of the first maximum of each row."""
    return [max(range(len(row)), key=row.__getitem__) for row in cosines]


def _between(strength: float) -> Rgb:
    red, green, blue = (
        round(white + (hot - white) * strength) for white, hot in zip(PAPER, _HOT, strict=True)
    )
    return red, green, blue
