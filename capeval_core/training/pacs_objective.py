"""PAC-S's training: the trained part of a CLIP, batches of pairs with positives, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core.models.copies import on_device
from capeval_core.training.gathering import gather_rows
from capeval_core.training.objective import VALIDATION, Looks, ReadTerms, scalar_terms
from capeval_core.training.pacs import (
    GENERATED_CAPTIONS,
    GENERATED_IMAGES,
    REAL,
    PacsTraining,
    info_nce,
    positive_augmented_loss,
)
from capeval_core.training.pairs import ABSENT, Numbers, PairLists, PairOrder, Pairs, drawn_pairs
from capeval_core.training.towers import Inputs


class Trained(Protocol):
    """The part of a CLIP that is trained."""

    images: Callable[[Tensor], Tensor]
    texts: Callable[[Any], Tensor]
    scale: Tensor


@dataclass(frozen=True)
class PairBatch:
    """What the model takes of n pairs.

    images, texts: of each pair. generated_images, generated_texts: of the pairs that have one; None where the
    loss is switched off. with_image, with_caption: (n,) which pairs those are.
    """

    images: Tensor
    texts: Any
    generated_images: Tensor | None
    with_image: Tensor
    generated_texts: Any | None
    with_caption: Tensor


class PacsObjective:
    """Projections, or adapters, of a CLIP with the losses of PAC-S.

    Args:
        training: the settings.
        model: `Projections` or `AdaptedClip`, on its device.
        tensors: of the weights that it starts from.
        inputs: images and texts by number.
        order: of the pairs that are trained on.
        accelerator: of `accelerate`.
    """

    def __init__(
        self,
        training: PacsTraining,
        model: Any,
        tensors: dict[str, Tensor],
        inputs: Inputs,
        order: PairOrder,
        accelerator: Any,
    ) -> None:
        self.training, self.model, self.tensors = training, model, tensors
        self.inputs, self.order, self.accelerator = inputs, order, accelerator

    def begin(self, phase: str) -> None:
        """There is one phase only."""

    def batch(self, phase: str, number: int) -> PairBatch:
        return self.made(self.order.chosen(number))

    def made(self, pairs: Pairs) -> PairBatch:
        """What the model takes of some pairs."""
        training = self.training
        image, caption = pairs.generated_images != ABSENT, pairs.generated_captions != ABSENT
        return PairBatch(
            self.inputs.images(pairs.images),
            self.inputs.texts(pairs.captions),
            # A pair without a positive has its own image or caption there, which the losses leave out.
            self.inputs.images(np.where(image, pairs.generated_images, pairs.images))
            if training.lambda_v
            else None,
            torch.from_numpy(image),
            self.inputs.texts(np.where(caption, pairs.generated_captions, pairs.captions))
            if training.lambda_t
            else None,
            torch.from_numpy(caption),
        )

    def losses(self, phase: str, batch: PairBatch) -> tuple[Tensor, ReadTerms]:
        terms = self.terms(batch, lambda rows: gather_rows(rows, self.accelerator))
        loss = positive_augmented_loss(terms, self.training.weights)
        return loss, lambda: scalar_terms({**terms, "all": loss})

    def terms(self, batch: PairBatch, gather: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The terms of eq. 3 that are switched on and have pairs, over the rows that `gather` gives."""
        model: Trained = self.model
        device = model.scale.device
        images = gather(model.images(on_device(batch.images, device)))
        texts = gather(model.texts(_on(batch.texts, device)))
        terms = {REAL: info_nce(images, texts, model.scale)}
        if batch.generated_images is not None:
            generated = gather(model.images(on_device(batch.generated_images, device)))
            present = _places(batch.with_image, gather, device)
            if len(present):
                terms[GENERATED_IMAGES] = info_nce(generated[present], texts[present], model.scale)
        if batch.generated_texts is not None:
            generated = gather(model.texts(_on(batch.generated_texts, device)))
            present = _places(batch.with_caption, gather, device)
            if len(present):
                terms[GENERATED_CAPTIONS] = info_nce(images[present], generated[present], model.scale)
        return terms

    def end_step(self) -> None:
        self.model.bound()

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of the CLIP."""
        tuned: dict[str, Tensor] = self.model.tuned(
            {name: tensor.detach().cpu() for name, tensor in state.items()}, self.tensors
        )
        return tuned

    def looks(self, lists: PairLists, images: Numbers) -> Looks:
        """Looks at the loss of eq. 3 on images held out, always with the same captions and positives."""
        training = self.training
        pairs = drawn_pairs(lists, images, np.random.default_rng([training.seed, 3]))

        @torch.no_grad()
        def loss() -> float:
            module: nn.Module = self.model
            module.eval()
            losses = [
                float(
                    positive_augmented_loss(self.terms(self.made(part), lambda rows: rows), training.weights)
                )
                for part in even_parts(pairs, training.batch_size)
            ]
            module.train()
            return float(np.mean(losses))

        return Looks(0, training.evaluate_every, training.patience, loss, VALIDATION, lowest=True)


def even_parts(pairs: Pairs, most: int) -> Iterator[Pairs]:
    """Parts of pairs of nearly equal sizes, `most` at most.

    >>> [len(part.images) for part in even_parts(Pairs(*[np.arange(7)] * 4), 3)]
    [3, 2, 2]
    """
    parts = [np.array_split(numbers, -(-len(numbers) // most)) for numbers in pairs]
    return (Pairs(*part) for part in zip(*parts, strict=True))


def _on(texts: Any, device: torch.device) -> Any:
    """Outputs of a tower on a device; token ids as they are."""
    return on_device(texts, device) if isinstance(texts, Tensor) else texts


def _places(present: Tensor, gather: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Places of the rows of all processes that are present; one process does not wait for its device."""
    gathered = gather(present)
    if gathered is not present:  # several processes, which gather on their devices
        gathered = gathered.cpu()
    return on_device(gathered.nonzero()[:, 0], device)
