"""Cosines between rows of features, paired or one row against its group, and the harmonic mean."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from capeval_core.ragged import Floats

Array = TypeVar("Array", bound=Any)


def harmonic_mean(*terms: Array) -> Array:
    """Harmonic mean of terms of at least 0, as n times their product by the sum of all partial products.

    0 where a term is 0, NaN where one is NaN. Negative terms, which a released script allows, give that
    quotient, and 0 where it is 0 / 0.

    >>> harmonic_mean(np.array([0.5, 0.5, 0.5, 0.0]), np.array([0.25, 0.0, np.nan, 0.0])).round(3)
    array([0.333, 0.   ,   nan, 0.   ])
    """
    product: Array = reduce(mul, terms)
    total: Any = sum(reduce(mul, terms[:i] + terms[i + 1 :]) for i in range(len(terms)))
    # Not n / sum(1 / term): terms of 0 would divide by 0, and float32 rounds reciprocals once more.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Array = len(terms) * product / (total + ((product == 0) & (total == 0)))
    return mean


def unit(features: Floats) -> Floats:
    """Rows of (n, d) scaled to length 1 in float32; an all-zero row stays zero, so its cosines are 0."""
    norms = np.linalg.norm(features, axis=-1, keepdims=True)
    return np.asarray(features / np.where(norms > 0, norms, 1), dtype=np.float32)


def paired_cosine(x: Floats, y: Floats) -> Floats:
    """(n,) cosine of row i of `x` with row i of `y`, both (n, d) and un-normalised.

    >>> paired_cosine(np.float32([[3, 0], [0, 2]]), np.float32([[1, 0], [1, 1]]))
    array([1.        , 0.70710677], dtype=float32)
    """
    # Row by row, so that a pair's value does not depend on the other rows, as a blocked matmul's may.
    # Clipped, since the rounded cosine of equal rows may come out beyond 1, where no score's range ends.
    return np.asarray(np.clip(np.einsum("nd,nd->n", unit(x), unit(y)), -1, 1), dtype=np.float32)


def grouped_cosine(x: Floats, groups: Floats, lengths: NDArray[np.int64]) -> Floats:
    """(sum of lengths,) cosine of row i of `x` (n, d) with each row of its group.

    `groups` (sum of lengths, d) holds the groups one after the other, `lengths` (n,) their sizes.
    """
    return paired_cosine(np.repeat(x, lengths, axis=0), groups)


def best_query_cosine(queries: Floats, texts: Floats) -> Floats:
    """(n,) largest cosine of each text's feature (n, d) with those of an image's query tokens (q, d).

    >>> best_query_cosine(np.float32([[3, 0], [0, 1]]), np.float32([[1, 2]]))
    array([0.89442719], dtype=float32)
    """
    # As in `paired_cosine`, a text's value does not depend on the other texts.
    repeated = np.repeat(unit(queries)[None], len(texts), axis=0)
    cosines = np.einsum("nqd,nd->nq", repeated, unit(texts))
    return np.asarray(np.clip(cosines.max(axis=1), -1, 1), dtype=np.float32)
