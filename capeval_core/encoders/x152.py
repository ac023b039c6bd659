"""The ResNeXt-152-32x8d FPN detector of 12-in-1: image -> boxes, features and confidences.

Lu, Goswami, Rohrbach, Parikh, Lee: 12-in-1: Multi-Task Vision and Language Representation Learning, CVPR
2020, https://arxiv.org/abs/1912.02315. ViLBERT of 12-in-1 takes its features of 2048 numbers, as the
`extract_features.py` of its release makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.detector import (
    COUNTS,
    FEW,
    SIDES,
    WIDTHS,
    Detector,
    array_of,
    arrays_by_one_copy,
    blue_first,
    overlap_problems,
    shared_problems,
    size_of,
    size_problems,
)
from capeval_core.encoders.x152_model import PIXEL, Proposals, X152Model, build
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.visual import InputImage
from capeval_core.models.architecture import is_number, shown
from capeval_core.models.canary import canary_images
from capeval_core.models.copies import on_device
from capeval_core.models.device import exact
from capeval_core.regions.features import BoxVisual, pack
from capeval_core.regions.suppression import Suppression, class_confidences
from capeval_core.weights.x152 import EXPANSION, X152Conversion

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

MULTIPLE = 32
"""Pixels: the sides of the network's input are multiples of it, by a margin of zeros."""
_CANARY_BOXES = [[0.0, 0.0, 59.0, 49.0], [30.0, 20.0, 118.0, 88.0], [0.0, 0.0, 119.0, 89.0]]
_SIZES: dict[str, dict[str, range]] = {
    "architecture": {
        **dict.fromkeys(("stem_width", "width", "groups", "out_width"), WIDTHS),
        **dict.fromkeys(("pyramid_width", "feature_width"), WIDTHS),
        "classes": COUNTS,
        "anchors": FEW,
    },
    "preprocessing": dict.fromkeys(("shortest_side", "longest_side"), SIDES),
    "proposals": {"before_nms": COUNTS, "after_nms": range(1, 10_001), "most": range(1, 10_001)},
    "detections": {"most": FEW},
}
"""Whole numbers of a config, and their bounds."""
_OTHERS = {
    "architecture": {"layers"},
    "preprocessing": {"mean"},
    "proposals": {"overlap", "delta_weights"},
    "detections": {"overlap", "threshold"},
}
"""The other settings of each part."""


def _config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    if problems := size_problems(config, _SIZES, _OTHERS):
        return problems
    shape, detections = config["architecture"], config["detections"]
    problems = shared_problems(config, ("proposals",)) + overlap_problems(config, "detections")
    threshold = detections.get("threshold")
    if not is_number(threshold, -1, 1) or threshold < 0:
        problems.append(f"detections.threshold is {shown(threshold)}, expected a number from 0 to 1")
    planes = shape["groups"] * (shape["out_width"] // EXPANSION)
    if shape["width"] % shape["groups"] or shape["out_width"] % EXPANSION or shape["width"] * 64 % planes:
        problems.append(
            f"architecture.width is {shape['width']}, which {shape['groups']} groups of blocks with "
            f"out_width {shape['out_width']} cannot share"
        )
    return problems


@dataclass(frozen=True)
class Detections:
    """What the detector keeps of an image, the most confident first.

    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels of the image. They are proposals without regression, and
        may end up to 31 pixels of the resized image behind its right or lower edge, as released ones do.
    features: (n, d) float32.
    scores: (n,) float32, from 0 to 1; 0 where a box survived in no class.
    classes: (n,) int64, the likeliest class, from 0; background is none.
    class_scores: (n, 1 + classes) float32 probabilities, background first.
    size: width and height of the image.
    """

    boxes: Floats
    features: Floats
    scores: Floats
    classes: Integers
    class_scores: Floats
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.boxes)


class X152(Detector, tags=["object-detection", "faster-rcnn", "resnext"]):
    """The detector behind ViLBERT's features, with the numbers of the script that released them.

    Each image runs alone, so its margin is that of its own size. Images with transparency, on which the
    script fails, are read in RGB. In bfloat16 and float16 only the convolutions of ResNeXt are rounded.

    Arguments and errors are those of `CheckedModel`.

    >>> sizes = {"layers": [3, 8, 36, 3], "width": 256, "groups": 32, "pyramid_width": 512}
    >>> X152.describe({"architecture": {**sizes, "feature_width": 2048, "classes": 1600}})
    'Faster R-CNN, ResNeXt 3-8-36-3, 32x8d, FPN 512; 1600 classes; 2048 dimensions'
    """

    kind = "x152"
    only_selection: ClassVar[str] = "all"
    """What this rule is called where features are stored: there is no other one to choose."""
    Conversion = X152Conversion
    modules = staticmethod(build)
    config_problems = staticmethod(_config_problems)

    def prepare(self) -> None:
        self._mean = np.array(self.config["preprocessing"]["mean"], dtype=np.float32)

    @property
    def network(self) -> X152Model:
        """The model."""
        model: Any = self.model
        network: X152Model = model
        return network

    @property
    def dimension(self) -> int:
        """Numbers of a feature."""
        width: int = self.config["architecture"]["feature_width"]
        return width

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        shape = config["architecture"]
        return (
            f"Faster R-CNN, ResNeXt {'-'.join(map(str, shape['layers']))}, "
            f"{shape['groups']}x{shape['width'] // shape['groups']}d, FPN {shape['pyramid_width']}; "
            f"{shape['classes']} classes; {shape['feature_width']} dimensions"
        )

    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images with their features, the most confident first, in order.

        Images are read and resized ahead of the network, equal ones run once, and what was found is kept in
        the cache. One that cannot be read costs its row: the result has an error instead of boxes. How many
        boxes are kept is in the config, 100 in the release.

        Args:
            images: any number.
            cache: where features are looked up and kept.
            batch_size: of no effect: images are of different sizes and run one at a time.

        Raises:
            MemoryError: an image does not fit into memory.
        """
        return self.boxes_of_each(
            images,
            lambda image: (*self.preprocess(image), image.size),
            lambda prepared: self._packed(*prepared),
            cache,
        )

    def detect(self, image: Image.Image) -> Detections:
        """What is kept of one image; as for `encode_boxes`, with classes."""
        pixels, scale = self.preprocess(image)
        return self.select(self.propose(pixels), scale, image.size)

    def preprocess(self, image: Image.Image) -> tuple[Tensor, float]:
        """(3, h, w) float32, blue, green, red, less the mean, resized, with a margin; and the scale."""
        pixels = self.config["preprocessing"]
        scale = scale_of(image.size, pixels["shortest_side"], pixels["longest_side"])
        resized = resized_by(blue_first(image).astype(np.float32) - self._mean, scale)
        return with_margin(torch.from_numpy(resized.transpose(2, 0, 1))), scale

    @exact
    def propose(self, pixels: Tensor) -> Proposals:
        """The proposals of one image (3, h, w), in pixels of it with its margin."""
        found: Proposals = self.model(on_device(pixels[None], self.device))
        return found

    @torch.inference_mode()
    def select(self, found: Proposals, scale: float, size: tuple[int, int]) -> Detections:
        """The most confident proposals of an image.

        The confidence of a proposal is its best score among the classes whose suppression it survives. Of
        equal confidences the first proposal comes first.

        Args:
            found: the proposals.
            scale: pixels that they were found in per pixel of the image.
            size: (width, height) of the image.
        """
        settings = self.config["detections"]
        boxes, probabilities = arrays_by_one_copy(found.boxes, found.class_logits.softmax(dim=1))
        boxes, of_things = boxes / np.float32(scale), probabilities[:, 1:]
        rule = Suppression(settings["overlap"], PIXEL, at_bound=True)
        confidences = class_confidences(boxes, of_things, rule, settings["threshold"])
        kept = np.argsort(-confidences, kind="stable")[: settings["most"]]
        return Detections(
            boxes=boxes[kept],
            features=array_of(found.features[on_device(torch.from_numpy(kept), found.features.device)]),
            scores=confidences[kept],
            classes=of_things[kept].argmax(axis=1),
            class_scores=probabilities[kept],
            size=size,
        )

    def _packed(self, pixels: Tensor, scale: float, size: tuple[int, int]) -> Floats:
        found = self.select(self.propose(pixels), scale, size)
        return pack(BoxFeatures(found.boxes, found.features, size, found.scores))

    @exact
    def canary(self) -> Floats:
        """(8, 3) cosines in a drawn image at its own size: of each level's cells, and of three boxes."""
        network = self.network
        pixels = torch.from_numpy(blue_first(canary_images()[0]).astype(np.float32) - self._mean)
        maps = network.feature_maps(with_margin(pixels.permute(2, 0, 1))[None].to(self.device))
        around = [torch.cat(network.head(map_), dim=1)[0].flatten(1).T for map_ in maps]
        features = network.box_features(maps, torch.tensor(_CANARY_BOXES, device=self.device))
        hidden = functional.relu(network.fc7(features))
        rows = [cells[:: len(cells) // 3][:3] for cells in around]
        rows += [features, hidden, network.cls_score(hidden)]
        pairs = [functional.cosine_similarity(row, row.roll(1, 0)) for row in rows]
        return array_of(torch.stack(pairs))


def scale_of(size: tuple[int, int], shortest: int, longest: int) -> float:
    """Pixels of the network's input per pixel of an image: of its shorter side, unless the longer one exceeds
    its own.

    >>> scale_of((200, 400), 800, 1333), scale_of((100, 600), 800, 1200)
    (3.3325, 2.0)
    """
    scale = shortest / min(size)
    return longest / max(size) if round(scale * max(size)) > longest else scale


def resized_by(pixels: Floats, scale: float) -> Floats:
    """Pixels (h, w, c) resized by one scale for both axes: linear, without antialiasing.

    As OpenCV's `resize` with INTER_LINEAR and a scale: a pixel of the result lies at its centre divided by
    the scale itself, not by the ratio of the rounded sizes. A side keeps at least one pixel.

    >>> resized_by(np.float32([[[0], [4], [8]]]), 2.0)[0, :, 0].tolist()
    [0.0, 1.0, 3.0, 5.0, 7.0, 8.0]
    """
    (top, bottom, lower), (left, right, further) = (_neighbours(n, scale) for n in pixels.shape[:2])
    further, lower = further[:, None], lower[:, None, None]
    wide = pixels[:, left] * (1 - further) + pixels[:, right] * further
    return np.asarray(wide[top] * (1 - lower) + wide[bottom] * lower, dtype=np.float32)


def _neighbours(n: int, scale: float) -> tuple[Integers, Integers, Floats]:
    """Of each resized pixel along a side of n pixels: the two around it, and the weight of the second."""
    places = (np.arange(max(1, round(n * scale))) + 0.5) / scale - 0.5
    places = np.clip(places.astype(np.float32), 0, n - 1)
    first = places.astype(np.int64)
    return first, np.minimum(first + 1, n - 1), places - first.astype(np.float32)


def with_margin(pixels: Tensor) -> Tensor:
    """Pixels (3, h, w) with zeros at the right and the lower edge, up to multiples of 32."""
    height, width = size_of(pixels)
    return functional.pad(pixels, (0, -width % MULTIPLE, 0, -height % MULTIPLE))
