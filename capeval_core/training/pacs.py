"""PAC-S's training: positive-augmented contrastive losses, and its options.

Sarto, Barraco, Cornia, Baraldi, Cucchiara: Positive-Augmented Contrastive Learning for Image and Video
Captioning Evaluation, CVPR 2023, https://arxiv.org/abs/2303.12112, sections 3 and 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.errors import Problems, option_problem, wrong_option
from capeval_core.options import option
from capeval_core.training.settings import Training

CONTRAST = "contrast"
"""The only phase of the training."""
REAL, GENERATED_IMAGES, GENERATED_CAPTIONS = "real pairs", "generated images", "generated captions"
"""The terms of eq. 3: L(V, T), L(V', T), L(V, T')."""
LAMBDA_V, LAMBDA_T = 0.05, 0.1
"""Weights of L(V', T) and L(V, T')."""
MOST_SCALE = 100.0
"""The largest 1 / temperature of CLIP."""


def info_nce(images: Tensor, texts: Tensor, scale: Tensor | float) -> Tensor:
    """Eq. 2: each image finds its text among all texts, each text its image; the sum of both means.

    Args:
        images, texts: (n, d), of any length; row i of one belongs to row i of the other.
        scale: 1 / temperature.

    >>> float(info_nce(torch.eye(3), torch.eye(3), scale=100.0).round(decimals=6))
    0.0
    >>> float(info_nce(torch.ones(2, 4), torch.ones(2, 4), scale=1.0).round(decimals=4))  # 2 log 2
    1.3863
    """
    logits = scale * functional.normalize(images, dim=-1) @ functional.normalize(texts, dim=-1).T
    own = torch.arange(len(logits), device=logits.device)
    return functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)


def positive_augmented_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Eq. 3: the weighted sum of the terms.

    >>> terms = {REAL: torch.tensor(2.0), GENERATED_IMAGES: torch.tensor(1.0)}
    >>> positive_augmented_loss(terms, {REAL: 1.0, GENERATED_IMAGES: 0.05})
    tensor(2.0500)
    """
    return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


@dataclass(frozen=True, kw_only=True)
class PacsTraining(Training):
    """How PAC-S is trained. The defaults are the paper's, and those noted where it states none."""

    name: ClassVar = "pacs"
    lengths: ClassVar = {CONTRAST: ("steps", "learning_rate")}
    shares: ClassVar[tuple[str, ...]] = ("validation",)
    free: ClassVar[tuple[str, ...]] = (*Training.free, "towers")
    betas: ClassVar = (0.9, 0.999)  # the paper states none: PyTorch's

    prompt: str | None = option(
        None,
        "put before captions, and recorded in the weights; None: that of the weights that it starts from",
    )
    lambda_v: float = option(
        LAMBDA_V, "weight of the loss between generated images and captions; 0: without", minimum=0
    )
    lambda_t: float = option(
        LAMBDA_T, "weight of the loss between images and generated captions; 0: without", minimum=0
    )
    temperature: float | None = option(
        None,
        "fixed temperature of the losses; None: as in CLIP, learned, from that of the weights, 0.01 at least",
        minimum=1e-3,
    )
    lora: int = option(
        0,
        "rank of low-rank adapters of attention, as in PAC-S++, which are trained in place of projections; "
        "0: the projections of both towers are, and a ResNet's attention pool",
        minimum=0,
    )
    validation: float = option(
        0.05, "share of the images that are held out, unless captions for validation are given", minimum=0
    )
    evaluate_every: int = option(100, "steps between two measurements of the validation loss", minimum=1)
    patience: int = option(
        1_500, "steps without a lower validation loss that end the training; 0: none", minimum=0
    )
    steps: int = option(100_000, "steps at most", minimum=1)
    learning_rate: float = option(1e-4, "the learning rate, after its rise", minimum=0)
    warmup: int = option(0, "steps over which the learning rate rises", minimum=0)
    batch_size: int = option(256, "pairs per forward pass, in all processes together", minimum=2)
    accumulation: int = option(1, "forward passes per step", minimum=1)
    clip: float = option(0.0, "largest norm of the gradient; 0: no limit", minimum=0)
    weight_decay: float = option(0.01, "decay of the matrices", minimum=0)
    stored: Literal["float16", "float32"] = option(
        "float32", "numeric type of the trained tensors that are written"
    )
    towers: str | PathLike[str] | None = option(
        None,
        "folder that keeps outputs of the frozen towers, for several trainings of the same weights; "
        "None: in --out",
        folder=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience and self.patience < self.evaluate_every:
            found = f"below the {self.evaluate_every} of evaluate_every"
            raise wrong_option("patience", self.patience, found, "look more often, or wait longer")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: a linear rise, then constant."""
        return self.learning_rate * min((step + 1) / max(self.warmup, 1), 1.0)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term of eq. 3 that is not switched off."""
        weights = {REAL: 1.0, GENERATED_IMAGES: self.lambda_v, GENERATED_CAPTIONS: self.lambda_t}
        return {name: weight for name, weight in weights.items() if weight}

    def check_positives(self, images: int | None, captions: int | None) -> None:
        """Refuse settings that need positives where there are none.

        images, captions: generated ones that belong to captions and images of the training; None: no folder.

        Raises:
            InputError: a loss is switched on whose positives are missing.
        """
        problems = Problems()
        counts = {"lambda_v": (images, "images"), "lambda_t": (captions, "captions")}
        for name, (count, what) in counts.items():
            if (weight := getattr(self, name)) and not count:
                why = (
                    "is no folder of positives"
                    if count is None
                    else f"are no generated {what} of these captions"
                )
                fix = "pass a folder that `capeval augment` made as `--positives`, or 0 to train without them"
                problems.add(
                    option_problem(name, weight, f"a weight of generated {what}, but there {why}", fix)
                )
        problems.raise_if_any()
