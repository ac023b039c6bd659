"""Consensus of each caption of a pool with the others: CIDEr, CIDEr-D, and the cosine of ECO's release.

A pool is the candidate captions of one image. Each is compared with all the others of its pool by
their n-grams, weighted by how rare they are. Source: Vedantam et al. 2015, "CIDEr"; the ECO paper derives its
consensus score from it, its released code uses scikit-learn's TF-IDF instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import did_you_mean
from capeval_core.limits import LIMITS
from capeval_core.phrases.ngrams import (
    LONGEST,
    Floats,
    Ngrams,
    TextBlock,
    Tokens,
    length_penalty,
    reciprocal,
    sums_by,
)
from capeval_core.ragged import ranges, starts_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Kind = Literal["cider", "cider_d"]
Documents = Literal[
    "doc_caption_within_pool",
    "doc_caption_all_pools",
    "doc_image_all_pools",
    "doc_leave_one_out_within_pool",
    "doc_leave_one_out_all_pools",
]
"""The documents by which the rarity of an n-gram is measured: a caption, all captions of an image,
or (as when COCO's scorer is called on a pool) the others of each caption; of one pool or of all pools.
`doc_leave_one_out_within_pool` is degenerate: an n-gram that two captions share is in every document, so that
every score is 0."""


def consensus(
    pools: Sequence[Sequence[Tokens]],
    *,
    documents: Documents = "doc_caption_within_pool",
    kind: Kind = "cider",
) -> list[Floats]:
    """The CIDEr of each caption against all the others of its pool.

    Per n from 1 to 4 the cosine of the captions' TF-IDF vectors, mean over n and over the others, times 10:
    from 0 to 10. `cider_d` clips the caption's weights to the other's and multiplies by a Gaussian of the
    difference in length; note that most tools call that CIDEr. A caption that is alone in its pool scores 0.

    Args:
        pools: the tokens of each caption of each pool (see `capeval_core.phrases.ptb`).
        documents: what a document is. With the default a score depends on its pool alone.
        kind: `cider` or `cider_d`.

    Returns:
        For each pool an array, float64, one value per caption.

    Raises:
        ValueError: an unknown kind of document or score.

    >>> [score.round(3).tolist() for score in consensus([[["two", "dogs"], ["two", "cats"], ["a", "man"]]])]
    [[0.15, 0.15, 0.0]]
    """
    for name, value, choices in (
        ("kind", kind, get_args(Kind)),
        ("documents", documents, get_args(Documents)),
    ):
        if value not in choices:
            expected = " or ".join(map(repr, choices))
            raise ValueError(f"{name}={value!r}: expected {expected}{did_you_mean(value, choices)}")
    agreement = _agreement if kind == "cider" else _agreement_d
    scores: list[Floats] = []
    for part in _blocks(pools, LIMITS.consensus_words) if documents.endswith("within_pool") else [pools]:
        block = TextBlock(part)
        total = np.zeros(len(block.pool))
        for grams in block.grams(LONGEST):
            weights = grams.count * _idf(block, grams, documents)[grams.gram]
            total += agreement(block, grams, weights)
        mean = total * (10 / LONGEST) / np.maximum(block.sizes - 1, 1)[block.pool]
        scores += np.split(mean, np.cumsum(block.sizes)[:-1]) if len(part) else []
    return scores


def tfidf_consensus(pools: Sequence[Sequence[str]]) -> list[Floats]:
    """ECO's consensus as released: the mean cosine of a caption's TF-IDF vector with the others of its pool.

    The vectors are those that scikit-learn would make of each pool: words of two or more characters in lower
    case, their uni- and bigrams, smoothed idf, unit length. The mean is (row sum - 1) / (N - 1), so that a
    caption without any such word gets -1 / (N - 1). Alone in its pool a caption scores 0, where the original
    divides by 0.

    Args:
        pools: the captions of each pool, as texts.

    >>> [s.round(3).tolist() for s in tfidf_consensus([["two dogs", "two cats", "a man"]])]
    [[0.112, 0.112, 0.0]]
    """
    scores: list[Floats] = []
    tokens = [[_WORD.findall(caption.lower()) for caption in pool] for pool in pools]
    for part in _blocks(tokens, LIMITS.consensus_words):
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
        others = block.sizes[block.pool] - 1
        mean = np.where(others > 0, (dots - 1) / np.maximum(others, 1), 0.0)
        scores += np.split(mean, np.cumsum(block.sizes)[:-1])
    return scores


def mean_cider_vectors(pools: Sequence[Sequence[Tokens]]) -> csr_array:
    """The mean CIDEr vector of the captions of each pool.

    The product of two rows is the mean CIDEr, from 0 to 10, of each caption of one pool with each caption of
    the other, an n-gram's rarity being measured by the pools that hold it.

    Args:
        pools: the tokens of each caption of each pool.

    Returns:
        A sparse array, (pools, n-grams), float64.

    >>> vectors = mean_cider_vectors([[["two", "dogs"]], [["two", "cats"]], [["a", "man"]]])
    >>> (vectors @ vectors.T).toarray().round(3)[0].tolist()
    [5.0, 0.3, 0.0]
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


_WORD = re.compile(r"\b\w\w+\b")


def _idf(block: TextBlock, grams: Ngrams, documents: Documents) -> Floats:
    """ln(number of documents) - ln(number of documents with the n-gram), per kind of n-gram."""
    in_pool = grams.frequency()
    size = block.sizes[grams.pool_of_gram(block)]
    if documents.startswith("doc_leave_one_out"):
        # One caption's n-gram is in the documents of all captions but its own.
        held = np.where(in_pool > 1, size, size - 1).astype(np.float64)
    elif documents.startswith("doc_image"):
        held = np.ones(grams.kinds)
    else:
        held = in_pool.astype(np.float64)
    if documents.endswith("within_pool"):
        return _log(size) - _log(held)
    shared = block.across_pools(grams)
    total = len(block.sizes) if documents.startswith("doc_image") else len(block.pool)
    return _log(np.float64(total)) - _log(np.bincount(shared, held)[shared])


def _log(count: NDArray[np.generic] | np.float64) -> Floats:
    logarithm: Floats = np.log(np.maximum(count, 1.0))
    return logarithm


def _agreement(block: TextBlock, grams: Ngrams, weights: Floats) -> Floats:
    """The sum of each caption's cosines with the others of its pool, for CIDEr.

    The sum of its products with all vectors is its product with their sum, so no pair is formed.
    """
    captions = len(block.pool)
    unit = weights * reciprocal(np.sqrt(sums_by(grams.caption, weights**2, captions)))[grams.caption]
    others = sums_by(grams.gram, unit, grams.kinds)[grams.gram] - unit
    # Of an n-gram that no other caption has, rounding may leave a trace.
    others = np.where(grams.frequency()[grams.gram] > 1, others, 0.0)
    return sums_by(grams.caption, unit * others, captions)


def _agreement_d(block: TextBlock, grams: Ngrams, weights: Floats) -> Floats:
    """The same for CIDEr-D, whose clipping needs all pairs of captions that share an n-gram."""
    captions = len(block.pool)
    inverse = reciprocal(np.sqrt(sums_by(grams.caption, weights**2, captions)))
    order = np.argsort(grams.gram, kind="stable")
    caption, weight = grams.caption[order], weights[order]
    holders = grams.frequency()
    partners = holders[grams.gram[order]]
    one = np.repeat(np.arange(len(order)), partners)
    # Entry k of a run of equal n-grams meets each entry of the run in turn.
    other = ranges(starts_of(holders)[grams.gram[order]], partners)
    one, other = one[one != other], other[one != other]
    left, right = caption[one], caption[other]
    penalty = length_penalty(block.lengths[left], block.lengths[right])
    clipped = np.minimum(weight[one], weight[other]) * weight[other]
    return sums_by(left, clipped * inverse[left] * inverse[right] * penalty, captions)


def _blocks(pools: Sequence[Sequence[Tokens]], words: int) -> Iterator[Sequence[Sequence[Tokens]]]:
    """Runs of pools with about as many words, at least one pool each."""
    start = held = 0
    for index, pool in enumerate(pools):
        held += sum(map(len, pool))
        if held >= words:
            yield pools[start : index + 1]
            start, held = index + 1, 0
    if start < len(pools):
        yield pools[start:]
