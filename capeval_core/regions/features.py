"""Box features of images, which networks on regions take instead of pixels, and the number that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import ImageError, InputImage

# `bua10_100`: 10 to 100 boxes by their confidence, for UNITER. `lxmert36`: the best 36, for LXMERT.
Selection = Literal["bua10_100", "lxmert36"]

THRESHOLD = 0.2  # of a box's confidence, from bottom-up attention's script
LEAST = 10  # boxes of `bua10_100`
MOST = 100
FIXED = 36  # boxes of `lxmert36`


def boxes_kept(confidences: NDArray[np.floating]) -> int:
    """The number of boxes that are used, the first ones: min(100, max(10, count(confidence > 0.2)))."""
    count = int(np.count_nonzero(confidences > THRESHOLD))
    return min(MOST, max(LEAST, count), len(confidences))


@dataclass(frozen=True)
class BoxVisual:
    """Box features that a region encoder made of an image, under their key in the cache, or an error."""

    where: str
    name: str
    content: str
    error: str | None
    cache_key: str
    features: BoxFeatures | None

    @property
    def key(self) -> str:
        self.load()  # raises the error: what has no boxes has no key
        return self.cache_key

    @property
    def identity(self) -> object:
        """Equal for visuals that are known to be equal without reading them."""
        return self.where if self.features is None else self.cache_key

    def load(self) -> BoxFeatures:
        if self.features is None:
            raise ImageError(self.error or "")
        return self.features


def refuse_unusable(visual: BoxVisual) -> BoxVisual:
    """The visual, with an error where no box was found or numbers overflowed: no network reads such boxes."""
    features = visual.features
    if features is None:
        return visual
    if not len(features):
        error = f"{visual.where}: the detector found no box in {visual.name}"
    elif not _are_finite(features):
        error = f'{visual.where}: features of {visual.name} are not finite: pass dtype="float32"'
    else:
        return visual
    return replace(visual, error=error, features=None)


def _are_finite(features: BoxFeatures) -> bool:
    arrays = [features.boxes, features.features]
    if features.scores is not None:
        arrays.append(features.scores)
    return all(np.isfinite(array).all() for array in arrays)


@runtime_checkable
class RegionEncoder(Protocol):
    """A network that finds boxes in images and computes their features, equal where fingerprints are."""

    @property
    def fingerprint(self) -> str: ...
    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """Box features of any number of images, in order; one that cannot be read has an error."""
