"""Differences between processors in the scores of one network, by the arithmetic alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # formulas without a network read `UNIT`, and torch takes a second to import
    from torch import nn

# The largest relative error of one rounding.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Of metrics without a network, in float64: what is written of a score, in nine digits.
_SUMS_OF_TEXTS = 1e-9

# A processor decides in which order the k products of a sum are added, and whether a product is rounded
# before. Errors of k additions in float32 that do not depend on each other add up to sqrt(k) units; the
# longest sum of a network dominates, since what a block adds to the residual stream is small beside it,
# and norms keep it so: k is the largest fan-in of its weights (512 in `tiny`: 1.3e-6; 3,072 in ViT-B/32:
# 3.3e-6).
# In 16 bits sums are in float32 as well, and each result is rounded once. A coordinate is then off by the
# square root of some tens of units, but a cosine averages d coordinates of a unit vector, which divides that
# by sqrt(d), and d is larger than the number of roundings: two units, 9.8e-4 and 7.8e-3.
#
# Measured as the largest difference of 24 cosines or scores between AVX2 and SSE4.1:
#
#                                      float32   float16   bfloat16
#   cosines of ViT-B/32, seeded         1.0e-7    9.9e-5     1.1e-3
#   CLIP-S / 2.5, `tiny`                1.8e-7    2.8e-4     3.4e-3
#   HICE-S / 2, `tiny`                  1.5e-7    3.0e-4     1.3e-3
#   UMIC, `tiny`                        1.3e-7    1.8e-4     1.4e-3
#   ViLBERTScore, `tiny`                6.3e-8    1.7e-4     6.3e-4
#   SPECS, `tiny`                       2.0e-7    5.3e-4     3.0e-3
#
# Depth does not show. On images of a few pixels, captions of 180 words and other odd input float32 differs by
# 1.8e-6 (RefHICE-S), by 5e-6 from AVX-512, float16 by 1e-3: a formula of several cosines has a few times
# the error of one, at most four times (`OF_FORMULAS`).
OF_FORMULAS = 4


def rounding(network: nn.Module | None, dtype: str) -> float:
    """The error of a cosine, or of what else a network gives, that processors make of it.

    network: an `nn.Module`, or None for numbers of texts alone. The error of a score is as large a share of
    the largest one, and up to `OF_FORMULAS` times as large.
    """
    if network is None:
        return _SUMS_OF_TEXTS
    fan_in = max(weight[0].numel() for weight in network.parameters() if weight.ndim > 1)
    return rounding_of(fan_in, dtype)


def rounding_of(terms: int, dtype: str) -> float:
    """The error of a network whose longest sum has so many terms."""
    sums = UNIT["float32"] * math.sqrt(terms)
    return sums if dtype == "float32" else max(2 * UNIT[dtype], sums)
