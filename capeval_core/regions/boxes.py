"""What detectors have in common: of boxes that cover the same thing, the best one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capeval_core.regions.source import Boxes

Floats = NDArray[np.float32]


def distinct(corners: Floats, scores: Floats, overlap: float, most: int) -> Boxes:
    """The best boxes, by non-maximum suppression: best first, each overlapping no better one by more.

    Args:
        corners: (n, 4) x0, y0, x1, y1.
        scores: (n,); of equal ones the earlier counts as better.
        overlap: intersection over union above which the worse of two boxes goes.
        most: how many are kept.

    >>> corners = np.array([[0, 0, 10, 10], [0, 0, 10, 9.5], [0, 0, 5, 10]], dtype=np.float32)
    >>> distinct(corners, np.array([0.5, 0.9, 0.7], dtype=np.float32), 0.9, 300).scores.tolist()
    [0.9, 0.7]
    """
    import torch
    from torchvision.ops import nms

    order = np.argsort(-scores, kind="stable")
    corners, scores = corners[order], scores[order]
    kept = nms(torch.from_numpy(corners), torch.from_numpy(scores), overlap)[:most].numpy()
    return Boxes(corners[kept], scores[kept])


def clipped(corners: Floats, size: tuple[int, int]) -> Floats:
    """Boxes (n, 4) cut at the borders of a picture of (height, width)."""
    height, width = size
    return np.clip(corners, 0, np.array([width, height, width, height], dtype=np.float32))
