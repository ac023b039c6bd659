"""Boxes around objects: detectors' interface, OWLv2 as one of any class, and rectangles as regions.

Minderer, Gritsenko, Houlsby: Scaling Open-Vocabulary Object Detection, NeurIPS 2023,
https://arxiv.org/abs/2306.09683
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.images import InputImage
from capeval_core.models.copies import on_device
from capeval_core.models.device import DTYPES, exact_float32, numbered_device
from capeval_core.models.model import check_tensors, opened_once
from capeval_core.regions import rle
from capeval_core.regions.regions import WITHOUT, Regions, RegionSource
from capeval_core.regions.suppression import clipped
from capeval_core.weights.folder import WeightsError, WeightsFolder, open_foreign_weights

DETECTOR = "google/owlv2-base-patch16-ensemble"
"""OWLv2, Apache 2.0, 0.6 GB."""
THRESHOLD = 0.1
"""Least objectness of a box. The paper trains it to predict a box's class score, and 0.1 is the class score
from which transformers takes a box of OWLv2 for a detection."""
MAX_BOXES, OVERLAP = 300, 0.9
"""How many boxes at most, and intersection over union above which the worse of two is dropped."""
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
    from torchvision.ops import nms

    order = np.argsort(-scores, kind="stable")
    corners, scores = corners[order], scores[order]
    kept = nms(torch.from_numpy(corners), torch.from_numpy(scores), overlap)[:max_boxes].numpy()
    return Boxes(corners[kept], scores[kept])


class Owlv2Boxes(BoxSource):
    """The boxes of OWLv2 with the highest objectness (at least `threshold`), of any class.

    It takes no text: a detector of fixed classes would miss all others, and captions are the text to be
    scored. The vision tower runs in `dtype`, the heads of the boxes always in float32.
    """

    def __init__(
        self,
        weights: str | PathLike[str] = DETECTOR,
        *,
        threshold: float = THRESHOLD,
        device: str | None = None,
        dtype: str = "float32",
    ) -> None:
        folder = open_foreign_weights(weights, "detector", "owlv2", default=DETECTOR, without=WITHOUT)
        self._threshold = threshold
        on = numbered_device(device)
        key = ("owlv2", str(folder.path), folder.checksum, str(on), dtype)
        self._model = opened_once(key, lambda: _Model(folder, on, dtype))
        settings = [1, folder.checksum, self._model.config, MAX_BOXES, OVERLAP, threshold, dtype]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        self.fingerprint = f"owlv2-{digest}"
        self.name = folder.label(digest)

    def find(self, decoded: Image.Image) -> Boxes:
        corners, scores = self._model(decoded)
        size = (decoded.height, decoded.width)
        corners = clipped(corners * np.float32(max(size)), size)  # of the square that the image was padded to
        inside = (corners[:, 2:] > corners[:, :2]).all(axis=1) & (scores >= self._threshold)
        return suppress_overlaps(corners[inside], scores[inside], OVERLAP, MAX_BOXES)


class _Model:
    """OWLv2 without its text tower: boxes (n, 4), as shares of the padded square, and scores of an image."""

    def __init__(self, folder: WeightsFolder, device: torch.device, dtype: str) -> None:
        from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor

        try:
            processor: Any = Owlv2ImageProcessor.from_pretrained(folder.path)
            config: Any = Owlv2Config(**folder.config)
            model: Any = Owlv2ForObjectDetection(config)
            del model.owlv2.text_model, model.owlv2.text_projection
            expected = model.state_dict()
            # Files of older versions also hold buffers, which are computed here.
            tensors = {name: tensor for name, tensor in folder.tensors().items() if name in expected}
            check_tensors(expected, tensors)
            model.load_state_dict(tensors)
        except Exception as error:  # a damaged config can raise anything
            raise WeightsError(f"detector {folder.name!r} cannot be built of its files: {error}") from error
        self.config = {"model": folder.config, "processor": processor.to_dict()}
        model.owlv2.to(DTYPES[dtype])
        model.layer_norm.to(DTYPES[dtype])
        self._model, self._processor = model.to(device).eval(), processor
        self._device, self._dtype = device, DTYPES[dtype]
        self._lock = threading.Lock()

    def __call__(self, image: Image.Image) -> tuple[Any, Any]:
        model = self._model
        pixels = self._processor(images=image, return_tensors="pt")["pixel_values"]
        with self._lock, torch.inference_mode(), exact_float32(self._device):
            grid = model.image_embedder(on_device(pixels.to(self._dtype), self._device))[0].float()
            features = grid.flatten(1, 2)
            scores = model.objectness_predictor(features)[0].sigmoid()
            centre, side = model.box_predictor(features, grid)[0].split(2, dim=-1)
            corners = torch.cat([centre - side / 2, centre + side / 2], dim=-1)
        return corners.cpu().numpy(), scores.cpu().numpy()


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
