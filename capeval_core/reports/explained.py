"""What `result.explain(i)` gives: plain values, and `plot()`, which draws them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.reports.explanations import FrameMatch, confident
from capeval_core.reports.overlay import boxed, check_width

if TYPE_CHECKING:
    from PIL.Image import Image

    from capeval_core.inputs.images import InputVisual


class DrawnExplanation(dict[str, Any]):
    """The explanation of a score: texts and numbers, and `plot()`, which draws them."""

    @abstractmethod
    def plot(self, width: int = ...) -> Image:
        """The explanation as an image, `width` pixels wide. Raises ValueError where there is no score."""

    def check_drawable(self, width: int) -> None:
        """Raise ValueError where there is no score, or the width is below 320 pixels."""
        check_width(width)
        if "error" in self:
            raise ValueError(f"there is no score to draw: {self['error']}")

    def _repr_png_(self) -> bytes | None:
        """What notebooks show: the drawing, or None where there is none, so that they show the values."""
        drawing = BytesIO()
        try:
            self.plot().save(drawing, "PNG")
        except (ValueError, ModuleNotFoundError):  # no score, an image that is gone, no matplotlib
            return None
        return drawing.getvalue()


class BoxExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `boxes`, a list of `{"box": [x0, y0, x1, y1],
    "confidence": ...}` in pixels, best first (confidence None where the features came without); and `error`,
    the reason where there is no score.
    """

    def __init__(self, content: Mapping[str, Any], visual: InputVisual[Any]) -> None:
        super().__init__(content)
        self._visual = visual

    def plot(self, width: int = 880) -> Image:
        """The image with its boxes outlined and numbered, `width` pixels wide, the most confident on top.

        Raises:
            ValueError: there is no score, there are only features and no image, or the width is below 320
                pixels.
            ImageError: the image can no longer be read.
        """
        self.check_drawable(width)
        boxes = [note["box"] for note in self["boxes"]]
        return boxed(self._load(), boxes, confident(self["boxes"]), width)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels of the image."""
        return self._load().size

    def picture(self, width: int) -> Image:
        """The image alone, at most `width` pixels wide."""
        image = self._load().convert("RGB")
        image.thumbnail((width, width))
        return image

    def _load(self) -> Image:
        if self._visual.medium != "image":
            raise ValueError(f"there are only box features of {self['image']}, and no image to draw")
        image: Image = self._visual.load()
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        return BoxExplanation, (dict(self), self._visual)


def box_notes(boxes: BoxFeatures) -> list[dict[str, Any]]:
    """`boxes` of a `BoxExplanation`."""
    scores = [None] * len(boxes) if boxes.scores is None else boxes.scores.tolist()
    return [
        {"box": box, "confidence": score} for box, score in zip(boxes.boxes.tolist(), scores, strict=True)
    ]


class MatchExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `matches`, one per reference, of words without regard to
    their weights: `reference`, `precision`, `recall` and `f`, `words` and `reference_words` with all their
    `cosines`, and `caption_matches` and `reference_matches`, the `match` and `cosine` of each `word`; `best`,
    the position of the reference with the highest F; and `error`, the reason where there is no score.
    """

    def plot(self, width: int = 1440, *, reference: int | None = None) -> Image:
        """The cosines of the caption's words with those of a reference as a heat map, `width` pixels wide.

        A frame marks the word that each caption word met, a dot the one that each reference word met.

        Args:
            width: in pixels.
            reference: position of the reference; None: the best one.

        Raises:
            ValueError: there is no score, or no word on one side, or the width is below 320 pixels.
            IndexError: there is no such reference.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from capeval_core.reports.figures import draw_matches

        self.check_drawable(width)
        notes, chosen = self["matches"], self["best"] if reference is None else reference
        if not 0 <= chosen < len(notes):
            raise IndexError(f"reference={chosen}: there are {len(notes)} references")
        if not notes[chosen]["words"] or not notes[chosen]["reference_words"]:
            raise ValueError("there are no words to draw: the caption or the reference is empty")
        return draw_matches(self["caption"], notes[chosen], width)

    def __reduce__(self) -> tuple[Any, ...]:
        return MatchExplanation, (dict(self),)


def word_matches(
    words: Sequence[str], others: Sequence[str], cosines: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    """What each word met in another text, by their cosines (words, others); the first of equals.

    >>> word_matches(["a", "dog"], ["dog"], [[0.25], [1.0]])[0]
    {'word': 'a', 'match': 'dog', 'cosine': 0.25}
    """
    if not others:
        return [{"word": word, "match": None, "cosine": None} for word in words]
    best = [max(range(len(row)), key=row.__getitem__) for row in cosines]
    return [
        {"word": word, "match": others[place], "cosine": row[place]}
        for word, row, place in zip(words, cosines, best, strict=True)
    ]


def shown_word(match: FrameMatch) -> str:
    """A word for readers; the markers around a text are `start` and `end`.

    >>> shown_word(FrameMatch(word="<|endoftext|>", weight=1.0, frame=0, cosine=0.5))
    'end'
    """
    word = match["word"]
    return word[2:-2].removesuffix("oftext") if word.startswith("<|") and word.endswith("|>") else word
