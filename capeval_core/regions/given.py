"""Regions that belong to an image: their name in keys, and whether they fit it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import Problem
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.regions.regions import Regions
from capeval_core.regions.source import RegionSource

Masks = Regions | NDArray[np.bool_] | Tensor
"""Regions, or masks (n, h, w), boolean."""


def name_of(regions: RegionSource | Masks) -> str:
    """A text that names the regions of an image, or the source that will find them."""
    if isinstance(regions, RegionSource):
        return f"source {regions.fingerprint}"
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(regions, Regions):
        digest.update(f"runs {regions.size} {[len(runs) for runs in regions.runs]}".encode())
        for runs in regions.runs:
            digest.update(np.ascontiguousarray(runs).data)
    else:
        masks = _array(regions)
        digest.update(f"array {masks.dtype} {masks.shape}".encode())
        digest.update(np.ascontiguousarray(masks).data)
    return f"masks {digest.hexdigest()}"


def fitting(regions: Masks, image: InputImage, size: tuple[int, int]) -> Regions:
    """Regions that fit the image, or ImageError with everything that is wrong."""

    def wrong(found: str, fix: str) -> ImageError:
        return ImageError(Problem(image.where, found, fix))

    high, wide = size
    expected = f"{image.name} is {high} pixels high and {wide} wide"
    if isinstance(regions, Regions):
        if regions.size != size:
            found = f"its regions are of an image {regions.size[0]} high and {regions.size[1]} wide"
            raise wrong(f"{found}, but {expected}", "make them of the image itself, not of a copy")
        return regions
    masks = _array(regions)
    if masks.dtype == np.object_:
        fix = f"pass Regions or boolean masks (n, {high}, {wide}), with n = 0 where there are none"
        raise wrong(f"its regions are a {type(regions).__name__}", fix)
    if masks.dtype != np.bool_:
        fix = "pass masks > 0 (or masks > 0.5 where they are probabilities)"
        raise wrong(f"its masks are of type {masks.dtype}, expected boolean", fix)
    if masks.ndim != 3 or masks.shape[1:] != size:
        raise wrong(f"its masks have shape {masks.shape}, but {expected}", f"expected (n, {high}, {wide})")
    empty = np.flatnonzero(~masks.any(axis=(1, 2)))
    if len(empty):
        which = ", ".join(f"masks[{index}]" for index in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise wrong(f"{which} of {len(masks)} have no pixel", "leave them out")
    return Regions.of(masks, size=size)


def _array(masks: Any) -> NDArray[Any]:
    return np.asarray(masks.cpu() if isinstance(masks, Tensor) else masks)
