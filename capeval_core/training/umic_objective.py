"""UMIC's training: UNITER, batches of captions with negatives, and the losses of each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.tokenizers import WordPiece
from capeval_core.encoders.uniter import RegionInput, Uniter, UniterEncoder
from capeval_core.judgements.captions import Judgements
from capeval_core.training.batches import Batch, Batches, token_states
from capeval_core.training.masking import mask_id
from capeval_core.training.objective import Looks, ReadTerms, matching_loss, scalar_terms, terms_of
from capeval_core.training.order import CaptionData
from capeval_core.training.region_store import RegionStore
from capeval_core.training.umic import RANKING, WORDS, UmicTraining, ranking_loss
from capeval_core.weights.folder import WeightsFolder

_AT_ONCE = 64
"""Judged captions per forward pass."""


@dataclass(frozen=True)
class Judged:
    """Human judgements with the box features of their images, by number of image."""

    judgements: Judgements
    store: RegionStore[RegionInput]
    images: Sequence[int]


class UmicObjective:
    """UNITER with UMIC's losses.

    Args:
        training: the settings.
        folder: UNITER's weights to start from.
        data: captions, their negatives and box features.
    """

    def __init__(self, training: UmicTraining, folder: WeightsFolder, data: CaptionData[RegionInput]) -> None:
        self.training = training
        config = UniterEncoder.read_config(folder)
        words, length = config["vocabulary"], min(config["context_length"], training.caption_length)
        self.tokenizer = WordPiece(words, length, lowercase=config["lowercase"], split=True)
        self.batches = Batches(data, self.tokenizer, mask_id(words))
        self.model = Uniter(config["architecture"], training.dropout)
        self.model.load_state_dict({name: tensor.float() for name, tensor in folder.tensors().items()})

    def begin(self, phase: str) -> None:
        if phase == RANKING:
            self.model.init_ranking_head()

    def batch(self, phase: str, number: int) -> Batch:
        if phase == WORDS:
            return self.batches.masked(number, self.training.masked)
        return self.batches.groups(number)

    def losses(self, phase: str, batch: Batch) -> tuple[Tensor, ReadTerms]:
        model, regions = self.model, batch.embedded(self.model)
        if batch.masked is not None:
            places, tokens = (torch.tensor(part, device=regions[0].device) for part in batch.masked)
            states = token_states(model, regions, batch.texts)[places]
            logits = states @ model.embeddings.word_embeddings.weight.T
            loss = functional.cross_entropy(logits, tokens)
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

    def end_step(self) -> None:
        """Nothing has bounds."""

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return state

    def looks(self, judged: Judged) -> Looks:
        """Looks at judgements, after the phases of pretraining."""

        def correlation() -> float:
            logits = self.ranking_logits(judged.store, judged.images, judged.judgements.captions)
            return judged.judgements.correlation(logits)

        training = self.training
        every = training.evaluate_every
        return Looks(training.pretraining_steps, every, every * training.patience, correlation)

    @torch.no_grad()
    def ranking_logits(
        self, store: RegionStore[RegionInput], images: Sequence[int], captions: Sequence[str]
    ) -> list[float]:
        """The logits of captions, each with the image of its number, without dropout."""
        self.model.eval()
        logits: list[float] = []
        for start in range(0, len(captions), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            texts = self.tokenizer.encode(captions[part]).ids
            batch = Batch([store[image] for image in images[part]], texts, [""] * len(texts))
            logits += self.model.ranking_logits(batch.embedded(self.model), texts).tolist()
        self.model.train()
        return logits
