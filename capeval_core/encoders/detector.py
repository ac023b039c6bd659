"""What networks that find boxes in images share: how images run, and how their configs are checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from capeval_core.cache import FeatureCache, feature_key
from capeval_core.encoders.engine import Encoding, box_visuals
from capeval_core.inputs.visual import InputImage
from capeval_core.models.architecture import is_number, is_whole, scaling_problems, shown
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES
from capeval_core.models.model import CheckedModel
from capeval_core.regions.features import BoxVisual
from capeval_core.weights.folder import WeightsError, WeightsFolder

Floats = NDArray[np.float32]

WIDTHS, COUNTS = range(1, (1 << 16) + 1), range(1, 100_001)
"""Bounds of numbers of a feature, and of things."""
FEW, SIDES = range(1, 1_001), range(1, 16_385)


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

    @staticmethod
    @abstractmethod
    def config_problems(config: dict[str, Any]) -> list[str]:
        """What is missing or of the wrong kind, in words; an empty list if all is well."""

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        with torch.device("meta"):
            model = self.modules(config, DTYPES[self.dtype])
        types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        typed = {name: tensor.to(types[name]) for name, tensor in tensors.items()}
        model.load_state_dict(typed, assign=True)
        return model.requires_grad_(False)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> nn.Module:
        if problems := cls.config_problems(config):
            raise WeightsError("; ".join(problems))
        with torch.device("meta"):
            return cls.modules(config)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if problems := cls.config_problems(config):
            raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
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


def size_problems(
    config: Mapping[str, Any], sizes: Mapping[str, Mapping[str, range]], others: Mapping[str, set[str]]
) -> list[str]:
    """Which whole numbers of a config are missing or out of their bounds, and which settings are unknown.

    Args:
        config: of weights. sizes: bounds of whole numbers by section and name. others: the other settings of
            each section.

    >>> size_problems({"proposals": {"most": 0}}, {"proposals": {"most": range(1, 10)}}, {"proposals": set()})
    ['proposals.most is 0, expected a whole number from 1 to 9']
    """
    problems = []
    for section, expected in sizes.items():
        values = config.get(section)
        if not isinstance(values, dict):
            problems.append(f"{section} is {shown(values)}, expected an object")
            continue
        if unknown := sorted(map(str, values.keys() - expected.keys() - others[section])):
            problems.append(f"{section} has {shown(', '.join(unknown))}, which is not known here")
        for name, bounds in expected.items():
            if not is_whole(values.get(name), bounds):
                problems.append(
                    f"{section}.{name} is {shown(values.get(name))}, expected a whole number from "
                    f"{bounds[0]} to {bounds[-1]:,}"
                )
    return problems


def shared_problems(config: Mapping[str, Any], deltas: Iterable[str]) -> list[str]:
    """What is wrong with settings that all detectors have, once their whole numbers are right.

    `deltas` are the sections with weights of deltas.
    """
    problems, pixels = [], config["preprocessing"]
    layers = config["architecture"].get("layers")
    if not are(layers, lambda each: is_whole(each, FEW), 4):
        problems.append(
            f"architecture.layers is {shown(layers)}, expected four whole numbers from 1 to 1,000"
        )
    problems += scaling_problems(pixels)
    for section in deltas:
        weights = config[section].get("delta_weights")
        if not are(weights, lambda each: is_number(each, 0, 1e3), 4):
            problems.append(
                f"{section}.delta_weights is {shown(weights)}, expected four numbers above 0, at most 1000"
            )
    problems += overlap_problems(config, "proposals")
    if pixels["shortest_side"] > pixels["longest_side"]:
        problems.append("preprocessing.shortest_side is above preprocessing.longest_side")
    return problems


def overlap_problems(config: Mapping[str, Any], section: str) -> list[str]:
    """What is wrong with the overlap of a section."""
    overlap = config[section].get("overlap")
    if is_number(overlap, 0, 1):
        return []
    return [f"{section}.overlap is {shown(overlap)}, expected a number above 0, at most 1"]


def are(values: Any, fits: Callable[[Any], bool], count: int | None = None) -> bool:
    """Whether a value of a config is a list, not empty, of this many numbers that fit."""
    return (
        isinstance(values, list)
        and bool(values)
        and count in (None, len(values))
        and all(fits(value) for value in values)
    )


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
