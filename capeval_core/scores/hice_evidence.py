"""From rows of HICE-S to explanations: which region and which phrase each maximum comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from capeval_core.encoders.pictures import chunks
from capeval_core.inputs.pictures import Picture, PictureError
from capeval_core.inputs.samples import Sample, Samples
from capeval_core.phrases.source import PhraseSource
from capeval_core.ragged import Ragged
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource
from capeval_core.scores.hice import PICTURES_AT_ONCE, TEXTS_AT_ONCE, harmonic_mean
from capeval_core.scores.hice_explanation import HiceExplanation, PhraseNote, ReferenceNote, RegionNote
from capeval_core.scores.hice_rows import match_regions

if TYPE_CHECKING:
    from capeval_core.encoders.region_features import RegionFeatures
    from capeval_core.scores.hice_rows import Reading


@dataclass(frozen=True)
class Evidence:
    """What explanations of rows are made with: values come from the rows, so that they add up to the score.

    read, see: features of texts and of pictures with their regions, from the caches where rows are fresh.
    finder, parser: they give the same regions and phrases as they gave for the rows.
    w, include_whole, threshold: see `HiceOptions` and `HiceExplanation`.
    """

    read: Callable[[Sequence[str]], Reading]
    see: Callable[[Sequence[Picture]], Iterator[RegionFeatures]]
    finder: RegionSource
    parser: PhraseSource
    w: float
    include_whole: bool
    threshold: float

    def explanations(
        self, samples: Samples, rows: pa.Table, values: Mapping[str, Sequence[Any]]
    ) -> Iterator[HiceExplanation]:
        """One for each sample; rows are in their order, `values` are the score and what it is made of."""
        masks: dict[str, Regions | PictureError] = {}  # by picture, so that its captions share them
        for start in range(0, len(samples), TEXTS_AT_ONCE):
            batch = samples[start : start + TEXTS_AT_ONCE]
            said, captions = self.parser.phrases(batch.captions), self.read(batch.captions)
            place = 0
            for seen in chunks(self.see(batch.pictures), PICTURES_AT_ONCE):
                part = slice(place, place + len(seen))
                matches = match_regions(captions.part(part), seen).to("cpu")
                best_regions = _listed(matches.x_indices, matches.x_offsets)
                best_phrases = _listed(matches.y_indices, matches.y_offsets)
                found = rows.slice(start + place, len(seen)).to_pylist()
                for i, (features, row) in enumerate(zip(seen, found, strict=True)):
                    sample, index = batch[place + i], start + place + i
                    own = {name: value[index] for name, value in values.items()}
                    regions = self._masks(sample.picture, features, masks)
                    if row["error"] is not None or isinstance(regions, PictureError):
                        yield _failed(sample, own, row["error"] or str(regions), self.threshold)
                        continue
                    texts = said[place + i].phrases
                    noted = self._notes(row, texts, regions, best_regions[i], best_phrases[i])
                    yield HiceExplanation(
                        {**_head(sample, own, self.threshold), **noted}, sample.picture, regions
                    )
                place = part.stop

    def _masks(
        self, picture: Picture, features: RegionFeatures, known: dict[str, Regions | PictureError]
    ) -> Regions | PictureError:
        if features.error is not None:
            return PictureError(features.error)
        if features.key not in known:
            try:
                known[features.key] = self.finder.find(picture).select(features.kept.tolist())
            except PictureError as error:
                known[features.key] = error
        return known[features.key]

    def _notes(
        self,
        row: Mapping[str, Any],
        texts: Sequence[str],
        regions: Regions,
        best_regions: Sequence[int],
        best_phrases: Sequence[int],
    ) -> dict[str, Any]:
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
                    "mistake": precision < self.threshold,
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
        return {"phrases": phrases, "regions": seen, "whole": self._whole(row, texts) if with_whole else None}

    def _whole(self, row: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
        """What the whole picture adds to the recall, where it counts as a region."""
        cosine, phrase = max(zip(row["phrase_cosines"], texts, strict=True), key=lambda found: found[0])
        return {"recall": self._scaled(cosine), "phrase": phrase}

    def _scaled(self, cosine: float) -> float:
        return self.w * max(cosine, 0.0)


def reference_notes(
    samples: Samples, gttc: Ragged, lttc: Ragged, several: str
) -> Iterator[list[ReferenceNote]]:
    """Of each sample its references, with their gTTC and lTTC; `several` says which of them are chosen."""
    joint = Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths)
    by_option = {"joint": [joint], "best": [gttc, lttc], "mean": [], "pooled": []}[several]
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
    return {"caption": sample.caption, "picture": sample.picture.name, **values, "threshold": threshold}


def _failed(sample: Sample, values: Mapping[str, Any], error: str, threshold: float) -> HiceExplanation:
    nothing: dict[str, Any] = {"phrases": [], "regions": [], "whole": None, "error": error}
    return HiceExplanation({**_head(sample, values, threshold), **nothing}, sample.picture, None)


def _listed(indices: Any, offsets: Any) -> list[list[int]]:
    ends = offsets.tolist()
    flat = indices.tolist()
    return [flat[start:stop] for start, stop in pairwise(ends)]
