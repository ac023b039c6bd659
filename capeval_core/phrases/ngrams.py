"""N-grams of many texts at once, as flat arrays; and the consensus of each caption of a pool with the others.

A pool is the candidate captions of one image. Each is compared with all the others of its pool by
their n-grams, weighted by how rare they are. Source: Vedantam et al. 2015, "CIDEr"; the ECO paper derives its
consensus score from it, its released code uses scikit-learn's TF-IDF instead.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from capeval_core.limits import LIMITS
from capeval_core.ragged import Doubles, Integers, ranges, starts_of

Tokens = Sequence[str]
LONGEST = 4  # words of an n-gram of BLEU and CIDEr
SIGMA = 6.0  # width of CIDEr-D's penalty for different lengths
Kind = Literal["cider", "cider_d"]
# The documents by which the rarity of an n-gram is measured: a caption, all captions of an image, or (as when
# COCO's scorer is called on a pool) the others of each caption; of one pool or of all pools.
# `doc_leave_one_out_within_pool` is degenerate: an n-gram that two captions share is in every document, so
# that every score is 0.
Documents = Literal[
    "doc_caption_within_pool",
    "doc_caption_all_pools",
    "doc_image_all_pools",
    "doc_leave_one_out_within_pool",
    "doc_leave_one_out_all_pools",
]
_WORD = re.compile(r"\b\w\w+\b")


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of one length in a block: n-gram `gram[i]` occurs `count[i]` times in caption `caption[i]`.

    Equal n-grams of different pools are different kinds. start: per kind, a word with which it begins.

        pool 0: "a dog", "a cat"    n = 1    gram    0=a 1=dog | 0=a 2=cat
                                             caption 0   0     | 1   1
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
        return np.asarray(block.pool[block.caption[self.start]])


def _words(tokens: Tokens) -> Tokens:
    """Tokens, of which one that holds no-break spaces is several words."""
    text = " ".join(tokens)
    return text.split() if "\xa0" in text else tokens


class TextBlock:
    """Pools of captions as flat arrays.

    `pool` and `lengths` (words) of each caption; `caption` of each word, and its place in `vocabulary`;
    `sizes`, the captions of each pool.

        pools    ["a dog", "a cat"]  ["a dog"]
        pool      0        0          1            of each caption
        caption   0 0      1 1        2 2          of each word
        words     0 1      0 2        0 1          places in ["a", "dog", "cat"]
    """

    def __init__(self, pools: Sequence[Sequence[Tokens]]) -> None:
        vocabulary: dict[str, int] = defaultdict(count().__next__)  # numbers words as they come
        captions = [_words(tokens) for tokens in chain.from_iterable(pools)]
        self.sizes: Integers = np.array([len(pool) for pool in pools], dtype=np.int64)
        self.pool: Integers = np.repeat(np.arange(len(pools)), self.sizes)
        self.lengths: Integers = np.array([len(tokens) for tokens in captions], dtype=np.int64)
        self.caption: Integers = np.repeat(np.arange(len(captions)), self.lengths)
        # By C functions alone: a loop of Python over millions of words would take most of the time.
        words = chain.from_iterable(captions)
        self.words: Integers = np.fromiter(map(vocabulary.__getitem__, words), np.int64, len(self.caption))
        self.vocabulary = list(vocabulary)

    def grams(self, longest: int) -> Iterator[Ngrams]:
        """The n-grams of length 1, 2, ... up to the longest."""
        gram_at = self.pool[self.caption]  # number of the n-gram that begins at each word
        for n in range(1, longest + 1):
            begins = self.begins(n)
            # An n-gram is the one of n - 1 words that begins with it, and its last word: one number for both.
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
        """A number for each kind of n-gram, which equal n-grams of all pools share."""
        shared: Integers = np.zeros(grams.kinds, dtype=np.int64)
        for k in range(grams.n):
            key = shared * len(self.vocabulary) + self.words[grams.start + k]
            shared = np.unique(key, return_inverse=True)[1]
        return shared


def sums_by(index: Integers, values: Doubles, size: int) -> Doubles:
    """The sum of the values of each index from 0 to size - 1."""
    return np.asarray(np.bincount(index, values, size), dtype=np.float64)


def reciprocal(norms: Doubles) -> Doubles:
    """1 / norms, 0 where a norm is 0."""
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def length_penalty(lengths: Integers, reference_lengths: Integers) -> Doubles:
    """CIDEr-D's Gaussian of the difference in length, counted in bigrams, of texts of so many words."""
    difference = np.maximum(lengths - 1, 0) - np.maximum(reference_lengths - 1, 0)
    return np.asarray(np.exp(-(difference**2) / (2 * SIGMA**2)))


def consensus(
    pools: Sequence[Sequence[Tokens]],
    *,
    documents: Documents = "doc_caption_within_pool",
    kind: Kind = "cider",
) -> list[Doubles]:
    """The CIDEr of each caption against all the others of its pool, of their tokens; 0 of one that is alone.

    Per n from 1 to 4 the cosine of TF-IDF vectors, mean over n and over the others, times 10. `cider_d` clips
    the caption's weights to the other's and multiplies by a Gaussian of the difference in length.
    """
    agreement = _agreement if kind == "cider" else _agreement_d
    scores: list[Doubles] = []
    # Documents of all pools need all texts in one block.
    within_pool = documents.endswith("within_pool")
    parts = _blocks(pools, LIMITS.consensus_words) if within_pool else [pools]
    for part in parts:
        block = TextBlock(part)
        total = np.zeros(len(block.pool))
        for grams in block.grams(LONGEST):
            weights = grams.count * _idf(block, grams, documents)[grams.gram]
            total += agreement(block, grams, weights)
        mean = total * (10 / LONGEST) / np.maximum(block.sizes - 1, 1)[block.pool]
        scores += np.split(mean, np.cumsum(block.sizes)[:-1]) if len(part) else []
    return scores


def tfidf_consensus(pools: Sequence[Sequence[str]]) -> list[Doubles]:
    """ECO's consensus as released: the mean cosine of a caption's TF-IDF vector with the others of its pool.

    The vectors are those that scikit-learn would make of each pool: words of two or more characters in lower
    case, their uni- and bigrams, smoothed idf, unit length. The mean is (row sum - 1) / (N - 1), so that a
    caption without any such word gets -1 / (N - 1). Alone in its pool a caption scores 0, where the original
    divides by 0.
    """
    scores: list[Doubles] = []
    words = []
    for pool in pools:
        words.append([_WORD.findall(caption.lower()) for caption in pool])
    for part in _blocks(words, LIMITS.consensus_words):
        block = TextBlock(part)
        dots = np.zeros(len(block.pool))
        squares = np.zeros(len(block.pool))
        levels = []
        for grams in block.grams(2):
            size = block.sizes[grams.pool_of_gram(block)]
            idf = np.log((1 + size) / (1 + grams.frequency())) + 1
            weights = grams.count * idf[grams.gram]
            squares += sums_by(grams.caption, weights**2, len(squares))
            levels.append((grams, weights))
        inverse = reciprocal(np.sqrt(squares))
        for grams, weights in levels:
            unit = weights * inverse[grams.caption]
            together = sums_by(grams.gram, unit, grams.kinds)
            dots += sums_by(grams.caption, unit * together[grams.gram], len(dots))
        rivals = block.sizes[block.pool] - 1  # of each caption in its pool
        mean = np.where(rivals > 0, (dots - 1) / np.maximum(rivals, 1), 0.0)
        scores += np.split(mean, np.cumsum(block.sizes)[:-1])
    return scores


def mean_cider_vectors(pools: Sequence[Sequence[Tokens]]) -> Any:
    """(pools, n-grams) the mean CIDEr vector of the captions of each pool, of their tokens, as a `csr_array`.

    The product of two rows is the mean CIDEr of each caption of one pool with each of the other, by documents
    of pools.
    """
    from scipy.sparse import csr_array, hstack

    block = TextBlock(pools)
    levels = []
    for grams in block.grams(LONGEST):
        weights = grams.count * _idf(block, grams, "doc_image_all_pools")[grams.gram]
        norms = np.sqrt(sums_by(grams.caption, weights**2, len(block.pool)))
        unit = weights * reciprocal(norms)[grams.caption]
        pool = grams.pool_of_gram(block)
        mean = sums_by(grams.gram, unit, grams.kinds)[: len(pool)] / block.sizes[pool]
        column = block.across_pools(grams)
        shape = (len(block.sizes), int(column.max(initial=-1)) + 1)
        levels.append(csr_array((mean * np.sqrt(10 / LONGEST), (pool, column)), shape=shape))
    return csr_array(hstack(levels))


def _idf(block: TextBlock, grams: Ngrams, documents: Documents) -> Doubles:
    """ln(number of documents) - ln(number of documents with the n-gram), per kind of n-gram."""
    in_pool = grams.frequency()
    size = block.sizes[grams.pool_of_gram(block)]
    if documents.startswith("doc_leave_one_out"):
        # One caption's n-gram is in the documents of all captions but its own.
        with_gram = np.where(in_pool > 1, size, size - 1).astype(np.float64)
    elif documents.startswith("doc_image"):
        with_gram = np.ones(grams.kinds)
    else:
        with_gram = in_pool.astype(np.float64)
    if documents.endswith("within_pool"):
        return _log(size) - _log(with_gram)
    shared = block.across_pools(grams)
    total = len(block.sizes) if documents.startswith("doc_image") else len(block.pool)
    return _log(np.float64(total)) - _log(np.bincount(shared, with_gram)[shared])


def _log(count: NDArray[np.generic] | np.float64) -> Doubles:
    # As in CIDEr's code: an n-gram in no document (of references) counts as if it were in one.
    logarithm: Doubles = np.log(np.maximum(count, 1.0))
    return logarithm


def _agreement(block: TextBlock, grams: Ngrams, weights: Doubles) -> Doubles:
    """(captions,) the sums of cosines of each caption with the others of its pool.

    Products with all vectors add up to the product with their sum, so no pair is formed.
    """
    captions = len(block.pool)
    unit = weights * reciprocal(np.sqrt(sums_by(grams.caption, weights**2, captions)))[grams.caption]
    sum_of_rivals = sums_by(grams.gram, unit, grams.kinds)[grams.gram] - unit
    # Of an n-gram that no other caption has, rounding may leave a trace.
    sum_of_rivals = np.where(grams.frequency()[grams.gram] > 1, sum_of_rivals, 0.0)
    return sums_by(grams.caption, unit * sum_of_rivals, captions)


def _agreement_d(block: TextBlock, grams: Ngrams, weights: Doubles) -> Doubles:
    """`_agreement` for CIDEr-D, whose clipping needs all pairs of captions that share an n-gram."""
    captions = len(block.pool)
    inverse = reciprocal(np.sqrt(sums_by(grams.caption, weights**2, captions)))
    order = np.argsort(grams.gram, kind="stable")  # captions with the same n-gram side by side
    caption = grams.caption[order]
    weight = weights[order]
    holders = grams.frequency()
    partners = holders[grams.gram[order]]
    # Each entry of a run of equal n-grams meets every entry of the run, then not itself.
    entry = np.repeat(np.arange(len(order)), partners)
    rival = ranges(starts_of(holders)[grams.gram[order]], partners)
    is_pair = entry != rival
    entry = entry[is_pair]
    rival = rival[is_pair]
    candidate = caption[entry]
    reference = caption[rival]
    penalty = length_penalty(block.lengths[candidate], block.lengths[reference])
    clipped = np.minimum(weight[entry], weight[rival]) * weight[rival]
    return sums_by(candidate, clipped * inverse[candidate] * inverse[reference] * penalty, captions)


def _blocks(pools: Sequence[Sequence[Tokens]], words: int) -> Iterator[Sequence[Sequence[Tokens]]]:
    """Runs of pools with about as many words, at least one pool each."""
    start = 0
    word_count = 0
    for index, pool in enumerate(pools):
        word_count += sum(map(len, pool))
        if word_count >= words:
            yield pools[start : index + 1]
            start = index + 1
            word_count = 0
    if start < len(pools):
        yield pools[start:]
