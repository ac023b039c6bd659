"""Boxes around objects: detectors' interface, non-maximum suppression, and rectangles as regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.images import InputImage
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions, RegionSource

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Boxes:
    """corners: (n, 4) float32, x0, y0, x1, y1 in pixels of the image. scores: (n,) float32, best first."""

    corners: Floats
    scores: Floats

    def __len__(self) -> int:
        return len(self.corners)


class BoxSource(ABC):
    """A detector: an image in RGB -> boxes clipped to it, best first, or none; else as `RegionSource`."""

    name: str
    fingerprint: str

    @abstractmethod
    def find(self, decoded: Image.Image) -> Boxes: ...


def suppress_overlaps(corners: Floats, scores: Floats, overlap: float, max_boxes: int) -> Boxes:
    """The best of boxes (n, 4): the worse of two is dropped if their IoU is above `overlap`."""
    import torch
    from torchvision.ops import nms

    order = np.argsort(-scores, kind="stable")
    corners, scores = corners[order], scores[order]
    kept = nms(torch.from_numpy(corners), torch.from_numpy(scores), overlap)[:max_boxes].numpy()
    return Boxes(corners[kept], scores[kept])


def clipped(corners: Floats, size: tuple[int, int]) -> Floats:
    """Boxes (n, 4) clipped to an image of (height, width)."""
    height, width = size
    return np.clip(corners, 0, np.array([width, height, width, height], dtype=np.float32))


class RectangleRegions(RegionSource):
    """The boxes of a detector as rectangular masks (table 6 of the HICE-S paper)."""

    def __init__(self, boxes: BoxSource) -> None:
        self.boxes = boxes
        self.name = f"rectangles:{boxes.name}"
        self.fingerprint = f"rectangles-1-{boxes.fingerprint}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        boxes = self.boxes.find(decoded)
        size = (decoded.height, decoded.width)
        runs = [rle.of_box(corners, size) for corners in boxes.corners.tolist()]
        return Regions.of_runs(runs, size, quality=boxes.scores, boxes=boxes.corners)
