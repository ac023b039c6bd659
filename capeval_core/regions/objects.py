"""Object-aware prompting: boxes around objects, and the mask of what each box holds.

Zhang, Han, Zheng, Choi, Kim, Hong: MobileSAMv2: Faster Segment Anything to Everything, 2023,
https://arxiv.org/abs/2312.09579; the HICE-S paper's way to its regions (appendix A).
"""

from __future__ import annotations

from capeval_core.inputs.visual import InputImage
from capeval_core.regions.regions import Regions
from capeval_core.regions.sam import Sam
from capeval_core.regions.source import BoxSource, RegionSource

_REVISION = 1


class ObjectRegions(RegionSource):
    """The mask of every box that a detector finds; `quality` is the intersection over union SAM predicts.

    All boxes prompt the decoder at once, with one forward pass of SAM's image encoder.

    Args:
        boxes: where boxes come from.
        sam: the segmenter.
        name: how the signature calls the segmenter.
    """

    def __init__(self, boxes: BoxSource, sam: Sam, *, name: str = "sam") -> None:
        self.boxes = boxes
        self.sam = sam
        self.name = f"objects:{name}+{boxes.name}"
        self.fingerprint = f"objects-{_REVISION}-{sam.fingerprint}-{sam.dtype}-{boxes.fingerprint}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        return self.sam.segment(decoded, self.boxes.find(image, decoded).corners)
