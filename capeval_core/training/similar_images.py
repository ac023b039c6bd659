"""Lists of similar images, whose captions are hard negatives: by image features, or by captions.

Source: Lee et al., "UMIC", ACL 2021, https://arxiv.org/abs/2106.14019, section 3.2. The lists of its release
are not public; it has one from retrieval and one from CIDEr.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.errors import Problem, Problems
from capeval_core.limits import LIMITS
from capeval_core.phrases.consensus import mean_cider_vectors
from capeval_core.phrases.ptb import ptb_tokens

TOP = 3
"""Similar images of which hard negatives are drawn."""


def similar_by_features(
    images: Sequence[str], features: ArrayLike, *, top: int = TOP
) -> dict[str, list[str]]:
    """The images of the highest cosine to each image.

    Args:
        images: ids, each once.
        features: of each image, (n, d), finite.
        top: images per list.

    Returns:
        Image id -> ids, the most similar first; of equal cosines (but for rounding) the earlier image.
        An image with exactly the same features is not similar but the same, and left out. Fewer ids where
        there are fewer others.

    Raises:
        ValueError: other lengths, an id twice, features that are not finite.

    >>> similar_by_features("abc", [[1, 0], [1, 0.1], [0, 1]], top=2)
    {'a': ['b', 'c'], 'b': ['a', 'c'], 'c': ['b', 'a']}
    """
    vectors = np.asarray(features, dtype=np.float32)
    problems = Problems()
    if vectors.ndim != 2 or len(vectors) != len(images):
        found = f"of shape {vectors.shape}"
        problems.add(Problem("features", None, found, f"expected one row for each of {len(images)} images"))
    else:
        for index in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            problems.add(Problem("features", index, "not finite", "compute the features of this image again"))
    first: dict[str, int] = {}
    for index, image in enumerate(images):
        if first.setdefault(image, index) != index:
            problems.add(Problem("images", index, f"{image!r} again", "give each image once"))
    problems.raise_if_any()
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    equal = _numbered([row.tobytes() for row in vectors])
    return _lists(list(images), equal, lambda rows: unit[rows] @ unit.T, top)


def similar_by_captions(
    images: Sequence[str], captions: Sequence[str], *, top: int = TOP
) -> dict[str, list[str]]:
    """The images whose captions have the highest CIDEr with those of each image.

    The similarity of two images is the mean CIDEr (from 0 to 10) of each caption of one with each caption of
    the other; how rare an n-gram is, is measured by the images whose captions hold it.

    Args:
        images: the id of the image of each caption; those of an image need not follow each other.
        captions: the captions.
        top: images per list.

    Returns:
        Image id -> ids, the most similar first; of equal similarities (but for rounding) the earlier
        image. An image with exactly the same captions is left out, and so are images without any n-gram in
        common.

    >>> captions = ["two dogs run", "dogs run fast", "a red bus", "a red train"]
    >>> similar_by_captions("abcd", captions, top=1)
    {'a': ['b'], 'b': ['a'], 'c': ['d'], 'd': ['c']}
    """
    if len(images) != len(captions):
        found = f"len(images)={len(images)} but len(captions)={len(captions)}: give the image of each caption"
        raise Problems([found]).error()
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

    return _lists(list(pools), _numbered([tuple(sorted(pool)) for pool in pools.values()]), similarity, top)


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


def _numbered(items: Sequence[object]) -> NDArray[np.int64]:
    """A number per item, which equal items share."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)
