"""Rectangles as regions: what the paper compares masks with in its table 6."""

from __future__ import annotations

from capeval_core.inputs.visual import InputImage
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import BoxSource, RegionSource

_REVISION = 1


class RectangleRegions(RegionSource):
    """The boxes of a detector, each as the mask of its whole rectangle; `quality` is the box's score.

    A pixel belongs to a box that holds its centre. For boxes that were found before, `PrecomputedRegions`
    takes annotations with a `bbox`.

    Args:
        boxes: where boxes come from.
    """

    def __init__(self, boxes: BoxSource) -> None:
        self.boxes = boxes
        self.name = f"rectangles:{boxes.name}"
        self.fingerprint = f"rectangles-{_REVISION}-{boxes.fingerprint}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        boxes = self.boxes.find(image, decoded)
        size = (decoded.height, decoded.width)
        runs = [rle.of_box(corners, size) for corners in boxes.corners.tolist()]
        return Regions.of_runs(runs, size, quality=boxes.scores, boxes=boxes.corners)
