"""ECO's formulas: z-scores of an ensemble, their sum with the consensus, and the choice of the shorter.

Jeong, Lee, Nam, Ma, Kang: Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation
Using Ensembled CLIP and Consensus Scores, https://arxiv.org/abs/2405.01028
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

ENSEMBLE_WEIGHT, CONSENSUS_WEIGHT = 3.52, 1.0
"""Table 1, row (d). One sentence of the paper has them the other way round, against its table."""
THRESHOLD = 0.39
"""Gap below which the shorter of the top two is chosen (the paper's ablation of short caption selection)."""


def standardise(values: Doubles, counted: Integers | None = None) -> Doubles:
    """z-scores over the first axis, with the population's deviation; zeros where all values are equal.

    NaN is left out of mean and deviation, and stays NaN.

    Args:
        values: (n,) or (n, members).
        counted: (n,) per row the row that counts for it: itself, or the one of its copies that enters mean
            and deviation, and whose z-score it gets. None: every row counts.

    >>> standardise(np.array([1.0, 3.0, np.nan])), standardise(np.array([2.0, 2.0]))
    (array([-1.,  1., nan]), array([0., 0.]))
    >>> standardise(np.array([1.0, 1.0, 3.0]), np.array([1, 1, 2]))
    array([-1., -1.,  1.])
    """
    if counted is not None:
        copies = counted != np.arange(len(counted))
        values = values.copy()
        values[copies] = np.nan
        return standardise(values)[counted]
    finite = np.isfinite(values)
    count = np.maximum(finite.sum(axis=0), 1)
    mean = np.where(finite, values, 0).sum(axis=0) / count
    spread = np.where(finite, values - mean, 0)
    deviation = np.sqrt((spread**2).sum(axis=0) / count)
    # A mean of equal numbers can be rounded, which is no deviation.
    flat = is_flat(values)
    scaled: Doubles = np.where(finite, np.where(flat, 0, spread) / np.where(flat, 1, deviation), np.nan)
    return scaled


def is_flat(values: Doubles) -> NDArray[np.bool_]:
    """Whether all finite values along the first axis are equal (or there are none): nothing to standardise.

    >>> is_flat(np.array([[1.0, 2.0], [1.0, np.nan], [1.0, 3.0]]))
    array([ True, False])
    """
    low = np.where(np.isfinite(values), values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(np.isfinite(values), values, -np.inf).max(axis=0, initial=-np.inf)
    return np.asarray(low >= high)


def ensemble(zscores: Doubles, counted: Integers | None = None) -> Doubles:
    """Ensembled CLIP score, eq. 3: (n,) z-scores of the sum of the members' z-scores (n, members).

    Each member is standardised over all captions of all images before; negative cosines stay as they are.
    `counted` is that of `standardise`.

    >>> ensemble(standardise(np.array([[0.1, 0.4], [0.3, 0.2], [0.2, -0.3]]))).round(3)
    array([-0.171,  1.301, -1.13 ])
    """
    return standardise(zscores.sum(axis=1), counted)


def total(
    ensembled: Doubles,
    consensus: Doubles,
    ensemble_weight: float = ENSEMBLE_WEIGHT,
    consensus_weight: float = CONSENSUS_WEIGHT,
) -> Doubles:
    """Section "Score combination": weighted sum of the ensemble's and the consensus's z-scores.

    >>> total(np.array([1.0, -1.0]), np.array([0.5, 2.0]))
    array([ 4.02, -1.52])
    """
    return ensemble_weight * ensembled + consensus_weight * consensus


def choose(captions: Sequence[str], totals: Sequence[float], threshold: float = THRESHOLD) -> int:
    """Position of the chosen caption: the best, or the runner-up where it is close and has fewer words.

    The runner-up is the best one with another text: copies of the best are no alternative to it.

    >>> choose(["a dog runs on the wide beach", "a dog runs"], [1.3, 1.0])
    1
    >>> choose(["a dog runs on the wide beach", "a dog runs"], [1.4, 1.0])
    0
    """
    order = sorted(range(len(captions)), key=lambda position: -totals[position])
    best = order[0]
    second = next((position for position in order if captions[position] != captions[best]), best)
    close = totals[best] - totals[second] < threshold
    return second if close and len(captions[second].split()) < len(captions[best].split()) else best
