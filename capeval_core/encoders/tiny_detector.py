"""Boxes of drawn scenes with features: patches of one colour, and the cells of a grid, through a small net.

For the embedded small models, in the place of a detector that was trained on photographs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from capeval_core.encoders.detector import BoxEncoder
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage, resized
from capeval_core.models.config import Width, read
from capeval_core.models.device import DTYPES, exact, on_device, on_host
from capeval_core.models.model import canary_images
from capeval_core.ragged import Floats
from capeval_core.regions.colour_patches import ColourRegions
from capeval_core.regions.features import boxes_kept
from capeval_core.regions.suppression import clipped
from capeval_core.weights.conversion import Conversion

Bytes = NDArray[np.uint8]

_MOST_BOXES = 36
_GRID = 3  # cells of the grid per side; the whole image is a box too, so that every image has ten at least
_MARGIN = 0.1  # what a crop shows around its box, as a share of the box's sides
_PADDING = 2  # pixels around a patch: its soft edge is not of its colour


@dataclass(frozen=True)
class _SceneSizes:
    image_size: Annotated[int, range(8, 129)]
    width: Width
    region_size: Width


@dataclass(frozen=True)
class _SceneSettings:
    architecture: _SceneSizes


class _SceneNet(nn.Module):
    """Crops to features: three convolutions and a linear layer, each with a ReLU; a head for confidence."""

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = read(_SceneSizes, architecture)
        width = sizes.width
        size = sizes.region_size
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(3, width, 3, padding=1),
                nn.Conv2d(width, 2 * width, 3, padding=1),
                nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            ]
        )
        # Three poolings, each of which halves a side.
        self.feature = nn.Linear(4 * width * (sizes.image_size // 8) ** 2, size)
        self.whole_object = nn.Linear(size, 1)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, region_size) and confidence logits (n,) of crops (n, 3, side, side) in [-1, 1]."""
        states = crops
        for convolution in self.convolutions:
            states = nn.functional.max_pool2d(torch.relu(convolution(states)), 2)
        features = torch.relu(self.feature(states.flatten(1)))
        return features, self.whole_object(features)[:, 0]


class SceneRegionEncoder(BoxEncoder, tags=["image-feature-extraction"]):
    """Boxes of a drawn scene, the most confident first, with features of a small convolutional network.
    Confidence is the network's probability that a box holds one whole object. Boxes more confident than 0.2
    are kept, 10 to 36 of them, so that features give the same score at once and from files. It knows nothing
    but scenes of coloured shapes; boxes of a photograph mean little."""

    kind = "scene_regions"
    described = "colour patches and grid cells, {image_size} pixels, box features of {region_size} numbers"
    Settings = _SceneSettings
    Network = _SceneNet
    depends_on = ("architecture",)
    Conversion = Conversion
    rule = "confident"

    model: _SceneNet

    def prepare(self) -> None:
        self.region_size: int = self.settings.architecture.region_size

    def preprocess(self, image: Image.Image) -> tuple[Floats, Bytes]:
        """The boxes of an image (n, 4), and what they show, (n, 3, side, side), some margin included."""
        rgb = image.convert("RGB")
        boxes = _scene_boxes(rgb)
        return boxes, _cut(rgb, boxes, self.settings.architecture.image_size)

    def find(self, prepared: tuple[Floats, Bytes], size: tuple[int, int]) -> BoxFeatures:
        boxes, crops = prepared
        features, scores = self._run(crops)
        # Stable: equal confidences, as of equal crops, must not change places between machines.
        order = np.argsort(-scores, kind="stable")
        order = order[: boxes_kept(scores[order])]
        return BoxFeatures(boxes[order], features[order], size, scores[order])

    @exact
    def _run(self, crops: Bytes) -> tuple[Floats, Floats]:
        """Features (n, region_size) and confidences (n,) of crops."""
        scaled = on_device(crops, self.device).float() / 127.5 - 1
        features, logits = self.model(scaled.to(DTYPES[self.dtype]))
        # In 16 bits many confidences would be equal, or exactly 1.
        return on_host(features), on_host(torch.sigmoid(logits.float()))

    def canary(self) -> Floats:
        """(2, region_size + 1): the mean feature, of unit length, and the mean confidence of two images."""
        rows = []
        for image in canary_images():
            features, scores = self._run(self.preprocess(image)[1])
            mean = features.mean(axis=0)
            rows.append(np.append(mean / max(float(np.linalg.norm(mean)), 1e-6), scores.mean()))
        return np.stack(rows).astype(np.float32)


def _scene_boxes(image: Image.Image) -> Floats:
    """(n, 4) from 10 to 36: patches of one colour, the largest first, the whole image, a grid's cells."""
    regions = ColourRegions().find(InputImage.of(image))
    width, height = image.size
    # Room is left for the grid's cells and the whole image.
    largest = np.argsort(-regions.quality, kind="stable")[: _MOST_BOXES - _GRID * _GRID - 1]
    patches = regions.boxes[largest] + np.array([-_PADDING, -_PADDING, _PADDING, _PADDING])
    columns = np.linspace(0, width, _GRID + 1, dtype=np.float32)
    rows = np.linspace(0, height, _GRID + 1, dtype=np.float32)
    cells = []
    for row in range(_GRID):
        for column in range(_GRID):
            cells.append([columns[column], rows[row], columns[column + 1], rows[row + 1]])
    boxes = np.concatenate([patches, [[0, 0, width, height], *cells]]).astype(np.float32)
    return clipped(boxes, (height, width))


def _cut(image: Image.Image, boxes: Floats, side: int) -> NDArray[np.uint8]:
    """(n, 3, side, side): what an RGB image shows in each box and a tenth of its sides around it."""
    width, height = image.size
    crops = np.empty((len(boxes), side, side, 3), dtype=np.uint8)
    margins = np.maximum((boxes[:, 2:] - boxes[:, :2]) * _MARGIN, 1)
    left_top = np.floor(np.maximum(boxes[:, :2] - margins, 0)).astype(int)
    right_bottom = np.ceil(np.minimum(boxes[:, 2:] + margins, [width, height])).astype(int)
    right_bottom = np.maximum(right_bottom, left_top + 1)  # Pillow refuses to resize an empty crop
    for crop, start, end in zip(crops, left_top, right_bottom, strict=True):
        part = image.crop((*start.tolist(), *end.tolist()))
        crop[:] = np.asarray(resized(part, (side, side), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(crops.transpose(0, 3, 1, 2))
