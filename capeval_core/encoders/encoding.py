"""How an encoder turns items into arrays: what it hands to the engine, and what comes back.

An item is a visual (an image, frames, box features) with what belongs to it: nothing, its regions, its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.inputs.visual import Visual
from capeval_core.models.batching import BatchSize
from capeval_core.models.copies import Arriving

Floats = NDArray[np.float32]
Item = tuple[Visual[Any], Any]


@dataclass(frozen=True)
class Units:
    """The rows of a forward pass that an item needs.

    groups: some at a time, each with its label; made as they are needed, since an item may have more units
        than fit into memory.
    detail: what `Encoding.arrays` must know of the item.
    decoded: whether making a group takes long, as it does for frames of a video: threads then make the next
        groups while one runs. ImageError where it fails.
    values: where the values of units that have run are kept, by label.
    """

    groups: Iterable[Sequence[tuple[int, Any]]]
    detail: Any = None
    decoded: bool = False
    values: MutableMapping[int, Any] = field(default_factory=dict)


def _one_unit(item: Item, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
    return Units([[(0, prepared)]])


def _one_array(keys: Sequence[str], units: Units, values: Mapping[int, Any]) -> dict[str, Floats]:
    return {keys[0]: values[0]}


@dataclass(frozen=True)
class Encoding:
    """How an encoder turns items into arrays; by default each into one, of its visual alone.

    size: units per forward pass.
    keys: the cache's keys of an item's arrays, by its visual's content key and what belongs to it.
    prepare: what the network takes of a loaded visual; runs in threads.
    forward: one value per unit of a list; where they are a tensor on a device, or `Arriving`, further batches
        are launched meanwhile.
    units: the rows that an item needs, by the item, its visual as loaded and as prepared, and the keys whose
        arrays are to be computed; runs in threads. ImageError if what belongs to the visual does not fit it.
    arrays: the arrays of an item whose units have all run, by key; values are by label.
    elsewhere: some visuals as prepared by other processes, None for one that a thread has to prepare.
    ahead: items that are prepared before their turn; None: two batches.
    together: items whose keys are looked up in the cache at once, which brings their arrays into memory;
        None: the engine's number.
    """

    size: BatchSize
    keys: Callable[[str, Any], tuple[str, ...]]
    prepare: Callable[[Any], Any]
    forward: Callable[[list[Any]], Iterable[Any] | Tensor | Arriving]
    units: Callable[[Item, Any, Any, Sequence[str]], Units] = _one_unit
    arrays: Callable[[Sequence[str], Units, Mapping[int, Any]], dict[str, Floats]] = _one_array
    elsewhere: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    ahead: int | None = None
    together: int | None = None


@dataclass(frozen=True)
class Encoded:
    """What one item became.

    extra: what belongs to its visual.
    arrays: by cache key, all that `Encoding.keys` names; None where there is an error.
    keys: those keys, in order.
    content: content key of the visual, '' where it could not be read.
    error: why it could not be encoded, None where it could.
    """

    extra: Any
    arrays: dict[str, Floats] | None
    keys: tuple[str, ...]
    content: str
    error: str | None

    def array(self, shape: tuple[int, ...]) -> Floats:
        """The first array, in this shape; NaN where there is none."""
        if not self.arrays:
            return np.full(shape, np.nan, dtype=np.float32)
        return self.arrays[self.keys[0]].reshape(shape)


@dataclass(frozen=True)
class ImageFeatures:
    """Features of some consecutive images.

    features: (n, ...) float32, un-normalised; NaN where an image could not be read.
    keys: content key of each image, '' where it could not be read.
    errors: why an image could not be read, None where it could.
    """

    features: Floats
    keys: list[str]
    errors: list[str | None]

    @classmethod
    def of(cls, part: Sequence[Encoded], *, shape: tuple[int, ...]) -> ImageFeatures:
        """The first array of each item, in this shape."""
        features = np.stack([item.array(shape) for item in part])
        return cls(features, [item.content for item in part], [item.error for item in part])

    @classmethod
    def joined(cls, parts: Iterable[ImageFeatures]) -> ImageFeatures:
        """Parts, at least one, as one."""
        features, keys, errors = zip(
            *((part.features, part.keys, part.errors) for part in parts), strict=True
        )
        return cls(np.concatenate(features), list(chain(*keys)), list(chain(*errors)))
