"""Boxes of drawn scenes with features: patches of one colour, and the cells of a grid, through a small net.

For the embedded small models, in the place of a detector that was trained on photographs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.engine import Encoding, box_visuals
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage, resized
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import canary_images
from capeval_core.models.config import Width, read
from capeval_core.models.copies import on_device, on_host
from capeval_core.models.device import DTYPES, exact
from capeval_core.models.model import CheckedModel
from capeval_core.regions.colours import ColourRegions
from capeval_core.regions.features import BoxVisual, boxes_kept, pack
from capeval_core.weights.conversion import Conversion
from capeval_core.weights.folder import WeightsFolder

Floats = NDArray[np.float32]

MOST_BOXES = 36
GRID = 3
"""Cells of the grid per side; the whole image is a box too, so that every image has at least ten."""
_MARGIN = 0.1
"""What a crop shows around its box, as a share of the box's sides."""
_PADDING = 2
"""Pixels around a patch: its soft edge is not of its colour."""


@dataclass(frozen=True)
class SceneSizes:
    image_size: Annotated[int, range(8, 129)]
    width: Width
    region_size: Width


class SceneNet(nn.Module):
    """Crops to features: three convolutions and a linear layer, each with a ReLU; a head for confidence."""

    def __init__(self, sizes: SceneSizes) -> None:
        super().__init__()
        width, size = sizes.width, sizes.region_size
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inside, outside, 3, padding=1)
            for inside, outside in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.feature = nn.Linear(4 * width * (sizes.image_size // 8) ** 2, size)
        self.whole_object = nn.Linear(size, 1)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, region_size) and confidence logits (n,) of crops (n, 3, side, side) in [-1, 1]."""
        states = crops
        for convolution in self.convolutions:
            states = nn.functional.max_pool2d(torch.relu(convolution(states)), 2)
        features = torch.relu(self.feature(states.flatten(1)))
        return features, self.whole_object(features)[:, 0]


@dataclass(frozen=True)
class Crops:
    """Boxes of an image, (n, 4) float32 in pixels, and what they show, (n, 3, side, side) bytes."""

    size: tuple[int, int]
    boxes: Floats
    pixels: NDArray[np.uint8]


def scene_boxes(image: Image.Image) -> Floats:
    """(n, 4): patches of one colour, the largest first, then the whole image and the cells of a grid.

    From 10 to 36 boxes; x0, y0, x1, y1 in pixels.

    >>> from capeval_core.demo import demo_set
    >>> len(scene_boxes(Image.open(demo_set()[0].image)))
    13
    """
    regions = ColourRegions().find(InputImage.of(image))
    width, height = image.size
    largest = np.argsort(-regions.quality, kind="stable")[: MOST_BOXES - GRID * GRID - 1]
    patches = regions.boxes[largest].reshape(-1, 4) + np.array([-_PADDING, -_PADDING, _PADDING, _PADDING])
    columns, rows = (np.linspace(0, side, GRID + 1, dtype=np.float32) for side in (width, height))
    cells = [
        [columns[column], rows[row], columns[column + 1], rows[row + 1]]
        for row in range(GRID)
        for column in range(GRID)
    ]
    boxes = np.concatenate([patches, [[0, 0, width, height], *cells]]).astype(np.float32)
    clipped: Floats = np.clip(boxes, 0, np.array([width, height, width, height], dtype=np.float32))
    return clipped


class SceneRegionEncoder(CheckedModel, tags=["image-feature-extraction"]):
    """Boxes of a drawn scene, the most confident first, with features of a small convolutional network.

    Confidence is the network's probability that a box holds one whole object. Boxes more confident than 0.2
    are kept, 10 to 36 of them, so that features give the same score at once and from files. It knows nothing
    but scenes of coloured shapes; boxes of a photograph mean little.

    Arguments and errors are those of `CheckedModel`.
    """

    kind = "scene_regions"
    depends_on = ("architecture",)
    Conversion = Conversion

    model: SceneNet

    @staticmethod
    def modules(config: dict[str, Any]) -> SceneNet:
        return SceneNet(read(SceneSizes, config["architecture"]))

    def prepare(self) -> None:
        self._side: int = self.config["architecture"]["image_size"]
        self._automatic = BatchSize(32 if self.device.type == "cpu" else 256, automatic=True)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        read(SceneSizes, config.get("architecture"))
        return config

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> shape = {"image_size": 24, "width": 16, "region_size": 64}
        >>> SceneRegionEncoder.describe({"architecture": shape})
        'colour patches and grid cells, 24 pixels, box features of 64 numbers'
        """
        shape = config["architecture"]
        return (
            f"colour patches and grid cells, {shape['image_size']} pixels, box features of "
            f"{shape['region_size']} numbers"
        )

    @property
    def region_size(self) -> int:
        """Numbers of a box's feature."""
        return int(self.config["architecture"]["region_size"])

    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images with features, in order; an image that cannot be read has an error.

        >>> from capeval_core.demo import demo_set
        >>> encoder = SceneRegionEncoder.from_pretrained("tiny")
        >>> (found,) = encoder.encode_boxes([InputImage.of(demo_set()[0].image)])
        >>> found.load().features.shape
        (10, 64)
        """
        encoding = Encoding(
            size=self._automatic if batch_size is None else BatchSize(batch_size, automatic=False),
            keys=lambda content, _: (feature_key(self.fingerprint, self.dtype, "boxes", content.encode()),),
            prepare=self.crops,
            forward=self._forward,
        )
        return box_visuals(images, encoding, cache)

    def crops(self, image: Image.Image) -> Crops:
        """The boxes of an image and what they show, some margin included."""
        rgb = image.convert("RGB")
        boxes = scene_boxes(rgb)
        return Crops(rgb.size, boxes, cut(rgb, boxes, self._side))

    @exact
    def _run(self, prepared: Sequence[Crops]) -> tuple[Floats, Floats]:
        """Features (boxes, region_size) and confidences (boxes,) of all boxes of these images."""
        crops = torch.from_numpy(np.concatenate([each.pixels for each in prepared]))
        features, logits = self.model(scaled(on_device(crops, self.device)).to(DTYPES[self.dtype]))
        return on_host(features), on_host(torch.sigmoid(logits.float()))

    def _forward(self, prepared: Sequence[Crops]) -> list[Floats]:
        """Packed box features of each image."""
        features, scores = self._run(prepared)
        packed, start = [], 0
        for each in prepared:
            own = slice(start, start + len(each.boxes))
            order = np.argsort(-scores[own], kind="stable")
            order = order[: boxes_kept(scores[own][order])]
            boxes = BoxFeatures(each.boxes[order], features[own][order], each.size, scores[own][order])
            packed.append(pack(boxes))
            start = own.stop
        return packed

    def canary(self) -> Floats:
        """(2, region_size + 1): the mean feature, of unit length, and the mean confidence of two images."""
        rows = []
        for image in canary_images():
            features, scores = self._run([self.crops(image)])
            mean = features.mean(axis=0)
            rows.append(np.append(mean / max(float(np.linalg.norm(mean)), 1e-6), scores.mean()))
        return np.stack(rows).astype(np.float32)


def cut(image: Image.Image, boxes: Floats, side: int) -> NDArray[np.uint8]:
    """(n, 3, side, side): what an RGB image shows in each box and a tenth of its sides around it."""
    width, height = image.size
    crops = np.empty((len(boxes), side, side, 3), dtype=np.uint8)
    margins = np.maximum((boxes[:, 2:] - boxes[:, :2]) * _MARGIN, 1)
    left_top = np.floor(np.maximum(boxes[:, :2] - margins, 0)).astype(int)
    right_bottom = np.ceil(np.minimum(boxes[:, 2:] + margins, [width, height])).astype(int)
    for crop, start, end in zip(crops, left_top, np.maximum(right_bottom, left_top + 1), strict=True):
        part = image.crop((*start.tolist(), *end.tolist()))
        crop[:] = np.asarray(resized(part, (side, side), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(crops.transpose(0, 3, 1, 2))


def scaled(pixels: Tensor) -> Tensor:
    """Bytes as float32 in [-1, 1]."""
    return pixels.float() / 127.5 - 1
