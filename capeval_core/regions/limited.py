"""Only the best regions of a source, for crowded images."""

from __future__ import annotations

from capeval_core.inputs.visual import InputImage
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource


class LimitedRegions(RegionSource):
    """At most `most` regions of each image: those of the highest quality, in the order of the source.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.demo import demo_set
    >>> image = demo_set()[0].image
    >>> len(ColourRegions().segment(image)), len(LimitedRegions(ColourRegions(), 2).segment(image))
    (3, 2)
    """

    def __init__(self, source: RegionSource, most: int) -> None:
        self.source, self.most = source, most
        self.name = source.name
        self.fingerprint = f"{source.fingerprint}, best {most}"

    def find(self, image: InputImage) -> Regions:
        """The regions of an image; errors are the source's."""
        return self.source.find(image).limited(self.most)
