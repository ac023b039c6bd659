"""UMIC's training: UNITER learns to score captions of people above negatives made of them.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.uniter import RegionInput, Uniter, UniterEncoder, region_input
from capeval_core.judgements.own import Judgements
from capeval_core.models.copies import rows_on_device
from capeval_core.options import option
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.regions import (
    CaptionData,
    MaskedWords,
    Network,
    RegionRun,
    RegionStore,
    mask_id,
    matching_loss,
    terms_of,
)
from capeval_core.training.settings import RegionTraining
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import (
    CORRELATION,
    Looks,
    Objective,
    ReadTerms,
    Report,
    opened,
    scalar_terms,
)
from capeval_core.weights.folder import WeightsFolder

MARGIN = 0.2
WORDS, MATCHING, RANKING = "words", "matching", "ranking"
"""Phases of a training: masked words, image-text matching, ranking."""
_WORDS_PER_GROUP = 4
"""Captions that are read with masked words in the place of a group of a caption and its negatives."""
_AT_ONCE = 64
"""Judged captions per forward pass."""


def ranking_loss(logits: Tensor, group_size: int, margin: float = MARGIN) -> Tensor:
    """max(0, margin - (s - s')) of each negative, s and s' being the sigmoids of positive and negative.

    logits: (n,) of the ranking head, group after group, the positive of each first; ValueError where they
    are no groups. Returns (n / group_size, group_size - 1), not reduced.

    >>> ranking_loss(torch.tensor([0.0, -5.0, 0.0, 1.0]), group_size=4).round(decimals=3)
    tensor([[0.0000, 0.2000, 0.4310]])
    """
    if group_size < 2 or logits.ndim != 1 or len(logits) % group_size:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} are no groups of {group_size}: give one axis, group "
            "after group, each with its positive and at least one negative"
        )
    scores = torch.sigmoid(logits).view(-1, group_size)
    return functional.relu(margin - (scores[:, :1] - scores[:, 1:]))


@dataclass(frozen=True, kw_only=True)
class UmicTraining(RegionTraining):
    """How UMIC is trained. The defaults are those of the released training code, but for those noted.

    The run that gave the released weights used settings that are not known; the poster's UMIC learnt from
    COCO, its variant UMIC_c from other captions. `data` records which ones these are.
    """

    name: ClassVar = "umic"
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


@dataclass(frozen=True)
class Batch:
    """Texts of images: group after group, the positive of each first; or captions alone.

    regions: per image. texts: token ids, equally many for each image. kinds: of each text. masked: where
    tokens are.
    """

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


class UmicObjective(Objective):
    """UNITER with UMIC's losses."""

    model: Uniter

    def __init__(self, training: UmicTraining, folder: WeightsFolder, data: CaptionData) -> None:
        self.training, self.data = training, data
        config = UniterEncoder.read_config(folder)
        words, length = config["vocabulary"], min(config["context_length"], training.caption_length)
        self.tokenizer = WordPiece(words, length, lowercase=config["lowercase"], split=True)
        self.mask = mask_id(words)
        self.model = Uniter(config["architecture"], training.dropout)
        self.model.load_state_dict({name: tensor.float() for name, tensor in folder.tensors().items()})

    def begin(self, phase: str) -> None:
        if phase == RANKING:
            self.model.init_ranking_head()

    def batch(self, phase: str, number: int) -> Batch:
        data, size = self.data, self.data.size
        if phase == WORDS:
            share, size = self.training.masked, _WORDS_PER_GROUP * size
            masked, regions, _ = data.masked(number, size, self.tokenizer, share, self.mask)
            return Batch(regions, masked.texts, ["words"] * size, masked)
        chosen = data.chosen(number, size)
        groups = [data.sampler.group(epoch, index) for epoch, index in chosen]
        return Batch(
            regions=data.regions([index for _, index in chosen]),
            texts=self.tokenizer.encode([text for group in groups for text in group.captions]).ids,
            kinds=[kind for group in groups for kind in group.kinds],
        )

    def losses(self, phase: str, batch: Batch) -> tuple[Tensor, ReadTerms]:
        model, regions = self.model, batch.embedded(self.model)
        if batch.masked is not None:
            states = _token_states(model, regions, batch.texts)
            places, tokens = (
                torch.tensor(part, device=states.device)
                for part in (batch.masked.places, batch.masked.tokens)
            )
            logits = states[places] @ model.embeddings.word_embeddings.weight.T
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

    def looks(self, judgements: Judgements, store: RegionStore, images: Sequence[int]) -> Looks:
        """Looks at judgements of images with these numbers, after the phases of pretraining."""

        def correlation() -> float:
            return judgements.correlation(self._ranking_logits(store, images, judgements.captions))

        training = self.training
        first, every = training.word_steps + training.matching_steps, training.evaluate_every
        return Looks(first, every, every * training.patience, correlation, CORRELATION)

    @torch.no_grad()
    def _ranking_logits(
        self, store: RegionStore, images: Sequence[int], captions: Sequence[str]
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


def _token_states(model: Uniter, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
    """(tokens, hidden) last states of the tokens of all texts, laid end to end."""
    states = model.states(regions, texts)[-1]
    lengths = [(len(ids), len(boxes)) for ids, boxes in zip(texts, regions, strict=True)]
    own = np.concatenate([[True] * tokens + [False] * boxes for tokens, boxes in lengths])
    return states[torch.from_numpy(own).to(states.device)]


def train_umic(
    training: UmicTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    judged: tuple[Judgements, CaptionedImages] | None = None,
    report: Report = lambda line: None,
) -> Path:
    """Train UMIC; a training that `out` holds goes on where it was stopped.

    Args:
        training: the settings.
        captioned: captions and images.
        tagger: as `training.tagger` names it.
        out: folder of the training: `weights`, `log.jsonl`, `curves.png`, its state and its box features.
        judged: human judgements, and their captions with images in the same order.
        report: takes a line for the user now and then.

    Returns:
        The folder of weights.

    Raises:
        ValueError: weights that could not be loaded; captions without negatives; images without features;
            the folder of another training.
    """
    network = Network("umic", UniterEncoder, region_input, RegionInput)
    with opened(training, out) as accelerator:
        run = RegionRun(training, network, captioned, tagger, out, accelerator, report)
        run.stamp["judgements"] = judged[1].fingerprint if judged is not None else None
        objective = UmicObjective(training, run.start, run.data())
        looks = None
        if judged is not None:
            judgements, images = judged
            looks = objective.looks(judgements, run.stored("judgements", images), images.numbers)
        return run.train(objective, looks)
