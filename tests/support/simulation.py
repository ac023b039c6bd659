"""Simulated scores with a true mean of 0, to see how often intervals and tests are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from capeval_core.statistics import LEAST_IMAGES, Clusters, NoTestError, mean_interval, paired_comparison

Doubles = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Doubles]
LEVEL = 0.95


@dataclass(frozen=True)
class Design:
    """A score is a part of its image plus a like part of its own: a correlation of 0.5 within an image.

    captions: per image; "1 to 5" at random. failed: share of captions without a score.
    """

    draw: Draw
    mean: float
    captions: str
    failed: float
    images: int

    def image_part(self, rng: np.random.Generator, trials: int) -> Doubles:
        return self.draw(rng, (trials, self.images)) - self.mean

    def clusters(self, rng: np.random.Generator, image_part: Doubles) -> list[Clusters]:
        """Of each trial."""
        size = (*image_part.shape, 1 if self.captions == "1" else 5)
        own = self.draw(rng, size) - self.mean
        present = rng.random(size) >= self.failed
        if self.captions == "1 to 5":
            present &= np.arange(5) < rng.integers(1, 6, (*image_part.shape, 1))
        sums = ((image_part[:, :, None] + own) * present).sum(2)
        counts = present.sum(2).astype(np.float64)
        kept = [np.flatnonzero(each) for each in counts]
        return [Clusters(k, s[k], c[k]) for k, s, c in zip(kept, sums, counts, strict=True)]


def normal(captions: str, failed: float, images: int) -> Design:
    return Design(lambda rng, size: rng.normal(size=size), 0.0, captions, failed, images)


def exponential(captions: str, failed: float, images: int) -> Design:
    return Design(lambda rng, size: rng.gamma(0.5, size=size), 0.5, captions, failed, images)


def coverage(design: Design, trials: int, seed: int, beside: str) -> dict[str, float]:
    """Percent of trials whose interval holds the truth: ours, and Student's or the percentile bootstrap's."""
    rng = np.random.default_rng(seed)
    drawn = design.clusters(rng, design.image_part(rng, trials))
    found = []
    for given in (each for each in drawn if len(each.sums) >= LEAST_IMAGES):
        own = mean_interval(given, level=LEVEL)
        low, high = student(given) if beside == "student" else percentile(given, rng)
        found.append([own.low <= 0 <= own.high, low <= 0 <= high])
    return dict(zip(("ours", beside), 100 * np.mean(found, axis=0), strict=True))


def student(given: Clusters) -> tuple[float, float]:
    n, mean = len(given.sums), given.sums.sum() / given.counts.sum()
    squares = ((given.sums - mean * given.counts) ** 2).sum()
    half = math.sqrt(n / (n - 1) * squares) / given.counts.sum() * _quantile(n - 1)
    return mean - half, mean + half


def percentile(given: Clusters, rng: np.random.Generator) -> tuple[float, float]:
    n = len(given.sums)
    weights = rng.multinomial(n, [1 / n] * n, size=400).T
    means = (given.sums @ weights) / (given.counts @ weights)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@cache
def _quantile(freedom: int) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))


def rejections(first: Design, second: Design, trials: int, seed: int) -> tuple[float, int]:
    """`compare` of two systems with equal true means that share half of each image's part.

    Percent of trials with p < 0.05, and how many intervals contradict their p.
    """
    rng = np.random.default_rng(seed)
    common = first.image_part(rng, trials)
    systems = [
        design.clusters(rng, (common + design.image_part(rng, trials)) / math.sqrt(2))
        for design in (first, second)
    ]
    tests = []
    for one, other in zip(*systems, strict=True):
        with suppress(NoTestError):
            tests.append(paired_comparison(one, other, level=LEVEL))
    rejected = [test.p_value < 1 - LEVEL for test in tests]
    outside = [test.interval.low > 0 or test.interval.high < 0 for test in tests]
    return 100 * float(np.mean(rejected)), sum(a != b for a, b in zip(rejected, outside, strict=True))
