"""Where regions come from: one interface for networks, files and simple rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.decoding import ImageError
from capeval_core.inputs.visual import InputImage
from capeval_core.regions.regions import Regions


class RegionsError(ImageError):
    """An image whose regions cannot be had; the message names the image, why, and the mend."""


class RegionSource(ABC):
    """Image -> regions.

    A source may be used from several threads at once. The same image always gives the same regions.

    name: what the signature shows.
    fingerprint: names everything that regions depend on: weights, code and settings. Features of regions are
        kept under it, so equal fingerprints mean equal regions.
    """

    name: str
    fingerprint: str

    def segment(self, image: Any) -> Regions:
        """The regions of an image, at its own size; there may be none.

        Args:
            image: an `InputImage`, or what `InputImage.of` takes: a PIL image, a path, an array.

        Raises:
            ImageError: the image cannot be read.
            RegionsError: its regions cannot be had.
        """
        return self.find(InputImage.of(image, "image") if not isinstance(image, InputImage) else image)

    @abstractmethod
    def find(self, image: InputImage) -> Regions:
        """What `segment` gives, of an `InputImage`."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """corners: (n, 4) float32, x0, y0, x1, y1 in pixels of the image. scores: (n,) float32, best first."""

    corners: NDArray[np.float32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.corners)


class BoxSource(ABC):
    """Image -> boxes around what may be objects: a detector. Rules and attributes as for `RegionSource`."""

    name: str
    fingerprint: str

    @abstractmethod
    def find(self, image: InputImage, decoded: Image.Image) -> Boxes:
        """The boxes of an image, clipped to it, best first; there may be none.

        `image` is the image, loaded and in RGB.
        """
