"""Training on drawn scenes: the recipe, gradient descent, and the contrastive losses.

AdamW; the rate first rises by equal steps and then falls as half a cosine; the gradient is never longer
than one. What is particular to a training is its model, its parts and the losses of a step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.tiny.lessons import Captions

log = logging.getLogger(__name__)

_DECAY = 0.05
_LONGEST_GRADIENT = 1.0
_LOGGED_EVERY = 100
"""Steps from one line of the log to the next."""


@dataclass(frozen=True)
class Recipe:
    """How long and how hard to train. A training's own recipe adds its weights, and gives defaults to all:
    those that made the shipped model."""

    scenes: int
    """How many are drawn and described before the first step."""
    steps: int
    batch: int
    """Scenes per step."""
    foils: int
    """Foils of the caption per scene and step, drawn from those that it allows."""
    rate: float
    """The learning rate at its highest."""
    warmup: int
    """Steps over which the rate rises."""
    scale: float
    """The fixed inverse temperature of the contrast; a low one spreads the cosines out."""

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0.

        >>> recipe = Recipe(scenes=1, steps=100, batch=1, foils=0, rate=0.5, warmup=10, scale=16.0)
        >>> [round(recipe.rate_at(step), 3) for step in (0, 4, 50, 99)]
        [0.05, 0.25, 0.25, 0.0]
        """
        fallen = 0.5 + 0.5 * math.cos(math.pi * (step / self.steps))
        return self.rate * min((step + 1) / self.warmup, fallen)


def fading(done: float, until: float) -> float:
    """What falls from 1 to 0 in the first part of a training, when the share `done` of it lies behind.

    >>> fading(0.2, until=0.8), fading(0.9, until=0.8)
    (0.75, 0.0)
    """
    return max(0.0, 1 - done / until)


class Part(NamedTuple):
    """Parameters that learn alike."""

    parameters: list[nn.Parameter]
    pace: float
    """Their rate, as a multiple of the recipe's."""
    decays: bool
    """Whether they are drawn to zero."""


def descend(
    recipe: Recipe,
    parts: Sequence[Part],
    losses: Callable[[float], tuple[Tensor, dict[str, Tensor]]],
) -> list[float]:
    """Train the parameters of `parts` in place; the loss of every step.

    `losses(done)`, called once a step with the share of the training that lies behind, gives the loss, and
    by name those of its terms for the log.
    """
    started = time.monotonic()
    groups = [
        {"params": part.parameters, "weight_decay": _DECAY if part.decays else 0.0, "pace": part.pace}
        for part in parts
    ]
    optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)
    trained = [parameter for part in parts for parameter in part.parameters]
    history: list[float] = []
    totals: dict[str, float] = {}
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = group["pace"] * recipe.rate_at(step)
        loss, terms = losses(step / recipe.steps)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, _LONGEST_GRADIENT, foreach=True)
        optimiser.step()
        history.append(loss.item())
        for name, term in {"loss": loss, **terms}.items():
            totals[name] = totals.get(name, 0.0) + term.item()
        if (step + 1) % _LOGGED_EVERY == 0:
            means = "  ".join(f"{name} {total / _LOGGED_EVERY:.3f}" for name, total in totals.items())
            log.info("step %d  %s  %.0f s", step + 1, means, time.monotonic() - started)
            totals.clear()
    return history


@contextmanager
def timed(task: str) -> Iterator[None]:
    """Log how long it took."""
    started = time.monotonic()
    yield
    log.info("%s in %.0f s", task, time.monotonic() - started)


def contrast_both_ways(logits: Tensor, unsure: Tensor, beside: Tensor) -> Tensor:
    """The loss of N things and N others: each row finds its column, and each column its row.

    logits (N, N): on the diagonal those of the right pairs; unsure (N, N) is true where a pair is neither
    right nor wrong (on the diagonal it counts for nothing); beside (N, F) are logits of further wrong
    columns of each row, -inf where there is none.
    """
    own = torch.arange(len(logits))
    logits = _without(logits, unsure)
    return 0.5 * (
        functional.cross_entropy(torch.cat([logits, beside], 1), own)
        + functional.cross_entropy(logits.T, own)
    )


def caption_contrast(
    images: Tensor, captions: Tensor, foils: Tensor, present: Tensor, alike: Tensor, scale: float
) -> Tensor:
    """Each image finds its caption among all captions and its own foils, each caption its image.

    images, captions (B, d) and foils (B, F, d) have unit length; present (B, F) is false where a foil
    is missing; alike (B, B) is true where the caption of the column may also be true of the image of the
    row.
    """
    logits = scale * images @ captions.T
    beside = (scale * torch.einsum("bd,bfd->bf", images, foils)).masked_fill(~present, -torch.inf)
    return contrast_both_ways(logits, alike, beside)


def wording_contrast(captions: Tensor, others: Tensor, alike: Tensor, scale: float) -> Tensor:
    """Each caption finds the other one of its scene among those of all scenes.

    captions, others (B, d) have unit length; alike (B, B) as in `caption_contrast`.
    """
    logits = _without(scale * captions @ others.T, alike | alike.T)
    return functional.cross_entropy(logits, torch.arange(len(logits)))


def scene_contrast(
    images: Tensor, texts: Tensor, captions: Captions, scale: float, wording_weight: float
) -> Tensor:
    """The contrast of images with their captions and, by its weight, that of one wording with the other.

    images (B, d) and texts (B + B + B * F, d), in the order of `Captions.of`, have unit length.
    """
    batch, count = captions.foils.shape
    first, second, foils = torch.split(texts, [batch, batch, batch * count])
    present, alike = torch.from_numpy(captions.present), torch.from_numpy(captions.alike)
    loss = caption_contrast(images, first, foils.view(batch, count, images.shape[1]), present, alike, scale)
    return loss + wording_weight * wording_contrast(first, second, alike, scale)


def _without(logits: Tensor, unsure: Tensor) -> Tensor:
    """Logits (N, N) without unsure pairs off the diagonal."""
    return logits.masked_fill(unsure & ~torch.eye(len(unsure), dtype=torch.bool), -torch.inf)
