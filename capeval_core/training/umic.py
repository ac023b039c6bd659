"""UMIC's training: UNITER learns to score human captions above negatives made from them.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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
    RegionObjective,
    RegionStore,
    RegionTraining,
    matching_loss,
    terms_of,
)
from capeval_core.training.trainer import CORRELATION, Looks, Phase, ReadTerms, scalar_terms

MARGIN = 0.2
# Phases of a training.
WORDS = "words"  # prediction of masked words
MATCHING = "matching"  # image-text matching
RANKING = "ranking"  # UMIC's own
_CAPTIONS_PER_GROUP = 4  # with masked words, in the place of a group of a caption and its negatives
_JUDGED_BATCH = 64  # judged captions per forward pass


def ranking_loss(logits: Tensor, group_size: int, margin: float = MARGIN) -> Tensor:
    """Return max(0, margin - (s - s')) of each negative, with sigmoids s of the positive, s' of the negative.

    logits: (n,), group after group, the positive of each first. Returns (n / group_size, group_size - 1).
    """
    scores = torch.sigmoid(logits).view(-1, group_size)
    return functional.relu(margin - (scores[:, :1] - scores[:, 1:]))


class MaskedWords(NamedTuple):
    """Texts with masked tokens; their places when all texts are laid end to end, and the original tokens."""

    texts: list[Ids]
    places: list[int]
    tokens: list[int]


def mask_words(texts: Sequence[Ids], share: float, mask: int, rng: np.random.Generator) -> MaskedWords:
    """Mask a share of each text, at least one token, without the marks of its beginning and its end."""
    masked_texts: list[Ids] = []
    places: list[int] = []
    tokens: list[int] = []
    text_start = 0
    for ids in texts:
        row = list(ids)
        inside = np.arange(1, len(row) - 1)
        lots = rng.random(len(inside))
        # The lowest lot is masked in any case, so that each text has something to learn.
        drawn = (lots < share) | (lots == lots.min(initial=1))
        for place in inside[drawn].tolist():
            places.append(text_start + place)
            tokens.append(row[place])
            row[place] = mask
        masked_texts.append(tuple(row))
        text_start += len(row)
    return MaskedWords(masked_texts, places, tokens)


@dataclass(frozen=True, kw_only=True)
class UmicTraining(RegionTraining):
    """Options of UMIC's training, by default those of the released code. `data` records the captions."""

    name: ClassVar = "umic"
    metric: ClassVar = "umic"
    shares: ClassVar[tuple[str, ...]] = (*RegionTraining.shares, "masked")

    masked: float = option(0.3, "share of the words that are masked", minimum=0)
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

    def schedule(self) -> list[Phase]:
        return [
            Phase(WORDS, self.word_steps, self.pretraining_rate),
            Phase(MATCHING, self.matching_steps, self.pretraining_rate),
            Phase(RANKING, self.steps, self.learning_rate),
        ]


class _Batch(NamedTuple):
    """Texts, as many for each image: group after group, the positive of each first, or captions alone."""

    regions: list[RegionInput]
    texts: list[Ids]
    kinds: list[str]
    masked: MaskedWords | None = None

    def embedded(self, model: Uniter) -> list[Tensor]:
        """Embedded boxes of each text's image; those of an image are embedded once."""
        weight = model.pooler.weight
        feature_rows = []
        position_rows = []
        box_counts = []
        for regions in self.regions:
            feature_rows.append(regions.features)
            position_rows.append(regions.positions)
            box_counts.append(len(regions.positions))
        features = rows_on_device(weight.device, feature_rows, weight.dtype)
        positions = rows_on_device(weight.device, position_rows, weight.dtype)
        images = torch.split(model.embed_regions(features, positions), box_counts)
        texts_per_image = len(self.texts) // len(self.regions)
        of_texts: list[Tensor] = []
        for image in images:
            of_texts += [image] * texts_per_image
        return of_texts


class UmicObjective(RegionObjective):
    """UNITER with UMIC's losses."""

    encoder = UniterEncoder
    prepare = staticmethod(region_input)
    form = RegionInput

    model: Uniter

    def build(self, tensors: dict[str, Tensor]) -> Uniter:
        model = Uniter(self.config["architecture"], self.training.dropout)
        model.load_state_dict(tensors)
        return model

    def begin(self, phase: str) -> None:
        # UMIC's release starts its own head from the one of image-text matching, see `init_ranking_head`.
        if phase == RANKING:
            self.model.init_ranking_head()

    def batch(self, phase: str, number: int) -> _Batch:
        if phase == WORDS:
            return self._masked_batch(number)
        groups, regions = self.groups(number)
        captions: list[str] = []
        kinds: list[str] = []
        for group in groups:
            captions += group.captions
            kinds += group.kinds
        return _Batch(regions, self.tokenizer.encode(captions).ids, kinds)

    def _masked_batch(self, number: int) -> _Batch:
        """A batch of captions with masked words."""
        size = _CAPTIONS_PER_GROUP * self.training.batch_size
        captions = []
        regions = []
        for _, caption in self.positives(number, size):
            captions.append(self.captions[caption])
            regions.append(self.store[self.images[caption]])
        texts = self.tokenizer.encode(captions).ids
        rng = np.random.default_rng([self.training.seed, 2, number])
        masked = mask_words(texts, self.training.masked, self.mask, rng)
        return _Batch(regions, masked.texts, [WORDS] * size, masked)

    def losses(self, phase: str, batch: _Batch) -> tuple[Tensor, ReadTerms]:
        regions = batch.embedded(self.model)
        if batch.masked is not None:
            word_loss = self._word_loss(regions, batch.masked)
            return word_loss, lambda: scalar_terms({"words": word_loss})
        group_size = len(batch.texts) // len(batch.regions)
        kinds = np.array(batch.kinds).reshape(-1, group_size)
        if phase == RANKING:
            logits = self.model.ranking_logits(regions, batch.texts)
            losses = ranking_loss(logits, group_size, self.training.margin)
            negative_kinds = kinds[:, 1:]
            return losses.mean(), lambda: terms_of(losses, negative_kinds)
        losses = matching_loss(self.model.matching_logits(regions, batch.texts), group_size)
        # Positives weigh as much as all of their negatives.
        loss = losses[:, 0].mean() + losses[:, 1:].mean()
        return loss, lambda: terms_of(losses, kinds)

    def _word_loss(self, regions: list[Tensor], masked: MaskedWords) -> Tensor:
        """The cross entropy of the masked words."""
        states = self.model.states(regions, masked.texts)[-1]
        # Each text has rows of its tokens first, then rows of the boxes of its image.
        row_counts: list[int] = []
        for ids, boxes in zip(masked.texts, regions, strict=True):
            row_counts += [len(ids), len(boxes)]
        is_token = torch.tensor([True, False] * len(regions)).repeat_interleave(torch.tensor(row_counts))
        places = torch.tensor(masked.places, device=states.device)
        tokens = torch.tensor(masked.tokens, device=states.device)
        words = states[is_token.to(states.device)][places]
        # UNITER predicts words by the matrix that embeds them.
        return functional.cross_entropy(words @ self.model.embeddings.word_embeddings.weight.T, tokens)

    def judged(self, judgements: Judgements, store: RegionStore, images: Sequence[int]) -> Looks:
        """The looks at judgements of images with these numbers, after the phases of pretraining."""

        @torch.no_grad()
        def correlation() -> float:
            self.model.eval()
            logits: list[float] = []
            for start in range(0, len(images), _JUDGED_BATCH):
                part = slice(start, start + _JUDGED_BATCH)
                texts = self.tokenizer.encode(judgements.captions[part]).ids
                batch = _Batch([store[image] for image in images[part]], texts, [])
                logits += self.model.ranking_logits(batch.embedded(self.model), texts).tolist()
            self.model.train()
            return judgements.correlation(logits)

        training = self.training
        patience = training.evaluate_every * training.patience  # in steps; the option counts looks
        pretraining_steps = training.word_steps + training.matching_steps
        return Looks(pretraining_steps, training.evaluate_every, patience, correlation, CORRELATION)
