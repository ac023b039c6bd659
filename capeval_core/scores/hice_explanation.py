"""Where a HICE score comes from: each phrase with its best region, each region with its best phrase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capeval_core.inputs.visual import InputImage
from capeval_core.phrases.spans import Span, wrong_words
from capeval_core.regions.regions import Regions
from capeval_core.reports.overlay import OutlinedImage
from capeval_core.scores.hice_card import card_of, region_marks
from capeval_core.scores.hice_notes import PhraseNote, ReferenceNote, RegionNote, verdict

if TYPE_CHECKING:
    from PIL.Image import Image

THRESHOLD = 0.2
"""The cosine below which a phrase is a mistake and a region unmentioned: with w = 2.5 the 0.5 of figure 5.

Weights whose cosines lie elsewhere name their own: `threshold` among the constants of their config.
"""
WIDTH = 1280


class HiceExplanation(dict[str, Any]):
    """What `result.explain(i)` gives: plain numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and the terms that it is made
    of (`gitc`, `litc`, `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases`, a list of
    `PhraseNote`; `regions`, a list of `RegionNote`; `whole`, what the whole image adds to the recall where
    it counts as a region (`recall`, `phrase`), else None; `square`, x0, y0, x1, y1 of what the image tower
    sees, and `outside`, how many regions lie outside of it; `truncated`, how many token ids and sentences
    were cut off; with references `compared`, a list of `ReferenceNote`; and `error`, why there is no score,
    where there is none.

    The score clamps at 0 after the mean, these notes before it: where cosines are negative, the mean of the
    phrases' precisions is more than `precision`.

    >>> import capeval_core
    >>> from capeval_core.synthetic.demo import demo_set
    >>> metric = capeval_core.load("hices", weights="tiny", evidence=True)
    >>> item = demo_set()[0]
    >>> found = metric.score([item.good], [item.image]).explain(0)
    >>> [note["phrase"] for note in found.phrases if note["mistake"]]
    []
    >>> found.plot(width=900).size[0]
    900
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image, self._masks = image, masks

    @property
    def phrases(self) -> list[PhraseNote]:
        """The phrases in the caption's order."""
        found: list[PhraseNote] = self["phrases"]
        return found

    @property
    def regions(self) -> list[RegionNote]:
        """The regions that the encoder saw, in the source's order."""
        found: list[RegionNote] = self["regions"]
        return found

    @property
    def compared(self) -> list[ReferenceNote]:
        """The references, none of a metric without."""
        found: list[ReferenceNote] = self.get("compared", [])
        return found

    def wrong_words(self) -> list[Span]:
        """The words of the caption to be marked: those of mistakes that no other phrase says rightly."""
        said: dict[bool, list[str]] = {True: [], False: []}
        for note in self.phrases:
            if note["judged"]:
                said[note["mistake"]].append(note["phrase"])
        return wrong_words(self["caption"], said[True], said[False])

    def judged(self, threshold: float) -> HiceExplanation:
        """The same with another threshold for what is a mistake and what is unmentioned."""
        content: dict[str, Any] = {**self, "threshold": threshold}
        content["phrases"] = [
            {**note, **verdict(note["precision"], threshold, self["outside"])} for note in self.phrases
        ]
        content["regions"] = [{**note, "unmentioned": note["recall"] < threshold} for note in self.regions]
        return HiceExplanation(content, self._image, self._masks)

    def plot(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """Everything in one image, `width` pixels wide: the image with its regions outlined and what the
        image tower does not see dimmed, the caption with its wrong phrases marked, phrases, regions and
        references with their values.

        `threshold` replaces the explanation's own.

        Raises:
            ValueError: there is no score to explain, or the width is below 320 pixels.
            ImageError: the image cannot be read any more.
        """
        found = self._drawable(threshold)
        return card_of(found, found._outlined(), found.wrong_words()).drawn(width)

    def overlay(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """The image alone with its regions outlined; arguments and errors are those of `plot`.

        It is narrower where it would be more than twice as high as wide.
        """
        return self._drawable(threshold)._outlined().drawn(width)

    def image(self) -> Image:
        """The image as the metric saw it. Raises ImageError."""
        return self._image.load()

    def masks(self) -> Regions | None:
        """The masks of `regions`, None where they cannot be had."""
        return self._masks

    def _drawable(self, threshold: float | None) -> HiceExplanation:
        if "error" in self:
            raise ValueError(f"there is no score to draw: {self['error']}")
        return self if threshold is None else self.judged(threshold)

    def _outlined(self) -> OutlinedImage:
        image = self.image()
        regions = self.masks() or Regions.of([], size=(image.height, image.width))
        return OutlinedImage(image, regions, region_marks(self.regions), visible=tuple(self["square"]))

    def __reduce__(self) -> tuple[Any, ...]:
        return HiceExplanation, (dict(self), self._image, self._masks)
