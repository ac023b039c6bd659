"""Masked words and masked boxes, which a network learns to predict from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capeval_core.encoders.tokenizers import UNKNOWN, Ids
from capeval_core.encoders.vilbert import LocatedBoxes

MASK = "[MASK]"
OVERLAP = 0.4
"""Intersection over union from which a box is hidden with another one."""


class MaskedWords(NamedTuple):
    """Texts with masked tokens. places: of these, in the texts laid end to end. tokens: what was there."""

    texts: list[Ids]
    places: list[int]
    tokens: list[int]


def mask_id(words: Sequence[str]) -> int:
    """The id that stands for a masked token: that of `[MASK]`, or the unknown word's where there is none."""
    return words.index(MASK if MASK in words else UNKNOWN)


def mask_words(
    texts: Sequence[Ids], share: float, mask: int, rng: np.random.Generator, *, shown: float = 0.0
) -> MaskedWords:
    """Mask a share of the tokens of each text, at least one, its marks left out.

    shown: share of the chosen tokens that stay as they are, and are predicted all the same.

    >>> mask_words([(2, 7, 8, 9, 3)], 0.3, 4, np.random.default_rng(0))
    MaskedWords(texts=[(2, 7, 4, 4, 3)], places=[2, 3], tokens=[8, 9])
    """
    rows = [list(ids) for ids in texts]
    places, tokens, start = [], [], 0
    for row in rows:
        inside = np.arange(1, len(row) - 1)
        lots = rng.random(len(inside))
        chosen = inside[(lots < share) | (lots == lots.min(initial=1))].tolist()
        kept = rng.random(len(chosen)) < shown if shown else np.zeros(len(chosen), dtype=np.bool_)
        for place, stays in zip(chosen, kept.tolist(), strict=True):
            places.append(start + place)
            tokens.append(row[place])
            row[place] = row[place] if stays else mask
        start += len(row)
    return MaskedWords([tuple(row) for row in rows], places, tokens)


def mask_boxes(
    boxes: LocatedBoxes, share: float, rng: np.random.Generator
) -> tuple[LocatedBoxes, NDArray[np.bool_]]:
    """Boxes of which a share is hidden, with all that overlap them; and which rows are.

    A hidden box keeps its location and has zeros for features; the mean of all, the first row, is that of the
    boxes that are left.
    """
    x0, y0, x1, y1, area = boxes.locations[1:].T
    lots = rng.random(len(area)) < share
    width = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0)
    height = np.minimum(y1[:, None], y1) - np.maximum(y0[:, None], y0)
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    overlap = shared / np.maximum(area[:, None] + area - shared, 1e-9)
    hidden = np.concatenate([[False], lots | (overlap[:, lots] > OVERLAP).any(axis=1)])
    features = np.where(hidden[:, None], 0, boxes.features)
    left = ~hidden
    left[0] = False
    features[0] = boxes.features[left].mean(axis=0) if left.any() else 0
    return LocatedBoxes(features, boxes.locations), hidden
