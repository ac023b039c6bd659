"""Faster R-CNN: image -> boxes, features and confidences. Two networks, with the numbers of their releases.

Bottom-up attention's (Anderson et al.: Bottom-Up and Top-Down Attention for Image Captioning and Visual
Question Answering, CVPR 2018, https://arxiv.org/abs/1707.07998), in the PyTorch release of LXMERT (Tan,
Bansal, EMNLP 2019, https://arxiv.org/abs/1908.07490); UNITER takes its features of 2048 numbers.

ResNeXt-152-32x8d FPN of 12-in-1 (Lu, Goswami, Rohrbach, Parikh, Lee, CVPR 2020,
https://arxiv.org/abs/1912.02315), as the `extract_features.py` of its release makes them for ViLBERT.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d, RoIPool, clip_boxes_to_image, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from capeval_core.encoders.detector import BoxEncoder
from capeval_core.encoders.detector_conversion import FasterRcnnConversion, X152Conversion
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.models.config import Closed, Count, Deviations, Layers, Means, Share, Width, read
from capeval_core.models.device import exact, on_device, on_host
from capeval_core.models.model import canary_images
from capeval_core.ragged import Floats, Integers
from capeval_core.regions.features import Selection, boxes_kept
from capeval_core.regions.suppression import Suppression, class_confidences, clipped, enough_boxes

_LONGEST_STEP = math.log(1000 / 16)  # bound of the logarithm by which a box may grow, as in Detectron


# what both share

_Stages = Annotated[list[int], range(1, 1_001), 4]
_ProposalCount = Annotated[int, range(1, 10_001)]
_Side = Annotated[int, range(1, 16_385)]
_Weights = Annotated[list[float], (0, 1e3), 4]


@dataclass(frozen=True)
class _Pixels(Closed):
    """The resizing and scaling of images."""

    shortest_side: _Side
    longest_side: _Side
    mean: Means

    def __post_init__(self) -> None:
        if self.shortest_side > self.longest_side:
            raise ValueError("shortest_side is above preprocessing.longest_side")


@dataclass(frozen=True)
class _ProposalSettings(Closed):
    """The choice of anchors that become proposals."""

    before_nms: Count
    after_nms: _ProposalCount
    overlap: Share
    delta_weights: _Weights


class Proposals(NamedTuple):
    """Boxes that a network proposes in one image, in pixels of the resized image; best proposal first.
    boxes: (n, 4) x0, y0, x1, y1. objectness: (n,). features: (n, d). class_logits: (n, 1 + classes)."""

    boxes: Tensor
    objectness: Tensor
    features: Tensor
    class_logits: Tensor


class _ProposalHead(nn.Module):
    """Objectness of each anchor of a feature map, and the box around it. anchors: (a, 4) boxes around the
    centre of a cell, in pixels; (levels, a, 4) for maps of several levels."""

    def __init__(self, inputs: int, width: int, anchors: int, *levels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1)
        self.objectness_logits = nn.Conv2d(width, anchors, 1)
        self.anchor_deltas = nn.Conv2d(width, 4 * anchors, 1)
        self.register_buffer("anchors", torch.zeros(*levels, anchors, 4))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (1, a, h, w) and deltas (1, 4a, h, w) of a feature map (1, c, h, w)."""
        hidden = functional.relu(self.conv(features))
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


def _candidates(logits: Tensor, deltas: Tensor, cells: Tensor, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (n,), deltas (n, 4) and anchors (n, 4) of a feature map, row by row, by the head's outputs."""
    _, anchors, height, width = logits.shape
    x = torch.arange(width, device=cells.device) * float(stride)
    y = torch.arange(height, device=cells.device) * float(stride)
    row, column = torch.meshgrid(y, x, indexing="ij")
    centres = torch.stack([column, row, column, row], dim=-1).view(-1, 1, 4)  # (cells, 1, 4)
    # Channels of the head are anchor by anchor, each with its four numbers.
    steps = deltas[0].view(anchors, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)
    return logits[0].permute(1, 2, 0).reshape(-1), steps, (centres + cells).view(-1, 4)


def _decoded(deltas: Tensor, boxes: Tensor, weights: Sequence[float], pixel: float = 0.0) -> Tensor:
    """(n, 4) boxes that lie as `deltas` (n, 4) say of boxes (n, 4). A delta is the step of the centre in
    widths and heights of the box, and the logarithm of the growth of either side, each times its weight.
    `pixel` is 1 where corners are the first and the last pixel of a box."""
    sides = boxes[:, 2:] - boxes[:, :2] + pixel
    centres = boxes[:, :2] + 0.5 * sides
    steps = deltas / on_device(torch.tensor(weights, dtype=deltas.dtype, device="cpu"), deltas.device)
    moved = steps[:, :2] * sides + centres
    grown = steps[:, 2:].clamp(max=_LONGEST_STEP).exp() * sides
    return torch.cat([moved - 0.5 * grown, moved + 0.5 * grown - pixel], dim=1)


def _best_first(scores: Tensor) -> Tensor:
    """Indices of scores (n,), the highest first, of equal ones the first: the same on every device."""
    return scores.sort(descending=True, stable=True).indices


def _best_of(rule: Suppression, groups: Sequence[Tensor], most: int) -> list[Tensor]:
    """Indices of `rule.best` of each of several groups of boxes, by the host."""
    # One copy from the device for all groups: each copy waits for the network.
    ends = np.cumsum([len(boxes) for boxes in groups])[:-1]
    parts = np.split(on_host(torch.cat(list(groups))), ends)
    return [on_device(rule.best(boxes, most), groups[0].device) for boxes in parts]


class _Detector(BoxEncoder):
    """A Faster R-CNN. Colours are in the order that the weights expect, blue first, wherever an image comes
    from. In bfloat16 and float16 only the convolutions of the backbone are rounded: coordinates need
    float32."""

    depends_on = ("architecture", "preprocessing", "proposals", "detections")
    pixel: ClassVar[float] = 0.0
    """1 where corners of boxes are their first and last pixel: a side is one longer than their difference."""
    Network: ClassVar[type[Any]]
    """The modules, by settings: `feature_maps` of pixels, the finest first, `propose` boxes and objectness in
    them, best first, `box_features`, and, of features, `class_logits` and all `heads`."""

    model: Any

    @classmethod
    def modules(cls, config: dict[str, Any]) -> nn.Module:
        model: nn.Module = cls.Network(read(cls.Settings, config, ""))
        return model

    def find(self, prepared: tuple[Tensor, Any], size: tuple[int, int]) -> BoxFeatures:
        pixels, scale = prepared
        return self.select(self.propose(pixels), scale, size)[0]

    @exact
    def propose(self, pixels: Tensor, size: tuple[int, int] | None = None) -> Proposals:
        """The proposals of one image (3, h, w), of (height, width) if it has a margin of its own."""
        maps = self.model.feature_maps(on_device(pixels[None], self.device))
        boxes, objectness = self.model.propose(maps, size or _size_of(pixels))
        features = self.model.box_features(maps, boxes)
        return Proposals(boxes, objectness, features, self.model.class_logits(features))

    @abstractmethod
    def select(self, proposals: Proposals, scale: Any, size: tuple[int, int]) -> tuple[BoxFeatures, Integers]:
        """The boxes of an image of (width, height) among its proposals, and their indices."""

    @abstractmethod
    def scaled(self, pixels: Tensor) -> Tensor:
        """The network's input of resized pixels (3, h, w), blue first."""

    @exact
    def canary(self) -> Floats:
        """(n, 3) cosines of three places of a drawn image at its own size, in each output of the network."""
        pixels = torch.from_numpy(_blue_first(canary_images()[0]).transpose(2, 0, 1).astype(np.float32))
        maps = self.model.feature_maps(self.scaled(pixels)[None].to(self.device))
        # Given boxes, not proposals: which of these come first may differ between machines.
        corners = [[0.0, 0.0, 60.0, 50.0], [30.0, 20.0, 119.0, 89.0], [0.0, 0.0, 120.0, 90.0]]
        boxes = torch.tensor(corners) - torch.tensor([0, 0, self.pixel, self.pixel])
        features = self.model.box_features(maps, boxes.to(self.device))
        outputs = []
        for feature_map in maps:
            cells = torch.cat(self.model.head(feature_map), dim=1)[0].flatten(1).T  # (cells, 5 anchors)
            outputs.append(cells[:: len(cells) // 3][:3])
        outputs += [features, *self.model.heads(features)]
        # Each of three rows with the one before it: cosines do not depend on the scale of an output.
        rows = [functional.cosine_similarity(output, output.roll(1, 0)) for output in outputs]
        return on_host(torch.stack(rows))


def _in_type_of(module: nn.Module, x: Tensor) -> Tensor:
    return x.to(next(module.parameters()).dtype)


def _size_of(pixels: Tensor) -> tuple[int, int]:
    """Height and width of (3, h, w)."""
    return int(pixels.shape[1]), int(pixels.shape[2])


def _blue_first(image: Image.Image) -> NDArray[np.uint8]:
    """(h, w, 3): blue, green and red of an image of any mode, as Caffe's networks take them."""
    blue: NDArray[np.uint8] = np.asarray(image.convert("RGB"))[
        :, :, ::-1
    ].copy()  # torch takes no view backwards
    return blue


# bottom-up attention's

_RES = ("res2", "res3", "res4", "res5")
_STRIDE = 16  # pixels of the image per cell of the feature map
# When two boxes of one class show one thing; without the additional pixel of Caffe's detectors. No published
# numbers pin it.
_ONE_THING = Suppression(0.3)


@dataclass(frozen=True)
class _FasterRcnnSizes(Closed):
    layers: _Stages
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
class _ScaledPixels(_Pixels):
    std: Deviations


@dataclass(frozen=True)
class _FasterRcnnDetections(Closed):
    overlaps: Annotated[list[float], (0, 1)]
    least: Layers
    most: Layers
    delta_weights: _Weights

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, but most is {self.most}")


@dataclass(frozen=True)
class _FasterRcnnSettings:
    architecture: _FasterRcnnSizes
    preprocessing: _ScaledPixels
    proposals: _ProposalSettings
    detections: _FasterRcnnDetections


class _ConvNorm(nn.Conv2d):
    """A convolution without bias, and batch normalisation in float32."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(inputs, outputs, kernel, stride, padding, dilation, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x))
        return normed


class _Bottleneck(nn.Module):
    """A residual block of ResNet with its stride in the first convolution, where Caffe's have it."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.shortcut = _ConvNorm(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()
        self.conv1 = _ConvNorm(inputs, width, 1, stride)
        self.conv2 = _ConvNorm(width, width, 3, dilation=dilation)
        self.conv3 = _ConvNorm(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu_(self.conv1(x))
        inner = functional.relu_(self.conv2(inner))
        return functional.relu_(self.conv3(inner) + self.shortcut(x))


class _CaffeStem(nn.Module):
    """A convolution and a maximum, each of which halves the resolution, rounded up as in Caffe."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = _ConvNorm(3, width, 7, stride=2)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu_(self.conv1(pixels)), 3, 2, ceil_mode=True)


class _Predictor(nn.Module):
    """Class, box per class, and attribute of a feature; the attribute depends on the likeliest class."""

    def __init__(self, inputs: int, shape: _FasterRcnnSizes) -> None:
        super().__init__()
        self.cls_score = nn.Linear(inputs, shape.classes + 1)
        self.bbox_pred = nn.Linear(inputs, 4 * shape.classes)
        self.cls_embedding = nn.Embedding(shape.classes + 1, shape.class_width)
        self.fc_attr = nn.Linear(inputs + shape.class_width, shape.attribute_width)
        self.attr_score = nn.Linear(shape.attribute_width, shape.attributes + 1)

    def attribute_logits(self, features: Tensor, classes: Tensor) -> Tensor:
        """(n, attributes + 1) of features (n, d) of things of these classes (n,), background included."""
        hidden = self.fc_attr(torch.cat([features, self.cls_embedding(classes)], dim=-1))
        logits: Tensor = self.attr_score(functional.relu(hidden))
        return logits


class _FasterRcnnModel(nn.Module):
    """Bottom-up attention's modules: one feature map, at a sixteenth of the image's resolution."""

    def __init__(self, settings: _FasterRcnnSettings) -> None:
        super().__init__()
        shape = settings.architecture
        self.settings = settings.proposals
        self.backbone = nn.ModuleDict({"stem": _CaffeStem(shape.stem_width)})
        inputs = shape.stem_width
        width = shape.width
        outputs = shape.out_width
        for index, (name, blocks) in enumerate(zip(_RES, shape.layers, strict=True)):
            last = name == _RES[-1]  # runs on pooled proposals, at their resolution
            stride = 1 if last or not index else 2
            dilation = 2 if last else 1  # as in the release: as wide a view as with a stride of 2
            stage = nn.Sequential(_Bottleneck(inputs, width, outputs, stride, dilation))
            for _ in range(blocks - 1):
                stage.append(_Bottleneck(outputs, width, outputs, 1, dilation))
            if last:
                self.res5 = stage
                self.head = _ProposalHead(inputs, shape.proposal_width, shape.anchors)
                self.predictor = _Predictor(outputs, shape)
            else:
                self.backbone[name] = stage
                inputs = outputs
                width *= 2
                outputs *= 2
        self.pool = RoIPool((14, 14), 1 / _STRIDE)

    def feature_maps(self, pixels: Tensor) -> list[Tensor]:
        x = _in_type_of(self.backbone, pixels)
        for stage in self.backbone.values():
            x = stage(x)
        return [x.float()]

    def propose(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The best anchors, decoded and clipped, that are not empty and that no better one overlaps."""
        settings = self.settings
        logits, deltas = self.head(maps[0])
        scores, steps, around = _candidates(logits, deltas, cast(Tensor, self.head.anchors), _STRIDE)
        scores, best = scores.topk(min(settings.before_nms, len(scores)))
        boxes = clip_boxes_to_image(_decoded(steps[best], around[best], settings.delta_weights), size)
        with_area = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)  # clipping empties boxes outside the image
        boxes = boxes[with_area]
        scores = scores[with_area]
        (proposals,) = _best_of(Suppression(settings.overlap), [boxes], settings.after_nms)
        return boxes[proposals], scores[proposals]

    def box_features(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """The mean of the last stage over the boxes' pooled cells."""
        features = []
        for part in torch.split(boxes, 50):  # 300 at once take 2 GB
            cells = _in_type_of(self.res5, self.pool(maps[0], [part]))
            features.append(self.res5(cells).float().mean(dim=(2, 3)))
        return torch.cat(features)

    def class_logits(self, features: Tensor) -> Any:
        return self.predictor.cls_score(features)

    def heads(self, features: Tensor) -> list[Tensor]:
        classes = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        attributes = self.predictor.attribute_logits(features, classes)
        return [self.predictor.cls_score(features), self.predictor.bbox_pred(features), attributes]


class FasterRcnn(_Detector, tags=["object-detection", "faster-rcnn"]):
    """Bottom-up attention's Faster R-CNN, with the numbers of its PyTorch release. (The release reads a file
    with blue first only where it is given as a URL.)"""

    kind = "faster_rcnn"
    described = "Faster R-CNN, ResNet {layers}, width {width}; {classes} classes, {attributes} attributes"
    Settings = _FasterRcnnSettings
    Conversion = FasterRcnnConversion
    Network = _FasterRcnnModel
    wide = r"(?!backbone\.|res5\.).*|.*\.norm\..*"
    rule: Selection = "bua10_100"

    def prepare(self) -> None:
        pixels = self.settings.preprocessing
        self._mean = torch.tensor(pixels.mean).view(3, 1, 1)
        self._std = torch.tensor(pixels.std).view(3, 1, 1)

    def selecting(self, selection: Selection) -> Self:
        """This network with another way to choose boxes."""
        network = copy(self)
        network.rule = selection
        network.fingerprint = self.selected_fingerprint(self.fingerprint, selection)
        return network

    @staticmethod
    def selected_fingerprint(fingerprint: str, selection: Selection) -> str:
        """The fingerprint of boxes that are chosen in a way, by that of their network."""
        return f"{fingerprint}-{selection}"

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Size of the network's input for an image of (height, width). The shorter side has its fixed length,
        unless the longer one exceeds its own. A strip so narrow that nothing would be left keeps three
        pixels; the original fails there."""
        pixels = self.settings.preprocessing
        scale = pixels.shortest_side / min(size)
        # As in the original the shorter side is exact, not a product with a rounded scale.
        height, width = (pixels.shortest_side if side == min(size) else scale * side for side in size)
        if max(height, width) > pixels.longest_side:
            scale = pixels.longest_side / max(height, width)
            height *= scale
            width *= scale
        return max(int(height + 0.5), 3), max(int(width + 0.5), 3)

    def preprocess(self, image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        """(3, h, w) float32: blue, green, red, resized without antialiasing, less the mean; and (h, w)."""
        bgr = torch.from_numpy(_blue_first(image)).permute(2, 0, 1)[None].float()
        size = self.resized((image.height, image.width))
        resized = functional.interpolate(bgr, size, mode="bilinear", align_corners=False)[0]
        return self.scaled(resized), size

    def scaled(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) / self._std

    @torch.inference_mode()
    def select(
        self, proposals: Proposals, scale: tuple[int, int], size: tuple[int, int]
    ) -> tuple[BoxFeatures, Integers]:
        """The boxes that the rule takes of the proposals of an image, and their indices. `bua10_100`: 10 to
        100 proposals, those with a confidence above 0.2, see `boxes_kept`. `lxmert36`: the 36 best boxes
        after regression, of the likeliest class. `scale` is the (height, width) of the resized image."""
        probabilities = proposals.class_logits.softmax(dim=1)[:, :-1]  # the last class is the background
        if self.rule == "bua10_100":
            boxes = on_host(proposals.boxes)
            scores = class_confidences(boxes, on_host(probabilities), _ONE_THING)
            order = np.argsort(-scores, kind="stable")
            best = order[: boxes_kept(scores[order])]
        else:
            settings = self.settings.detections
            confidences, classes = probabilities.max(dim=1)
            boxes = clipped(on_host(self._regressed(proposals, classes)), scale)
            scores = on_host(confidences)
            best = enough_boxes(boxes, scores, settings.overlaps, settings.least, settings.most)
        features = on_host(proposals.features)
        ratio = np.tile(np.divide(size, scale[::-1], dtype=np.float32), 2)
        # Clipped again: the product of a rounded ratio may lie beyond the last pixel.
        in_image = clipped(boxes[best] * ratio, size[::-1])
        return BoxFeatures(in_image, features[best], size, scores[best]), best

    def _regressed(self, proposals: Proposals, classes: Tensor) -> Tensor:
        """(n, 4) boxes of proposals, moved as the network predicts for things of these classes (n,)."""
        count = len(classes)
        by_class = self.model.predictor.bbox_pred(proposals.features).view(count, -1, 4)
        deltas = by_class[torch.arange(count, device=classes.device), classes]
        return _decoded(deltas, proposals.boxes, self.settings.detections.delta_weights)


# 12-in-1's

_LAYERS = ("layer1", "layer2", "layer3", "layer4")
_EXPANSION = 4  # times as many channels behind a residual block as it has planes
# Pixels of the resized image per cell of each level of the pyramid; all but the last give features.
_STRIDES = (4, 8, 16, 32, 64)
_POOLED = 7  # cells along each side of a pooled proposal
_PIXEL = 1.0  # as `_Detector.pixel`


@dataclass(frozen=True)
class _X152Sizes(Closed):
    layers: _Stages
    stem_width: Width
    width: Width
    groups: Width
    out_width: Width
    pyramid_width: Width
    anchors: Layers
    feature_width: Width
    classes: Count

    def __post_init__(self) -> None:
        planes = self.groups * (self.out_width // _EXPANSION)
        if self.width % self.groups or self.out_width % _EXPANSION or self.width * 64 % planes:
            shared = f"{self.groups} groups of blocks with out_width {self.out_width} cannot share"
            raise ValueError(f"width is {self.width}, which {shared}")


@dataclass(frozen=True)
class _X152Proposals(_ProposalSettings):
    most: _ProposalCount


@dataclass(frozen=True)
class _X152Detections(Closed):
    most: Layers
    overlap: Share
    threshold: Annotated[float, (-1e-9, 1)]


@dataclass(frozen=True)
class _X152Settings:
    architecture: _X152Sizes
    preprocessing: _Pixels
    proposals: _X152Proposals
    detections: _X152Detections


class _Norm(FrozenBatchNorm2d):  # type: ignore[misc]
    """Batch normalisation by fixed statistics in float32, with nothing added to the variance."""

    def forward(self, x: Tensor) -> Tensor:
        arguments: Any = (x, self.weight, self.bias, self.running_mean, self.running_var, False, 0.0, 0.0)
        # torch's function of that name in `nn.functional` refuses an eps of 0 in some releases (2.11).
        normed: Tensor = torch.batch_norm(*arguments, torch.backends.cudnn.enabled)  # type: ignore[call-arg]
        return normed


class _Stem(nn.Module):
    """A convolution and a maximum, each of which halves the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = _Norm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu_(self.bn1(self.conv1(pixels))), 3, 2, padding=1)


def _stage(inputs: int, width: int, outputs: int, groups: int, blocks: int, stride: int) -> nn.Sequential:
    """Residual blocks of ResNeXt with their stride in the 3x3 convolution, of `groups` groups."""
    planes = outputs // _EXPANSION
    per_group = width * 64 // (planes * groups)  # torchvision's width of a group is of 64 planes
    first = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _Norm(outputs))
    settings: Any = {"groups": groups, "base_width": per_group, "norm_layer": _Norm}
    stage = nn.Sequential(Bottleneck(inputs, planes, stride, first, **settings))
    for _ in range(blocks - 1):
        stage.append(Bottleneck(outputs, planes, **settings))
    return stage


class _X152Model(nn.Module):
    """12-in-1's modules, on a feature pyramid."""

    def __init__(self, settings: _X152Settings) -> None:
        super().__init__()
        shape = settings.architecture
        self.settings = settings.proposals
        self.body = nn.ModuleDict({"stem": _Stem(shape.stem_width)})
        inputs = shape.stem_width
        width = shape.width
        outputs = shape.out_width
        channels = []
        for index, (name, blocks) in enumerate(zip(_LAYERS, shape.layers, strict=True)):
            self.body[name] = _stage(inputs, width, outputs, shape.groups, blocks, 2 if index else 1)
            channels.append(outputs)
            inputs = outputs
            width *= 2
            outputs *= 2
        pyramid = shape.pyramid_width
        self.fpn = FeaturePyramidNetwork(channels, pyramid, extra_blocks=LastLevelMaxPool())
        self.head = _ProposalHead(pyramid, pyramid, shape.anchors, len(_STRIDES))
        self.fc6 = nn.Linear(pyramid * _POOLED * _POOLED, shape.feature_width)
        self.fc7 = nn.Linear(shape.feature_width, shape.feature_width)
        self.cls_score = nn.Linear(shape.feature_width, 1 + shape.classes)

    def class_logits(self, features: Tensor) -> Tensor:
        return self.heads(features)[1]

    def heads(self, features: Tensor) -> list[Tensor]:
        hidden = functional.relu(self.fc7(features))
        return [hidden, self.cls_score(hidden)]

    def feature_maps(self, pixels: Tensor) -> list[Tensor]:
        x = self.body["stem"](_in_type_of(self.body, pixels))
        maps = OrderedDict()
        for name in _LAYERS:
            x = self.body[name](x)
            maps[name] = x.float()
        return list(self.fpn(maps).values())

    def propose(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The best anchors of each level, as above, clipped to the input and its margin; of them the best."""
        settings = self.settings
        groups = []
        scores = []
        for feature_map, cells, stride in zip(maps, cast(Tensor, self.head.anchors), _STRIDES, strict=True):
            logits, deltas = self.head(feature_map)
            logits, steps, around = _candidates(logits, deltas, cells, stride)
            objectness = logits.sigmoid()
            best = _best_first(objectness)[: settings.before_nms]
            boxes = _decoded(steps[best], around[best], settings.delta_weights, _PIXEL)
            groups.append(clip_boxes_to_image(boxes, (size[0] - 1, size[1] - 1)))
            scores.append(objectness[best])
        survivors = _best_of(Suppression(settings.overlap, _PIXEL, at_bound=True), groups, settings.after_nms)
        boxes = torch.cat([level[rows] for level, rows in zip(groups, survivors, strict=True)])
        objectness = torch.cat([level[rows] for level, rows in zip(scores, survivors, strict=True)])
        best = _best_first(objectness)[: settings.most]
        return boxes[best], objectness[best]

    def pooled(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """(n, c, 7, 7) means of points for boxes (n, 4), in the levels that fit them. Points, two along each
        side of a cell, lie as in the first RoIAlign, which takes no half pixel off the corners."""
        levels = _level_of(boxes)
        cells = maps[0].new_empty(len(boxes), maps[0].shape[1], _POOLED, _POOLED)
        for level, (feature_map, stride) in enumerate(zip(maps[:-1], _STRIDES, strict=False)):
            of_level = torch.nonzero(levels == level)[:, 0]
            cells[of_level] = roi_align(
                feature_map, [boxes[of_level]], _POOLED, 1 / stride, sampling_ratio=2, aligned=False
            )
        return cells

    def box_features(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """The first layer behind the boxes' pooled cells."""
        features = []
        for part in torch.split(boxes, 250):  # which bounds memory
            features.append(functional.relu(self.fc6(self.pooled(maps, part).flatten(1))))
        return torch.cat(features)


def _level_of(boxes: Tensor) -> Tensor:
    """(n,) the level of the pyramid for boxes (n, 4): floor(4 + log2(sqrt(area) / 224)), less the first's 2.
    Lin et al., 2017, eq. 1, from 0 to 3."""
    sides = boxes[:, 2:] - boxes[:, :2] + _PIXEL
    # As in maskrcnn-benchmark: without the epsilon a box of just 224 pixels may fall one level lower.
    levels = 4 + torch.log2(sides.prod(dim=1).sqrt() / 224 + 1e-6)
    return (levels.floor() - 2).clamp(0, len(_STRIDES) - 2).long()


class X152(_Detector, tags=["object-detection", "faster-rcnn", "resnext"]):
    """The detector behind ViLBERT's features, with the numbers of the script that released them. The margin
    of an image is that of its own size. Images with transparency, on which the script fails, are read in RGB.
    How many boxes are kept is in the config, 100 in the release. They are proposals without regression, and
    may end up to 31 pixels of the resized image behind its right or lower edge, as released ones do."""

    kind = "x152"
    described = (
        "Faster R-CNN, ResNeXt {layers}, width {width} of {groups} groups, FPN {pyramid_width}; "
        "{classes} classes; {feature_width} dimensions"
    )
    Settings = _X152Settings
    Conversion = X152Conversion
    Network = _X152Model
    pixel = _PIXEL
    wide = r"(?!body\.).*|.*\.(bn\d|downsample\.1)\..*"
    rule = only_selection = "all"  # its name where features are stored: there is no other one to choose

    def prepare(self) -> None:
        self._mean = np.array(self.settings.preprocessing.mean, dtype=np.float32)

    def preprocess(self, image: Image.Image) -> tuple[Tensor, float]:
        """(3, h, w) float32, blue, green, red, less the mean, resized, with a margin; and the scale. The
        scale is that of the shorter side, unless the longer one would exceed its own."""
        sides = self.settings.preprocessing
        scale: float = sides.shortest_side / min(image.size)
        if round(scale * max(image.size)) > sides.longest_side:
            scale = sides.longest_side / max(image.size)
        resized = _resized_by(_blue_first(image).astype(np.float32) - self._mean, scale)
        return _with_margin(torch.from_numpy(resized.transpose(2, 0, 1))), scale

    def scaled(self, pixels: Tensor) -> Tensor:
        return _with_margin(pixels - torch.from_numpy(self._mean).view(3, 1, 1))

    @torch.inference_mode()
    def select(
        self, proposals: Proposals, scale: float, size: tuple[int, int]
    ) -> tuple[BoxFeatures, Integers]:
        """The most confident proposals of an image, and their indices. The confidence of a proposal is its
        best score among the classes whose suppression it survives, 0 where there is none. Of equal
        confidences the first proposal comes first. `scale`: pixels that they were found in per pixel of the
        image."""
        settings = self.settings.detections
        boxes = on_host(proposals.boxes) / np.float32(scale)
        probabilities = on_host(proposals.class_logits.softmax(dim=1))[:, 1:]  # class 0 is the background
        one_thing = Suppression(settings.overlap, _PIXEL, at_bound=True)
        confidences = class_confidences(boxes, probabilities, one_thing, settings.threshold)
        best = np.argsort(-confidences, kind="stable")[: settings.most]
        # Chosen on the device: of 1,000 proposals 100 features are copied.
        features = on_host(proposals.features[on_device(best, proposals.features.device)])
        return BoxFeatures(boxes[best], features, size, confidences[best]), best


def _resized_by(pixels: Floats, scale: float) -> Floats:
    """Pixels (h, w, c) resized by one scale for both axes: linear, without antialiasing. As OpenCV's `resize`
    with INTER_LINEAR and a scale: a pixel of the result lies at its centre divided by the scale itself, not
    by the ratio of the rounded sizes. A side keeps at least one pixel."""
    y0, y1, y_weight = _neighbours(pixels.shape[0], scale)
    x0, x1, x_weight = _neighbours(pixels.shape[1], scale)
    x_weight = x_weight[:, None]
    y_weight = y_weight[:, None, None]
    # Along x first, as OpenCV: float32 sums depend on the order.
    wide = pixels[:, x0] * (1 - x_weight) + pixels[:, x1] * x_weight
    return np.asarray(wide[y0] * (1 - y_weight) + wide[y1] * y_weight, dtype=np.float32)


def _neighbours(n: int, scale: float) -> tuple[Integers, Integers, Floats]:
    """The two pixels around each resized pixel along a side of n, and the weight of the second."""
    places = (np.arange(max(1, round(n * scale))) + 0.5) / scale - 0.5
    places = np.clip(places.astype(np.float32), 0, n - 1)
    first = places.astype(np.int64)
    return first, np.minimum(first + 1, n - 1), places - first.astype(np.float32)


def _with_margin(pixels: Tensor) -> Tensor:
    """Pixels (3, h, w) with zeros at the right and the lower edge, up to multiples of 32."""
    height, width = _size_of(pixels)
    return functional.pad(pixels, (0, -width % 32, 0, -height % 32))
