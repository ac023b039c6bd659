"""UMIC's training: losses, and its options.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.options import option
from capeval_core.training.settings import RegionTraining

MARGIN = 0.2
WORDS, MATCHING, RANKING = "words", "matching", "ranking"
"""Phases of a training: masked words, image-text matching, ranking."""


def ranking_loss(logits: Tensor, group_size: int, margin: float = MARGIN) -> Tensor:
    """max(0, margin - (s - s')) of each negative, s and s' being the sigmoids of positive and negative.

    Args:
        logits: (n,) of the ranking head, group after group, the positive of each group first.
        group_size: captions of a group.
        margin: by how much the positive is to be ahead.

    Returns:
        (n / group_size, group_size - 1), not reduced.

    Raises:
        ValueError: the logits are no whole number of groups of at least two.

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

    @property
    def pretraining_steps(self) -> int:
        """Before ranking."""
        return self.word_steps + self.matching_steps
