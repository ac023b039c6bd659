"""Similar images, of whose captions hard negatives are drawn: by region features, and by CIDEr of captions.

Source: Lee et al., "UMIC", ACL 2021, https://arxiv.org/abs/2106.14019, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.limits import LIMITS
from capeval_core.phrases.ngrams import mean_cider_vectors
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.training.negatives import TOP, numbered


def similar_by_features(
    images: Sequence[str], features: ArrayLike, *, top: int = TOP
) -> dict[str, list[str]]:
    """Of each image the `top` ones of the highest cosine of features (n, d), the most similar first.

    Of equal cosines (but for rounding) the earlier image comes first. An image with exactly the same features
    is not similar but the same, and left out.

    >>> similar_by_features("abc", [[1, 0], [1, 0.1], [0, 1]], top=2)
    {'a': ['b', 'c'], 'b': ['a', 'c'], 'c': ['b', 'a']}
    """
    vectors = np.asarray(features, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    equal = numbered(row.tobytes() for row in vectors)[1].astype(np.int64)
    return _lists(list(images), equal, lambda rows: unit[rows] @ unit.T, top)


def similar_by_captions(
    images: Sequence[str], captions: Sequence[str], *, top: int = TOP
) -> dict[str, list[str]]:
    """Of each image the `top` ones whose captions have the highest CIDEr with its own.

    The similarity of two images is the mean CIDEr (from 0 to 10) of each caption of one with each caption of
    the other; how rare an n-gram is, is measured by the images whose captions hold it. Of equal similarities
    (but for rounding) the earlier image comes first. An image with exactly the same captions is left out, and
    so are images without any n-gram in common.

    >>> captions = ["two dogs run", "dogs run fast", "a red bus", "a red train"]
    >>> similar_by_captions("abcd", captions, top=1)
    {'a': ['b'], 'b': ['a'], 'c': ['d'], 'd': ['c']}
    """
    pools: dict[str, list[tuple[str, ...]]] = {}
    for image, caption in zip(images, captions, strict=True):
        pools.setdefault(image, []).append(tuple(ptb_tokens(caption)))
    vectors = mean_cider_vectors(list(pools.values())).tocsc()
    # N-grams of many images make up most of the work, which is less in a dense product.
    frequent = np.diff(vectors.indptr) * LIMITS.frequent > len(pools)
    dense = vectors[:, frequent].toarray().astype(np.float32)
    rare = vectors[:, ~frequent].astype(np.float32).tocsr()
    across = rare.T.tocsr()

    def similarity(rows: slice) -> NDArray[np.float32]:
        products: NDArray[np.float32] = (rare[rows] @ across).toarray()
        products += dense[rows] @ dense.T
        products[products <= 0] = -np.inf
        return products

    equal = numbered(tuple(sorted(pool)) for pool in pools.values())[1].astype(np.int64)
    return _lists(list(pools), equal, similarity, top)


def _lists(
    images: list[str],
    equal: NDArray[np.int64],
    similarity: Callable[[slice], NDArray[np.float32]],
    top: int,
) -> dict[str, list[str]]:
    """The most similar images of each image, block by block.

    equal: a number per image, which only equal images share.
    similarity: of the images of a slice to all, (m, n); -inf where there is none.
    """
    size = max(1, LIMITS.similarities // max(1, len(images)))
    lists = {}
    for start in range(0, len(images), size):
        rows = slice(start, start + size)
        scores = similarity(rows)
        scores[equal[rows, None] == equal] = -np.inf
        for image, row in zip(images[rows], scores, strict=True):
            # All that are at least as similar as the last one of the list, then in order.
            least = np.partition(row, -top)[-top] if top < len(row) else -np.inf
            near = np.flatnonzero((row >= least) & (row > -np.inf))
            order = near[np.argsort(-row[near], kind="stable")][:top]
            lists[image] = [images[index] for index in order.tolist()]
    return lists
