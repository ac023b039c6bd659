"""SAM's own "segment everything": a grid of points, and what is left of their masks after filters."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.decoding import resized
from capeval_core.inputs.visual import InputImage
from capeval_core.models.device import exact_float32
from capeval_core.regions.regions import Regions
from capeval_core.regions.sam import Sam
from capeval_core.regions.source import RegionSource

_REVISION = 1
_LOGITS = 1 << 26
"""Logits at the size of the image that are held at a time."""


class EverythingRegions(RegionSource):
    """What SAM finds at a grid of points, by transformers' `mask-generation` pipeline.

    An image that is larger than SAM's input is scaled down to it first, and masks up again: SAM sees no
    more, and memory does not grow with the image. Much slower than `ObjectRegions`.

    Args:
        sam: the segmenter.
        points: of the grid, along each side.
        quality: predicted intersection over union that a mask needs.
        stability: share of a mask that stays when its threshold is moved by 1.
        name: how the signature calls the segmenter.
    """

    def __init__(
        self,
        sam: Sam,
        *,
        points: int = 32,
        quality: float = 0.88,
        stability: float = 0.95,
        name: str = "sam",
    ) -> None:
        self.sam = sam
        self._settings = {
            "points_per_crop": points,
            "pred_iou_thresh": quality,
            "stability_score_thresh": stability,
        }
        self._pipeline = _pipeline(sam)
        self._lock = threading.Lock()
        self.name = f"everything:{name}"
        settings = f"{points}-{quality:g}-{stability:g}"
        self.fingerprint = f"everything-{_REVISION}-{settings}-{sam.fingerprint}-{sam.dtype}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        size = (decoded.height, decoded.width)
        small = decoded
        if max(size) > self.sam.image_size:
            height, width = self.sam.resized(size)
            small = resized(decoded, (max(width, 1), max(height, 1)), Image.Resampling.BILINEAR)
        at_once = int(np.clip(_LOGITS // (3 * small.width * small.height), 1, 64))
        with self._lock, torch.inference_mode(), exact_float32(self.sam.device):
            found = self._pipeline(small, points_per_batch=at_once, **self._settings)
        masks = (_enlarged(np.asarray(mask, dtype=np.bool_), size) for mask in found["masks"])
        return Regions.of(masks, np.asarray(found["scores"].cpu(), dtype=np.float32), size=size)


def _enlarged(mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    if mask.shape == size:
        return mask
    large = Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(large, dtype=np.bool_)


def _pipeline(sam: Sam) -> Any:
    import transformers

    # As the original resizes; the default of transformers 5 differs by a level in some pixels.
    kind = "SamImageProcessorPil" if hasattr(transformers, "SamImageProcessorPil") else "SamImageProcessor"
    pipeline: Any = transformers.MaskGenerationPipeline
    side = sam.image_size
    mean, std = (np.array(sam.config["preprocessing"][name]) / 255 for name in ("mean", "std"))
    processor = getattr(transformers, kind)(
        size={"longest_edge": side},
        pad_size={"height": side, "width": side},
        image_mean=mean.tolist(),
        image_std=std.tolist(),
    )
    return pipeline(model=sam.model, image_processor=processor, device=sam.device)
