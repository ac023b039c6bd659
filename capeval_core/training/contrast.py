"""Contrast: what belongs together is found among what does not (Radford et al., 2021, section 2.3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.training.batches import Captions


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
    images: Tensor, captions: Tensor, foils: Tensor, told: Tensor, alike: Tensor, scale: float
) -> Tensor:
    """Each image finds its caption among all captions and its own foils, each caption its image.

    images, captions (B, d) and foils (B, F, d) have unit length; told (B, F) is false where a foil is
    missing; alike (B, B) is true where the caption of the column may also be true of the image of the
    row.
    """
    logits = scale * images @ captions.T
    beside = (scale * torch.einsum("bd,bfd->bf", images, foils)).masked_fill(~told, -torch.inf)
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
    said, others, foils = torch.split(texts, [batch, batch, batch * count])
    told, alike = torch.from_numpy(captions.told), torch.from_numpy(captions.alike)
    found = caption_contrast(images, said, foils.view(batch, count, -1), told, alike, scale)
    return found + wording_weight * wording_contrast(said, others, alike, scale)


def _without(logits: Tensor, unsure: Tensor) -> Tensor:
    """Logits (N, N) without unsure pairs off the diagonal."""
    return logits.masked_fill(unsure & ~torch.eye(len(unsure), dtype=torch.bool), -torch.inf)
