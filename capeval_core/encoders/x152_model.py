"""The modules of 12-in-1's ResNeXt-152-32x8d FPN detector: feature pyramid, proposals, features, classes.

Xie et al.: Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017,
https://arxiv.org/abs/1611.05431; Lin et al.: Feature Pyramid Networks for Object Detection, CVPR 2017,
https://arxiv.org/abs/1612.03144; Lu et al.: 12-in-1: Multi-Task Vision and Language Representation Learning,
CVPR 2020, https://arxiv.org/abs/1912.02315
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d, clip_boxes_to_image, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from capeval_core.encoders.faster_rcnn_model import ProposalHead, anchor_boxes, decoded, frozen, in_order
from capeval_core.models.copies import on_device
from capeval_core.regions.suppression import Suppression, best_on_device
from capeval_core.weights.x152 import EXPANSION, STAGES

STRIDES = (4, 8, 16, 32, 64)
"""Pixels of the resized image per cell of each level of the pyramid."""
LEVELS = 4
"""Levels that proposals take their features from: all but the last."""
POOLED = 7
"""Cells along each side of a pooled proposal."""
SAMPLES = 2
"""Points along each side of such a cell, whose mean it is."""
PIXEL = 1.0
"""Corners of boxes are their first and last pixel: a side has one pixel more than their difference."""
_CANONICAL_SIDE, _CANONICAL_LEVEL = 224, 4
_AT_A_TIME = 250
"""Proposals whose features are made together, which bounds memory."""


@dataclass(frozen=True)
class Proposals:
    """What the network finds in one image, in pixels of the resized image; best proposal first.

    boxes: (n, 4) x0, y0, x1, y1, the last pixels included. objectness: (n,) from 0 to 1. features: (n, d) of
    the first layer behind the pooled cells (`fc6`). hidden: (n, d) of the second one (`fc7`). class_logits:
    (n, 1 + classes), background first.
    """

    boxes: Tensor
    objectness: Tensor
    features: Tensor
    hidden: Tensor
    class_logits: Tensor


class Norm(FrozenBatchNorm2d):  # type: ignore[misc]
    """Batch normalisation by fixed statistics in float32, with nothing added to the variance."""

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        weight, bias = cast(Tensor, self.weight), cast(Tensor, self.bias)
        # torch's function of that name in `nn.functional` refuses an eps of 0 in some releases (2.11).
        return torch.batch_norm(
            x, weight, bias, mean, variance, False, 0.0, 0.0, torch.backends.cudnn.enabled
        )


class Stem(nn.Module):
    """A convolution and a maximum, each of which halves the resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = Norm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu_(self.bn1(self.conv1(pixels))), 3, 2, padding=1)


def stage(inputs: int, width: int, outputs: int, groups: int, blocks: int, stride: int) -> nn.Sequential:
    """Residual blocks of ResNeXt with their stride in the 3x3 convolution, of `groups` groups."""
    planes = outputs // EXPANSION
    layers: list[nn.Module] = []
    for block in range(blocks):
        first = None
        if not block:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            first = nn.Sequential(convolution, Norm(outputs))
        # torchvision's width of a group is of 64 planes.
        per_group = width * 64 // (planes * groups)
        shape = (outputs if block else inputs, planes, 1 if block else stride, first, groups, per_group)
        layers.append(Bottleneck(*shape, norm_layer=Norm))
    return nn.Sequential(*layers)


class X152Model(nn.Module):
    """A Faster R-CNN on a feature pyramid, whose features are those of its proposals.

    The convolutions of ResNeXt run in `dtype`, and all else in float32: coordinates need it.

    Args:
        config: `architecture` and `proposals` of a weights folder.
        dtype: of these convolutions.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shape, self.settings, self.dtype = config["architecture"], config["proposals"], dtype
        self.body = nn.ModuleDict({"stem": Stem(shape["stem_width"])})
        inputs, width, outputs = shape["stem_width"], shape["width"], shape["out_width"]
        channels = []
        for index, (name, blocks) in enumerate(zip(STAGES, shape["layers"], strict=True)):
            self.body[name] = stage(inputs, width, outputs, shape["groups"], blocks, 2 if index else 1)
            channels.append(outputs)
            inputs, width, outputs = outputs, 2 * width, 2 * outputs
        pyramid = shape["pyramid_width"]
        self.fpn = FeaturePyramidNetwork(channels, pyramid, extra_blocks=LastLevelMaxPool())
        self.head = ProposalHead(pyramid, pyramid, shape["anchors"], levels=len(STRIDES))
        self.fc6 = nn.Linear(pyramid * POOLED * POOLED, shape["feature_width"])
        self.fc7 = nn.Linear(shape["feature_width"], shape["feature_width"])
        self.cls_score = nn.Linear(shape["feature_width"], 1 + shape["classes"])

    def forward(self, pixels: Tensor) -> Proposals:
        """The proposals of an image (1, 3, h, w), its margin included."""
        maps = self.feature_maps(pixels)
        boxes, objectness = self.propose(maps, (int(pixels.shape[2]), int(pixels.shape[3])))
        features = self.box_features(maps, boxes)
        hidden = functional.relu(self.fc7(features))
        return Proposals(boxes, objectness, features, hidden, self.cls_score(hidden))

    def feature_maps(self, pixels: Tensor) -> list[Tensor]:
        """(1, c, h, w) float32 of each level, the finest first."""
        x, maps = self.body["stem"](pixels.to(self.dtype)), OrderedDict()
        for name in STAGES:
            x = self.body[name](x)
            maps[name] = x.float()
        return list(self.fpn(maps).values())

    def propose(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes (n, 4) and objectness (n,) of the proposals, best first, of an input of (height, width).

        In each level the best anchors are decoded and clipped to the input, and of those that overlap the
        best is kept; then the best of all levels.
        """
        found = self._propose(dict(enumerate(maps)), size)
        boxes, objectness = (torch.cat(parts) for parts in zip(*found, strict=True))
        best = best_first(objectness)[: self.settings["most"]]
        return boxes[best], objectness[best]

    def _propose(self, maps: Mapping[int, Tensor], size: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
        """Boxes and objectness of each of these levels."""
        found = [self._candidates(level, map_, size) for level, map_ in maps.items()]
        rule = Suppression(self.settings["overlap"], PIXEL, at_bound=True)
        kept = best_of(rule, [boxes for boxes, _ in found], self.settings["after_nms"])
        return [(boxes[own], scores[own]) for (boxes, scores), own in zip(found, kept, strict=True)]

    def _candidates(self, level: int, map_: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The best anchors of a level, decoded and clipped, and their objectness, best first."""
        logits, deltas = self.head(map_)
        scores, steps = in_order(logits, deltas)
        scores = scores.sigmoid()
        best = best_first(scores)[: self.settings["before_nms"]]
        height, width = map_.shape[2:]
        around = anchor_boxes(cast(Tensor, self.head.anchors)[level], STRIDES[level], height, width)
        boxes = decoded(steps[best], around[best], self.settings["delta_weights"], PIXEL)
        return clip_boxes_to_image(boxes, (size[0] - 1, size[1] - 1)), scores[best]

    def pooled(self, maps: Sequence[Tensor], boxes: Tensor, levels: Tensor | None = None) -> Tensor:
        """(n, c, 7, 7) means of points of the level that fits each of boxes (n, 4).

        levels: (n,), on the host; None: they are computed.

        Points lie as in the first RoIAlign, which takes no half pixel off the corners.
        """
        levels = level_of(boxes).cpu() if levels is None else levels
        cells = maps[0].new_empty(len(boxes), maps[0].shape[1], POOLED, POOLED)
        for level, map_ in enumerate(maps[:LEVELS]):
            own = on_device(torch.nonzero(levels == level)[:, 0], boxes.device)
            cells[own] = roi_align(
                map_, [boxes[own]], POOLED, 1 / STRIDES[level], sampling_ratio=SAMPLES, aligned=False
            )
        return cells

    def box_features(self, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """(n, d) float32 features of boxes (n, 4): the first layer behind their pooled cells."""
        levels = level_of(boxes).cpu()  # the host waits once
        parts = [
            functional.relu(self.fc6(self.pooled(maps, *part).flatten(1)))
            for part in zip(*(torch.split(rows, _AT_A_TIME) for rows in (boxes, levels)), strict=True)
        ]
        return torch.cat(parts)


def best_first(scores: Tensor) -> Tensor:
    """Indices of scores (n,), the highest first, of equal ones the first: the same on every device."""
    return scores.sort(descending=True, stable=True).indices


def best_of(rule: Suppression, groups: Sequence[Tensor], most: int) -> list[Tensor]:
    """`rule.best` of each of several groups of boxes, on any device."""
    if groups[0].device.type == "cuda":
        return best_on_device(rule, groups, most)
    return [torch.from_numpy(rule.best(np.asarray(boxes.cpu()), most)).to(boxes.device) for boxes in groups]


def level_of(boxes: Tensor) -> Tensor:
    """(n,) the level of the pyramid for boxes (n, 4): floor(4 + log2(sqrt(area) / 224)), less the first's 2.

    Lin et al., 2017, eq. 1, from 0 to 3.

    >>> sides = torch.tensor([[50.0, 50], [222, 223], [223, 223], [900, 900]])
    >>> level_of(torch.cat([torch.zeros(4, 2), sides], dim=1)).tolist()
    [0, 1, 2, 3]
    """
    sides = boxes[:, 2:] - boxes[:, :2] + PIXEL
    levels = _CANONICAL_LEVEL + torch.log2(sides.prod(dim=1).sqrt() / _CANONICAL_SIDE + 1e-6)
    return (levels.floor() - 2).clamp(0, LEVELS - 1).long()


def build(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> X152Model:
    """The model of a config, with random weights, in evaluation mode."""
    return frozen(X152Model(config, dtype), ("body",), dtype)
