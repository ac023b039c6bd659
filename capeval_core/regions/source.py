"""Where regions come from: one interface for networks, files and simple rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.decoding import PictureError
from capeval_core.inputs.pictures import Picture
from capeval_core.regions.regions import Regions


class RegionsError(PictureError):
    """A picture whose regions cannot be had; the message names the picture, why, and the mend."""


class RegionSource(ABC):
    """Picture -> regions.

    A source may be used from several threads at once. The same picture always gives the same regions.

    name: what the signature shows.
    fingerprint: names everything that regions depend on: weights, code and settings. Features of regions are
        kept under it, so equal fingerprints mean equal regions.
    """

    name: str
    fingerprint: str

    def segment(self, picture: Any) -> Regions:
        """The regions of a picture, at its own size; there may be none.

        Args:
            picture: a `Picture`, or what `Picture.of` takes: a PIL image, a path, an array.

        Raises:
            PictureError: the picture cannot be read.
            RegionsError: its regions cannot be had.
        """
        return self.find(Picture.of(picture, "picture") if not isinstance(picture, Picture) else picture)

    @abstractmethod
    def find(self, picture: Picture) -> Regions:
        """What `segment` gives, of a `Picture`."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """corners: (n, 4) float32, x0, y0, x1, y1 in pixels of the picture. scores: (n,) float32, best first."""

    corners: NDArray[np.float32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.corners)


class BoxSource(ABC):
    """Picture -> boxes around what may be objects: a detector. Rules and attributes as for `RegionSource`."""

    name: str
    fingerprint: str

    @abstractmethod
    def find(self, picture: Picture, image: Image.Image) -> Boxes:
        """The boxes of a picture, clipped to it, best first; there may be none.

        `image` is the picture, loaded and in RGB.
        """
