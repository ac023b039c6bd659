"""Faster R-CNN of bottom-up attention: image -> boxes, features and confidences.

Anderson et al.: Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR
2018, https://arxiv.org/abs/1707.07998. Networks on regions, such as LXMERT and UNITER, take its features of
2048 numbers; its PyTorch release is the one of LXMERT (Tan, Bansal, EMNLP 2019,
https://arxiv.org/abs/1908.07490).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.detector import Detector, array_of, arrays_by_one_copy, blue_first, size_of
from capeval_core.encoders.faster_rcnn_model import (
    FasterRcnnModel,
    Proposals,
    build,
    config_problems,
    decoded,
)
from capeval_core.errors import did_you_mean, wrong_option
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.visual import InputImage
from capeval_core.models.canary import canary_images
from capeval_core.models.copies import on_device
from capeval_core.models.device import exact
from capeval_core.regions.boxes import clipped
from capeval_core.regions.features import BoxVisual, pack
from capeval_core.regions.selection import ONE_THING, Selection, boxes_kept, enough_boxes
from capeval_core.regions.suppression import class_confidences
from capeval_core.weights.faster_rcnn import FasterRcnnConversion

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_SMALLEST = 3
"""Pixels that the stem needs along each side."""
_CANARY_BOXES = [[0.0, 0.0, 60.0, 50.0], [30.0, 20.0, 119.0, 89.0], [0.0, 0.0, 120.0, 90.0]]


@dataclass(frozen=True)
class Detections:
    """What a detector keeps of an image, best box first.

    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels of the image.
    features: (n, d) float32, of the proposals that the boxes come from.
    scores: (n,) float32, from 0 to 1.
    classes: (n,) int64, the likeliest class. attributes: (n,) int64, the likeliest attribute of it. Ids, from
        0, as in Visual Genome's lists of bottom-up attention, whose words are not part of the weights.
    attribute_scores: (n,) float32, from 0 to 1.
    size: width and height of the image.
    """

    boxes: Floats
    features: Floats
    scores: Floats
    classes: Integers
    attributes: Integers
    attribute_scores: Floats
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.boxes)


class FasterRcnn(Detector, tags=["object-detection", "faster-rcnn"]):
    """Bottom-up attention's Faster R-CNN, with the numbers of its PyTorch release.

    Images run one at a time at their own size, so that no feature depends on what else is encoded. Colours
    are in the order that the weights expect, blue first, wherever an image comes from. (The release reads a
    file in that order only where it is given as a URL.) In bfloat16 and float16 only the convolutions of
    ResNet are rounded.

    Arguments and errors are those of `CheckedModel`.

    >>> architecture = {"layers": [3, 4, 23, 3], "width": 64, "out_width": 256, "classes": 1600}
    >>> FasterRcnn.describe({"architecture": {**architecture, "attributes": 400}})
    'Faster R-CNN, ResNet 3-4-23-3, width 64; 1600 classes, 400 attributes; 2048 dimensions'
    """

    kind = "faster_rcnn"
    Conversion = FasterRcnnConversion

    modules = staticmethod(build)
    config_problems = staticmethod(config_problems)

    def prepare(self) -> None:
        pixels = self.config["preprocessing"]
        self._mean, self._std = (torch.tensor(pixels[name]).view(3, 1, 1) for name in ("mean", "std"))

    @property
    def network(self) -> FasterRcnnModel:
        """The model."""
        model: Any = self.model
        network: FasterRcnnModel = model
        return network

    @property
    def dimension(self) -> int:
        """Numbers of a feature."""
        width: int = 8 * self.config["architecture"]["out_width"]
        return width

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        shape = config["architecture"]
        return (
            f"Faster R-CNN, ResNet {'-'.join(map(str, shape['layers']))}, width {shape['width']}; "
            f"{shape['classes']} classes, {shape['attributes']} attributes; "
            f"{8 * shape['out_width']} dimensions"
        )

    def encode_boxes(
        self,
        images: Iterable[InputImage],
        *,
        selection: Selection = "bua10_100",
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images with their features, in order.

        Images are read and resized ahead of the network, equal ones run once, and what was found is kept in
        the cache. One that cannot be read, or in which nothing is found, costs its row: the result has an
        error instead of boxes.

        Args:
            images: any number.
            selection: which boxes are kept. `bua10_100`: 10 to 100 proposals, those with a confidence above
                0.2, see `regions.selection`. `lxmert36`: the 36 best boxes after regression, of the likeliest
                class.
            cache: where features are looked up and kept.
            batch_size: of no effect: images are of different sizes and run one at a time.

        Raises:
            ValueError: an unknown `selection`.
            MemoryError: an image does not fit into memory.
        """
        _check(selection)
        return self.boxes_of_each(
            images,
            lambda image: (self.preprocess(image), image.size),
            lambda prepared: self._packed(prepared[0], prepared[1], selection),
            cache,
            selection,
        )

    def selecting(self, selection: Selection) -> FasterRcnnRegions:
        """This network as a region encoder with a rule of selection."""
        return FasterRcnnRegions(self, selection)

    def detect(self, image: Image.Image, selection: Selection = "bua10_100") -> Detections:
        """What is kept of one image; as for `encode_boxes`, with classes and attributes."""
        _check(selection)
        pixels = self.preprocess(image)
        return self.select(self.propose(pixels), size_of(pixels), image.size, selection)

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Size of the network's input for an image of (height, width).

        The shorter side has its fixed length, unless the longer one exceeds its own. A strip so narrow that
        nothing would be left keeps three pixels; the original fails there.
        """
        pixels = self.config["preprocessing"]
        scale = pixels["shortest_side"] / min(size)
        sides = [pixels["shortest_side"] if side == min(size) else scale * side for side in size]
        if max(sides) > pixels["longest_side"]:
            scale = pixels["longest_side"] / max(sides)
            sides = [scale * side for side in sides]
        height, width = (max(int(side + 0.5), _SMALLEST) for side in sides)
        return height, width

    def preprocess(self, image: Image.Image) -> Tensor:
        """(3, h, w) float32: blue, green, red, resized without antialiasing, less the mean."""
        bgr = torch.from_numpy(blue_first(image)).permute(2, 0, 1)[None].float()
        size = self.resized((image.height, image.width))
        resized = functional.interpolate(bgr, size, mode="bilinear", align_corners=False)[0]
        return (resized - self._mean) / self._std

    @exact
    def propose(self, pixels: Tensor, size: tuple[int, int] | None = None) -> Proposals:
        """The proposals of one image (3, h, w), of (height, width) if it has a margin."""
        found: Proposals = self.model(on_device(pixels[None], self.device), size or size_of(pixels))
        return found

    @torch.inference_mode()
    def select(
        self, found: Proposals, resized: tuple[int, int], size: tuple[int, int], selection: Selection
    ) -> Detections:
        """What a rule keeps of the proposals of an image.

        Args:
            found: the proposals.
            resized: (height, width) of the pixels that they were found in.
            size: (width, height) of the image.
            selection: the rule.
        """
        probabilities = found.class_logits.softmax(dim=1)[:, :-1]
        best, likeliest = probabilities.max(dim=1)
        attribute_best, attribute = found.attribute_logits[:, :-1].softmax(dim=1).max(dim=1)
        # Ids of classes are exact in float32.
        always = found.features, likeliest.float(), attribute.float(), attribute_best
        if selection == "bua10_100":
            boxes, by_class, *others = arrays_by_one_copy(found.boxes, probabilities, *always)
            scores = class_confidences(boxes, by_class, ONE_THING)
            order = np.argsort(-scores, kind="stable")
            kept = order[: boxes_kept(scores[order])]
        else:
            settings = self.config["detections"]
            each = torch.arange(len(best), device=likeliest.device)
            deltas = found.deltas.view(len(best), -1, 4)[each, likeliest]
            moved = decoded(deltas, found.boxes, settings["delta_weights"])
            boxes, scores, *others = arrays_by_one_copy(moved, best, *always)
            boxes = clipped(boxes, resized)
            kept = enough_boxes(boxes, scores, settings["overlaps"], settings["least"], settings["most"])
        scale = np.tile(np.divide(size, resized[::-1], dtype=np.float32), 2)
        features, classes, attributes, attribute_scores = (own[kept] for own in others)
        return Detections(
            boxes=clipped(boxes[kept] * scale, size[::-1]),
            features=features,
            scores=scores[kept],
            classes=classes.astype(np.int64),
            attributes=attributes.astype(np.int64),
            attribute_scores=attribute_scores,
            size=size,
        )

    def _packed(self, pixels: Tensor, size: tuple[int, int], selection: Selection) -> Floats:
        found = self.select(self.propose(pixels), size_of(pixels), size, selection)
        return pack(BoxFeatures(found.boxes, found.features, size, found.scores))

    @exact
    def canary(self) -> Floats:
        """(5, 3) cosines of three boxes of a drawn image at its own size, in all that the network tells."""
        network, image = self.network, canary_images()[0]
        bgr = torch.from_numpy(blue_first(image)).permute(2, 0, 1).float()
        map_ = network.feature_map(((bgr - self._mean) / self._std)[None].to(self.device))
        around = torch.cat(network.head(map_), dim=1)[0].flatten(1).T
        features = network.box_features(map_, torch.tensor(_CANARY_BOXES, device=self.device))
        predictor, classes = network.predictor, torch.zeros(3, dtype=torch.int64, device=self.device)
        rows = [
            around[:: len(around) // 3][:3],
            features,
            predictor.cls_score(features),
            predictor.bbox_pred(features),
            predictor.attribute_logits(features, classes),
        ]
        pairs = [functional.cosine_similarity(row, row.roll(1, 0)) for row in rows]
        return array_of(torch.stack(pairs))


@dataclass(frozen=True)
class FasterRcnnRegions:
    """A Faster R-CNN with its rule of selection: a `RegionEncoder`.

    model: the network. selection: as in `FasterRcnn.encode_boxes`.
    """

    model: FasterRcnn
    selection: Selection = "bua10_100"

    def __post_init__(self) -> None:
        _check(self.selection)

    @property
    def fingerprint(self) -> str:
        """Names weights and rule: boxes of equal ones are equal."""
        return f"{self.model.fingerprint}-{self.selection}"

    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """As `FasterRcnn.encode_boxes`."""
        return self.model.encode_boxes(images, selection=self.selection, cache=cache, batch_size=batch_size)


def _check(selection: str) -> None:
    if selection not in (known := get_args(Selection)):
        fix = f"expected {' or '.join(map(repr, known))}{did_you_mean(str(selection), known)}"
        raise wrong_option("selection", selection, "unknown", fix)
