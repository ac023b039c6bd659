"""Explanations as HTML, for pages and reports: a panel for each kind of evidence that metrics keep.

The panels are macros of `templates/explanation.html.j2`; a metric adds its own there. Evidence is what
`Result.explain` gives, also as it comes back from a file of JSON: then there is nothing to draw, and the
numbers are shown.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from capeval_core.errors import minus
from capeval_core.phrases.spans import Span, wrong_words
from capeval_core.regions.features import THRESHOLD
from capeval_core.reports.overlay import region_colour

if TYPE_CHECKING:
    from jinja2 import Template
    from PIL.Image import Image

STYLE = Path(__file__).with_name("explanations.css")
"""Of signs and marks; the page that holds explanations defines the colours."""
DIGITS = 3
"""As papers report these metrics."""
TINY_KNOWS = (
    "tiny knows nothing but drawn scenes of coloured shapes: its score of anything else means nothing."
)
TERMS = {"gitc": "gITC", "litc": "lITC", "gttc": "gTTC", "lttc": "lTTC", "itm": "ITM"}
"""The papers' names of parts that have others here."""
_Evidence = Mapping[str, Any]
Draw = Callable[[Callable[[int], "Image"] | None, str], str]
"""An `<img>` of a picture of at most so many pixels across, with its description; "" without a picture."""
_OVERLAY = 1040  # pixels of an outlined image's width: twice what it has on a desk, for dense screens
_FRAME = 320
_MOST_FRAMES = 6
_COUNTS = {"region_count", "phrase_count", "regions_dropped", "without_phrases"}


def number(value: float, digits: int = DIGITS) -> str:
    """
    >>> number(0.81849), number(-0.5, 1), number(-0.0001), number(float("nan"))
    ('0.818', '\u22120.5', '0.000', 'no score')
    """
    if not math.isfinite(value):
        return "no score"
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")  # + 0.0: no sign where 0 is shown


def confident(notes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The boxes to outline: not those that only make up the least number, below the detector's threshold.

    >>> notes = [{"confidence": 0.9}, {"confidence": THRESHOLD}]
    >>> confident(notes), confident([{"confidence": None}])
    ([0], [0])
    """
    return [i for i, note in enumerate(notes) if note["confidence"] is None or note["confidence"] > THRESHOLD]


class FrameMatch(TypedDict):
    """A word, its weight, and its cosine with the most similar frame, which is counted from 0."""

    word: str
    weight: float
    frame: int
    cosine: float


def best_frames(words: Sequence[FrameMatch]) -> dict[int, list[FrameMatch]]:
    """The words that each frame is the best of, by frame: of the frames with most words, in time's order.

    >>> frames = {"a": 7, "red": 2, "star": 7}
    >>> words = [FrameMatch(word=w, weight=1.0, frame=f, cosine=0.3) for w, f in frames.items()]
    >>> {frame: [match["word"] for match in own] for frame, own in best_frames(words).items()}
    {2: ['red'], 7: ['a', 'star']}
    """
    of_frame: dict[int, list[FrameMatch]] = defaultdict(list)
    for match in words:
        of_frame[match["frame"]].append(match)
    kept = sorted(of_frame, key=lambda frame: (-len(of_frame[frame]), frame))[:_MOST_FRAMES]
    return {frame: of_frame[frame] for frame in sorted(kept)}


@cache
def template(name: str) -> Template:
    """A template of this package, which escapes every text that it is given."""
    from jinja2 import Environment, PackageLoader  # not for those who want no page

    loader = PackageLoader("capeval_core.reports")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["readable"] = _is_word
    environment.globals |= {"number": number, "terms": TERMS}
    return environment.get_template(f"{name}.html.j2")


def drawing(
    picture: Callable[[int], Image] | None, text: str, width: int = _OVERLAY, quality: int = 90
) -> str:
    """A picture as a JPEG of so many pixels; "" without one, as for evidence that came from a file."""
    from markupsafe import Markup

    if not picture:
        return ""
    written = BytesIO()
    picture(width).save(written, "JPEG", quality=quality, subsampling=0)
    data = base64.b64encode(written.getvalue()).decode()
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}">').format(data, text)


def panels(evidence: _Evidence, draw: Draw = drawing) -> str:
    """A panel for each kind of evidence that the metric keeps; none where there is no score to explain."""
    from markupsafe import Markup

    helpers = (best_frames, confident, threshold_text, outside_text)
    content = {
        **{helper.__name__: helper for helper in helpers},
        "evidence": evidence,
        "draw": draw,
        "marked": _marked,
        "colour": _colour,
        "place": _place,
        "threshold": THRESHOLD,
        "curve_of": _curve,
        "frame_images": partial(_frame_images, draw),
    }
    return Markup(template("explanation").render(content).strip())


def parts(values: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The components of a score that the paper names; `titles` are what readers know some of them by."""
    from markupsafe import Markup

    rows = [
        (titles.get(name, name.replace("_", " ")), int(value) if name in _COUNTS else value)
        for name, value in values.items()
        if isinstance(value, float) and (value or name not in _COUNTS)
    ]
    return Markup(template("explanation").render(values=rows).strip())


def threshold_text(evidence: _Evidence) -> str:
    """The least precision of a right phrase, in words for a legend.

    >>> threshold_text({"threshold": 0.5})
    'fits a region: precision of at least 0.5'
    """
    return f"fits a region: precision of at least {evidence['threshold']:.4g}"


def outside_text(evidence: _Evidence) -> str:
    """The number of regions that the image tower does not see, in words; "" where it sees all.

    >>> outside_text({"outside": 11}), outside_text({"outside": 1})
    ('11 regions outside the square were not judged', '1 region outside the square was not judged')
    """
    count = evidence["outside"]
    if not count:
        return ""
    return f"{count} region{'s' * (count > 1)} outside the square {'were' if count > 1 else 'was'} not judged"


def wrong_spans(evidence: _Evidence) -> list[Span]:
    """The words of a caption to mark: those of its mistakes that no right phrase contains."""
    judged = [note for note in evidence["phrases"] if note["judged"]]
    wrong = [note["phrase"] for note in judged if note["mistake"]]
    right = [note["phrase"] for note in judged if not note["mistake"]]
    return wrong_words(evidence["caption"], wrong, right)


def _is_word(text: str) -> bool:
    """Whether a token is a word, or a part of one, for readers: no punctuation, no marker.

    >>> [text for text in ("star", ",", "<|endoftext|>", "[SEP]", "3", "\ufffd") if _is_word(text)]
    ['star', '3']
    """
    return any(map(str.isalnum, text)) and not text.startswith(("<|", "["))


def _marked(evidence: _Evidence) -> Iterator[tuple[str, bool]]:
    """The caption in pieces, and whether each is wrong."""
    text, end = evidence["caption"], 0
    for span in wrong_spans(evidence):
        yield text[end : span.start], False
        yield text[span.start : span.end], True
        end = span.end
    yield text[end:], False


def _colour(index: int, unmentioned: bool) -> str:
    return "--region:rgb({} {} {})".format(*region_colour(index, unmentioned))


def _place(box: Sequence[float], size: tuple[int, int]) -> str:
    """Where a box in pixels stands in an image of this size, as CSS."""
    (x0, y0, x1, y1), (width, height) = box, size
    sides = {"left": x0 / width, "top": y0 / height, "width": (x1 - x0) / width, "height": (y1 - y0) / height}
    return ";".join(f"{name}:{100 * side:.2f}%" for name, side in sides.items())


def _frame_images(draw: Draw, evidence: Any, frames: Iterable[int]) -> dict[int, str]:
    """The best frames of a video, which is read once, and only if there is room for one of them."""
    read = cache(partial(evidence.frames, tuple(frames))) if hasattr(evidence, "frames") else None
    return {
        frame: draw(read and (lambda _, frame=frame: read(_FRAME)[frame]), f"Frame {frame}")
        for frame in frames
    }


def _curve(cosines: Sequence[float], marked: Iterable[int]) -> dict[str, Any]:
    """Where the points, levels and numbers of a curve of cosines over frames stand, in percent."""
    low, high = min(0.0, *cosines), max(0.0, *cosines)
    span, last = (high - low) or 1.0, max(len(cosines) - 1, 1)
    across = [f"{100 * frame / last:.2f}" for frame in range(len(cosines))]
    down = [f"{100 * (high - cosine) / span:.2f}" for cosine in cosines]
    return {
        "label": f"Cosines of the caption with {len(cosines)} frames, "
        f"from {number(min(cosines))} to {number(max(cosines))}",
        "line": " ".join(map(",".join, zip(across, down, strict=True))),
        "points": [(across[frame], down[frame]) for frame in (marked if len(cosines) > 1 else [0])],
        "levels": [(f"{100 * part / 3:.2f}", number(high - span * part / 3, 2)) for part in range(4)],
        "numbers": [(across[frame], frame) for frame in range(0, len(cosines), math.ceil(last / 5))],
    }
