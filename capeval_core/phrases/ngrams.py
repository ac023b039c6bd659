"""N-grams of many texts at once, as flat arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Tokens = Sequence[str]
LONGEST = 4
"""Words of the longest n-gram of BLEU and CIDEr."""
SIGMA = 6.0
"""Width of CIDEr-D's penalty for different lengths."""


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one length in a block: n-gram `gram[i]` occurs `count[i]` times in caption `caption[i]`.

    Equal n-grams of different pools are different kinds. start: per kind, the index of a word with which it
    begins.
    """

    n: int
    caption: Integers
    gram: Integers
    count: Integers
    start: Integers

    @property
    def kinds(self) -> int:
        return len(self.start)

    def frequency(self) -> Integers:
        """Number of captions of its pool that hold each n-gram."""
        return np.bincount(self.gram, minlength=self.kinds)

    def pool_of_gram(self, block: TextBlock) -> Integers:
        pools: Integers = block.pool[block.caption[self.start]]
        return pools


class TextBlock:
    """Pools of captions as flat arrays: the caption of each word, the pool of each caption.

    sizes: (pools,) captions of each pool. pool: (captions,) the pool of each caption. lengths: (captions,)
    words of each. caption: (words,) the caption of each word. words: (words,) positions in `vocabulary`.
    """

    def __init__(self, pools: Sequence[Sequence[Tokens]]) -> None:
        vocabulary: dict[str, int] = defaultdict(count().__next__)
        captions = [tokens for pool in pools for tokens in pool]
        self.sizes: Integers = np.array([len(pool) for pool in pools], dtype=np.int64)
        self.pool: Integers = np.repeat(np.arange(len(pools)), self.sizes)
        self.lengths: Integers = np.array([len(tokens) for tokens in captions], dtype=np.int64)
        self.caption: Integers = np.repeat(np.arange(len(captions)), self.lengths)
        words = chain.from_iterable(captions)
        self.words: Integers = np.fromiter(map(vocabulary.__getitem__, words), np.int64, len(self.caption))
        self.vocabulary = list(vocabulary)

    def grams(self, longest: int) -> Iterator[Ngrams]:
        """The n-grams of length 1, 2, ... up to the longest."""
        gram_at = self.pool[self.caption]  # number of the n-gram that begins at each word
        for n in range(1, longest + 1):
            begins = self.begins(n)
            key = gram_at[begins] * len(self.vocabulary) + self.words[begins + n - 1]
            _, first, gram = np.unique(key, return_index=True, return_inverse=True)
            gram_at = np.zeros_like(gram_at)
            gram_at[begins] = gram
            kinds = max(len(first), 1)
            pairs, count = np.unique(self.caption[begins] * kinds + gram, return_counts=True)
            yield Ngrams(n, *np.divmod(pairs, kinds), count, begins[first])

    def begins(self, n: int) -> Integers:
        """The words with which an n-gram begins that ends in the same caption."""
        return np.flatnonzero(self.caption[: max(len(self.words) - n + 1, 0)] == self.caption[n - 1 :])

    def across_pools(self, grams: Ngrams) -> Integers:
        """Per kind of n-gram a number that equal n-grams of all pools share."""
        shared: Integers = np.zeros(grams.kinds, dtype=np.int64)
        for k in range(grams.n):
            key = shared * len(self.vocabulary) + self.words[grams.start + k]
            shared = np.unique(key, return_inverse=True)[1]
        return shared


def sums_by(index: Integers, values: Floats, size: int) -> Floats:
    """The sum of the values of each index from 0 to size - 1."""
    return np.asarray(np.bincount(index, values, size), dtype=np.float64)


def reciprocal(norms: Floats) -> Floats:
    """1 / norms, 0 where a norm is 0."""
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def length_penalty(one: Integers, other: Integers) -> Floats:
    """CIDEr-D's Gaussian of the difference in length, counted in bigrams, of texts of so many words.

    >>> length_penalty(np.array([8, 8]), np.array([8, 14])).round(3)
    array([1.   , 0.607])
    """
    difference = np.maximum(one - 1, 0) - np.maximum(other - 1, 0)
    penalty: Floats = np.exp(-(difference**2) / (2 * SIGMA**2))
    return penalty
