"""Non-maximum suppression of many classes at once, by one rule for every device's boxes.

The kernels of detectors differ: with IoU >= on the CPU and > on CUDA, with a pixel added to sides or not,
with products and sums joined or not. Here the rule is a value, and every step is rounded to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Suppression:
    """A rule by which the worse one of two boxes that overlap enough is dropped.

    overlap: bound of the intersection over union. pixel: added to sides, 1 where corners are the first and
    the last pixel. at_bound: whether equality is enough.
    """

    overlap: float
    pixel: float = 0.0
    at_bound: bool = False

    @property
    def bound(self) -> np.float32:
        """The bound in float32, rounded as in Caffe's kernel; below the number itself for torchvision's >."""
        bound = np.float32(self.overlap)
        if not self.at_bound and float(bound) > self.overlap:
            return np.float32(np.nextafter(bound, np.float32(0)))
        return bound

    def pairs(self, boxes: Floats, rivals: Floats) -> NDArray[np.bool_]:
        """Return whether one of two boxes suppresses the other: (...) of (..., 4) and (..., 4)."""
        x0, y0, x1, y1 = np.moveaxis(boxes, -1, 0)
        u0, v0, u1, v1 = np.moveaxis(rivals, -1, 0)
        pixel = np.float32(self.pixel)  # a Python float would widen the numbers of a single box in numpy 1
        width = np.clip(np.minimum(x1, u1) - np.maximum(x0, u0) + pixel, 0, None)
        height = np.clip(np.minimum(y1, v1) - np.maximum(y0, v0) + pixel, 0, None)
        shared = width * height
        area = (x1 - x0 + pixel) * (y1 - y0 + pixel)
        rival_area = (u1 - u0 + pixel) * (v1 - v0 + pixel)
        with np.errstate(invalid="ignore", divide="ignore"):  # empty boxes: 0 / 0 is not an overlap
            ratio = shared / (area + rival_area - shared)
        above: NDArray[np.bool_] = ratio >= self.bound if self.at_bound else ratio > self.bound
        return above

    def best(self, boxes: Floats, most: int) -> Integers:
        """Indices of at most `most` boxes (n, 4) that survive, of boxes that come best first."""
        alive = np.ones(len(boxes), dtype=bool)
        survivors: list[int] = []
        # Greedy: only a box that survives itself drops others.
        for index in range(len(boxes)):
            if alive[index]:
                survivors.append(index)
                if len(survivors) == most:
                    break
                alive[index + 1 :] &= ~self.pairs(boxes[index], boxes[index + 1 :])
        return np.array(survivors, dtype=np.int64)


def clipped(corners: Floats, size: tuple[int, int]) -> Floats:
    """Boxes (n, 4) clipped to an image of (height, width)."""
    height, width = size
    return np.clip(corners, 0, np.array([width, height, width, height], dtype=np.float32))


def class_confidences(boxes: Floats, scores: Floats, rule: Suppression, threshold: float = 0.0) -> Floats:
    """(n,) the largest score of each box among the classes whose suppression it survives, or 0.

    As bottom-up attention's `tools/generate_tsv.py` (Anderson et al., CVPR 2018). scores: (n, classes),
    without background; those up to `threshold` do not count.
    """
    by_class = np.ascontiguousarray(scores.T)  # (classes, n)
    order = np.argsort(-by_class, axis=1, kind="stable").T  # n times the next best box of each class
    # Which boxes each box suppresses, a bit for each: one byte-wise OR then drops eight boxes of a class.
    bits = np.packbits(rule.pairs(boxes[:, None], boxes), axis=1, bitorder="little")
    dropped = np.zeros((len(by_class), bits.shape[1]), dtype=np.uint8)
    survives = np.zeros(scores.shape, dtype=bool)
    classes = np.arange(len(by_class))
    for box in order:
        alive = (dropped[classes, box >> 3] >> (box & 7)) & 1 == 0
        survivor = box[alive]
        its_class = classes[alive]
        survives[survivor, its_class] = True
        dropped[its_class] |= bits[survivor]
    counts = survives & (scores > np.float32(threshold))
    confidences: Floats = np.where(counts, scores, np.float32(0)).max(axis=1, initial=0)
    return confidences


def enough_boxes(boxes: Floats, scores: Floats, overlaps: Sequence[float], least: int, most: int) -> Integers:
    """Indices of at most `most` boxes that survive non-maximum suppression, best first.

    By the first of these overlaps that leaves at least `least` boxes, or the last one, where the original
    fails or takes the image before.
    """
    from torchvision.ops import nms

    survivors = np.empty(0, dtype=np.int64)
    for overlap in overlaps:
        survivors = nms(torch.from_numpy(boxes), torch.from_numpy(scores), overlap).numpy()[:most]
        if len(survivors) >= least:
            break
    return survivors
