"""What `result.explain(i)` gives for HICE-S and for PAC-S on videos."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from capeval_core.inputs.images import InputImage, InputVisual
from capeval_core.inputs.videos import EVERY, Sampling
from capeval_core.regions.regions import Regions
from capeval_core.reports.explanations import DrawnExplanation, best_frames, wrong_spans
from capeval_core.reports.overlay import outlined

if TYPE_CHECKING:
    from PIL.Image import Image


class HiceExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and its terms (`gitc`, `litc`,
    `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases` and `regions`, see below; `whole`, the
    recall and phrase of the whole image where it counts as a region, else None; `square`, x0, y0, x1, y1 of
    the part that the image tower sees, and `outside`, the number of regions outside of it; `truncated`, how
    many token ids and sentences were truncated; with references `compared`; and `error`, the reason where
    there is no score.

    A phrase has `precision`, w max(cos, 0) with the best `region` (None: the whole image); it is a `mistake`
    where that is below the threshold, but not `judged` where it may be about a region outside of the square.
    A region has its `box` in pixels, its `area` as a share of the image, `recall`, w max(cos, 0) with the
    best `phrase`, and is `unmentioned` where that is below the threshold. A `reference` that is compared has
    `gttc` (eq. 3), `lttc` (eq. 9), and is `chosen` where the score uses either.

    The score clamps at 0 after the mean, these notes before it: where cosines are negative, the mean of the
    phrases' precisions is more than `precision`.

    >>> import capeval_core
    >>> from capeval_core.demo import demo_set
    >>> metric = capeval_core.load("hices", weights="tiny", evidence=True)
    >>> item = demo_set()[0]
    >>> explanation = metric.score([item.good], [item.image]).explain(0)
    >>> [note["phrase"] for note in explanation["phrases"] if note["mistake"]]
    []
    >>> explanation.plot(width=900).size[0]
    900
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image, self._masks = image, masks

    def with_threshold(self, threshold: float) -> HiceExplanation:
        """The same explanation with another threshold for mistakes and unmentioned regions."""
        outside = bool(self["outside"])  # a phrase that fits no region may be about one of those
        phrases = [(note, note["precision"] < threshold) for note in self["phrases"]]
        changed = {
            "threshold": threshold,
            "phrases": [
                {**note, "mistake": below and not outside, "judged": not (below and outside)}
                for note, below in phrases
            ],
            "regions": [{**note, "unmentioned": note["recall"] < threshold} for note in self["regions"]],
        }
        return HiceExplanation({**self, **changed}, self._image, self._masks)

    def plot(self, width: int = 1280, *, threshold: float | None = None) -> Image:
        """The explanation as one image, `width` pixels wide: the image with its regions outlined and the part
        that the image tower does not see dimmed, the caption with its mistakes marked, and the numbers of
        phrases, regions and references.

        `threshold` replaces that of the explanation.

        Raises:
            ValueError: there is no score, or the width is below 320 pixels.
            ImageError: the image can no longer be read.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from capeval_core.reports.figures import draw_card

        self.check_drawable(width)
        shown = self if threshold is None else self.with_threshold(threshold)
        return draw_card(shown, shown.overlay(1000), wrong_spans(shown), width)

    def overlay(self, width: int = 1280) -> Image:
        """The image with its regions outlined; errors are those of `plot`.

        It is narrower where it would be more than twice as high as wide.
        """
        self.check_drawable(width)
        image = self._image.load()
        regions = self._masks or Regions.of([], size=(image.height, image.width))
        unmentioned = [note["unmentioned"] for note in self["regions"]]
        return outlined(image, regions, unmentioned, width, self["square"])


class VideoExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: plain values, and `plot()`, which draws them.

    Keys: `caption`; `image`, the name of the video; the parts of the score; `frame_cosines`, the cosine of
    the caption as a whole with each frame that was compared; `words`, of each token id its `word` and
    `weight`, and the `frame` that it fits best with the `cosine`; with references, `references`, the score
    and components of each; `incomplete`, why decoding stopped early, None where it did not; and `error`, the
    reason where there is no score.

    >>> note = VideoExplanation({"caption": "a red circle", "frame_cosines": [0.1, 0.3], "words": []})
    >>> note.plot(720).size[0]
    720
    """

    def __init__(
        self, content: Mapping[str, Any], video: InputVisual[Any] | None = None, sampling: Sampling = EVERY
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
        images = self.frames(best, width)
        frames = {frame: (images.get(frame), ", ".join(map(_shown, own))) for frame, own in best.items()}
        return draw_frames(self["caption"], self["frame_cosines"], frames, width)

    def frames(self, wanted: Collection[int], width: int) -> dict[int, Image]:
        """Some of the frames that were compared, by their positions, read again; at most `width` pixels wide.

        Raises:
            ImageError: the video can no longer be read.
        """
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
            if own:
                shown = image.convert("RGB")
                shown.thumbnail((width, width))
                found |= dict.fromkeys(own, shown)
            if len(found) == len(wanted):
                break
        return found


def _shown(match: Mapping[str, Any]) -> str:
    """A word with its cosine; the markers around a text are `start` and `end`."""
    word = match["word"]
    word = word[2:-2].removesuffix("oftext") if word.startswith("<|") and word.endswith("|>") else word
    return f"{word} {match['cosine']:.2f}"
