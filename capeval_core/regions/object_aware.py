"""MobileSAMv2's object detector: the steps of its script before and after the network.

The released network is a YOLOv8 in a pickle that needs AGPL-licensed code; neither is part of this library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.models.device import exact_float32, numbered_device
from capeval_core.regions.boxes import Boxes, BoxSource, suppress_overlaps
from capeval_core.regions.suppression import clipped
from capeval_core.weights.folder import WeightsError, file_checksum

Floats = NDArray[np.float32]

_LONGEST = 1024
_MULTIPLE = 32
_GREY = 114
_SCORE = 0.4
_OVERLAP = 0.9
_MAX_BOXES = 300
_SNAP = 20
_ONE = 1 << 11  # OpenCV's weights for interpolation are integers, of this sum


class ObjectAwareBoxes(BoxSource):
    """MobileSAMv2's object detector, with its script's treatment of images and output.

    network: (1, 3, h, w) float32 in [0, 1], blue first, on `device` -> (n, 5): centre x, centre y, width,
    height in pixels of the input, and score. fingerprint: of its weights.
    """

    name = "object-aware"

    def __init__(
        self, network: Callable[[Tensor], Tensor], *, fingerprint: str, device: str | None = None
    ) -> None:
        self._network = network
        self._device = numbered_device(device)
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
        model.eval().to(numbered_device(device))

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
    gain = _LONGEST / max(image.size)
    size = round(image.height * gain), round(image.width * gain)
    pixels = _resized(np.asarray(image.convert("RGB")), size)
    halves = [(_LONGEST - side) % _MULTIPLE / 2 for side in size]
    margins = [(round(half - 0.1), round(half + 0.1)) for half in halves]
    padded = np.pad(pixels, (*margins, (0, 0)), constant_values=_GREY)
    planes = np.ascontiguousarray(padded[..., ::-1].transpose(2, 0, 1), dtype=np.float32)
    return planes / np.float32(255)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear without antialiasing, in integers as OpenCV computes it for bytes."""
    if pixels.shape[:2] == size:
        return pixels
    (above, below, down), (left, right, across) = (
        _taps(old, new) for old, new in zip(pixels.shape[:2], size, strict=True)
    )
    wide = pixels.astype(np.int64)
    rows = wide[:, left] * (_ONE - across)[None, :, None] + wide[:, right] * across[None, :, None]
    rows >>= 4
    down = down[:, None, None]
    total = ((rows[above] * (_ONE - down)) >> 16) + ((rows[below] * down) >> 16)
    resized: NDArray[np.uint8] = np.clip((total + 2) >> 2, 0, 255).astype(np.uint8)
    return resized


def _taps(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The two neighbours of each new pixel, and the integer weight of the second."""
    position = np.float32((np.arange(new) + 0.5) * (old / new) - 0.5)
    first = np.floor(position).astype(np.int64)
    weight = np.rint((position - first) * np.float32(_ONE)).astype(np.int64)
    return np.clip(first, 0, old - 1), np.clip(first + 1, 0, old - 1), weight


def read_output(raw: Floats, network: tuple[int, int], image: tuple[int, int]) -> Boxes:
    """Boxes of an image from the network's output (n, 5); `network` and `image` are sizes (height, width)."""
    raw = np.asarray(raw, dtype=np.float32)
    likely = raw[raw[:, 4] > _SCORE]
    # Not stable, as in the original: it decides which of several boxes with equal scores is kept.
    likely = likely[torch.argsort(torch.from_numpy(likely[:, 4]), descending=True).numpy()]
    half = likely[:, 2:4] / 2
    corners = np.concatenate([likely[:, :2] - half, likely[:, :2] + half], axis=1)
    boxes = suppress_overlaps(corners, likely[:, 4], _OVERLAP, _MAX_BOXES)
    ends = np.array([network[1], network[0]], dtype=np.float32)
    low, high = boxes.corners[:, :2], boxes.corners[:, 2:]
    low = np.where(low < _SNAP, 0, low)
    high = np.where(high > ends - _SNAP, ends, high)
    gain = min(network[0] / image[0], network[1] / image[1])
    margin = np.array([round((network[i] - image[i] * gain) / 2 - 0.1) for i in (1, 0)], dtype=np.float32)
    corners = np.concatenate([low - margin, high - margin], axis=1) / np.float32(gain)
    return Boxes(clipped(corners.astype(np.float32), image), boxes.scores)
