"""Two-Crop-S: the mean cosine of a caption with the whole image and with its central half, by CLIP."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from PIL import Image

from capeval_core import authoring as ca


def centre(image: Image.Image) -> Image.Image:
    """The middle half of each side."""
    width, height = image.size
    return image.crop((width // 4, height // 4, width - width // 4, height - height // 4))


class TwoCropS(ca.ClipS):
    """Two-Crop-S: w max(mean cosine, 0)."""

    name = "twocrops"
    title = "Two-Crop-S"
    key = "two_crop_s"
    summary = "Mean cosine of the caption with the whole image and with its centre."
    paper = "Nobody, A score of two crops, https://example.org/twocrops"
    ROW = ca.row_schema(
        ca.column("cosine", pa.float32(), "mean of both cosines, null where the image failed")
    )

    def image_features(self, images: Sequence[ca.InputImage]) -> Iterator["ca.ImageFeatures"]:
        for start in range(0, len(images), 256):
            whole = images[start : start + 256]
            views = (whole, [image.changed("centre", centre) for image in whole])
            of_view = [ca.ImageFeatures.joined(super(TwoCropS, self).image_features(view)) for view in views]
            features = np.stack([each.features for each in of_view], axis=1)
            yield ca.ImageFeatures(features, of_view[0].keys, of_view[0].errors)

    def columns(self, images, captions):
        cosines = [ca.paired_cosine(images[:, view], captions) for view in range(2)]
        return {"cosine": ca.nullable(np.mean(cosines, axis=0))}
