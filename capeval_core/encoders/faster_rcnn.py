"""Faster R-CNN of bottom-up attention: image -> boxes, features and confidences.

Anderson et al.: Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR
2018, https://arxiv.org/abs/1707.07998. Networks on regions, such as LXMERT and UNITER, take its features of
2048 numbers; its PyTorch release is the one of LXMERT (Tan, Bansal, EMNLP 2019,
https://arxiv.org/abs/1908.07490).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Annotated, Self, cast, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import RoIPool, clip_boxes_to_image, nms

from capeval_core.encoders.detector import (
    Detector,
    Integers,
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
from capeval_core.models.config import Closed, Count, Deviations, Layers, Width
from capeval_core.regions.features import Selection, boxes_kept
from capeval_core.regions.suppression import (
    Suppression,
    best_on_device,
    class_confidences,
    clipped,
    enough_boxes,
)
from capeval_core.weights.detectors import FasterRcnnConversion

_STAGES = ("res2", "res3", "res4", "res5")
_STRIDE = 16
"""Pixels of the image per cell of the feature map."""
_POOLED = 14
"""Cells along each side of a pooled proposal."""
_AT_A_TIME = 50
"""Proposals whose features are made together, which bounds memory: 300 at once take 2 GB."""
_SMALLEST = 3
"""Pixels that the stem needs along each side."""
_ONE_THING = Suppression(0.3)
"""When two boxes of one class show one thing; without the additional pixel of Caffe's detectors. No published
numbers pin it."""
_CANARY_BOXES = [[0.0, 0.0, 60.0, 50.0], [30.0, 20.0, 119.0, 89.0], [0.0, 0.0, 120.0, 90.0]]


@dataclass(frozen=True)
class _Architecture(Closed):
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
class _ScaledPixels(Pixels):
    std: Deviations


@dataclass(frozen=True)
class _DetectionSettings(Closed):
    overlaps: Annotated[list[float], (0, 1)]
    least: Layers
    most: Layers
    delta_weights: Annotated[list[float], (0, 1e3), 4]

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, but most is {self.most}")


@dataclass(frozen=True)
class _FasterRcnnSettings:
    architecture: _Architecture
    preprocessing: _ScaledPixels
    proposals: ProposalSettings
    detections: _DetectionSettings


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
    """A residual block of ResNet with its stride in the first convolution, where Caffe's have it.

    torchvision's has it in the second one, and outputs four times as wide as its inner layers.
    """

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


class _Stem(nn.Module):
    """A convolution and a maximum, each of which halves the resolution, rounded up as in Caffe."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = _ConvNorm(3, width, 7, stride=2)

    def forward(self, pixels: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu_(self.conv1(pixels)), 3, 2, ceil_mode=True)


class _Predictor(nn.Module):
    """Class, box per class, and attribute of a feature; the attribute depends on the likeliest class."""

    def __init__(self, inputs: int, shape: _Architecture) -> None:
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
    """A Faster R-CNN whose features are those of its proposals."""

    def __init__(self, settings: _FasterRcnnSettings, dtype: torch.dtype) -> None:
        super().__init__()
        shape, self.settings, self.dtype = settings.architecture, settings.proposals, dtype
        self.backbone = nn.ModuleDict({"stem": _Stem(shape.stem_width)})
        inputs, width, outputs = shape.stem_width, shape.width, shape.out_width
        for index, (name, blocks) in enumerate(zip(_STAGES, shape.layers, strict=True)):
            last = name == _STAGES[-1]  # runs on pooled proposals, at their resolution
            stride, dilation = (1 if last or not index else 2), (2 if last else 1)
            stage = nn.Sequential(
                *(
                    _Bottleneck(
                        outputs if block else inputs, width, outputs, 1 if block else stride, dilation
                    )
                    for block in range(blocks)
                )
            )
            if last:
                self.res5 = stage
                self.head = ProposalHead(inputs, shape.proposal_width, shape.anchors)
                self.predictor = _Predictor(outputs, shape)
            else:
                self.backbone[name] = stage
                inputs, width, outputs = outputs, 2 * width, 2 * outputs
        self.pool = RoIPool((_POOLED, _POOLED), 1 / _STRIDE)

    def forward(self, pixels: Tensor, size: tuple[int, int]) -> Proposals:
        """The proposals of an image of (height, width) whose pixels (1, 3, h, w) may have a margin."""
        map_ = self.feature_map(pixels)
        objectness, deltas = self.head(map_)
        boxes, logits = self.propose(objectness, deltas, size)
        features = self.box_features(map_, boxes)
        return Proposals(boxes, logits, features, self.predictor.cls_score(features))

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
        settings = self.settings
        height, width = logits.shape[2:]
        scores, steps = in_order(logits, deltas)
        scores, best = scores.topk(min(settings.before_nms, len(scores)))
        around = anchor_boxes(cast(Tensor, self.head.anchors), _STRIDE, height, width)[best]
        boxes = clip_boxes_to_image(decoded(steps[best], around, settings.delta_weights), size)
        whole = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        if boxes.device.type == "cuda":  # where torchvision's kernel would round otherwise
            (kept,) = best_on_device(Suppression(settings.overlap), [boxes], settings.after_nms, whole)
        else:
            boxes, scores = boxes[whole], scores[whole]
            kept = nms(boxes, scores, settings.overlap)[: settings.after_nms]
        return boxes[kept], scores[kept]

    def box_features(self, map_: Tensor, boxes: Tensor) -> Tensor:
        """(n, d) float32 features of boxes (n, 4): the mean of the last stage over their pooled cells."""
        parts = [
            self.res5(self.pool(map_, [part]).to(self.dtype)).float().mean(dim=(2, 3))
            for part in torch.split(boxes, _AT_A_TIME)
        ]
        return torch.cat(parts)


class FasterRcnn(Detector, tags=["object-detection", "faster-rcnn"]):
    """Bottom-up attention's Faster R-CNN, with the numbers of its PyTorch release.

    (The release reads a file with blue first only where it is given as a URL.)
    """

    kind = "faster_rcnn"
    described = "Faster R-CNN, ResNet {layers}, width {width}; {classes} classes, {attributes} attributes"
    Settings = _FasterRcnnSettings
    Conversion = FasterRcnnConversion
    Network = _FasterRcnnModel
    backbone = ("backbone", "res5")
    rules = get_args(Selection)

    def prepare(self) -> None:
        pixels = self.settings.preprocessing
        self._mean, self._std = (torch.tensor(own).view(3, 1, 1) for own in (pixels.mean, pixels.std))

    def selecting(self, selection: str) -> Self:
        """This network with one way to choose boxes."""
        chosen = copy(self)
        chosen.rules = (self._checked_rule(selection),)
        chosen.fingerprint = f"{self.fingerprint}-{selection}"
        return chosen

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Size of the network's input for an image of (height, width).

        The shorter side has its fixed length, unless the longer one exceeds its own. A strip so narrow that
        nothing would be left keeps three pixels; the original fails there.
        """
        pixels = self.settings.preprocessing
        scale = pixels.shortest_side / min(size)
        sides = [pixels.shortest_side if side == min(size) else scale * side for side in size]
        if max(sides) > pixels.longest_side:
            scale = pixels.longest_side / max(sides)
            sides = [scale * side for side in sides]
        height, width = (max(int(side + 0.5), _SMALLEST) for side in sides)
        return height, width

    def preprocess(self, image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
        """(3, h, w) float32: blue, green, red, resized without antialiasing, less the mean; and (h, w)."""
        bgr = torch.from_numpy(blue_first(image)).permute(2, 0, 1)[None].float()
        size = self.resized((image.height, image.width))
        resized = functional.interpolate(bgr, size, mode="bilinear", align_corners=False)[0]
        return (resized - self._mean) / self._std, size_of(resized)

    @torch.inference_mode()
    def select(
        self, found: Proposals, scale: tuple[int, int], size: tuple[int, int], rule: str
    ) -> tuple[BoxFeatures, Integers]:
        """What a rule keeps of the proposals of an image, and their indices.

        `bua10_100`: 10 to 100 proposals, those with a confidence above 0.2, see `boxes_kept`. `lxmert36`: the
        36 best boxes after regression, of the likeliest class. `scale` is the (height, width) of the pixels
        that they were found in.
        """
        probabilities = found.class_logits.softmax(dim=1)[:, :-1]
        if rule == "bua10_100":
            boxes, by_class, features = arrays_by_one_copy(found.boxes, probabilities, found.features)
            scores = class_confidences(boxes, by_class, _ONE_THING)
            order = np.argsort(-scores, kind="stable")
            kept = order[: boxes_kept(scores[order])]
        else:
            settings = self.settings.detections
            best, likeliest = probabilities.max(dim=1)
            each = torch.arange(len(best), device=best.device)
            deltas = self.model.predictor.bbox_pred(found.features).view(len(best), -1, 4)[each, likeliest]
            moved = decoded(deltas, found.boxes, settings.delta_weights)
            boxes, scores, features = arrays_by_one_copy(moved, best, found.features)
            boxes = clipped(boxes, scale)
            kept = enough_boxes(boxes, scores, settings.overlaps, settings.least, settings.most)
        ratio = np.tile(np.divide(size, scale[::-1], dtype=np.float32), 2)
        shown = clipped(boxes[kept] * ratio, size[::-1])
        return BoxFeatures(shown, features[kept], size, scores[kept]), kept

    def canary_rows(self, pixels: Tensor) -> list[Tensor]:
        model = self.model
        map_ = model.feature_map(((pixels - self._mean) / self._std)[None].to(self.device))
        around = torch.cat(model.head(map_), dim=1)[0].flatten(1).T
        features = model.box_features(map_, torch.tensor(_CANARY_BOXES, device=self.device))
        classes = torch.zeros(3, dtype=torch.int64, device=self.device)
        return [
            around[:: len(around) // 3][:3],
            features,
            model.predictor.cls_score(features),
            model.predictor.bbox_pred(features),
            model.predictor.attribute_logits(features, classes),
        ]
