"""What `result.explain(i)` gives: plain values, `plot()`, which draws them, and panels of HTML for pages:
macros of `templates/explanation.html.j2`, one for each kind of evidence."""

from __future__ import annotations

import base64
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from capeval_core.errors import minus
from capeval_core.phrases.spans import wrong_words
from capeval_core.regions.features import THRESHOLD
from capeval_core.reports import figures

STYLE = Path(__file__).with_name("explanations.css")
"""Of signs and marks; the page that holds explanations defines the colours."""
DIGITS = 3  # as papers report these metrics
Picture = Callable[[int], Image.Image] | None
Draw = Callable[[Picture, str], str]
"""An `<img>` of a picture of at most so many pixels across, with its description; "" without a picture."""
_OVERLAY = 1040  # pixels of an outlined image's width: twice what it has on a desk, for dense screens
_FRAME = _NARROWEST = 320
_MOST_FRAMES = 6
_COUNTS = {"region_count", "phrase_count", "regions_dropped", "without_phrases"}


class DrawnExplanation(dict[str, Any]):
    """The explanation of a score: texts and numbers, and `plot()`, which draws them."""

    @abstractmethod
    def plot(self, width: int = ...) -> Image.Image:
        """The explanation as an image, `width` pixels wide. Raises ValueError where there is no score, or the
        width is below 320 pixels; ImageError where the image or video can no longer be read; and
        ModuleNotFoundError without matplotlib."""

    def check_drawable(self, width: int) -> None:
        """Raise ValueError where there is no score, or the width is below 320 pixels."""
        if width < _NARROWEST:
            raise ValueError(f"width={width}: expected at least {_NARROWEST} pixels")
        if self.get("error"):
            raise ValueError(f"there is no score to draw: {self['error']}")

    def _repr_png_(self) -> bytes | None:
        """What notebooks show: the drawing, or None where there is none, so that they show the values."""
        drawing = BytesIO()
        try:
            self.plot().save(drawing, "PNG")
        except (ValueError, ModuleNotFoundError):  # no score, an image that is gone, no matplotlib
            return None
        return drawing.getvalue()


class MatchExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `matches`, one per reference, of words without regard to
    their weights: `reference`, `precision`, `recall` and `f`, `words` and `reference_words` with all their
    `cosines`, and `caption_matches` and `reference_matches`, the `match` and `cosine` of each `word`; `best`,
    the position of the reference with the highest F; and `error`, the reason where there is no score.
    """

    def plot(self, width: int = 1440, *, reference: int | None = None) -> Image.Image:
        """The cosines of the caption's words with those of a reference (by position; None: the best one) as a
        heat map. A frame marks the word that each caption word met, a dot the one of each reference word.

        Raises:
            ValueError: there is no score, or no word on one side. IndexError: there is no such reference.
        """
        self.check_drawable(width)
        notes, chosen = self["matches"], self["best"] if reference is None else reference
        if not 0 <= chosen < len(notes):
            raise IndexError(f"reference={chosen}: there are {len(notes)} references")
        if not notes[chosen]["words"] or not notes[chosen]["reference_words"]:
            raise ValueError("there are no words to draw: the caption or the reference is empty")
        title = f"ViLBERTScore {self['f']:.3f}" + ", the mean of all references" * (len(notes) > 1)
        return figures.draw_matches(self["caption"], title, notes[chosen], width)


def best_frames(words: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The words that each frame is the best of, by frame: of the frames with most words, in time's order."""
    counts = Counter(match["frame"] for match in words)
    kept = sorted(sorted(counts, key=lambda frame: (-counts[frame], frame))[:_MOST_FRAMES])
    return {frame: [match for match in words if match["frame"] == frame] for frame in kept}


# in words


def number(value: float, digits: int = DIGITS) -> str:
    """A number for readers of a page: `0.818`, `−0.500`, `no score`."""
    if not math.isfinite(value):
        return "no score"
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")  # + 0.0: no sign where 0 is shown


def round_ticks(low: float, high: float) -> list[float]:
    """The ends and some places between of an axis with round numbers that shows values from low to high.

    >>> round_ticks(0.03, 0.41), round_ticks(2, 2)
    ([0.0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5], [2.0, 2.5])
    """
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high)):  # what rounding leaves of equal values
        span = abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 5))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= span / 5 - 1e-12)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * place for place in range(first, max(last, first + 1) + 1)]


def confident(notes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The boxes to outline: not those that only make up the least number, below the detector's threshold.

    >>> notes = [{"confidence": 0.9}, {"confidence": THRESHOLD}]
    >>> confident(notes), confident([{"confidence": None}])
    ([0], [0])
    """
    return [i for i, note in enumerate(notes) if note["confidence"] is None or note["confidence"] > THRESHOLD]


# as HTML


@cache
def template(name: str) -> Any:
    """A template of this package, which escapes every text that it is given."""
    from jinja2 import Environment, PackageLoader  # not for those who want no page

    loader = PackageLoader("capeval_core.reports")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests |= {"readable": is_word, "finite": math.isfinite}
    helpers = (number, minus, best_frames, confident, marked, panels, parts)
    environment.globals |= {helper.__name__: helper for helper in helpers}
    environment.globals |= {"figures": figures, "threshold": THRESHOLD, "digits": DIGITS}
    environment.globals["count"] = "{:,}".format
    return environment.get_template(f"{name}.html.j2")


def drawing(picture: Picture, text: str, width: int = _OVERLAY, quality: int = 90) -> str:
    """A picture as a JPEG of so many pixels; "" without one, as for evidence that came from a file."""
    data = jpeg(picture(width), quality=quality, subsampling=0) if picture else ""
    return data and Markup('<img src="data:image/jpeg;base64,{}" alt="{}">').format(data, text)


def jpeg(image: Image.Image, quality: int = 78, **settings: int) -> str:
    """An image as a JPEG, in base64."""
    written = BytesIO()
    image.save(written, "JPEG", quality=quality, **settings)
    return base64.b64encode(written.getvalue()).decode()


def panels(evidence: Mapping[str, Any], draw: Draw = drawing) -> str:
    """A panel for each kind of evidence that the metric keeps; none where there is no score to explain."""

    def frame_images(frames: Iterable[int]) -> dict[int, str]:
        """The best frames of a video, which is read once, and only if there is room for one of them."""
        read = cache(lambda: evidence.frames(tuple(frames), _FRAME)) if hasattr(evidence, "frames") else None
        return {place: draw(read and (lambda _, at=place: read()[at]), f"Frame {place}") for place in frames}

    content = {"evidence": evidence, "draw": draw, "frame_images": frame_images}
    return Markup(template("explanation").render(content).strip())


def parts(values: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The components of a score that the paper names; `titles` are what readers know some of them by."""
    rows = [
        (titles.get(name, name.replace("_", " ")), int(value) if name in _COUNTS else value)
        for name, value in values.items()
        if isinstance(value, float) and (value or name not in _COUNTS)
    ]
    return Markup(template("explanation").render(values=rows).strip())


def is_word(text: str) -> bool:
    """Whether a token is a word, or a part of one, for readers: no punctuation, no marker."""
    return any(map(str.isalnum, text)) and not text.startswith(("<|", "["))


def marked(evidence: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The caption in pieces, and whether each is wrong: a word of a mistake that no right phrase contains."""
    text, end, pieces = evidence["caption"], 0, []
    mistakes = {note["phrase"]: note["mistake"] for note in evidence["phrases"] if note["judged"]}
    wrong, right = ([phrase for phrase, own in mistakes.items() if own is which] for which in (True, False))
    for span in wrong_words(text, wrong, right):
        pieces += [(text[end : span.start], False), (text[span.start : span.end], True)]
        end = span.end
    return [*pieces, (text[end:], False)]
