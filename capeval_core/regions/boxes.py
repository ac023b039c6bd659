"""Boxes around objects: OWLv2's of any class, those of MobileSAMv2's detector, and rectangles as regions.

Minderer, Gritsenko, Houlsby: Scaling Open-Vocabulary Object Detection, NeurIPS 2023,
https://arxiv.org/abs/2306.09683; MobileSAMv2: arXiv:2312.09579
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.inputs.images import InputImage
from capeval_core.models.device import DTYPES, exact_float32, on_device, resolve_device
from capeval_core.models.model import OpenedLater, check_tensors, opened_once
from capeval_core.regions import rle
from capeval_core.regions.regions import WITHOUT, Regions, RegionSource
from capeval_core.regions.suppression import clipped
from capeval_core.weights.folder import WeightsError, WeightsFolder, file_checksum, open_foreign_weights
from capeval_core.weights.lock import hold

DETECTOR = "google/owlv2-base-patch16-ensemble"  # Apache 2.0, 0.6 GB
# Least objectness of a box, which is trained to predict the box's class score; the class score from which
# transformers takes a box of OWLv2 for a detection.
THRESHOLD = 0.1
MAX_BOXES = 300  # of an image
OVERLAP = 0.9  # intersection over union above which the worse of two boxes is dropped
Floats = NDArray[np.float32]


class Boxes(NamedTuple):
    """corners: (n, 4) float32, x0, y0, x1, y1 in pixels of the image. scores: (n,) float32, best first."""

    corners: Floats
    scores: Floats


class BoxSource(ABC):
    """A detector: an image in RGB -> boxes clipped to it, best first, or none; else as `RegionSource`."""

    name: str
    fingerprint: str

    @abstractmethod
    def find(self, decoded: Image.Image) -> Boxes: ...


def suppress_overlaps(corners: Floats, scores: Floats, overlap: float, max_boxes: int) -> Boxes:
    """The best of boxes (n, 4): the worse of two is dropped if their IoU is above `overlap`."""
    from torchvision.ops import nms

    order = np.argsort(-scores, kind="stable")  # torchvision's own sort may swap equal scores
    best_corners = corners[order]
    best_scores = scores[order]
    survivors = nms(torch.from_numpy(best_corners), torch.from_numpy(best_scores), overlap)
    rows = survivors[:max_boxes].numpy()
    return Boxes(best_corners[rows], best_scores[rows])


class Owlv2Boxes(BoxSource):
    """The boxes of OWLv2 with the highest objectness (at least `threshold`), of any class, without a text.

    The vision tower runs in `dtype`, the heads of the boxes always in float32.
    """

    def __init__(
        self,
        weights: str | PathLike[str] = DETECTOR,
        *,
        threshold: float = THRESHOLD,
        device: str | None = None,
        dtype: str = "float32",
        later: bool = False,
    ) -> None:
        folder = open_foreign_weights(weights, "detector", "owlv2", default=DETECTOR, without=WITHOUT)
        hold(folder.name, folder.revision, folder.tensor_file)
        self._threshold = threshold
        resolved = resolve_device(device)
        key = ("owlv2", str(folder.path), folder.checksum, str(resolved), dtype)
        processor = _read_processor(folder)
        self._detector = OpenedLater(
            lambda: opened_once(key, lambda: _Detector(folder, processor, resolved, dtype))
        )
        if not later:
            _ = self._detector.model
        config = {"model": folder.config, "processor": processor.to_dict()}
        settings = [1, folder.checksum, config, MAX_BOXES, OVERLAP, threshold, dtype]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        self.fingerprint = f"owlv2-{digest}"
        self.name = folder.label(digest)

    def find(self, decoded: Image.Image) -> Boxes:
        corners, scores = self._detector.model(decoded)
        size = (decoded.height, decoded.width)
        corners = clipped(corners * np.float32(max(size)), size)  # of the square that the image was padded to
        # Boxes of the padding alone are empty once they are clipped.
        usable = (corners[:, 2:] > corners[:, :2]).all(axis=1) & (scores >= self._threshold)
        return suppress_overlaps(corners[usable], scores[usable], OVERLAP, MAX_BOXES)


def _read_processor(folder: WeightsFolder) -> Any:
    """The preprocessing of a detector, by its own file."""
    from transformers import Owlv2ImageProcessor

    try:
        return Owlv2ImageProcessor.from_pretrained(folder.path)
    except Exception as error:  # a damaged config can raise anything
        raise WeightsError(f"detector {folder.name!r} cannot be built of its files: {error}") from error


class _Detector:
    """OWLv2 without its text tower: boxes (n, 4), as shares of the padded square, and scores of an image."""

    def __init__(self, folder: WeightsFolder, processor: Any, device: torch.device, dtype: str) -> None:
        from transformers import Owlv2Config, Owlv2ForObjectDetection

        try:
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
        # The heads of boxes stay in float32: 16 bits would move corners by pixels.
        model.owlv2.to(DTYPES[dtype])
        model.layer_norm.to(DTYPES[dtype])
        self._model = model.to(device).eval()
        self._processor = processor
        self._device = device
        self._dtype = DTYPES[dtype]
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


# Of MobileSAMv2's script.
_LONGEST_SIDE = 1024  # of the network's input, in pixels
_MULTIPLE = 32  # of which sides are
_GREY = 114  # level of the margin
_LEAST_SCORE = 0.4
_SNAP = 20  # pixels from the input's edge within which a box ends at it
_WEIGHT_SUM = 1 << 11  # OpenCV's weights for interpolation are integers, of this sum


class ObjectAwareBoxes(BoxSource):
    """MobileSAMv2's object detector, with its script's treatment of images and output.

    The released network is a YOLOv8 in a pickle that needs AGPL-licensed code; neither is part of this
    library. network: (1, 3, h, w) float32 in [0, 1], blue first, on `device` -> (n, 5): centre x, centre y,
    width, height in pixels of the input, and score. fingerprint: of its weights.
    """

    name = "object-aware"

    def __init__(
        self, network: Callable[[Tensor], Tensor], *, fingerprint: str, device: str | None = None
    ) -> None:
        self._network = network
        self._device = resolve_device(device)
        self._lock = threading.Lock()
        self.fingerprint = f"object-aware-1-{fingerprint}"

    @classmethod
    def from_ultralytics(
        cls,
        weights: str | PathLike[str],
        *,
        architecture: str = "yolov8x-seg.yaml",
        device: str | None = None,
    ) -> ObjectAwareBoxes:
        """The released detector, run by the package `ultralytics` (AGPL-3.0), which the user installs.

        Args:
            weights: `.safetensors` of its tensors. The release is a pickle, which is never opened here; if
                you trust it, this writes its tensors:
                `python -c "from ultralytics import YOLO; from safetensors.torch import save_file;
                save_file(YOLO('ObjectAwareModel.pt').model.float().state_dict(), 'boxes.safetensors')"`
            architecture: a model of `ultralytics` with one class.
            device: torch device name; None: CUDA where there is a GPU.
        """
        try:
            from ultralytics.nn.tasks import SegmentationModel
        except ImportError as error:
            raise WeightsError(
                "MobileSAMv2's detector needs the package ultralytics, whose licence is the AGPL-3.0: "
                "`pip install ultralytics`, or take the boxes of OWLv2 (regions='objects')"
            ) from error
        from safetensors.torch import load_file

        path = Path(weights)
        try:
            model: Any = SegmentationModel(architecture, nc=1, verbose=False)
            model.load_state_dict(load_file(path))
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise WeightsError(f"{path} does not hold a {architecture} of one class: {reason}") from error
        model.eval().to(resolve_device(device))

        def network(pixels: Tensor) -> Tensor:
            output = model(pixels)
            while not isinstance(output, Tensor):  # nested differently by version, but always first
                output = output[0]
            return output[0, :5].T

        return cls(network, fingerprint=file_checksum(path)[:16], device=device)

    def find(self, decoded: Image.Image) -> Boxes:
        pixels = torch.from_numpy(letterbox(decoded))[None].to(self._device)
        with self._lock, torch.inference_mode(), exact_float32(self._device):
            raw = self._network(pixels).float().cpu().numpy()
        return read_output(raw, (pixels.shape[2], pixels.shape[3]), (decoded.height, decoded.width))


def letterbox(image: Image.Image) -> Floats:
    """The network's input (3, h, w) in [0, 1], blue first: longer side 1024, grey up to multiples of 32."""
    gain = _LONGEST_SIDE / max(image.size)
    size = round(image.height * gain), round(image.width * gain)
    pixels = _resized(np.asarray(image.convert("RGB")), size)
    margins = []
    for side in size:
        half = (_LONGEST_SIDE - side) % _MULTIPLE / 2
        margins.append((round(half - 0.1), round(half + 0.1)))  # an odd pixel goes behind, as there
    padded = np.pad(pixels, (*margins, (0, 0)), constant_values=_GREY)
    planes = np.ascontiguousarray(padded[..., ::-1].transpose(2, 0, 1), dtype=np.float32)
    return planes / np.float32(255)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear without antialiasing, in integers as OpenCV computes it for bytes."""
    if pixels.shape[:2] == size:
        return pixels
    above, below, below_weight = _taps(pixels.shape[0], size[0])
    first, second, second_weight = _taps(pixels.shape[1], size[1])
    wide = pixels.astype(np.int64)
    # Shifts by 4, 16 and 2 bits, with 2 added before the last: OpenCV's own order of roundings.
    across = second_weight[None, :, None]
    rows = wide[:, first] * (_WEIGHT_SUM - across) + wide[:, second] * across
    rows >>= 4
    down = below_weight[:, None, None]
    total = ((rows[above] * (_WEIGHT_SUM - down)) >> 16) + ((rows[below] * down) >> 16)
    resized: NDArray[np.uint8] = np.clip((total + 2) >> 2, 0, 255).astype(np.uint8)
    return resized


def _taps(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The two neighbours of each new pixel, and the integer weight of the second."""
    position = np.float32((np.arange(new) + 0.5) * (old / new) - 0.5)
    first = np.floor(position).astype(np.int64)
    weight = np.rint((position - first) * np.float32(_WEIGHT_SUM)).astype(np.int64)
    return np.clip(first, 0, old - 1), np.clip(first + 1, 0, old - 1), weight


def read_output(raw: Floats, network: tuple[int, int], image: tuple[int, int]) -> Boxes:
    """Boxes of an image from the network's output (n, 5); `network` and `image` are sizes (height, width)."""
    raw = np.asarray(raw, dtype=np.float32)
    likely = raw[raw[:, 4] > _LEAST_SCORE]
    # Not stable, as in the original: it decides which of several boxes with equal scores is kept.
    likely = likely[torch.argsort(torch.from_numpy(likely[:, 4]), descending=True).numpy()]
    half = likely[:, 2:4] / 2
    corners = np.concatenate([likely[:, :2] - half, likely[:, :2] + half], axis=1)
    boxes = suppress_overlaps(corners, likely[:, 4], OVERLAP, MAX_BOXES)
    ends = np.array([network[1], network[0]], dtype=np.float32)
    low = boxes.corners[:, :2]
    high = boxes.corners[:, 2:]
    low = np.where(low < _SNAP, 0, low)
    high = np.where(high > ends - _SNAP, ends, high)
    # The margins of `letterbox` again, by the formula of the original.
    gain = min(network[0] / image[0], network[1] / image[1])
    left_margin = round((network[1] - image[1] * gain) / 2 - 0.1)
    top_margin = round((network[0] - image[0] * gain) / 2 - 0.1)
    margin = np.array([left_margin, top_margin], dtype=np.float32)
    corners = np.concatenate([low - margin, high - margin], axis=1) / np.float32(gain)
    return Boxes(clipped(corners.astype(np.float32), image), boxes.scores)


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
