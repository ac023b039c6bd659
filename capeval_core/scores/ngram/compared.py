"""Captions beside their references, as words and as n-grams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.inputs.samples import Samples
from capeval_core.phrases.ngrams import (
    LONGEST,
    Floats,
    Integers,
    Ngrams,
    TextBlock,
    Tokens,
    reciprocal,
    sums_by,
)
from capeval_core.phrases.ptb import shared_words
from capeval_core.scores.ngram.frequencies import DocumentFrequencies


@dataclass(frozen=True)
class WeightedNgrams:
    """The n-grams of one length with their TF-IDF weights.

    weight: of each n-gram of each text, as in `grams`. inverse: (texts,) 1 / norm of each text's weights.
    """

    grams: Ngrams
    weight: Floats
    inverse: Floats


def words_of(samples: Samples, tokens: Callable[[str], Tokens] = shared_words) -> list[list[Tokens]]:
    """Per row the words of its caption, then those of each of its references; equal texts are read once."""
    rows = [[c, *r] for c, r in zip(samples.captions, samples.references or [], strict=True)]
    words = {text: tokens(text) for text in {text for row in rows for text in row}}
    return [[words[text] for text in row] for row in rows]


@dataclass(frozen=True, eq=False)
class Compared:
    """Captions with their references; what several metrics need of them is made once.

    rows: what `words_of` gives.
    """

    rows: Sequence[Sequence[Tokens]]

    @cached_property
    def block(self) -> TextBlock:
        """All texts; a row is a pool whose first text is the caption."""
        return TextBlock(self.rows)

    @cached_property
    def captions(self) -> Integers:
        """(rows,) which texts of the block are captions; the others are references."""
        return np.cumsum(self.block.sizes) - self.block.sizes

    @cached_property
    def is_reference(self) -> NDArray[np.bool_]:
        """(texts,) whether a text of the block is a reference."""
        mask = np.ones(len(self.block.pool), dtype=bool)
        mask[self.captions] = False
        return mask

    @cached_property
    def grams(self) -> list[Ngrams]:
        """The n-grams of 1 to 4 words."""
        return list(self.block.grams(LONGEST))

    def weighted(self, frequencies: DocumentFrequencies) -> list[WeightedNgrams]:
        """N-grams, weighted by count times ln(documents / documents that hold them); kept for one table."""
        if self._weighted.get("frequencies") is not frequencies:
            self._weighted.update(frequencies=frequencies, levels=self._weigh(frequencies))
        levels: list[WeightedNgrams] = self._weighted["levels"]
        return levels

    @cached_property
    def _weighted(self) -> dict[str, Any]:
        return {}

    def _weigh(self, frequencies: DocumentFrequencies) -> list[WeightedNgrams]:
        levels = []
        for grams, held in zip(self.grams, frequencies.of_block(self.block), strict=True):
            idf = np.log(frequencies.documents) - np.log(np.maximum(held[grams.start], 1.0))
            weight = grams.count * idf[grams.gram]
            norm = np.sqrt(sums_by(grams.caption, weight**2, len(self.block.pool)))
            levels.append(WeightedNgrams(grams, weight, reciprocal(norm)))
        return levels
