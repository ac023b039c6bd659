"""The captions of a training set with their negatives and box features, and the order that they come in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from capeval_core.training.groups import NegativeSampler
from capeval_core.training.region_store import RegionStore

Regions = TypeVar("Regions")


class CaptionData(Generic[Regions]):
    """Captions by number: every process computes the order from the seed alone.

    Args:
        sampler: negatives of the captions.
        captions: the captions.
        store: box features by number of image.
        images: of each caption the number of its image.
        size: captions with negatives in a batch.
        seed: of the order of captions and of masks.
    """

    def __init__(
        self,
        sampler: NegativeSampler,
        captions: Sequence[str],
        store: RegionStore[Regions],
        images: Sequence[int],
        size: int,
        seed: int,
    ) -> None:
        self.sampler, self.captions, self.store, self.images = sampler, captions, store, images
        self.size, self.seed = size, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> list[int]:
        order: list[int] = (
            np.random.default_rng([self.seed, 1, epoch]).permutation(len(self.sampler)).tolist()
        )
        return order

    def chosen(self, number: int, size: int) -> list[tuple[int, int]]:
        """Epoch and caption of each positive of a batch: all captions come once before any comes again."""
        places = range(number * size, (number + 1) * size)
        return [
            (place // len(self.sampler), self._order(place // len(self.sampler))[place % len(self.sampler)])
            for place in places
        ]

    def regions(self, chosen: Sequence[int]) -> list[Regions]:
        """What the network takes of the boxes of each caption's image."""
        return [self.store[self.images[index]] for index in chosen]
