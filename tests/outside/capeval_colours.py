"""Colour-S: a metric in a package of its own. Does the image have the colours that the caption names?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from capeval_core.authoring import (
    CaptionMetric,
    ImageError,
    InputImage,
    Options,
    Samples,
    Values,
    column,
    common_columns,
    row_schema,
)

COLOURS = {
    "red": (216, 38, 38),
    "green": (40, 158, 68),
    "blue": (36, 98, 222),
    "brown": (138, 84, 44),
    "grass": (60, 140, 50),
    "sea": (30, 90, 160),
}
AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class ColourOptions(Options):
    """Options of Colour-S, which has no network."""

    without = ("weights", "device", "dtype", "batch_size", "cache", "compat")


class ColourS(CaptionMetric):
    """Colour-S: max(0, cosine) of the image's mean colour and the nearest colour in the caption."""

    name = "colours"
    title = "Colour-S"
    key = "colour_s"
    summary = "Cosine of the image's mean colour and the nearest colour word of the caption."
    paper = "Nobody, A metric of another package, https://example.org/colours"
    range = (0.0, 1.0)
    Options = ColourOptions
    ROW = row_schema(
        column("likeness", pa.float32(), "cosine of mean colour and colour word, null if failed")
    )

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for start in range(0, len(batch), AT_ONCE):
            part = slice(start, min(start + AT_ONCE, len(batch)))
            keys, means, errors = zip(*map(read, batch.images[part]), strict=True)
            likeness = [
                None if mean is None else likeness_of(caption, mean)
                for caption, mean in zip(batch.captions[part], means, strict=True)
            ]
            common = common_columns(
                batch, part, groups=list(keys), errors=list(errors), truncated=np.zeros(len(keys), np.int32)
            )
            yield pa.table({**common, "likeness": pa.array(likeness, pa.float32())}, schema=self.ROW)

    def aggregate(self, rows: pa.Table) -> Values:
        likeness = rows["likeness"].to_numpy().astype(np.float64)
        return Values(np.maximum(likeness, 0), {"likeness": likeness})


def read(image: InputImage) -> tuple[str, np.ndarray | None, str | None]:
    """Key and mean colour of an image, or why it could not be read."""
    key = image.name
    try:
        key = image.key
        decoded = image.load()
        try:
            return key, np.asarray(decoded.convert("RGB"), dtype=np.float64).reshape(-1, 3).mean(axis=0), None
        except ValueError as error:
            return key, None, f"{image.where}: cannot convert {image.name} ({decoded.mode}): {error}"
    except ImageError as error:
        return key, None, str(error)


def likeness_of(caption: str, mean: np.ndarray) -> float:
    """The greatest cosine of a colour word and the mean colour; 0 without a colour word."""
    colours = [np.array(rgb) for word, rgb in COLOURS.items() if word in caption.lower().split()]
    cosines = [mean @ colour / np.linalg.norm(mean) / np.linalg.norm(colour) for colour in colours]
    return float(min(1.0, max(cosines, default=0.0)))
