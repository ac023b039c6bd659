"""Explanations of HICE scores: each phrase with its best region, each region with its best phrase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pyarrow as pa

from capeval_core.encoders.preprocessing import central_square
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples
from capeval_core.phrases.spans import Span
from capeval_core.ragged import Ragged
from capeval_core.regions.regions import Regions, RegionSource
from capeval_core.reports.explained import DrawnExplanation
from capeval_core.reports.explanations import wrong_spans
from capeval_core.reports.overlay import outlined
from capeval_core.scores.hice.formulas import joint
from capeval_core.scores.hice.rows import EncodedTexts, match_regions

if TYPE_CHECKING:
    from PIL.Image import Image

    from capeval_core.encoders.alpha_clip import RegionFeatures

THRESHOLD = 0.2
"""The cosine below which a phrase is a mistake and a region unmentioned: with w = 2.5 the 0.5 of figure 5.

Weights whose cosines are in another range name their own: `threshold` among the constants of their config.
"""
WIDTH = 1280


class PhraseNote(TypedDict):
    """A phrase of the caption.

    precision: w max(cos, 0) with the best region. region: index of that region, None for the whole image.
    mistake: whether the precision is below the threshold. judged: False where the precision is below the
    threshold but the phrase may be about a region outside of the square that the image tower sees; such a
    phrase is not a mistake.
    """

    phrase: str
    precision: float
    region: int | None
    mistake: bool
    judged: bool


class RegionNote(TypedDict):
    """A region of the image.

    box: x0, y0, x1, y1 in pixels. area: share of the image. recall: w max(cos, 0) with the best phrase.
    phrase: that phrase. unmentioned: whether the recall is below the threshold.
    """

    box: list[float]
    area: float
    recall: float
    phrase: str
    unmentioned: bool


class ReferenceNote(TypedDict):
    """A reference: compatibility with the caption as a whole (eq. 3) and by phrases (eq. 9).

    chosen: whether the score uses either.
    """

    reference: str
    gttc: float
    lttc: float
    chosen: bool


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


class HiceExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the score under its name (`hice_s`, `refhice_s`) and its terms (`gitc`, `litc`,
    `precision`, `recall`; `gttc`, `lttc`); `threshold`; `phrases`, a list of `PhraseNote`; `regions`, a list
    of `RegionNote`; `whole`, the recall and phrase of the whole image where it counts as a region, else None;
    `square`, x0, y0, x1, y1 of the part that the image tower sees, and `outside`, the number of regions
    outside of it; `truncated`, how many token ids and sentences were truncated; with references `compared`, a
    list of `ReferenceNote`; and `error`, the reason where there is no score.

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
    def phrases(self) -> list[PhraseNote]:
        """The phrases in the caption's order."""
        notes: list[PhraseNote] = self["phrases"]
        return notes

    @property
    def regions(self) -> list[RegionNote]:
        """The regions that the image tower sees, in the source's order."""
        notes: list[RegionNote] = self["regions"]
        return notes

    @property
    def compared(self) -> list[ReferenceNote]:
        """The references; empty for HICE-S."""
        notes: list[ReferenceNote] = self.get("compared", [])
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


def explain(
    encoded: Iterable[tuple[Samples, EncodedTexts, Sequence[RegionFeatures]]],
    rows: pa.Table,
    values: Mapping[str, Sequence[Any]],
    source: RegionSource,
    *,
    w: float,
    include_whole_image: bool,
    threshold: float,
) -> Iterator[HiceExplanation]:
    """The explanation of each row, with values of the rows, so that they add up to the score.

    Args:
        encoded: samples in the order of the rows, with their captions and images encoded, some at a time.
        rows: as the metric encoded them.
        values: the score of each row and its parts.
        source: gives the regions that it gave for the rows.
        w, include_whole_image: options of the metric.
        threshold: as in `HiceExplanation`.
    """
    regions_of: dict[str, Regions | ImageError] = {}  # by image, which its captions share
    index = 0
    for samples, captions, images in encoded:
        matches = match_regions(captions, images).to("cpu")
        best_regions = _split(matches.x_indices, matches.x_offsets)
        best_phrases = _split(matches.y_indices, matches.y_offsets)
        part = rows.slice(index, len(images)).to_pylist()
        zipped = zip(samples.captions, samples.images, images, part, strict=True)
        for i, (caption, image, features, row) in enumerate(zipped):
            content: dict[str, Any] = {"caption": caption, "image": image.label}
            content |= {name: value[index] for name, value in values.items()}
            content["threshold"] = threshold
            index += 1
            if features.error is None and features.key not in regions_of:
                regions_of[features.key] = _found(source, image)
            found = ImageError(features.error) if features.error else regions_of[features.key]
            if row["error"] is not None or isinstance(found, ImageError):
                content |= {"phrases": [], "regions": [], "whole": None, "error": row["error"] or str(found)}
                yield HiceExplanation(content, image, None)
                continue
            visible = found.select(features.kept.tolist())
            content |= _notes(
                row, captions.phrases[i], best_regions[i], best_phrases[i], visible, w, include_whole_image
            )
            top, left, side = central_square(*found.size)
            content["outside"] = len(found) - len(visible)
            content["square"] = [left, top, left + side, top + side]
            content["truncated"] = row["truncated"]
            yield HiceExplanation(judged(content, threshold), image, visible)


def _found(source: RegionSource, image: InputImage) -> Regions | ImageError:
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
    w: float,
    include_whole_image: bool,
) -> dict[str, Any]:
    """The notes of a row without verdicts: phrases, visible regions, the whole image as a region."""
    with_whole = include_whole_image or not len(visible)
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


def reference_notes(
    samples: Samples, gttc: Ragged, lttc: Ragged, reference_reduction: str
) -> Iterator[list[ReferenceNote]]:
    """The references of each sample, with their terms and whether `reference_reduction` chooses them."""
    terms = {"joint": [joint(gttc, lttc)], "best": [gttc, lttc], "mean": [], "pooled": []}[
        reference_reduction
    ]
    chosen = np.full(len(gttc.values), not terms)
    for term in terms:
        chosen[term.argmax()] = True
    notes = zip(gttc.values.tolist(), lttc.values.tolist(), chosen.tolist(), strict=True)
    for references in samples.references or []:
        yield [
            {"reference": text, "gttc": global_term, "lttc": local_term, "chosen": is_chosen}
            for text, (global_term, local_term, is_chosen) in zip(references, notes, strict=False)
        ]


def _split(indices: Any, offsets: Any) -> list[list[int]]:
    flat = indices.tolist()
    return [flat[start:stop] for start, stop in pairwise(offsets.tolist())]
