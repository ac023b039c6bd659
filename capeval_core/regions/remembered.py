"""Regions that were found already, for who asks again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from capeval_core.inputs.visual import InputImage
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource

KEPT_BYTES = 256 << 20


class RememberedRegions(RegionSource):
    """The regions of another source; those that were asked for most recently are kept, as runs, by image.

    For explanations, which need the regions once more after the features are made: finding them takes longer
    than anything else. Any number of threads may use it where they may use the source.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.demo import demo_set
    >>> source = RememberedRegions(ColourRegions())
    >>> image = InputImage.of(demo_set()[0].image)
    >>> source.segment(image) is source.segment(image)
    True
    """

    def __init__(self, source: RegionSource, kept_bytes: int = KEPT_BYTES) -> None:
        self.source, self.kept_bytes = source, kept_bytes
        self.name, self.fingerprint = source.name, source.fingerprint
        self._found: OrderedDict[str, Regions] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, image: InputImage) -> Regions:
        """The regions of an image; errors are the source's."""
        key = image.key
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        regions = self.source.find(image)
        with self._lock:
            if key not in self._found:
                self._found[key] = regions
                self._bytes += _cost(regions)
            while self._bytes > self.kept_bytes:
                self._bytes -= _cost(self._found.popitem(last=False)[1])
        return regions


def _cost(regions: Regions) -> int:
    return 400 + sum(120 + runs.nbytes for runs in regions.runs)
