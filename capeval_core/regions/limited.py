"""Only the best regions of a source, for crowded pictures."""

from __future__ import annotations

from capeval_core.inputs.pictures import Picture
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource


class LimitedRegions(RegionSource):
    """At most `most` regions of each picture: those of the highest quality, in the order of the source.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.synthetic import demo
    >>> picture = demo.demo_set()[0].picture
    >>> len(ColourRegions().segment(picture)), len(LimitedRegions(ColourRegions(), 2).segment(picture))
    (3, 2)
    """

    def __init__(self, source: RegionSource, most: int) -> None:
        self.source, self.most = source, most
        self.name = source.name
        self.fingerprint = f"{source.fingerprint}, best {most}"

    def find(self, picture: Picture) -> Regions:
        """The regions of a picture; errors are the source's."""
        return self.source.find(picture).limited(self.most)
