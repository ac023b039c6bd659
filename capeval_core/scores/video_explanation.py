"""Explanations of PAC-S for videos: a caption's cosine with each frame, and the best frame of each word."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.inputs.videos import EVERY, Sampling
from capeval_core.reports.explained import DrawnExplanation, shown_word
from capeval_core.reports.explanations import best_frames

if TYPE_CHECKING:
    from PIL.Image import Image

    from capeval_core.inputs.images import InputVisual

Floats = NDArray[np.float32]


class VideoExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: plain values, and `plot()`, which draws them.

    Keys: `caption`; `image`, the name of the video; the parts of the score; `frame_cosines`, the cosine of
    the caption as a whole with each frame that was compared; `words`, a `FrameMatch` of each token id; with
    references, `references`, the score and components of each; `incomplete`, why decoding stopped early, None
    where it did not; and `error`, the reason where there is no score.

    >>> note = VideoExplanation({"caption": "a red circle", "frame_cosines": [0.1, 0.3], "words": []})
    >>> note.plot(720).size[0]
    720
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        video: InputVisual[Any] | None = None,
        sampling: Sampling = EVERY,
    ) -> None:
        super().__init__(content)
        self._video, self._sampling = video, sampling

    def plot(self, width: int = 1440) -> Image:
        """The caption's cosine with each frame as a curve, and the best frames of its words, read again.

        Raises:
            ValueError: there is no score, or the width is below 320 pixels.
            ImageError: the video can no longer be read.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from capeval_core.reports.figures import draw_frames

        self.check_drawable(width)
        best = best_frames(self["words"])
        images = self._frames(best)
        frames = {
            frame: (
                images.get(frame),
                ", ".join(f"{shown_word(match)} {match['cosine']:.2f}" for match in own),
            )
            for frame, own in best.items()
        }
        return draw_frames(self["caption"], self["frame_cosines"], frames, width)

    def frames(self, wanted: Collection[int], width: int) -> dict[int, Image]:
        """Some of the frames that were compared, by their positions, read again; at most `width` pixels wide.

        Raises:
            ImageError: the video can no longer be read.
        """
        found = {position: image.convert("RGB") for position, image in self._frames(wanted).items()}
        for image in found.values():
            image.thumbnail((width, width))
        return found

    def _frames(self, wanted: Collection[int]) -> dict[int, Image]:
        """Frames by their position among those that were compared."""
        if self._video is None or not wanted:
            return {}
        video = self._video.load()
        positions: dict[int, list[int]] = {}  # of each number, in a video of which frames are repeated
        if self._sampling.max_frames is not None:
            counted = video.read(self._sampling)
            deque(counted, maxlen=0)
            for position in wanted:
                positions.setdefault(counted.indices[position], []).append(position)
        found: dict[int, Image] = {}
        for position, (number, image) in enumerate(video.read(self._sampling)):
            own = positions.get(number, []) if positions else [position] if position in wanted else []
            found |= dict.fromkeys(own, image)
            if len(found) == len(wanted):
                break
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoExplanation, (dict(self), self._video, self._sampling)
