"""What networks that find boxes in images share: proposals, and how images run."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.errors import did_you_mean, wrong_option
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import canary_images
from capeval_core.models.config import Closed, Count, Means, Share, read
from capeval_core.models.copies import on_device, on_host
from capeval_core.models.device import DTYPES, exact
from capeval_core.models.model import CheckedModel, check_tensors
from capeval_core.regions.features import BoxVisual, pack, refuse_unusable

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

Stages = Annotated[list[int], range(1, 1_001), 4]
Kept = Annotated[int, range(1, 10_001)]
_LONGEST_STEP = math.log(1000 / 16)
"""Bound of the logarithm by which a box may grow."""


@dataclass(frozen=True)
class Pixels(Closed):
    """How images are resized and scaled."""

    shortest_side: Annotated[int, range(1, 16_385)]
    longest_side: Annotated[int, range(1, 16_385)]
    mean: Means

    def __post_init__(self) -> None:
        if self.shortest_side > self.longest_side:
            raise ValueError("shortest_side is above preprocessing.longest_side")


@dataclass(frozen=True)
class ProposalSettings(Closed):
    """Which anchors become proposals."""

    before_nms: Count
    after_nms: Kept
    overlap: Share
    delta_weights: Annotated[list[float], (0, 1e3), 4]


class Proposals(NamedTuple):
    """What a network finds in one image, in pixels of the resized image; best proposal first.

    boxes: (n, 4) x0, y0, x1, y1. objectness: (n,). features: (n, d). class_logits: (n, 1 + classes).
    """

    boxes: Tensor
    objectness: Tensor
    features: Tensor
    class_logits: Tensor


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
    """(h * w * a, 4) anchors of a feature map, row by row, by those of a cell (a, 4)."""
    x, y = (torch.arange(n, device=cells.device) * float(stride) for n in (width, height))
    row, column = torch.meshgrid(y, x, indexing="ij")
    centres = torch.stack([column, row, column, row], dim=-1).view(-1, 1, 4)
    return (centres + cells).view(-1, 4)


def in_order(logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n,) and deltas (n, 4) in the order of `anchor_boxes`, of (1, a, h, w) and (1, 4a, h, w)."""
    _, anchors, height, width = logits.shape
    steps = deltas[0].view(anchors, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)
    return logits[0].permute(1, 2, 0).reshape(-1), steps


def decoded(deltas: Tensor, boxes: Tensor, weights: Sequence[float], pixel: float = 0.0) -> Tensor:
    """(n, 4) boxes that lie as `deltas` (n, 4) say of boxes (n, 4).

    A delta is the step of the centre in widths and heights of the box, and the logarithm of the growth of
    either side, each times its weight. `pixel` is 1 where corners are the first and the last pixel of a box.
    """
    sides = boxes[:, 2:] - boxes[:, :2] + pixel
    centres = boxes[:, :2] + 0.5 * sides
    steps = deltas / on_device(torch.tensor(weights, dtype=deltas.dtype, device="cpu"), deltas.device)
    moved = steps[:, :2] * sides + centres
    grown = steps[:, 2:].clamp(max=_LONGEST_STEP).exp() * sides
    return torch.cat([moved - 0.5 * grown, moved + 0.5 * grown - pixel], dim=1)


class BoxEncoder(CheckedModel):
    """A network that finds boxes in images, one image at a time, so that no feature depends on others."""

    rules: tuple[str, ...]
    """Names of the ways to choose boxes; the first one is the default."""

    def encode_boxes(
        self,
        images: Iterable[InputImage],
        *,
        selection: str | None = None,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images with their features, the most confident first, in order.

        Images are read and resized ahead of the network, equal ones run once, and what was found is kept in
        the cache. One that cannot be read, or in which nothing is found, costs its row: the result has an
        error instead of boxes.

        Args:
            images: any number.
            selection: which boxes are kept, one of `rules`; None: the first one.
            cache: where features are looked up and kept.
            batch_size: of no effect: images are of different sizes and run one at a time.
        """
        rule = self.rules[0] if selection is None else self._checked_rule(selection)
        encoding = Encoding(
            size=BatchSize(1, automatic=True),
            keys=lambda content, _: (self.key("boxes", f"{rule}\n{content}".encode()),),
            prepare=lambda image: (self.preprocess(image), image.size),
            forward=lambda batch: [pack(self.find(prepared, size, rule)) for prepared, size in batch],
        )
        for part in encode_stream(((image, image) for image in images), encoding, cache):
            for item in part:
                image, key = item.extra, next(iter(item.keys), "")
                packed = None if item.arrays is None else item.arrays[key]
                found = BoxVisual(image.where, image.name, item.content, item.error, key, packed)
                yield refuse_unusable(found)

    def _checked_rule(self, rule: str) -> str:
        if rule not in self.rules:
            fix = f"expected {' or '.join(map(repr, self.rules))}{did_you_mean(str(rule), self.rules)}"
            raise wrong_option("selection", rule, "unknown", fix)
        return rule

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Any:
        """The network's input of a decoded image; runs in threads."""

    @abstractmethod
    def find(self, prepared: Any, size: tuple[int, int], rule: str) -> BoxFeatures:
        """What a rule keeps of an image of (width, height)."""


class Detector(BoxEncoder):
    """A Faster R-CNN.

    Colours are in the order that the weights expect, blue first, wherever an image comes from. In bfloat16
    and float16 only the convolutions of the backbone are rounded: coordinates need float32.
    """

    depends_on = ("architecture", "preprocessing", "proposals", "detections")
    Network: ClassVar[type[Any]]
    """The modules, by settings and the dtype of the backbone's convolutions."""
    backbone: ClassVar[tuple[str, ...]]
    """Modules whose convolutions have this dtype."""

    model: Any

    @classmethod
    def modules(cls, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> nn.Module:
        model: nn.Module = cls.Network(read(cls.Settings, config, ""), dtype)
        for part in cls.backbone:
            for module in model.get_submodule(part).modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.data = module.weight.data.to(dtype)
        return model.eval().requires_grad_(False)

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        with torch.device("meta"):
            model = self.modules(config, DTYPES[self.dtype])
        check_tensors(model.state_dict(), tensors)
        types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        typed = {name: tensor.to(types[name]) for name, tensor in tensors.items()}
        model.load_state_dict(typed, assign=True)
        return model.requires_grad_(False)

    def find(self, prepared: tuple[Tensor, Any], size: tuple[int, int], rule: str) -> BoxFeatures:
        pixels, scale = prepared
        return self.select(self.propose(pixels), scale, size, rule)[0]

    @exact
    def propose(self, pixels: Tensor, size: tuple[int, int] | None = None) -> Proposals:
        """The proposals of one image (3, h, w), of (height, width) if it has a margin of its own."""
        found: Proposals = self.model(on_device(pixels[None], self.device), size or size_of(pixels))
        return found

    @abstractmethod
    def select(
        self, found: Proposals, scale: Any, size: tuple[int, int], rule: str
    ) -> tuple[BoxFeatures, Integers]:
        """What a rule keeps of the proposals of an image of (width, height), and their indices."""

    @abstractmethod
    def canary_rows(self, pixels: Tensor) -> list[Tensor]:
        """(3, ...) each: what the network tells of an image (3, h, w), blue first, at its own size."""

    @exact
    def canary(self) -> Floats:
        """(n, 3) cosines of three places of a drawn image, in all that the network tells."""
        pixels = torch.from_numpy(blue_first(canary_images()[0]).transpose(2, 0, 1).astype(np.float32))
        pairs = [functional.cosine_similarity(row, row.roll(1, 0)) for row in self.canary_rows(pixels)]
        return on_host(torch.stack(pairs))


def size_of(pixels: Tensor) -> tuple[int, int]:
    """Height and width of (3, h, w)."""
    return int(pixels.shape[1]), int(pixels.shape[2])


def arrays_by_one_copy(*columns: Tensor) -> list[Floats]:
    """Tensors (n, ...) of float32 on any device as arrays on the CPU, for which the host waits once."""
    if columns[0].device.type == "cpu":
        return [on_host(own) for own in columns]
    flat = on_host(torch.cat([own.flatten() for own in columns]))
    ends = np.cumsum([own.numel() for own in columns])[:-1]
    return [part.reshape(own.shape) for part, own in zip(np.split(flat, ends), columns, strict=True)]


def blue_first(image: Image.Image) -> NDArray[np.uint8]:
    """(h, w, 3): blue, green and red of an image of any mode, as Caffe's networks take them."""
    blue: NDArray[np.uint8] = np.asarray(image.convert("RGB"))[:, :, ::-1].copy()
    return blue
