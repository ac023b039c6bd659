"""The ResNeXt-152-32x8d FPN detector of 12-in-1: image -> boxes, features and confidences.

Lu, Goswami, Rohrbach, Parikh, Lee: 12-in-1: Multi-Task Vision and Language Representation Learning, CVPR
2020, https://arxiv.org/abs/1912.02315. ViLBERT of 12-in-1 takes its features of 2048 numbers, as the
`extract_features.py` of its release makes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d, clip_boxes_to_image, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from capeval_core.encoders.detector import (
    Detector,
    Floats,
    Integers,
    Kept,
    Pixels,
    ProposalHead,
    Proposals,
    ProposalSettings,
    Stages,
    anchor_boxes,
    arrays_by_one_copy,
    blue_first,
    decoded,
    in_order,
    size_of,
)
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.models.config import Closed, Count, Layers, Share, Width
from capeval_core.models.copies import on_device, on_host
from capeval_core.regions.suppression import Suppression, best_on_device, class_confidences
from capeval_core.weights.detectors import X152Conversion

_STAGES = ("layer1", "layer2", "layer3", "layer4")
_EXPANSION = 4
"""Times as many channels behind a residual block as it has planes."""
_STRIDES = (4, 8, 16, 32, 64)
"""Pixels of the resized image per cell of each level of the pyramid."""
_LEVELS = 4
"""Levels that proposals take their features from: all but the last."""
_POOLED = 7
"""Cells along each side of a pooled proposal."""
_SAMPLES = 2
"""Points along each side of such a cell, whose mean it is."""
_PIXEL = 1.0
"""Corners of boxes are their first and last pixel: a side has one pixel more than their difference."""
_CANONICAL_SIDE, _CANONICAL_LEVEL = 224, 4
_AT_A_TIME = 250
"""Proposals whose features are made together, which bounds memory."""
_MULTIPLE = 32
"""Pixels: the sides of the network's input are multiples of it, by a margin of zeros."""
_CANARY_BOXES = [[0.0, 0.0, 59.0, 49.0], [30.0, 20.0, 118.0, 88.0], [0.0, 0.0, 119.0, 89.0]]


@dataclass(frozen=True)
class _Architecture(Closed):
    layers: Stages
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


@dataclass(frozen=True, kw_only=True)
class _ProposalSettings(ProposalSettings):
    most: Kept


@dataclass(frozen=True)
class _DetectionSettings(Closed):
    most: Layers
    overlap: Share
    threshold: Annotated[float, (-1e-9, 1)]


@dataclass(frozen=True)
class _X152Settings:
    architecture: _Architecture
    preprocessing: Pixels
    proposals: _ProposalSettings
    detections: _DetectionSettings


class _Norm(FrozenBatchNorm2d):  # type: ignore[misc]
    """Batch normalisation by fixed statistics in float32, with nothing added to the variance."""

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        weight, bias = cast(Tensor, self.weight), cast(Tensor, self.bias)
        # torch's function of that name in `nn.functional` refuses an eps of 0 in some releases (2.11).
        return torch.batch_norm(
            x, weight, bias, mean, variance, False, 0.0, 0.0, torch.backends.cudnn.enabled
        )


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
    layers: list[nn.Module] = []
    for block in range(blocks):
        first = None
        if not block:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            first = nn.Sequential(convolution, _Norm(outputs))
        # torchvision's width of a group is of 64 planes.
        per_group = width * 64 // (planes * groups)
        shape = (outputs if block else inputs, planes, 1 if block else stride, first, groups, per_group)
        layers.append(Bottleneck(*shape, norm_layer=_Norm))
    return nn.Sequential(*layers)


class _X152Model(nn.Module):
    """A Faster R-CNN on a feature pyramid, whose features are those of its proposals."""

    def __init__(self, settings: _X152Settings, dtype: torch.dtype) -> None:
        super().__init__()
        shape, self.settings, self.dtype = settings.architecture, settings.proposals, dtype
        self.body = nn.ModuleDict({"stem": _Stem(shape.stem_width)})
        inputs, width, outputs = shape.stem_width, shape.width, shape.out_width
        channels = []
        for index, (name, blocks) in enumerate(zip(_STAGES, shape.layers, strict=True)):
            self.body[name] = _stage(inputs, width, outputs, shape.groups, blocks, 2 if index else 1)
            channels.append(outputs)
            inputs, width, outputs = outputs, 2 * width, 2 * outputs
        pyramid = shape.pyramid_width
        self.fpn = FeaturePyramidNetwork(channels, pyramid, extra_blocks=LastLevelMaxPool())
        self.head = ProposalHead(pyramid, pyramid, shape.anchors, levels=len(_STRIDES))
        self.fc6 = nn.Linear(pyramid * _POOLED * _POOLED, shape.feature_width)
        self.fc7 = nn.Linear(shape.feature_width, shape.feature_width)
        self.cls_score = nn.Linear(shape.feature_width, 1 + shape.classes)

    def forward(self, pixels: Tensor, size: tuple[int, int]) -> Proposals:
        """The proposals of an image of (height, width), the margin of its pixels (1, 3, h, w) included."""
        maps = self.feature_maps(pixels)
        boxes, objectness = self.propose(maps, size)
        features = self.box_features(maps, boxes)
        return Proposals(boxes, objectness, features, self.cls_score(self.hidden(features)))

    def hidden(self, features: Tensor) -> Tensor:
        """(n, d) of the second layer behind the pooled cells, of features (n, d) of the first."""
        return functional.relu(self.fc7(features))

    def feature_maps(self, pixels: Tensor) -> list[Tensor]:
        """(1, c, h, w) float32 of each level, the finest first."""
        x, maps = self.body["stem"](pixels.to(self.dtype)), OrderedDict()
        for name in _STAGES:
            x = self.body[name](x)
            maps[name] = x.float()
        return list(self.fpn(maps).values())

    def propose(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes (n, 4) and objectness (n,) of the proposals, best first, of an input of (height, width).

        In each level the best anchors are decoded and clipped to the input, and of those that overlap the
        best is kept; then the best of all levels.
        """
        levels = [self._candidates(level, map_, size) for level, map_ in enumerate(maps)]
        rule = Suppression(self.settings.overlap, _PIXEL, at_bound=True)
        kept = _best_of(rule, [boxes for boxes, _ in levels], self.settings.after_nms)
        found = [(boxes[own], scores[own]) for (boxes, scores), own in zip(levels, kept, strict=True)]
        boxes, objectness = (torch.cat(parts) for parts in zip(*found, strict=True))
        best = _best_first(objectness)[: self.settings.most]
        return boxes[best], objectness[best]

    def _candidates(self, level: int, map_: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The best anchors of a level, decoded and clipped, and their objectness, best first."""
        logits, deltas = self.head(map_)
        scores, steps = in_order(logits, deltas)
        scores = scores.sigmoid()
        best = _best_first(scores)[: self.settings.before_nms]
        height, width = map_.shape[2:]
        around = anchor_boxes(cast(Tensor, self.head.anchors)[level], _STRIDES[level], height, width)
        boxes = decoded(steps[best], around[best], self.settings.delta_weights, _PIXEL)
        return clip_boxes_to_image(boxes, (size[0] - 1, size[1] - 1)), scores[best]

    def pooled(self, maps: Sequence[Tensor], boxes: Tensor, levels: Tensor | None = None) -> Tensor:
        """(n, c, 7, 7) means of points for boxes (n, 4), in the levels (n,), on the host, that fit them.

        Points lie as in the first RoIAlign, which takes no half pixel off the corners.
        """
        levels = _level_of(boxes).cpu() if levels is None else levels
        cells = maps[0].new_empty(len(boxes), maps[0].shape[1], _POOLED, _POOLED)
        for level, map_ in enumerate(maps[:_LEVELS]):
            own = on_device(torch.nonzero(levels == level)[:, 0], boxes.device)
            cells[own] = roi_align(
                map_, [boxes[own]], _POOLED, 1 / _STRIDES[level], sampling_ratio=_SAMPLES, aligned=False
            )
        return cells

    def box_features(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """(n, d) float32 features of boxes (n, 4): the first layer behind their pooled cells."""
        levels = _level_of(boxes).cpu()  # the host waits once
        parts = [
            functional.relu(self.fc6(self.pooled(maps, *part).flatten(1)))
            for part in zip(*(torch.split(rows, _AT_A_TIME) for rows in (boxes, levels)), strict=True)
        ]
        return torch.cat(parts)


def _best_first(scores: Tensor) -> Tensor:
    """Indices of scores (n,), the highest first, of equal ones the first: the same on every device."""
    return scores.sort(descending=True, stable=True).indices


def _best_of(rule: Suppression, groups: Sequence[Tensor], most: int) -> list[Tensor]:
    """`rule.best` of each of several groups of boxes, on any device."""
    if groups[0].device.type == "cuda":
        return best_on_device(rule, groups, most)
    return [torch.from_numpy(rule.best(np.asarray(boxes.cpu()), most)).to(boxes.device) for boxes in groups]


def _level_of(boxes: Tensor) -> Tensor:
    """(n,) the level of the pyramid for boxes (n, 4): floor(4 + log2(sqrt(area) / 224)), less the first's 2.

    Lin et al., 2017, eq. 1, from 0 to 3.
    """
    sides = boxes[:, 2:] - boxes[:, :2] + _PIXEL
    levels = _CANONICAL_LEVEL + torch.log2(sides.prod(dim=1).sqrt() / _CANONICAL_SIDE + 1e-6)
    return (levels.floor() - 2).clamp(0, _LEVELS - 1).long()


class X152(Detector, tags=["object-detection", "faster-rcnn", "resnext"]):
    """The detector behind ViLBERT's features, with the numbers of the script that released them.

    The margin of an image is that of its own size. Images with transparency, on which the script fails, are
    read in RGB. How many boxes are kept is in the config, 100 in the release. They are proposals without
    regression, and may end up to 31 pixels of the resized image behind its right or lower edge, as released
    ones do.
    """

    kind = "x152"
    described = (
        "Faster R-CNN, ResNeXt {layers}, width {width} of {groups} groups, FPN {pyramid_width}; "
        "{classes} classes; {feature_width} dimensions"
    )
    Settings = _X152Settings
    Conversion = X152Conversion
    Network = _X152Model
    backbone = ("body",)
    only_selection = "all"
    """What this rule is called where features are stored: there is no other one to choose."""
    rules = (only_selection,)

    def prepare(self) -> None:
        self._mean = np.array(self.settings.preprocessing.mean, dtype=np.float32)

    def preprocess(self, image: Image.Image) -> tuple[Tensor, float]:
        """(3, h, w) float32, blue, green, red, less the mean, resized, with a margin; and the scale.

        The scale is that of the shorter side, unless the longer one would exceed its own.
        """
        sides = self.settings.preprocessing
        scale: float = sides.shortest_side / min(image.size)
        if round(scale * max(image.size)) > sides.longest_side:
            scale = sides.longest_side / max(image.size)
        resized = _resized_by(blue_first(image).astype(np.float32) - self._mean, scale)
        return _with_margin(torch.from_numpy(resized.transpose(2, 0, 1))), scale

    @torch.inference_mode()
    def select(
        self, found: Proposals, scale: float, size: tuple[int, int], rule: str = "all"
    ) -> tuple[BoxFeatures, Integers]:
        """The most confident proposals of an image, and their indices.

        The confidence of a proposal is its best score among the classes whose suppression it survives, 0
        where there is none. Of equal confidences the first proposal comes first. `scale`: pixels that they
        were found in per pixel of the image.
        """
        settings = self.settings.detections
        boxes, probabilities = arrays_by_one_copy(found.boxes, found.class_logits.softmax(dim=1))
        boxes = boxes / np.float32(scale)
        one_thing = Suppression(settings.overlap, _PIXEL, at_bound=True)
        confidences = class_confidences(boxes, probabilities[:, 1:], one_thing, settings.threshold)
        kept = np.argsort(-confidences, kind="stable")[: settings.most]
        features = on_host(found.features[on_device(kept, found.features.device)])
        return BoxFeatures(boxes[kept], features, size, confidences[kept]), kept

    def canary_rows(self, pixels: Tensor) -> list[Tensor]:
        """Of each level's cells, and of three boxes."""
        model = self.model
        centred = pixels - torch.from_numpy(self._mean).view(3, 1, 1)
        maps = model.feature_maps(_with_margin(centred)[None].to(self.device))
        around = [torch.cat(model.head(map_), dim=1)[0].flatten(1).T for map_ in maps]
        features = model.box_features(maps, torch.tensor(_CANARY_BOXES, device=self.device))
        hidden = model.hidden(features)
        rows = [cells[:: len(cells) // 3][:3] for cells in around]
        return [*rows, features, hidden, model.cls_score(hidden)]


def _resized_by(pixels: Floats, scale: float) -> Floats:
    """Pixels (h, w, c) resized by one scale for both axes: linear, without antialiasing.

    As OpenCV's `resize` with INTER_LINEAR and a scale: a pixel of the result lies at its centre divided by
    the scale itself, not by the ratio of the rounded sizes. A side keeps at least one pixel.
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


def _with_margin(pixels: Tensor) -> Tensor:
    """Pixels (3, h, w) with zeros at the right and the lower edge, up to multiples of 32."""
    height, width = size_of(pixels)
    return functional.pad(pixels, (0, -width % _MULTIPLE, 0, -height % _MULTIPLE))
