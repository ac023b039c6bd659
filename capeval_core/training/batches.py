"""Batches of a training: which captions a step reads, their negatives, their tokens and their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.uniter import RegionInput, Uniter
from capeval_core.models.copies import rows_on_device
from capeval_core.training.masking import mask_words
from capeval_core.training.order import CaptionData

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
            rows_on_device(weight.device, arrays, weight.dtype)
            for arrays in ([r.features for r in self.regions], [r.positions for r in self.regions])
        )
        counts = [len(regions.positions) for regions in self.regions]
        images = torch.split(model.embed_regions(features, positions), counts)
        each = len(self.texts) // len(self.regions)
        return [image for image in images for _ in range(each)]


class Batches:
    """Batches by number: every process computes any of them from seed and number alone.

    Args:
        data: captions, negatives, box features and their order.
        tokenizer, mask: of the model, and the id that stands for a masked token.
    """

    def __init__(self, data: CaptionData[RegionInput], tokenizer: WordPiece, mask: int) -> None:
        self.data, self.tokenizer, self.mask = data, tokenizer, mask

    def groups(self, number: int) -> Batch:
        """A batch of captions, each with its negatives."""
        chosen = self.data.chosen(number, self.data.size)
        groups = [self.data.sampler.group(epoch, index) for epoch, index in chosen]
        return Batch(
            regions=self.data.regions([index for _, index in chosen]),
            texts=self.tokenizer.encode([text for group in groups for text in group.captions]).ids,
            kinds=[kind for group in groups for kind in group.kinds],
        )

    def masked(self, number: int, share: float) -> Batch:
        """A batch of captions in which a share of the tokens is masked."""
        data, size = self.data, WORDS_PER_GROUP * self.data.size
        chosen = [index for _, index in data.chosen(number, size)]
        texts = self.tokenizer.encode([data.captions[index] for index in chosen]).ids
        masked = mask_words(texts, share, self.mask, np.random.default_rng([data.seed, 2, number]))
        return Batch(
            regions=data.regions(chosen),
            texts=masked.texts,
            kinds=["words"] * size,
            masked=(masked.places, masked.tokens),
        )


def token_states(model: Uniter, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
    """(tokens, hidden) last states of the tokens of all texts, laid end to end."""
    states = model.states(regions, texts)[-1]
    lengths = [(len(ids), len(boxes)) for ids, boxes in zip(texts, regions, strict=True)]
    own = np.concatenate([[True] * tokens + [False] * boxes for tokens, boxes in lengths])
    return states[torch.from_numpy(own).to(states.device)]
