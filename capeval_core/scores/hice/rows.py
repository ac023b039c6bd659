"""Rows of HICE-S: texts with their phrases are encoded, and matched with regions and with references."""

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
from capeval_core.rows import lists

if TYPE_CHECKING:
    from capeval_core.encoders.alpha_clip import AlphaClipEncoder, RegionFeatures

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class EncodedTexts:
    """n texts and their phrases, encoded.

    phrases: the phrases of each text, at least one.
    text_features: (n, d).
    phrase_features: (sum of lengths, d).
    truncated: (n,) token ids that the encoder did not read, and sentences that the parser did not read to
        their end.
    fallback: (n,) sentences without a phrase.
    """

    phrases: list[tuple[str, ...]]
    text_features: Floats
    phrase_features: Floats
    truncated: Integers
    fallback: Integers

    @cached_property
    def lengths(self) -> Integers:
        """(n,) phrases of each text."""
        return np.array([len(phrases) for phrases in self.phrases], dtype=np.int64)

    def part(self, part: slice) -> EncodedTexts:
        """Consecutive texts."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        return EncodedTexts(
            phrases=self.phrases[part],
            text_features=self.text_features[part],
            phrase_features=self.phrase_features[ends[part.start] : ends[part.stop]],
            truncated=self.truncated[part],
            fallback=self.fallback[part],
        )


def encode_texts(
    texts: Sequence[str], source: PhraseSource, encoder: AlphaClipEncoder, **settings: Any
) -> EncodedTexts:
    """Find the phrases of texts, and encode both; `settings` are those of `encoder.encode_texts`.

    Raises:
        ValueError: a `PhraseSource` of the user that does not give each text its phrases.
    """
    parsed = source.phrases(texts)
    without = sum(not of_text.phrases for of_text in parsed)
    if len(parsed) != len(texts) or without:
        raise ValueError(
            f"phrases={source.name!r} gave {len(texts)} texts {len(parsed)} results, {without} of them "
            "without a phrase: expected one for each, and the text itself where there is no phrase in it"
        )
    phrases = [of_text.phrases for of_text in parsed]
    encoded = encoder.encode_texts([*texts, *(phrase for own in phrases for phrase in own)], **settings)
    n, truncated = len(texts), np.array(encoded.truncated, dtype=np.int64)
    owner = np.repeat(np.arange(n), [len(own) for own in phrases])
    truncated_phrases = np.bincount(owner, truncated[n:], n).astype(np.int64)
    truncated_sentences = np.array([of_text.truncated for of_text in parsed], dtype=np.int64)
    return EncodedTexts(
        phrases=phrases,
        text_features=encoded.features[:n],
        phrase_features=encoded.features[n:],
        truncated=truncated[:n] + truncated_phrases + truncated_sentences,
        fallback=np.array([of_text.fallback for of_text in parsed], dtype=np.int64),
    )


def region_columns(captions: EncodedTexts, images: Sequence[RegionFeatures]) -> dict[str, Any]:
    """The columns of `HiceS.ROW` for captions and their images, one each."""
    image_features = np.stack([image.whole for image in images])
    failed = np.isnan(image_features).any(axis=1)
    phrase_cosines = paired_cosine(
        np.repeat(image_features, captions.lengths, axis=0), captions.phrase_features
    )
    matches = match_regions(captions, images)
    counts = np.array([len(image.regions) for image in images])
    return {
        "cosine": pa.array(paired_cosine(image_features, captions.text_features), mask=failed),
        "phrase_cosines": lists(np.nan_to_num(phrase_cosines), captions.lengths),
        "phrase_maxima": lists(matches.x_maxima, captions.lengths),
        "region_maxima": lists(matches.y_maxima, counts),
        "regions_dropped": np.array([image.dropped for image in images], dtype=np.int32),
        "without_phrases": captions.fallback.astype(np.int32),
    }


def match_regions(captions: EncodedTexts, images: Sequence[RegionFeatures]) -> GreedyMatch:
    """Match the phrases of each caption with the regions of its image; equal images share their regions."""
    number: dict[int, int] = {}
    of_caption = [number.setdefault(id(image.regions), len(number)) for image in images]
    distinct = list({id(image.regions): image.regions for image in images}.values())
    return greedy_match(
        torch.from_numpy(captions.phrase_features),
        torch.from_numpy(np.concatenate(distinct)),
        captions.lengths,
        [len(regions) for regions in distinct],
        y_of_pair=of_caption,
        return_maxima=True,
        return_indices=True,
    )


def reference_columns(captions: EncodedTexts, references: EncodedTexts, counts: Integers) -> dict[str, Any]:
    """The columns that `RefHiceS.ROW` adds; `references` are those of all captions, `counts` of each."""
    owner = np.repeat(np.arange(len(counts)), counts)
    matches = greedy_match(
        torch.from_numpy(captions.phrase_features),
        torch.from_numpy(references.phrase_features),
        captions.lengths,
        references.lengths,
        x_of_pair=owner,
        return_maxima=True,
    )
    cosines = grouped_cosine(captions.text_features, references.text_features, counts)
    return {
        "reference_cosines": lists(cosines, counts),
        "caption_phrase_maxima": lists(lists(matches.x_maxima, captions.lengths[owner]), counts),
        "reference_phrase_maxima": lists(lists(matches.y_maxima, references.lengths), counts),
    }
