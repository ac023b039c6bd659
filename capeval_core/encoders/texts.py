"""Texts to features through one call: equal texts once, at their own length, a common prefix once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.tokenizers import Ids, Tokens

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TextFeatures:
    """Features of n texts: (n, d) float32, un-normalised.

    truncated: per text, token ids beyond the context length.
    """

    features: Floats
    truncated: list[int]

    @classmethod
    def of(cls, arrays: Sequence[Floats], dimension: int, truncated: list[int]) -> TextFeatures:
        """Features (d,) of each text."""
        nothing = np.empty((0, dimension), dtype=np.float32)
        return cls(np.stack(arrays) if arrays else nothing, truncated)


@dataclass(frozen=True)
class TokenFeatures:
    """Features of the tokens of n texts.

    features: per text (length, d) float32, un-normalised, start and end token included; the last row is the
        text's own feature.
    ids: the token ids of each text, one per row.
    truncated: per text, token ids beyond the context length.
    """

    features: list[Floats]
    ids: list[Ids]
    truncated: list[int]


def encode_distinct(
    tokens: Tokens,
    key: Callable[[bytes], str],
    forward: Callable[[list[Ids]], Iterable[tuple[slice, Iterable[Floats]]]],
    cache: FeatureCache,
) -> list[Floats]:
    """One array per text, in order: (d,) of a sentence, or (length, d) of its tokens; equal texts run once.

    Args:
        tokens: the texts' token ids.
        key: the cache's key of a sequence, by its bytes.
        forward: arrays of sequences sorted by length, in slices that cover them.
        cache: where arrays are looked up and kept.
    """
    keys = {ids: key(bytes_of(ids)) for ids in dict.fromkeys(tokens.ids)}
    arrays = cache.get(keys.values())
    missing = sorted((ids for ids in keys if keys[ids] not in arrays), key=lambda ids: (len(ids), ids))
    if missing:
        for part, rows in forward(missing):
            new = {keys[ids]: row for ids, row in zip(missing[part], rows, strict=True)}
            cache.put(new)
            arrays.update(new)
    return [arrays[keys[ids]] for ids in tokens.ids]


def bytes_of(ids: Ids) -> bytes:
    """Token ids for a key."""
    return np.array(ids, dtype="<u4").tobytes()


def common_prefix(sequences: Sequence[Ids]) -> int:
    """How many leading ids all sequences share, leaving each at least one of its own."""
    if len(sequences) < 2:
        return 0
    first, last = min(sequences), max(sequences)  # in lexicographic order all others lie between them
    longest = min(map(len, sequences)) - 1
    return next((i for i in range(longest) if first[i] != last[i]), longest)
