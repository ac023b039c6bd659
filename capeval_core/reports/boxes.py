"""Explanations of scores that look at boxes of an image: numbers, and the image with its boxes outlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: F401  (for the example)

from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.regions.selection import THRESHOLD
from capeval_core.reports.canvas import PAPER, Canvas, check_width, region_colour
from capeval_core.reports.drawn import DrawnExplanation
from capeval_core.reports.marks import RegionMark
from capeval_core.reports.text import FINER

if TYPE_CHECKING:
    from PIL.Image import Image

    from capeval_core.inputs.visual import InputVisual

_DESIGNED = 440
"""Width for which lines are given."""
_OUTLINE, _CASING = 1.5, 3.0
"""A coloured line in a white one, visible on any background."""


def box_notes(boxes: BoxFeatures) -> list[dict[str, Any]]:
    """`boxes` of a `BoxExplanation`.

    >>> box_notes(BoxFeatures(np.float32([[0, 1, 20, 10]]), np.ones((1, 4), np.float32)))
    [{'box': [0.0, 1.0, 20.0, 10.0], 'confidence': None}]
    """
    scores = [None] * len(boxes) if boxes.scores is None else boxes.scores.tolist()
    return [
        {"box": box, "confidence": score} for box, score in zip(boxes.boxes.tolist(), scores, strict=True)
    ]


def outlined(notes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The boxes to outline: not those that only make up the least number, below the detector's threshold.

    >>> notes = [{"confidence": 0.9}, {"confidence": 0.1}]
    >>> outlined(notes), outlined([{"confidence": None}])
    ([0], [0])
    """
    return [i for i, note in enumerate(notes) if note["confidence"] is None or note["confidence"] > THRESHOLD]


class BoxExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `boxes`, a list of `{"box": [x0, y0, x1, y1],
    "confidence": ...}` in pixels, best first (confidence None where the features came without); and `error`,
    the reason where there is no score.
    """

    def __init__(self, content: Mapping[str, Any], visual: InputVisual[Any]) -> None:
        super().__init__(content)
        self._visual = visual

    def plot(self, width: int = 2 * _DESIGNED) -> Image:
        """The image with its boxes outlined and numbered, `width` pixels wide, the most confident on top.

        Raises:
            ValueError: there is no score, there are only features and no image, or the width is below 320
                pixels.
            ImageError: the image can no longer be read.
        """
        check_width(width)
        if "error" in self:
            raise ValueError(f"there is no score to draw: {self['error']}")
        image = self._load()
        shown = max(1.0, min(1.0, 2 * image.width / image.height) * _DESIGNED)
        canvas = Canvas(shown, max(1.0, shown * image.height / image.width), PAPER, FINER * width / _DESIGNED)
        canvas.paste(image.convert("RGB").resize(canvas.image.size), 0, 0)
        across, down = canvas.width / image.width, canvas.height / image.height
        for index in reversed(outlined(self["boxes"])):
            x0, y0, x1, y1 = self["boxes"][index]["box"]
            corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0), (x1, y0)]
            outline = [(x * across, y * down) for x, y in corners]
            canvas.line(outline, PAPER, _CASING)
            canvas.line(outline, region_colour(index, False), _OUTLINE)
            RegionMark.of(index).draw(canvas, max(x0 * across, 8), max(y0 * down, 8), 7)
        return canvas.finished()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image in pixels, in which the boxes are. Raises ImageError."""
        return self._load().size

    def picture(self, width: int) -> Image:
        """The image alone, at most `width` pixels wide. Raises ImageError; ValueError without an image."""
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
