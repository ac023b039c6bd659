"""Explanations of HICE scores: each phrase with its best region, each region with its best phrase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from capeval_core.encoders.preprocessing import central_square
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.phrases.spans import Span
from capeval_core.regions.regions import Regions, RegionSource
from capeval_core.reports.explained import DrawnExplanation
from capeval_core.reports.explanations import wrong_spans
from capeval_core.reports.overlay import outlined
from capeval_core.scores.hice import THRESHOLD, HiceOptions, HiceS, match_regions

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH = 1280


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
    >>> [note["phrase"] for note in explanation.phrases if note["mistake"]]
    []
    >>> explanation.plot(width=900).size[0]
    900
    """

    def __init__(self, content: Mapping[str, Any], image: InputImage, masks: Regions | None) -> None:
        super().__init__(content)
        self._image, self._masks = image, masks

    @property
    def phrases(self) -> list[dict[str, Any]]:
        """The phrases in the caption's order."""
        notes: list[dict[str, Any]] = self["phrases"]
        return notes

    @property
    def regions(self) -> list[dict[str, Any]]:
        """The regions that the image tower sees, in the source's order."""
        notes: list[dict[str, Any]] = self["regions"]
        return notes

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The references; empty for HICE-S."""
        notes: list[dict[str, Any]] = self.get("compared", [])
        return notes

    def wrong_words(self) -> list[Span]:
        """The words of the caption to mark: those of mistakes that no right phrase contains."""
        return wrong_spans(self)

    def with_threshold(self, threshold: float) -> HiceExplanation:
        """The same explanation with another threshold for mistakes and unmentioned regions."""
        return HiceExplanation(judged(self, threshold), self._image, self._masks)

    def plot(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """The explanation as one image, `width` pixels wide: the image with its regions outlined and the part
        that the image tower does not see dimmed, the caption with its mistakes marked, and tables of
        phrases, regions and references.

        `threshold` replaces that of the explanation.

        Raises:
            ValueError: there is no score, or the width is below 320 pixels.
            ImageError: the image can no longer be read.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from capeval_core.reports.figures import draw_card

        shown = self._drawable(width, threshold)
        return draw_card(shown, shown._outlined(1000), shown.wrong_words(), width)

    def overlay(self, width: int = WIDTH, *, threshold: float | None = None) -> Image:
        """The image with its regions outlined; arguments and errors are those of `plot`.

        It is narrower where it would be more than twice as high as wide.
        """
        return self._drawable(width, threshold)._outlined(width)

    def _drawable(self, width: int, threshold: float | None) -> HiceExplanation:
        self.check_drawable(width)
        return self if threshold is None else self.with_threshold(threshold)

    def _outlined(self, width: int) -> Image:
        image = self._image.load()
        regions = self._masks or Regions.of([], size=(image.height, image.width))
        unmentioned = [note["unmentioned"] for note in self.regions]
        return outlined(image, regions, unmentioned, width, self["square"])

    def __reduce__(self) -> tuple[Any, ...]:
        return HiceExplanation, (dict(self), self._image, self._masks)


def judged(content: Mapping[str, Any], threshold: float) -> dict[str, Any]:
    """An explanation's content with the verdicts of its notes, by the threshold of mistakes.

    Where the image tower does not see all regions, a phrase below the threshold may be about one of those.
    """
    phrases = [(note, note["precision"] < threshold) for note in content["phrases"]]
    outside = bool(content["outside"])
    return {
        **content,
        "threshold": threshold,
        "phrases": [
            {**note, "mistake": below and not outside, "judged": not (below and outside)}
            for note, below in phrases
        ],
        "regions": [{**note, "unmentioned": note["recall"] < threshold} for note in content["regions"]],
    }


def explained(
    metric: HiceS, samples: Samples, rows: pa.Table, values: Mapping[str, Sequence[Any]]
) -> dict[int, HiceExplanation]:
    """The explanation of each row with its score and parts, of the rows' cosines, so that they add up."""
    constants = metric.encoder.config.get("constants", {})
    threshold = metric.options.w * constants.get("threshold", THRESHOLD)
    regions_of: dict[str, Regions | ImageError] = {}  # by image, which its captions share
    found: dict[int, HiceExplanation] = {}
    for window in windows(samples, LIMITS.hice_texts):
        encoded = metric.encode_texts(window.captions)
        for part, features in metric.encode_images(window):
            captions = encoded.part(part)
            matches = match_regions(captions, features).to("cpu")
            best_regions = _split(matches.x_indices, matches.x_offsets)
            best_phrases = _split(matches.y_indices, matches.y_offsets)
            own = window[part]
            for i, (caption, image, view) in enumerate(zip(own.captions, own.images, features, strict=True)):
                row = rows.slice(len(found), 1).to_pylist()[0]
                content: dict[str, Any] = {"caption": caption, "image": image.label}
                content |= {name: value[len(found)] for name, value in values.items()}
                content["threshold"] = threshold
                if view.error is None and view.key not in regions_of:
                    regions_of[view.key] = _regions(metric.regions, image)
                regions = ImageError(view.error) if view.error else regions_of[view.key]
                if row["error"] is not None or isinstance(regions, ImageError):
                    content |= {"phrases": [], "regions": [], "whole": None}
                    content["error"] = row["error"] or str(regions)
                    found[len(found)] = HiceExplanation(content, image, None)
                    continue
                visible = regions.select(view.kept.tolist())
                content |= _notes(
                    row, captions.phrases[i], best_regions[i], best_phrases[i], visible, metric.options
                )
                top, left, side = central_square(*regions.size)
                content["outside"] = len(regions) - len(visible)
                content["square"] = [left, top, left + side, top + side]
                content["truncated"] = row["truncated"]
                found[len(found)] = HiceExplanation(judged(content, threshold), image, visible)
    return found


def _regions(source: RegionSource, image: InputImage) -> Regions | ImageError:
    try:
        return source.find(image)
    except ImageError as error:
        return error


def _notes(
    row: Mapping[str, Any],
    texts: Sequence[str],
    best_regions: Sequence[int],
    best_phrases: Sequence[int],
    visible: Regions,
    options: HiceOptions,
) -> dict[str, Any]:
    """The notes of a row without verdicts: phrases, visible regions, the whole image as a region."""
    w = options.w
    with_whole = options.include_whole_image or not len(visible)
    phrases = []
    for text, best, whole, region in zip(
        texts, row["phrase_maxima"], row["phrase_cosines"], best_regions, strict=True
    ):
        by_whole = with_whole and (region < 0 or whole > best)
        precision = w * max(whole if by_whole else best, 0.0)
        phrases.append({"phrase": text, "precision": precision, "region": None if by_whole else region})
    height, width = visible.size
    boxes, areas = visible.boxes.tolist(), visible.areas.tolist()
    regions = [
        {"box": box, "area": area / (height * width), "recall": w * max(best, 0.0), "phrase": texts[phrase]}
        for best, phrase, box, area in zip(row["region_maxima"], best_phrases, boxes, areas, strict=True)
    ]
    cosine, phrase = max(zip(row["phrase_cosines"], texts, strict=True), key=lambda pair: pair[0])
    whole_note = {"recall": w * max(cosine, 0.0), "phrase": phrase} if with_whole else None
    return {"phrases": phrases, "regions": regions, "whole": whole_note}


def _split(indices: Any, offsets: Any) -> list[list[int]]:
    flat = indices.tolist()
    return [flat[start:stop] for start, stop in pairwise(offsets.tolist())]
