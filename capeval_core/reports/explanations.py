"""Explanations as HTML for pages: panels from the macros of `templates/explanation.html.j2`, and numbers."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from capeval_core.errors import minus
from capeval_core.regions.features import THRESHOLD
from capeval_core.reports import figures
from capeval_core.reports.evidence import best_frames, confident, is_word, marked, unmentioned

STYLE = Path(__file__).with_name("explanations.css")
"""Style of signs and marks; the page that holds explanations defines the colours."""
DIGITS = 3  # as papers report these metrics
Picture = Callable[[int], Image.Image] | None
Draw = Callable[[Picture, str], str]
"""An `<img>` of a picture of at most so many pixels across, with its description; "" without a picture."""
_OVERLAY = 1040  # pixels of an outlined image's width: twice what it has on a desk, for dense screens
_FRAME = 320  # pixels
_COUNTS = {"region_count", "phrase_count", "regions_dropped", "without_phrases"}


# numbers


def number(value: float, digits: int = DIGITS) -> str:
    """A number for readers of a page: `0.818`, `−0.500`, `no score`."""
    if not math.isfinite(value):
        return "no score"
    rounded = round(value, digits) + 0.0  # + 0.0: no sign where 0 is shown
    return minus(f"{rounded:.{digits}f}")


def round_ticks(low: float, high: float) -> list[float]:
    """The ends and some places between of an axis with round numbers that shows values from low to high.

    >>> round_ticks(0.03, 0.41), round_ticks(2, 2)
    ([0.0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5], [2.0, 2.5])
    """
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high)):  # what rounding leaves of equal values
        span = abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / 5))
    step = 10 * size
    for factor in (5, 2.5, 2, 1):  # the smallest step with at most five intervals
        if factor * size >= span / 5 - 1e-12:
            step = factor * size
    # 1e-9: a value that is a tick but for rounding gets no further tick beyond it.
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [step * place for place in range(first, max(last, first + 1) + 1)]


# as HTML


@cache
def template(name: str) -> Any:
    """A template of this package, which escapes every text that it is given."""
    from jinja2 import Environment, PackageLoader  # not for those who want no page

    loader = PackageLoader("capeval_core.reports")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests |= {"readable": is_word, "finite": math.isfinite}
    helpers = (number, minus, best_frames, confident, marked, panels, parts, unmentioned)
    for helper in helpers:
        environment.globals[helper.__name__] = helper
    environment.globals |= {"figures": figures, "threshold": THRESHOLD, "digits": DIGITS}
    environment.globals["count"] = "{:,}".format
    return environment.get_template(f"{name}.html.j2")


def drawing(picture: Picture, text: str, width: int = _OVERLAY, quality: int = 90) -> str:
    """A picture as a JPEG of so many pixels; "" without one, as for evidence that came from a file."""
    if picture is None:
        return ""
    data = jpeg(picture(width), quality=quality, subsampling=0)
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}">').format(data, text)


def jpeg(image: Image.Image, quality: int = 78, **settings: int) -> str:
    """An image as a JPEG, in base64."""
    file = BytesIO()
    image.save(file, "JPEG", quality=quality, **settings)
    return base64.b64encode(file.getvalue()).decode()


def panels(evidence: Mapping[str, Any], draw: Draw = drawing) -> str:
    """A panel for each kind of evidence that the metric keeps; none where there is no score to explain."""

    def frame_images(frames: Iterable[int]) -> dict[int, str]:
        """The best frames of a video as `<img>`, by position."""
        positions = tuple(frames)
        read_frames: Any = getattr(evidence, "frames", None)  # evidence that came from a file has no video

        @cache  # the video is read once, and only if there is room for one of its frames
        def images() -> Any:
            return read_frames(positions, _FRAME)

        def picture_of(position: int) -> Picture:
            if read_frames is None:
                return None
            return lambda width: images()[position]

        drawings = {}
        for position in positions:
            drawings[position] = draw(picture_of(position), f"Frame {position}")
        return drawings

    content = {"evidence": evidence, "draw": draw, "frame_images": frame_images}
    return Markup(template("explanation").render(content).strip())


def parts(values: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The components of a score that the paper names; `titles` are what readers know some of them by."""
    rows = []
    for name, value in values.items():
        is_count = name in _COUNTS
        if not isinstance(value, float) or (is_count and not value):
            continue
        title = titles.get(name, name.replace("_", " "))
        rows.append((title, int(value) if is_count else value))
    return Markup(template("explanation").render(values=rows).strip())
