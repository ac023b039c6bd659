"""Images in RGB before anything else happens to them, where an original script converts them at once."""

from __future__ import annotations

import dataclasses

from PIL import Image

from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.sources import Source
from capeval_core.inputs.visual import InputImage


class InRgb(Source):
    """An image of any mode, converted to RGB when it is decoded.

    An image that is in RGB keeps its key, so that its features and rows serve both ways; any other mode has
    a key of its own, since a resize before the conversion gives other pixels than one after it.
    """

    __slots__ = ("source",)

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def key(self) -> str:
        if self._key is None:
            try:
                mode = self.source.decode().mode
            except Refused:  # told when it is loaded, in its own place
                return self.source.key
            self._key = self.source.key if mode == "RGB" else f"rgb-{self.source.key}"
        return self._key

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.source.decode(reduced)
        try:
            return image.convert("RGB")
        except ValueError as error:  # e.g. no way from the mode La to RGB
            raise Refused(f"cannot convert {self.name} ({image.mode}) to RGB: {error}") from None


def in_rgb(samples: Samples) -> Samples:
    """The same samples, their images converted to RGB."""
    sources: dict[int, InRgb] = {}  # images that share a source still do
    images = [
        InputImage(image.where, sources.setdefault(id(image.source), InRgb(image.source)))
        for image in samples.images
    ]
    return dataclasses.replace(samples, images=images)
