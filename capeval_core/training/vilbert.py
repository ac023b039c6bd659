"""ViLBERT's pre-training: its options, and the heads that only it needs.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.region_text import EPS
from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.vilbert import LocatedBoxes, Vilbert
from capeval_core.options import option
from capeval_core.training.settings import RegionTraining

MASKING, MATCHING = "masking", "matching"
"""Phases of a training: masked words and boxes; image-text matching as well."""
_SPREAD = 0.02
"""Deviation of the heads' first weights."""


@dataclass(frozen=True, kw_only=True)
class VilbertTraining(RegionTraining):
    """How ViLBERT is pre-trained."""

    name: ClassVar = "vilbert"
    lengths: ClassVar = {
        MASKING: ("masking_steps", "masking_rate"),
        MATCHING: ("steps", "learning_rate"),
    }

    masked: float = option(0.15, "share of the words that are masked", minimum=0)
    masked_boxes: float = option(
        0.15, "share of the boxes that are hidden, with all that overlap them", minimum=0
    )
    foils: int = option(
        3, "captions with one word replaced by another that fits in its place, per caption", minimum=0
    )
    masking_steps: int = option(
        0,
        "steps of masked words and boxes alone before; for a start that has not been pre-trained",
        minimum=0,
    )
    masking_rate: float = option(1e-4, "the highest learning rate of these", minimum=0)
    steps: int = option(100_000, "steps of masked words and boxes with image-text matching", minimum=1)
    learning_rate: float = option(1e-4, "the highest learning rate of these", minimum=0)
    weight_decay: float = option(0.01, "decay of the weights", minimum=0)
    clip: float = option(1.0, "largest norm of the gradient", minimum=1e-6)

    @classmethod
    def shares(cls) -> tuple[str, ...]:
        return (*super().shares(), "masked_boxes")


class Outputs(NamedTuple):
    """Of pairs of a text and an image.

    words: per text (rows, hidden) after the last co-attention block, where the metric takes them. text,
    regions: after all layers.
    """

    words: list[Tensor]
    text: list[Tensor]
    regions: list[Tensor]


class VilbertPretraining(nn.Module):
    """ViLBERT with the heads of its pre-training, which are not among the weights that the metric opens.

    Args:
        architecture: of `Vilbert`.
        task: the task whose token texts have; None for a model without.
        dropout: share of the states that are dropped.
    """

    def __init__(self, architecture: dict[str, Any], task: int | None, dropout: float) -> None:
        super().__init__()
        self.task = task
        self.vilbert = Vilbert(architecture, dropout)
        hidden, wide = (architecture[stream]["hidden_size"] for stream in ("text", "visual"))
        self.word_head = _transform(hidden)
        self.word_bias = nn.Parameter(torch.zeros(architecture["text"]["vocab_size"]))
        self.region_head = nn.Sequential(
            *_transform(wide), nn.Linear(wide, architecture["visual"]["region_size"])
        )
        self.matching_head = nn.Linear(architecture["co_attention"]["hidden_size"], 2)
        self.word_matching_head = nn.Linear(hidden, 4)  # two questions with two answers
        for head in (self.word_head, self.region_head, self.matching_head, self.word_matching_head):
            for module in head.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=_SPREAD)
                    nn.init.zeros_(module.bias)

    def forward(self, texts: Sequence[Ids], images: Sequence[LocatedBoxes]) -> Outputs:
        """Outputs of texts; as many for each image, one image after another."""
        features, locations = (
            torch.from_numpy(np.concatenate(arrays)).to(self.vilbert.device)
            for arrays in ([i.features for i in images], [i.locations for i in images])
        )
        regions = self.vilbert.lower_regions(features, locations, [len(i.locations) for i in images])
        lower = self.vilbert.lower_texts(texts, self.task)
        each = len(texts) // len(images)
        pairs = [(text, text // each) for text in range(len(texts))]
        *_, (words, _), (text, visual) = self.vilbert.states(lower, regions, pairs)
        return Outputs(words, text, visual)

    def word_loss(self, states: Tensor, words: Tensor) -> Tensor:
        """() cross entropy of masked words (n,), predicted from their states (n, hidden)."""
        table = self.vilbert.embeddings.word_embeddings.weight
        return functional.cross_entropy(self.word_head(states) @ table.T + self.word_bias, words)

    def region_loss(self, states: Tensor, features: Tensor) -> Tensor:
        """() mean squared error of the features of hidden boxes (n, region_size), each at mean 0 and
        deviation 1, predicted from their states (n, hidden)."""
        target = functional.layer_norm(features, features.shape[1:])
        return functional.mse_loss(self.region_head(states).float(), target)

    def matching_logits(self, outputs: Outputs) -> Tensor:
        """(pairs, 2) no match and match, from the product of what both poolers give."""
        text, visual = self.vilbert.pooled(outputs.text, outputs.regions)
        logits: Tensor = self.matching_head(self.vilbert.dropout(text * visual))
        return logits

    def word_matching_logits(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 2) and (n, 2), no and yes, read off words (n, hidden): whether the caption of each matches the
        image, and whether the word itself does."""
        caption, word = self.word_matching_head(states).float().split(2, dim=-1)
        return caption, word


def _transform(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=EPS))
