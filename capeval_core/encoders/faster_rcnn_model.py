"""The modules of bottom-up attention's Faster R-CNN: ResNet-C4, proposals, classes and attributes.

Ren, He, Girshick, Sun: Faster R-CNN, NeurIPS 2015, https://arxiv.org/abs/1506.01497; Anderson et al.:
Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR 2018,
https://arxiv.org/abs/1707.07998
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import RoIPool, clip_boxes_to_image, nms

from capeval_core.encoders.detector import (
    COUNTS,
    FEW,
    SIDES,
    WIDTHS,
    are,
    shared_problems,
    size_problems,
)
from capeval_core.models.architecture import is_number, shown
from capeval_core.models.copies import on_device
from capeval_core.regions.suppression import Suppression, best_on_device
from capeval_core.weights.faster_rcnn import STAGES, STRIDE

M = TypeVar("M", bound=nn.Module)

POOLED = 14
"""Cells along each side of a pooled proposal."""
_LONGEST_STEP = math.log(1000 / 16)
"""Bound of the logarithm by which a box may grow."""
_AT_A_TIME = 50
"""Proposals whose features are made together, which bounds memory: 300 at once take 2 GB."""
_SIZES: dict[str, dict[str, range]] = {
    "architecture": {
        **dict.fromkeys(("stem_width", "width", "out_width", "proposal_width"), WIDTHS),
        **dict.fromkeys(("class_width", "attribute_width"), WIDTHS),
        **dict.fromkeys(("classes", "attributes"), COUNTS),
        "anchors": FEW,
    },
    "preprocessing": dict.fromkeys(("shortest_side", "longest_side"), SIDES),
    "proposals": {"before_nms": COUNTS, "after_nms": FEW},
    "detections": dict.fromkeys(("least", "most"), FEW),
}
"""Whole numbers of a config, and their bounds."""
_OTHERS = {
    "architecture": {"layers"},
    "preprocessing": {"mean", "std"},
    "proposals": {"overlap", "delta_weights"},
    "detections": {"overlaps", "delta_weights"},
}
"""The other settings of each part."""


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


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    if problems := size_problems(config, _SIZES, _OTHERS):
        return problems
    problems = shared_problems(config, ("proposals", "detections"))
    overlaps = config["detections"].get("overlaps")
    if not are(overlaps, lambda each: is_number(each, 0, 1)):
        problems.append(
            f"detections.overlaps is {shown(overlaps)}, expected numbers above 0, at most 1, one or more"
        )
    if config["detections"]["least"] > config["detections"]["most"]:
        found = f"detections.least is {config['detections']['least']}"
        problems.append(f"{found}, but detections.most is {config['detections']['most']}")
    return problems
