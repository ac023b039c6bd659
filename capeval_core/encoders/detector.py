"""What networks that find boxes in images share: how images run, and how their configs are checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from capeval_core.cache import FeatureCache, feature_key
from capeval_core.encoders.engine import Encoding, box_visuals
from capeval_core.inputs.images import InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.models.config import Closed, read
from capeval_core.models.device import DTYPES
from capeval_core.models.model import CheckedModel
from capeval_core.regions.features import BoxVisual
from capeval_core.weights.folder import WeightsFolder

Floats = NDArray[np.float32]

Stages = Annotated[list[int], range(1, 1_001), 4]
Deltas = Annotated[list[float], (0, 1e3), 4]
Kept = Annotated[int, range(1, 10_001)]


@dataclass(frozen=True)
class Pixels(Closed):
    """How images are resized and scaled."""

    shortest_side: Annotated[int, range(1, 16_385)]
    longest_side: Annotated[int, range(1, 16_385)]
    mean: Annotated[list[float], (-1e3, 1e3), 3]

    def __post_init__(self) -> None:
        if self.shortest_side > self.longest_side:
            raise ValueError("shortest_side is above preprocessing.longest_side")


class Detector(CheckedModel):
    """A network that finds boxes in images, one image at a time.

    An image runs alone, so that none of its features depends on what else is encoded. Arguments and errors
    are those of `CheckedModel`.
    """

    depends_on = ("architecture", "preprocessing", "proposals", "detections")

    @staticmethod
    @abstractmethod
    def modules(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model of a config, with random weights, in evaluation mode."""

    Settings: ClassVar[type]
    """Dataclass of the parts of a config."""

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        with torch.device("meta"):
            model = self.modules(config, DTYPES[self.dtype])
        types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        typed = {name: tensor.to(types[name]) for name, tensor in tensors.items()}
        model.load_state_dict(typed, assign=True)
        return model.requires_grad_(False)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> nn.Module:
        read(cls.Settings, config, "")
        with torch.device("meta"):
            return cls.modules(config)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        read(cls.Settings, config, "")
        return config

    def boxes_of_each(
        self,
        images: Iterable[InputImage],
        prepare: Callable[[Image.Image], Any],
        find: Callable[[Any], Floats],
        cache: FeatureCache,
        rule: str = "",
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images, in order, through the engine and the cache.

        Args:
            images: any number.
            prepare: what `find` takes of a decoded image; runs in threads, ahead of the network.
            find: the packed boxes of an image.
            cache: where features are looked up and kept.
            rule: names the choice of boxes, if there are several.
        """
        encoding = Encoding(
            size=BatchSize(1, automatic=True),
            keys=lambda content, _: (self._key(rule, content),),
            prepare=prepare,
            forward=lambda batch: [find(prepared) for prepared in batch],
        )
        return box_visuals(images, encoding, cache)

    def _key(self, rule: str, content: str) -> str:
        return feature_key(self.fingerprint, self.dtype, "boxes", f"{rule}\n{content}".encode())


def size_of(pixels: Tensor) -> tuple[int, int]:
    """Height and width of (3, h, w)."""
    return int(pixels.shape[1]), int(pixels.shape[2])


def array_of(values: Tensor) -> Floats:
    """Numbers on any device as float32 on the CPU."""
    return np.asarray(values.float().cpu())


def arrays_by_one_copy(*columns: Tensor) -> list[Floats]:
    """Tensors (n, ...) of float32 on any device as arrays on the CPU, for which the host waits once.

    >>> [array.shape for array in arrays_by_one_copy(torch.zeros(3, 4), torch.zeros(3))]
    [(3, 4), (3,)]
    """
    if columns[0].device.type == "cpu":
        return [array_of(own) for own in columns]
    flat = array_of(torch.cat([own.flatten() for own in columns]))
    ends = np.cumsum([own.numel() for own in columns])[:-1]
    return [part.reshape(own.shape) for part, own in zip(np.split(flat, ends), columns, strict=True)]


def blue_first(image: Image.Image) -> NDArray[np.uint8]:
    """(h, w, 3): blue, green and red of an image of any mode, as Caffe's networks take them."""
    blue: NDArray[np.uint8] = np.asarray(image.convert("RGB"))[:, :, ::-1].copy()
    return blue
