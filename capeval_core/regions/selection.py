"""Which boxes of a detector are kept, and with which confidence: the rules of two sets of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capeval_core.regions.suppression import Suppression

Floats = NDArray[np.float32]
Selection = Literal["bua10_100", "lxmert36"]
"""`bua10_100`: 10 to 100 boxes by their confidence, for UNITER. `lxmert36`: the best 36, for LXMERT."""

THRESHOLD = 0.2
LEAST, MOST = 10, 100
FIXED = 36
"""Boxes where confidence is not asked."""
ONE_THING = Suppression(0.3)
"""When two boxes of one class show one thing; without the additional pixel of Caffe's detectors. No published
numbers pin it."""


def boxes_kept(confidences: NDArray[np.floating], threshold: float = THRESHOLD) -> int:
    """How many of n boxes are used: the first ones, n = min(100, max(10, count(confidence > 0.2))).

    Boxes come sorted by confidence, best first: confidences decide the number, whatever those of the first
    boxes are. Compared in the type in which they are stored: a float32 0.2 does not exceed 0.2. A threshold
    below 0 means the first 36 boxes. Where there are fewer, all are used.

    Args:
        confidences: (n,), from 0 to 1.
        threshold: 0.2 in every published setting.

    >>> boxes_kept(np.linspace(1, 0, 60)), boxes_kept(np.zeros(60)), boxes_kept(np.zeros(7))
    (48, 10, 7)
    >>> boxes_kept(np.ones(200)), boxes_kept(np.ones(200), threshold=-1)
    (100, 36)
    """
    if threshold < 0:
        return min(FIXED, len(confidences))
    count = int(np.count_nonzero(confidences > threshold))
    return min(MOST, max(LEAST, count), len(confidences))


def enough_boxes(
    boxes: Floats, scores: Floats, overlaps: Sequence[float], least: int, most: int
) -> NDArray[np.int64]:
    """Indices of the boxes that survive non-maximum suppression, best first, at most `most`.

    The overlaps are tried in turn until at least `least` boxes survive; where they never do, those of the
    last overlap are kept. (The original fails there, or takes the boxes of the image before.)

    >>> boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 6], [20, 0, 30, 10]], dtype=np.float32)
    >>> scores = np.array([0.5, 0.9, 0.7], dtype=np.float32)
    >>> enough_boxes(boxes, scores, (0.5, 0.7), 2, 36).tolist()
    [1, 2]
    >>> enough_boxes(boxes, scores, (0.5, 0.7), 3, 36).tolist()
    [1, 2, 0]
    """
    import torch
    from torchvision.ops import nms

    kept = np.empty(0, dtype=np.int64)
    for overlap in overlaps:
        kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), overlap).numpy()[:most]
        if len(kept) >= least:
            break
    return kept
