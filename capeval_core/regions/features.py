"""Box features of images: what networks on regions take instead of pixels, and how many boxes they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import ImageError, InputImage

Floats = NDArray[np.float32]
Selection = Literal["bua10_100", "lxmert36"]
"""`bua10_100`: 10 to 100 boxes by their confidence, for UNITER. `lxmert36`: the best 36, for LXMERT."""

THRESHOLD, LEAST, MOST, FIXED = 0.2, 10, 100, 36


def boxes_kept(confidences: NDArray[np.floating]) -> int:
    """How many of n boxes are used: the first n = min(100, max(10, count(confidence > 0.2)))."""
    count = int(np.count_nonzero(confidences > THRESHOLD))
    return min(MOST, max(LEAST, count), len(confidences))


@dataclass(frozen=True)
class BoxVisual:
    """Box features that a region encoder made of an image, unless there is an error."""

    where: str
    name: str
    content: str
    error: str | None
    packed_key: str
    packed: Floats | None

    @property
    def key(self) -> str:
        if self.error is not None:
            raise ImageError(self.error)
        return self.packed_key

    @property
    def identity(self) -> object:
        """Equal for visuals that are known to be equal without reading them."""
        return self.where if self.error is not None else self.packed_key

    def load(self) -> BoxFeatures:
        self.check()
        packed = cast(Floats, self.packed)
        width, height = packed[0, :2].astype(int).tolist()
        return BoxFeatures(packed[1:, :4], packed[1:, 5:], (width, height), packed[1:, 4])

    def check(self) -> None:
        _ = self.key


def refuse_unusable(visual: BoxVisual) -> BoxVisual:
    """The visual, with an error where no box was found or numbers overflowed: no network reads such boxes."""
    error = None
    if visual.packed is not None and len(visual.packed) == 1:
        error = f"{visual.where}: the detector found no box in {visual.name}"
    elif visual.packed is not None and not np.isfinite(visual.packed).all():
        error = f'{visual.where}: features of {visual.name} are not finite: pass dtype="float32"'
    return visual if error is None else replace(visual, error=error, packed=None)


@runtime_checkable
class RegionEncoder(Protocol):
    """A network that finds boxes in images and computes their features, equal where fingerprints are."""

    @property
    def fingerprint(self) -> str: ...
    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """Box features of any number of images, in order; one that cannot be read has an error."""


def pack(features: BoxFeatures) -> Floats:
    """(n + 1, 5 + d) float32: the image's width and height first, then box, score and feature of each row."""
    packed = np.zeros((len(features) + 1, 5 + features.features.shape[1]), dtype=np.float32)
    packed[0, :2] = cast("tuple[int, int]", features.size)  # a region encoder states it, and scores
    packed[1:, :4], packed[1:, 4], packed[1:, 5:] = features.boxes, features.scores, features.features
    return packed
