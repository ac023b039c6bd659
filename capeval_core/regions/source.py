"""Sources of regions: the interface, and two wrappers: a limit and an LRU cache."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.regions.regions import Regions

WITHOUT = (
    'To run without it: regions="colours" (drawn scenes only), or masks of your own, regions="masks.json" '
    "(COCO run lengths by image id)."
)
"""How to work without a model, for messages."""


class RegionsError(ImageError):
    """The regions of an image could not be loaded; the message names the image, the reason and a fix."""


class RegionSource(ABC):
    """Image -> regions.

    A source may be used from several threads at once. The same image always gives the same regions.

    name: its name in the signature.
    fingerprint: changes with everything that regions depend on: weights, code and settings. Features of
        regions are cached under it, so equal fingerprints mean equal regions.
    """

    name: str
    fingerprint: str

    def segment(self, image: Any) -> Regions:
        """The regions of an image, at its own size; there may be none.

        Args:
            image: a PIL image, a path, an array, or an `InputImage`.

        Raises:
            ImageError: the image cannot be read.
            RegionsError: its regions could not be loaded or made.
        """
        return self.find(InputImage.of(image, "image") if not isinstance(image, InputImage) else image)

    @abstractmethod
    def find(self, image: InputImage) -> Regions:
        """As `segment`, for an `InputImage`; the argument of a RegionsError's `Problem` is `image.where`."""


class LimitedRegions(RegionSource):
    """The regions of a source, limited to the `max_regions` of the highest quality, in the source's order.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.demo import demo_set
    >>> image = demo_set()[0].image
    >>> len(ColourRegions().segment(image)), len(LimitedRegions(ColourRegions(), 2).segment(image))
    (3, 2)
    """

    def __init__(self, source: RegionSource, max_regions: int) -> None:
        self.source, self.max_regions = source, max_regions
        self.name = source.name
        self.fingerprint = f"{source.fingerprint}, best {max_regions}"

    def find(self, image: InputImage) -> Regions:
        return self.source.find(image).limited(self.max_regions)


_CACHE_BYTES = 256 << 20


class CachedRegions(RegionSource):
    """LRU cache around a RegionSource, by image.

    For explanations, which need the regions again after their features are made: segmentation is the slowest
    step. It may be used from several threads.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.demo import demo_set
    >>> source = CachedRegions(ColourRegions())
    >>> image = InputImage.of(demo_set()[0].image)
    >>> source.segment(image) is source.segment(image)
    True
    """

    def __init__(self, source: RegionSource, max_bytes: int = _CACHE_BYTES) -> None:
        self.source, self.max_bytes = source, max_bytes
        self.name, self.fingerprint = source.name, source.fingerprint
        self._cache: OrderedDict[str, Regions] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, image: InputImage) -> Regions:
        key = image.key
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        regions = self.source.find(image)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = regions
                self._bytes += _size(regions)
            while self._bytes > self.max_bytes:
                self._bytes -= _size(self._cache.popitem(last=False)[1])
        return regions


def _size(regions: Regions) -> int:
    return 400 + sum(120 + runs.nbytes for runs in regions.runs)
