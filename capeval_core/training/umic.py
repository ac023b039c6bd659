"""UMIC's training: UNITER learns to score human captions above negatives made from them.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.uniter import RegionInput, Uniter, UniterEncoder, region_input
from capeval_core.judgements.sets import Judgements
from capeval_core.models.device import rows_on_device
from capeval_core.options import option
from capeval_core.training.regions import (
    MaskedWords,
    RegionObjective,
    RegionTraining,
    matching_loss,
    terms_of,
)
from capeval_core.training.trainer import CORRELATION, Looks, ReadTerms, scalar_terms

MARGIN = 0.2
WORDS, MATCHING, RANKING = "words", "matching", "ranking"
"""Phases of a training: masked words, image-text matching, ranking."""
_WORDS_PER_GROUP = 4  # captions with masked words, in the place of a group of a caption and its negatives
_AT_ONCE = 64  # judged captions per forward pass


def ranking_loss(logits: Tensor, group_size: int, margin: float = MARGIN) -> Tensor:
    """max(0, margin - (s - s')) of each negative, s and s' being the sigmoids of positive and negative.

    logits: (n,), group after group, the positive of each first. Returns (n / group_size, group_size - 1).
    """
    scores = torch.sigmoid(logits).view(-1, group_size)
    return functional.relu(margin - (scores[:, :1] - scores[:, 1:]))


@dataclass(frozen=True, kw_only=True)
class UmicTraining(RegionTraining):
    """How UMIC is trained; the defaults are those of the released code. `data` records the captions."""

    name: ClassVar = "umic"
    metric: ClassVar = "umic"
    lengths: ClassVar = {
        WORDS: ("word_steps", "pretraining_rate"),
        MATCHING: ("matching_steps", "pretraining_rate"),
        RANKING: ("steps", "learning_rate"),
    }

    margin: float = option(MARGIN, "by how much a caption is to be ahead of its negatives", minimum=0)
    word_steps: int = option(
        0,
        "steps of predicting masked words from the rest and the image before; for a start that has not been "
        "pretrained",
        minimum=0,
    )
    matching_steps: int = option(
        0, "steps of image-text matching after them; for a start that has not been pretrained", minimum=0
    )
    pretraining_rate: float = option(1e-4, "the highest learning rate of both", minimum=0)
    steps: int = option(100_000, "steps of ranking", minimum=1)
    learning_rate: float = option(1e-5, "the highest learning rate of ranking", minimum=0)
    evaluate_every: int = option(1_000, "steps between two correlations with the human judgements", minimum=1)
    patience: int = option(5, "looks without a better correlation that end the training; 0: none", minimum=0)


class _Batch(NamedTuple):
    """Texts, as many for each image: group after group, the positive of each first, or captions alone."""

    regions: list[RegionInput]
    texts: list[Ids]
    kinds: list[str]
    masked: MaskedWords | None = None

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


class UmicObjective(RegionObjective):
    """UNITER with UMIC's losses."""

    encoder = UniterEncoder
    prepare, form = staticmethod(region_input), RegionInput

    model: Uniter

    def build(self, tensors: dict[str, Tensor]) -> Uniter:
        model = Uniter(self.config["architecture"], self.training.dropout)
        model.load_state_dict(tensors)
        return model

    def begin(self, phase: str) -> None:
        if phase == RANKING:
            self.model.init_ranking_head()

    def batch(self, phase: str, number: int) -> _Batch:
        if phase == WORDS:
            size = _WORDS_PER_GROUP * self.training.batch_size
            masked, regions, _ = self.masked(number, size)
            return _Batch(regions, masked.texts, ["words"] * size, masked)
        groups, regions = self.groups(number)
        texts = self.tokenizer.encode([text for group in groups for text in group.captions]).ids
        return _Batch(regions, texts, [kind for group in groups for kind in group.kinds])

    def losses(self, phase: str, batch: _Batch) -> tuple[Tensor, ReadTerms]:
        model, regions = self.model, batch.embedded(self.model)
        if batch.masked is not None:
            states = model.states(regions, batch.texts)[-1]
            # Of each text its tokens come first, then the boxes of its image.
            counts = [n for pair in zip(batch.texts, regions, strict=True) for n in map(len, pair)]
            own = torch.tensor([True, False] * len(regions)).repeat_interleave(torch.tensor(counts))
            places, tokens = (torch.tensor(part, device=states.device) for part in batch.masked[1:])
            words = states[own.to(states.device)][places]
            loss = functional.cross_entropy(words @ model.embeddings.word_embeddings.weight.T, tokens)
            return loss, lambda: scalar_terms({"words": loss})
        size = len(batch.texts) // len(batch.regions)
        kinds = np.array(batch.kinds).reshape(-1, size)
        if phase == RANKING:
            losses = ranking_loss(model.ranking_logits(regions, batch.texts), size, self.training.margin)
            kinds, loss = kinds[:, 1:], losses.mean()
        else:
            losses = matching_loss(model.matching_logits(regions, batch.texts), size)
            loss = losses[:, 0].mean() + losses[:, 1:].mean()
        return loss, lambda: terms_of(losses, kinds)

    def judged(self, judgements: Judgements, store: Any, images: Sequence[int]) -> Looks:
        """Looks at judgements of images with these numbers, after the phases of pretraining."""

        @torch.no_grad()
        def correlation() -> float:
            self.model.eval()
            logits: list[float] = []
            for start in range(0, len(images), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                texts = self.tokenizer.encode(judgements.captions[part]).ids
                batch = _Batch([store[image] for image in images[part]], texts, [])
                logits += self.model.ranking_logits(batch.embedded(self.model), texts).tolist()
            self.model.train()
            return judgements.correlation(logits)

        training = self.training
        first, every = training.word_steps + training.matching_steps, training.evaluate_every
        return Looks(first, every, every * training.patience, correlation, CORRELATION)
