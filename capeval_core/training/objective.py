"""What a training needs of a network: the model, its batches, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

CORRELATION, VALIDATION = "correlation", "validation_loss"
"""What trainings are judged by: correlation with human judgements, loss on images that are held out."""
Terms = dict[str, tuple[float, int]]
"""For the log: sum and number of the losses of each kind."""
ReadTerms = Callable[[], Terms]
"""Reads them from the device, once: it waits for all that was launched before."""


class Objective(Protocol):
    """What is trained, and on what: phases go by name, batches by number."""

    @property
    def model(self) -> nn.Module:
        """The model, with heads that only the training needs."""

    def begin(self, phase: str) -> None:
        """Get the model ready for a phase that begins."""

    def batch(self, phase: str, number: int) -> Any:
        """A batch of a phase, from the training's seed and the number alone; made in another thread."""

    def losses(self, phase: str, batch: Any) -> tuple[Tensor, ReadTerms]:
        """The loss of a batch, and what reads its terms; itself it does not wait for the device."""

    def end_step(self) -> None:
        """Bring back into its bounds what a step has moved out of them."""

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the model's state that are written at the end."""


@dataclass(frozen=True)
class Looks:
    """Looks at what a training is judged by, which choose the weights and end it early.

    first: steps before them. every: steps between two. patience: steps without a better value that end the
    training; 0: none. measure: the value of the model as it is. name: of the value in the log. lowest:
    whether a lower value is better.
    """

    first: int
    every: int
    patience: int
    measure: Callable[[], float]
    name: str = CORRELATION
    lowest: bool = False

    def better(self, value: float, best: float) -> bool:
        """Whether a value is better than the best one so far."""
        return value < best if self.lowest else value > best


def terms_of(losses: Tensor, kinds: NDArray[Any]) -> Terms:
    """Sum and number of losses of each kind; both arguments have one shape."""
    values = losses.detach().float().cpu().numpy()
    return {
        str(kind): (float(values[kinds == kind].sum()), int((kinds == kind).sum()))
        for kind in np.unique(kinds)
    }


def scalar_terms(losses: Mapping[str, Tensor]) -> Terms:
    """Losses of one number each, read together.

    >>> scalar_terms({"words": torch.tensor(0.5), "boxes": torch.tensor(2.0)})
    {'words': (0.5, 1), 'boxes': (2.0, 1)}
    """
    values: list[float] = torch.stack([loss.detach() for loss in losses.values()]).tolist()
    return {name: (value, 1) for name, value in zip(losses, values, strict=True)}


def matching_loss(logits: Tensor, group_size: int) -> Tensor:
    """Cross entropy of the matching head: the positive of each group matches, the others do not.

    Args:
        logits: (n, 2) no match and match, group after group, the positive of each group first.
        group_size: captions of a group.

    Returns:
        (n / group_size, group_size), not reduced.

    >>> matching_loss(torch.tensor([[0.0, 9.0], [0.0, 0.0]]), group_size=2).round(decimals=3)
    tensor([[0.0000, 0.6930]])
    """
    truth = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    truth[::group_size] = 1
    return functional.cross_entropy(logits, truth, reduction="none").view(-1, group_size)
