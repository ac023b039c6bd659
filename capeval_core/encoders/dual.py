"""Dual encoders of any make behind one door: the right class for a folder, and features of whole images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.encoders.images import ImageFeatures, chunks
from capeval_core.encoders.open_clip import OpenClipEncoder, is_plain
from capeval_core.inputs.visual import InputImage
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource
from capeval_core.weights.clip import translate_open_clip
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, WeightsError, WeightsFolder

DualEncoder = ClipEncoder | AlphaClipEncoder
"""A text tower and an image tower into one space (other encoders are kinds of `ClipEncoder`)."""
_CLASSES: tuple[type[DualEncoder], ...] = (ClipEncoder, OpenClipEncoder, EvaClipEncoder, AlphaClipEncoder)
_AT_ONCE = 64  # whole images of Alpha-CLIP, which come one by one


def dual_class(folder: WeightsFolder) -> type[DualEncoder]:
    """The encoder that a weights folder is for, told by its config.

    Raises:
        WeightsError: it is no dual encoder that is known here.
    """
    if folder.tensor_file.name == OPEN_CLIP_TENSORS:
        return (
            ClipEncoder if is_plain(translate_open_clip(folder.config)["architecture"]) else OpenClipEncoder
        )
    kind = folder.config.get("encoder")
    found = next((each for each in _CLASSES if each.kind == kind), None)
    if found is None:
        known = ", ".join(repr(each.kind) for each in _CLASSES)
        raise WeightsError(f"weights {folder.name!r} are of encoder {kind!r}, expected one of {known}")
    return found


def whole_images(encoder: DualEncoder, images: Iterable[InputImage], **run: Any) -> Iterator[ImageFeatures]:
    """Features of images as wholes, in order; of Alpha-CLIP under the mask that is one everywhere.

    `run` holds `cache` and `batch_size`. An image that cannot be read gives a row of NaN and the reason.
    """
    if isinstance(encoder, ClipEncoder):
        yield from encoder.encode_images(images, **run)
        return
    for some in chunks(encoder.encode_regions(images, _NoRegions(), **run), _AT_ONCE):
        yield ImageFeatures(
            np.stack([each.whole for each in some]),
            [each.key for each in some],
            [each.error for each in some],
        )


class _NoRegions(RegionSource):
    """Nothing but the image as a whole."""

    name = fingerprint = "none"

    def find(self, image: InputImage) -> Regions:
        width, height = image.load().size
        return Regions.of([], size=(height, width))
