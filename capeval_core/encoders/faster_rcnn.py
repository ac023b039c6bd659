"""Faster R-CNN of bottom-up attention: image -> boxes, features and confidences.

Anderson et al.: Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR
2018, https://arxiv.org/abs/1707.07998. Networks on regions, such as LXMERT and UNITER, take its features of
2048 numbers; its PyTorch release is the one of LXMERT (Tan, Bansal, EMNLP 2019,
https://arxiv.org/abs/1908.07490).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import RoIPool, clip_boxes_to_image, nms

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.detector import (
    Deltas,
    Detector,
    Pixels,
    Stages,
    array_of,
    arrays_by_one_copy,
    blue_first,
    size_of,
)
from capeval_core.errors import did_you_mean, wrong_option
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage
from capeval_core.models.canary import canary_images
from capeval_core.models.config import Closed, Count, Layers, Share, Width
from capeval_core.models.copies import on_device
from capeval_core.models.device import exact
from capeval_core.regions.boxes import clipped
from capeval_core.regions.features import BoxVisual, pack
from capeval_core.regions.selection import ONE_THING, Selection, boxes_kept, enough_boxes
from capeval_core.regions.suppression import Suppression, best_on_device, class_confidences
from capeval_core.weights.faster_rcnn import STAGES, STRIDE, FasterRcnnConversion

M = TypeVar("M", bound=nn.Module)

POOLED = 14
"""Cells along each side of a pooled proposal."""
_LONGEST_STEP = math.log(1000 / 16)
"""Bound of the logarithm by which a box may grow."""
_AT_A_TIME = 50
"""Proposals whose features are made together, which bounds memory: 300 at once take 2 GB."""


@dataclass(frozen=True)
class Architecture(Closed):
    layers: Stages
    stem_width: Width
    width: Width
    out_width: Width
    proposal_width: Width
    anchors: Layers
    classes: Count
    attributes: Count
    class_width: Width
    attribute_width: Width


@dataclass(frozen=True)
class ScaledPixels(Pixels):
    std: Annotated[list[float], (1e-4, 1e3), 3]


@dataclass(frozen=True)
class ProposalSettings(Closed):
    before_nms: Count
    after_nms: Layers
    overlap: Share
    delta_weights: Deltas


@dataclass(frozen=True)
class DetectionSettings(Closed):
    overlaps: Annotated[list[float], (0, 1)]
    least: Layers
    most: Layers
    delta_weights: Deltas

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, but most is {self.most}")


@dataclass(frozen=True)
class FasterRcnnSettings:
    architecture: Architecture
    preprocessing: ScaledPixels
    proposals: ProposalSettings
    detections: DetectionSettings


@dataclass(frozen=True)
class Proposals:
    """What the network finds in one image, in pixels of the resized image; best proposal first.

    boxes: (n, 4) x0, y0, x1, y1. logits: (n,) whether there is an object. features: (n, d).
    class_logits: (n, classes + 1), background last. attribute_logits: (n, attributes + 1), "none" last.
    deltas: (n, 4 * classes) from a proposal to the box of each class.
    """

    boxes: Tensor
    logits: Tensor
    features: Tensor
    class_logits: Tensor
    attribute_logits: Tensor
    deltas: Tensor


class ConvNorm(nn.Conv2d):
    """A convolution without bias, and batch normalisation in float32."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x))
        return normed


class Bottleneck(nn.Module):
    """A residual block of ResNet with its stride in the first convolution, where Caffe's have it.

    torchvision's has it in the second one, and outputs four times as wide as its inner layers.
    """

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.shortcut = ConvNorm(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()
        self.conv1 = ConvNorm(inputs, width, 1, stride)
        self.conv2 = ConvNorm(width, width, 3, dilation=dilation)
        self.conv3 = ConvNorm(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu_(self.conv1(x))
        inner = functional.relu_(self.conv2(inner))
        return functional.relu_(self.conv3(inner) + self.shortcut(x))


class Stem(nn.Module):
    """A convolution and a maximum, each of which halves the resolution, rounded up as in Caffe."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(3, width, 7, stride=2)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu_(self.conv1(pixels)), 3, 2, ceil_mode=True)


class ProposalHead(nn.Module):
    """Whether there is an object at each anchor of a feature map, and the box around it.

    anchors: (a, 4) boxes around the centre of a cell, in pixels; (levels, a, 4) for maps of several levels.
    """

    def __init__(self, inputs: int, width: int, anchors: int, levels: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1)
        self.objectness_logits = nn.Conv2d(width, anchors, 1)
        self.anchor_deltas = nn.Conv2d(width, 4 * anchors, 1)
        cells = (anchors, 4) if levels is None else (levels, anchors, 4)
        self.register_buffer("anchors", torch.zeros(cells))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (1, a, h, w) and deltas (1, 4a, h, w) of a feature map (1, c, h, w)."""
        hidden = functional.relu(self.conv(features))
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


def anchor_boxes(cells: Tensor, stride: int, height: int, width: int) -> Tensor:
    """(h * w * a, 4) anchors of a feature map, row by row, by those of a cell (a, 4).

    >>> anchor_boxes(torch.tensor([[-8.0, -4.0, 8.0, 4.0]]), 16, 1, 2).tolist()
    [[-8.0, -4.0, 8.0, 4.0], [8.0, -4.0, 24.0, 4.0]]
    """
    x, y = (torch.arange(n, device=cells.device) * float(stride) for n in (width, height))
    row, column = torch.meshgrid(y, x, indexing="ij")
    centres = torch.stack([column, row, column, row], dim=-1).view(-1, 1, 4)
    return (centres + cells).view(-1, 4)


def in_order(logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n,) and deltas (n, 4) in the order of `anchor_boxes`, of (1, a, h, w) and (1, 4a, h, w)."""
    _, anchors, height, width = logits.shape
    steps = deltas[0].view(anchors, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)
    return logits[0].permute(1, 2, 0).reshape(-1), steps


class Predictor(nn.Module):
    """Class, box per class, and attribute of a feature; the attribute depends on the likeliest class."""

    def __init__(
        self, inputs: int, classes: int, attributes: int, class_width: int, attribute_width: int
    ) -> None:
        super().__init__()
        self.cls_score = nn.Linear(inputs, classes + 1)
        self.bbox_pred = nn.Linear(inputs, 4 * classes)
        self.cls_embedding = nn.Embedding(classes + 1, class_width)
        self.fc_attr = nn.Linear(inputs + class_width, attribute_width)
        self.attr_score = nn.Linear(attribute_width, attributes + 1)

    def attribute_logits(self, features: Tensor, classes: Tensor) -> Tensor:
        """(n, attributes + 1) of features (n, d) of things of these classes (n,), background included."""
        hidden = self.fc_attr(torch.cat([features, self.cls_embedding(classes)], dim=-1))
        logits: Tensor = self.attr_score(functional.relu(hidden))
        return logits


class FasterRcnnModel(nn.Module):
    """A Faster R-CNN whose features are those of its proposals.

    The convolutions of ResNet run in `dtype`, and all else in float32: coordinates need it.

    Args:
        config: `architecture` and `proposals` of a weights folder.
        dtype: of these convolutions.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shape, self.settings, self.dtype = config["architecture"], config["proposals"], dtype
        self.backbone = nn.ModuleDict({"stem": Stem(shape["stem_width"])})
        inputs, width, outputs = shape["stem_width"], shape["width"], shape["out_width"]
        for index, (name, blocks) in enumerate(zip(STAGES, shape["layers"], strict=True)):
            last = name == STAGES[-1]  # runs on pooled proposals, at their resolution
            stride, dilation = (1 if last or not index else 2), (2 if last else 1)
            stage = nn.Sequential(
                *(
                    Bottleneck(outputs if block else inputs, width, outputs, 1 if block else stride, dilation)
                    for block in range(blocks)
                )
            )
            if last:
                self.res5 = stage
                self.head = ProposalHead(inputs, shape["proposal_width"], shape["anchors"])
                self.predictor = Predictor(
                    outputs,
                    *(shape[key] for key in ("classes", "attributes", "class_width", "attribute_width")),
                )
            else:
                self.backbone[name] = stage
                inputs, width, outputs = outputs, 2 * width, 2 * outputs
        self._pool = RoIPool((POOLED, POOLED), 1 / STRIDE)

    def forward(self, pixels: Tensor, size: tuple[int, int]) -> Proposals:
        """The proposals of an image of (height, width) whose pixels (1, 3, h, w) may have a margin."""
        map_ = self.feature_map(pixels)
        objectness, deltas = self.head(map_)
        boxes, logits = self.propose(objectness, deltas, size)
        features = self.box_features(map_, boxes)
        class_logits = self.predictor.cls_score(features)
        return Proposals(
            boxes,
            logits,
            features,
            class_logits,
            self.predictor.attribute_logits(features, class_logits.argmax(dim=1)),
            self.predictor.bbox_pred(features),
        )

    def feature_map(self, pixels: Tensor) -> Tensor:
        """(1, c, h, w) float32: the image at a sixteenth of its resolution."""
        x = pixels.to(self.dtype)
        for stage in self.backbone.values():
            x = stage(x)
        return x.float()

    def propose(self, logits: Tensor, deltas: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes (n, 4) and logits (n,) of the proposals, best first, from the output of the head.

        The best anchors are decoded and clipped to the image, empty ones are dropped, and of those that
        overlap the best is kept.
        """
        height, width = logits.shape[2:]
        scores, steps = in_order(logits, deltas)
        scores, best = scores.topk(min(self.settings["before_nms"], len(scores)))
        around = anchor_boxes(cast(Tensor, self.head.anchors), STRIDE, height, width)[best]
        boxes = decoded(steps[best], around, self.settings["delta_weights"])
        boxes = clip_boxes_to_image(boxes, size)
        whole = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        overlap, most = self.settings["overlap"], self.settings["after_nms"]
        if boxes.device.type == "cuda":  # where torchvision's kernel would round otherwise
            (kept,) = best_on_device(Suppression(overlap), [boxes], most, whole)
        else:
            boxes, scores = boxes[whole], scores[whole]
            kept = nms(boxes, scores, overlap)[:most]
        return boxes[kept], scores[kept]

    def pooled(self, map_: Tensor, boxes: Tensor) -> Tensor:
        """(n, c, 14, 14) maxima of the feature map (1, c, h, w) within boxes (n, 4)."""
        cells: Tensor = self._pool(map_, [boxes])
        return cells

    def box_features(self, map_: Tensor, boxes: Tensor) -> Tensor:
        """(n, d) float32 features of boxes (n, 4): the mean of the last stage over their pooled cells."""
        parts = [
            self.res5(self.pooled(map_, part).to(self.dtype)).float().mean(dim=(2, 3))
            for part in torch.split(boxes, _AT_A_TIME)
        ]
        return torch.cat(parts)


def decoded(deltas: Tensor, boxes: Tensor, weights: Sequence[float], pixel: float = 0.0) -> Tensor:
    """(n, 4) boxes that lie as `deltas` (n, 4) say of boxes (n, 4).

    A delta is the step of the centre in widths and heights of the box, and the logarithm of the growth of
    either side, each times its weight. `pixel` is 1 where corners are the first and the last pixel of a box.

    >>> boxes = torch.tensor([[10.0, 10.0, 30.0, 50.0]])
    >>> decoded(torch.tensor([[1.0, 0.0, math.log(2), 0.0]]), boxes, (1, 1, 1, 1)).round().tolist()
    [[20.0, 10.0, 60.0, 50.0]]
    """
    sides = boxes[:, 2:] - boxes[:, :2] + pixel
    centres = boxes[:, :2] + 0.5 * sides
    steps = deltas / on_device(torch.tensor(weights, dtype=deltas.dtype, device="cpu"), deltas.device)
    moved = steps[:, :2] * sides + centres
    grown = steps[:, 2:].clamp(max=_LONGEST_STEP).exp() * sides
    return torch.cat([moved - 0.5 * grown, moved + 0.5 * grown - pixel], dim=1)


def build(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> FasterRcnnModel:
    """The model of a config, with random weights, in evaluation mode."""
    return frozen(FasterRcnnModel(config, dtype), ("backbone", "res5"), dtype)


def frozen(model: M, parts: Sequence[str], dtype: torch.dtype) -> M:
    """A detector in evaluation mode, with the convolutions of some of its parts in `dtype`."""
    for part in parts:
        for module in model.get_submodule(part).modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.to(dtype)
    return model.eval().requires_grad_(False)


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
    Settings = FasterRcnnSettings

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
