"""Networks that find boxes in images run on one image at a time, so that no feature depends on others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import InputImage
from capeval_core.models.batching import BatchSize
from capeval_core.models.model import CheckedModel
from capeval_core.ragged import Floats
from capeval_core.regions.features import BoxVisual, refuse_unusable


class BoxEncoder(CheckedModel):
    """A network that finds boxes in images, and their features."""

    rule: str  # name of the way to choose boxes, in the keys of the cache

    def encode_boxes(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[BoxVisual]:
        """Boxes of any number of images with their features, the most confident first, in order. Images are
        read ahead of the network, equal ones run once. One that cannot be read, or in which nothing is found,
        has an error instead of boxes. `batch_size` is of no effect: images differ in size."""
        encoding = Encoding(
            size=BatchSize(1, automatic=True),
            keys=lambda content, _: (self.key("box-features", f"{self.rule}\n{content}".encode()),),
            prepare=lambda image: (self.preprocess(image), image.size),
            forward=lambda batch: [_arrays(self.find(prepared, size)) for prepared, size in batch],
        )
        # Each image is its own extra: equal ones share their boxes, but not `where` and `name`.
        for part in encode_stream(((image, image) for image in images), encoding, cache):
            for item in part:
                image = item.extra
                key = next(iter(item.keys), "")
                box_features = None
                if item.arrays is not None:
                    size, scores, corners, features = item.arrays[key]
                    box_features = BoxFeatures(corners, features, (int(size[0]), int(size[1])), scores)
                visual = BoxVisual(image.where, image.name, item.content, item.error, key, box_features)
                yield refuse_unusable(visual)

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Any:
        """The network's input of a decoded image; runs in threads."""

    @abstractmethod
    def find(self, prepared: Any, size: tuple[int, int]) -> BoxFeatures:
        """Boxes and features of an image of (width, height)."""


def _arrays(boxes: BoxFeatures) -> tuple[Floats, ...]:
    """Size, scores, corners and features, as the cache keeps them: float32 arrays alone."""
    arrays = (boxes.size, boxes.scores, boxes.boxes, boxes.features)
    return tuple(np.asarray(array, np.float32) for array in arrays)
