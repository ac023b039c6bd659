"""Batches of a training: which captions a step reads, their negatives, their tokens and their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.uniter import RegionInput
from capeval_core.encoders.uniter_model import Uniter
from capeval_core.training.groups import NegativeSampler
from capeval_core.training.region_store import RegionStore

WORDS_PER_GROUP = 4
"""Captions that are read with masked words in the place of a group of a caption and its negatives."""


@dataclass(frozen=True)
class Batch:
    """Texts of images: group after group, the positive of each first; or captions alone.

    regions: per image. texts: token ids, equally many for each image. kinds: of each text.
    masked: positions of masked tokens in the texts laid end to end, and the tokens; None where none are.
    """

    regions: list[RegionInput]
    texts: list[Ids]
    kinds: list[str]
    masked: tuple[list[int], list[int]] | None = None

    def embedded(self, model: Uniter) -> list[Tensor]:
        """Embedded boxes of each text's image; those of an image are embedded once."""
        weight = model.pooler.weight
        features, positions = (
            torch.from_numpy(np.concatenate(arrays)).to(weight.device)
            for arrays in ([r.features for r in self.regions], [r.positions for r in self.regions])
        )
        counts = [len(regions.positions) for regions in self.regions]
        images = torch.split(model.embed_regions(features, positions), counts)
        each = len(self.texts) // len(self.regions)
        return [image for image in images for _ in range(each)]


class Batches:
    """Batches by number: every process computes any of them from seed and number alone.

    Args:
        sampler: negatives of the captions.
        captions: the captions.
        store: box features by number of image.
        images: of each caption the number of its image.
        tokenizer, mask: of the model, and the id that stands for a masked token.
        size: captions with negatives in a batch.
        seed: of the order of captions and of masks.
    """

    def __init__(
        self,
        sampler: NegativeSampler,
        captions: Sequence[str],
        store: RegionStore,
        images: Sequence[int],
        tokenizer: WordPiece,
        mask: int,
        size: int,
        seed: int,
    ) -> None:
        self.sampler, self.captions, self.store, self.images = sampler, captions, store, images
        self.tokenizer, self.mask, self.size, self.seed = tokenizer, mask, size, seed
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

    def groups(self, number: int) -> Batch:
        """A batch of captions, each with its negatives."""
        chosen = self.chosen(number, self.size)
        groups = [self.sampler.group(epoch, index) for epoch, index in chosen]
        return Batch(
            regions=[self.store[self.images[index]] for _, index in chosen],
            texts=self.tokenizer.encode([text for group in groups for text in group.captions]).ids,
            kinds=[kind for group in groups for kind in group.kinds],
        )

    def masked(self, number: int, share: float) -> Batch:
        """A batch of captions in which a share of the tokens is masked."""
        size = WORDS_PER_GROUP * self.size
        chosen = [index for _, index in self.chosen(number, size)]
        rng = np.random.default_rng([self.seed, 2, number])
        rows = [list(ids) for ids in self.tokenizer.encode([self.captions[i] for i in chosen]).ids]
        places, tokens, start = [], [], 0
        for row in rows:
            inside = np.arange(1, len(row) - 1)  # start and end marks stay
            lots = rng.random(len(inside))
            for place in inside[(lots < share) | (lots == lots.min(initial=1))].tolist():
                places.append(start + place)
                tokens.append(row[place])
                row[place] = self.mask
            start += len(row)
        return Batch(
            regions=[self.store[self.images[index]] for index in chosen],
            texts=[tuple(row) for row in rows],
            kinds=["words"] * size,
            masked=(places, tokens),
        )


def token_states(model: Uniter, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
    """(tokens, hidden) last states of the tokens of all texts, laid end to end."""
    states = model.states(regions, texts)[-1]
    lengths = [(len(ids), len(boxes)) for ids, boxes in zip(texts, regions, strict=True)]
    own = np.concatenate([[True] * tokens + [False] * boxes for tokens, boxes in lengths])
    return states[torch.from_numpy(own).to(states.device)]
