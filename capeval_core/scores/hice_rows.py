"""What a row of HICE-S holds: cosines of texts, phrases, pictures and regions, and the best of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.matching.cosine import grouped_cosine, paired_cosine
from capeval_core.matching.greedy import GreedyMatch, greedy_match
from capeval_core.phrases.source import PhraseSource

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder
    from capeval_core.encoders.region_features import RegionFeatures

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """n texts with their phrases.

    wholes: (n, d) features of the texts. phrases: (sum of lengths, d) features of their phrases.
    lengths: (n,) phrases of each text. cut: (n,) token ids that the encoder did not read, and sentences whose
    end the parser did not read. fallback: (n,) sentences in which no phrase was found.
    """

    wholes: Floats
    phrases: Floats
    lengths: Integers
    cut: Integers
    fallback: Integers

    def part(self, part: slice) -> Reading:
        """Some consecutive texts."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        phrases = self.phrases[ends[part.start] : ends[part.stop]]
        return Reading(self.wholes[part], phrases, self.lengths[part], self.cut[part], self.fallback[part])


def read(texts: Sequence[str], source: PhraseSource, encoder: AlphaClipEncoder, **run: Any) -> Reading:
    """Find the phrases of texts, and encode texts and phrases; `run` goes to the encoder.

    Raises:
        ValueError: a source of the user's that does not give each text its phrases.
    """
    found = source.phrases(texts)
    without = sum(not each.phrases for each in found)
    if len(found) != len(texts) or without:
        raise ValueError(
            f"phrases={source.name!r} gave {len(texts)} texts {len(found)} results, {without} of them "
            "without a phrase: expected one for each, and the text itself where there is no phrase in it"
        )
    lengths = np.array([len(each.phrases) for each in found], dtype=np.int64)
    said = encoder.encode_texts([*texts, *(phrase for each in found for phrase in each.phrases)], **run)
    n, dropped = len(texts), np.array(said.dropped, dtype=np.int64)
    of_phrases = np.bincount(np.repeat(np.arange(n), lengths), dropped[n:], n).astype(np.int64)
    return Reading(
        wholes=said.features[:n],
        phrases=said.features[n:],
        lengths=lengths,
        cut=dropped[:n] + of_phrases + np.array([each.truncated for each in found], dtype=np.int64),
        fallback=np.array([each.fallback for each in found], dtype=np.int64),
    )


def region_columns(captions: Reading, seen: Sequence[RegionFeatures]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their pictures, one each."""
    wholes = np.stack([each.whole for each in seen])
    failed = np.isnan(wholes).any(axis=1)
    phrases = paired_cosine(np.repeat(wholes, captions.lengths, axis=0), captions.phrases)
    matches = match_regions(captions, seen)
    counts = np.array([len(each.regions) for each in seen])
    return {
        "cosine": pa.array(paired_cosine(wholes, captions.wholes), mask=failed),
        "phrase_cosines": lists(np.nan_to_num(phrases), captions.lengths),
        "phrase_maxima": lists(matches.x_maxima, captions.lengths),
        "region_maxima": lists(matches.y_maxima, counts),
        "regions_dropped": np.array([each.dropped for each in seen], dtype=np.int32),
        "without_phrases": captions.fallback.astype(np.int32),
    }


def match_regions(captions: Reading, seen: Sequence[RegionFeatures]) -> GreedyMatch:
    """The phrases of each caption with the regions of its picture, which captions of one picture share."""
    places: dict[int, int] = {}
    of_caption = [places.setdefault(id(each.regions), len(places)) for each in seen]
    distinct = list({id(each.regions): each.regions for each in seen}.values())
    return greedy_match(
        torch.from_numpy(captions.phrases),
        torch.from_numpy(np.concatenate(distinct)),
        captions.lengths,
        [len(regions) for regions in distinct],
        y_of_pair=of_caption,
        return_maxima=True,
        return_indices=True,
    )


def reference_columns(captions: Reading, references: Reading, counts: Integers) -> dict[str, Any]:
    """The columns that `RefHiceS.ROW` adds; `counts` (n,) are the references of each caption."""
    owner = np.repeat(np.arange(len(counts)), counts)
    matches = greedy_match(
        torch.from_numpy(captions.phrases),
        torch.from_numpy(references.phrases),
        captions.lengths,
        references.lengths,
        x_of_pair=owner,
        return_maxima=True,
    )
    return {
        "reference_cosines": lists(grouped_cosine(captions.wholes, references.wholes, counts), counts),
        "caption_phrase_maxima": lists(lists(matches.x_maxima, captions.lengths[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, references.lengths), counts),
    }


def lists(values: Any, lengths: Integers) -> pa.ListArray:
    """Lists of these lengths, filled with values one after the other."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values.numpy() if isinstance(values, torch.Tensor) else values)
