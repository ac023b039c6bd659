"""What a row of HICE-S holds: cosines of texts, phrases, images and regions, and the best of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.matching.cosine import grouped_cosine, paired_cosine
from capeval_core.matching.greedy import GreedyMatch, greedy_match
from capeval_core.phrases.source import PhraseSource

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder, RegionFeatures

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """n texts with their phrases.

    said: the phrases of each text, at least one. wholes: (n, d) features of the texts. phrases: (sum of
    lengths, d) features of their phrases. cut: (n,) token ids that the encoder did not read, and sentences
    whose end the parser did not read. fallback: (n,) sentences in which no phrase was found.
    """

    said: list[tuple[str, ...]]
    wholes: Floats
    phrases: Floats
    cut: Integers
    fallback: Integers

    @cached_property
    def lengths(self) -> Integers:
        """(n,) phrases of each text."""
        return np.array([len(phrases) for phrases in self.said], dtype=np.int64)

    def part(self, part: slice) -> Reading:
        """Some consecutive texts."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        phrases = self.phrases[ends[part.start] : ends[part.stop]]
        return Reading(self.said[part], self.wholes[part], phrases, self.cut[part], self.fallback[part])


@dataclass(frozen=True)
class References:
    """The references of n captions.

    texts: all of them, one caption's after another's. counts: (n,) how many each caption has.
    """

    texts: Reading
    counts: Integers

    @cached_property
    def owner(self) -> Integers:
        """(texts,) whose reference each text is."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def cut(self) -> Integers:
        """(n,) what was cut of each caption's references, see `Reading`."""
        return np.bincount(self.owner, self.texts.cut, len(self.counts)).astype(np.int64)

    def part(self, part: slice) -> References:
        """Those of some consecutive captions."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return References(self.texts.part(slice(ends[part.start], ends[part.stop])), self.counts[part])


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
    n, dropped = len(texts), np.array(said.truncated, dtype=np.int64)
    of_phrases = np.bincount(np.repeat(np.arange(n), lengths), dropped[n:], n).astype(np.int64)
    return Reading(
        said=[each.phrases for each in found],
        wholes=said.features[:n],
        phrases=said.features[n:],
        cut=dropped[:n] + of_phrases + np.array([each.truncated for each in found], dtype=np.int64),
        fallback=np.array([each.fallback for each in found], dtype=np.int64),
    )


def region_columns(captions: Reading, seen: Sequence[RegionFeatures]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their images, one each."""
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
    """The phrases of each caption with the regions of its image, which captions of one image share."""
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


def reference_columns(captions: Reading, references: References) -> dict[str, Any]:
    """The columns that `RefHiceS.ROW` adds."""
    texts, counts, owner = references.texts, references.counts, references.owner
    matches = greedy_match(
        torch.from_numpy(captions.phrases),
        torch.from_numpy(texts.phrases),
        captions.lengths,
        texts.lengths,
        x_of_pair=owner,
        return_maxima=True,
    )
    return {
        "reference_cosines": lists(grouped_cosine(captions.wholes, texts.wholes, counts), counts),
        "caption_phrase_maxima": lists(lists(matches.x_maxima, captions.lengths[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, texts.lengths), counts),
    }


def lists(values: Any, lengths: Integers) -> pa.ListArray:
    """Lists of these lengths, filled with values one after the other."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values.numpy() if isinstance(values, torch.Tensor) else values)
