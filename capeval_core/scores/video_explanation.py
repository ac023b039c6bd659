"""Explanations of PAC-S for videos: a caption's cosine with each frame, and the best frame of each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from capeval_core.matching.cosine import unit
from capeval_core.reports.curves import Curve, draw_curves

if TYPE_CHECKING:
    from PIL.Image import Image

Floats = NDArray[np.float32]


class FrameMatch(TypedDict):
    """A word, its weight, and its cosine with the most similar frame, which is counted from 0."""

    word: str
    weight: float
    frame: int
    cosine: float


class VideoExplanation(dict[str, Any]):
    """The explanation of a score, by `result.explain(i)`: plain values, and `plot()`, which draws the curve.

    Keys: `caption`; `image`, the name of the video; the parts of the score; `frame_cosines`, the cosine of
    the caption as a whole with each frame that was compared; `words`, a `FrameMatch` of each token id; with
    references, `references`, the score and components of each; `incomplete`, why decoding stopped early, None
    where it did not; and `error`, the reason where there is no score.

    >>> note = VideoExplanation({"caption": "a red circle", "frame_cosines": [0.1, 0.3], "words": []})
    >>> note.plot().size
    (960, 284)
    """

    def plot(self) -> Image:
        """The caption's cosine with each frame, as a curve over frames.

        Raises:
            ValueError: there is no score.
        """
        if "error" in self:
            raise ValueError(f"there is no score to draw: {self['error']}")
        points = [(float(frame), cosine) for frame, cosine in enumerate(self["frame_cosines"])]
        return draw_curves({f"cosine of each frame with: {self['caption']}": [Curve("", points)]})

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoExplanation, (dict(self),)


def explain(
    words: Sequence[str], weights: Sequence[float], tokens: Floats, frames: Floats, error: str | None
) -> dict[str, Any]:
    """The evidence of a caption: its cosine as a whole with each frame, and the best frame of each word.

    Args:
        words, weights: of each token id. tokens: (words, d) their features.
        frames: (frames, d) features.
        error: why there is no score.
    """
    if error is not None:
        return {"frame_cosines": [], "words": [], "error": error}
    cosines = np.clip(unit(tokens) @ unit(frames).T, -1, 1)
    matches: list[FrameMatch] = [
        {"word": word, "weight": weight, "frame": int(own.argmax()), "cosine": float(own.max())}
        for word, weight, own in zip(words, weights, cosines, strict=True)
    ]
    return {"frame_cosines": cosines[-1].tolist(), "words": matches}
