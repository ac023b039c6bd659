"""From rows of HICE-S to explanations: which region and which phrase each maximum comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from capeval_core.encoders.preprocessing import central_square
from capeval_core.inputs.samples import Sample, Samples
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.ragged import Ragged
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource
from capeval_core.scores.hice_explanation import HiceExplanation
from capeval_core.scores.hice_formulas import joint
from capeval_core.scores.hice_notes import PhraseNote, ReferenceNote, RegionNote, verdict
from capeval_core.scores.hice_rows import Reading, match_regions

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import RegionFeatures


@dataclass(frozen=True)
class _Masks:
    """The regions that the image tower sees, and how many lie outside of what it sees."""

    regions: Regions
    outside: int


@dataclass(frozen=True)
class Evidence:
    """What explanations of rows are made with: values come from the rows, so that they add up to the score.

    finder: gives the same regions as it gave for the rows.
    w, include_whole, threshold: see `HiceOptions` and `HiceExplanation`.
    """

    finder: RegionSource
    w: float
    include_whole: bool
    threshold: float

    def explanations(
        self,
        pairs: Iterable[tuple[Samples, Reading, Sequence[RegionFeatures]]],
        rows: pa.Table,
        values: Mapping[str, Sequence[Any]],
    ) -> Iterator[HiceExplanation]:
        """One for each row.

        Args:
            pairs: some at a time, the samples of the rows in their order, with what is read of their captions
                and seen in their images.
            rows: as the metric encoded them.
            values: the score of each row, and what it is made of.
        """
        masks: dict[str, _Masks | ImageError] = {}  # by image, so that its captions share them
        index = 0
        for samples, captions, seen in pairs:
            matches = match_regions(captions, seen).to("cpu")
            best_regions = _listed(matches.x_indices, matches.x_offsets)
            best_phrases = _listed(matches.y_indices, matches.y_offsets)
            found = rows.slice(index, len(seen)).to_pylist()
            for i, (sample, features, row) in enumerate(zip(samples, seen, found, strict=True)):
                own = {name: value[index] for name, value in values.items()}
                index += 1
                found_masks = self._masks(sample.image, features, masks)
                if row["error"] is not None or isinstance(found_masks, ImageError):
                    yield _failed(sample, own, row["error"] or str(found_masks), self.threshold)
                    continue
                noted = self._notes(row, captions.said[i], found_masks, best_regions[i], best_phrases[i])
                yield HiceExplanation(
                    {**_head(sample, own, self.threshold), **noted}, sample.image, found_masks.regions
                )

    def _masks(
        self, image: InputImage, features: RegionFeatures, known: dict[str, _Masks | ImageError]
    ) -> _Masks | ImageError:
        if features.error is not None:
            return ImageError(features.error)
        if features.key not in known:
            try:
                found = self.finder.find(image)
                kept = found.select(features.kept.tolist())
                known[features.key] = _Masks(kept, len(found) - len(kept))
            except ImageError as error:
                known[features.key] = error
        return known[features.key]

    def _notes(
        self,
        row: Mapping[str, Any],
        texts: Sequence[str],
        masks: _Masks,
        best_regions: Sequence[int],
        best_phrases: Sequence[int],
    ) -> dict[str, Any]:
        regions = masks.regions
        with_whole = self.include_whole or not len(regions)
        phrases: list[PhraseNote] = []
        for text, best, whole, region in zip(
            texts, row["phrase_maxima"], row["phrase_cosines"], best_regions, strict=True
        ):
            by_whole = with_whole and (region < 0 or whole > best)
            precision = self._scaled(whole if by_whole else best)
            phrases.append(
                {
                    "phrase": text,
                    "precision": precision,
                    "region": None if by_whole else region,
                    **verdict(precision, self.threshold, masks.outside),
                }
            )
        height, width = regions.size
        seen: list[RegionNote] = []
        for best, phrase, box, area in zip(
            row["region_maxima"],
            best_phrases,
            regions.boxes.tolist(),
            regions.areas.tolist(),
            strict=True,
        ):
            recall = self._scaled(best)
            seen.append(
                {
                    "box": box,
                    "area": area / (height * width),
                    "recall": recall,
                    "phrase": texts[phrase],
                    "unmentioned": recall < self.threshold,
                }
            )
        top, left, side = central_square(height, width)
        return {
            "phrases": phrases,
            "regions": seen,
            "whole": self._whole(row, texts) if with_whole else None,
            "outside": masks.outside,
            "square": [left, top, left + side, top + side],
            "truncated": row["truncated"],
        }

    def _whole(self, row: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
        """What the whole image adds to the recall, where it counts as a region."""
        cosine, phrase = max(zip(row["phrase_cosines"], texts, strict=True), key=lambda found: found[0])
        return {"recall": self._scaled(cosine), "phrase": phrase}

    def _scaled(self, cosine: float) -> float:
        return self.w * max(cosine, 0.0)


def reference_notes(
    samples: Samples, gttc: Ragged, lttc: Ragged, several: str
) -> Iterator[list[ReferenceNote]]:
    """Of each sample its references, with their gTTC and lTTC; `several` says which of them are chosen."""
    by_option = {"joint": [joint(gttc, lttc)], "best": [gttc, lttc], "mean": [], "pooled": []}[several]
    chosen = np.full(len(gttc.values), not by_option)
    for terms in by_option:
        chosen[terms.argmax()] = True
    place = 0
    for references in samples.references or []:
        part = slice(place, place + len(references))
        columns = (references, gttc.values[part].tolist(), lttc.values[part].tolist(), chosen[part].tolist())
        yield [
            {"reference": text, "gttc": whole, "lttc": phrases, "chosen": is_chosen}
            for text, whole, phrases, is_chosen in zip(*columns, strict=True)
        ]
        place = part.stop


def _head(sample: Sample, values: Mapping[str, Any], threshold: float) -> dict[str, Any]:
    return {"caption": sample.caption, "image": sample.image.name, **values, "threshold": threshold}


def _failed(sample: Sample, values: Mapping[str, Any], error: str, threshold: float) -> HiceExplanation:
    nothing: dict[str, Any] = {"phrases": [], "regions": [], "whole": None, "error": error}
    return HiceExplanation({**_head(sample, values, threshold), **nothing}, sample.image, None)


def _listed(indices: Any, offsets: Any) -> list[list[int]]:
    ends = offsets.tolist()
    flat = indices.tolist()
    return [flat[start:stop] for start, stop in pairwise(ends)]
