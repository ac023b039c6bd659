"""Regions without a network: connected patches of one colour, for drawn images."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from capeval_core.inputs.images import InputImage
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions, RegionSource

Integers = NDArray[np.int64]

_LARGEST = 1 << 22  # pixels that are read: of larger images every second, third, ... row and column
_ALIKE = 6  # levels of 255, per channel: noise inside one patch
_SHADOW = 32  # levels by which shadows may differ from the background
_SPECK = 0.001  # share of the image below which a patch is not a region
_GROWTH = 4  # pixels that a patch may gain at its soft edge
_NEIGHBOURS = ((0, 1), (0, -1), (1, 0), (-1, 0))


class ColourRegions(RegionSource):
    """Connected patches of nearly one colour, without background, shadows and specks: drawn scenes."""

    name = "colours"
    fingerprint = "colours-2"  # raised with any change that moves a patch

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        size = (decoded.height, decoded.width)
        pixel_count = decoded.height * decoded.width
        step = math.ceil(math.sqrt(pixel_count / _LARGEST))
        # int16, since differences of bytes would wrap around.
        pixels = np.asarray(decoded, dtype=np.uint8)[::step, ::step].astype(np.int16)
        patches, colours = _patches(pixels)
        runs = _runs_of(patches, _objects(patches, colours), step, size)
        return Regions.of_runs(runs, size, quality=[rle.area(mask) / pixel_count for mask in runs])


def _runs_of(
    patches: Integers, object_patches: list[int], step: int, size: tuple[int, int]
) -> list[rle.Runs]:
    """The runs of patches, whose pixels each cover a square of `step` pixels of the image of (h, w)."""
    rows = len(patches)
    columns = np.ascontiguousarray(patches.T)
    begins = np.ones(columns.shape, dtype=np.bool_)
    begins[:, 1:] = columns[:, 1:] != columns[:, :-1]
    starts = np.flatnonzero(begins)  # of the stretches of one patch in one column
    ends = np.append(starts[1:], columns.size)
    owners = columns.reshape(-1)[starts]
    order = np.argsort(owners, kind="stable")
    sorted_owners = owners[order]
    runs = []
    for patch in object_patches:
        first, last = np.searchsorted(sorted_owners, [patch, patch + 1])
        stretches = order[first:last]
        column, top = np.divmod(starts[stretches], rows)
        # Pixels of the image, counted column by column: a stretch of the reduced image is `step` columns.
        bottom = np.minimum((ends[stretches] - column * rows) * step, size[0])
        image_columns = column * step + np.arange(step)[:, None]
        inside = image_columns < size[1]
        upper = (image_columns * size[0] + top * step)[inside]
        lower = (image_columns * size[0] + bottom)[inside]
        runs.append(rle.of_intervals(np.sort(upper), np.sort(lower), size))
    return runs


def _patches(pixels: NDArray[np.int16]) -> tuple[Integers, NDArray[np.float64]]:
    """The number of the patch of each pixel, -1 for none, and the mean colour of each patch (n, 3).

    A patch starts from flat pixels, whose eight neighbours are alike: a soft edge, which changes from one
    colour to another by small steps, is not flat and joins nothing. Then patches grow over their edges.
    """
    from scipy.ndimage import maximum_filter, minimum_filter

    window = {"size": (3, 3, 1), "mode": "nearest"}
    spread = maximum_filter(pixels, **window) - minimum_filter(pixels, **window)
    flat = (spread <= _ALIKE).all(axis=-1)
    across = flat[:, 1:] & flat[:, :-1] & _alike(pixels[:, 1:], pixels[:, :-1])
    down = flat[1:] & flat[:-1] & _alike(pixels[1:], pixels[:-1])
    labels = _components(across, down)
    counts = np.bincount(labels[flat], minlength=int(labels.max()) + 1)
    large = counts >= max(1.0, _SPECK * flat.size)
    number = np.where(large, np.cumsum(large) - 1, -1)
    patches = np.where(flat, number[labels], -1)
    inside = patches >= 0
    channels = pixels[inside].T
    patch_count = int(large.sum())
    sums = [np.bincount(patches[inside], weights=levels, minlength=patch_count) for levels in channels]
    colours = np.stack(sums, axis=1) / counts[large][:, None]
    return _grown(patches, pixels, colours), colours


def _alike(pixels: NDArray[np.int16], neighbours: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Return whether the colours of two pixels differ by noise only, of (..., 3) and (..., 3)."""
    alike: NDArray[np.bool_] = (np.abs(pixels - neighbours) <= _ALIKE).all(axis=-1)
    return alike


def _components(across: NDArray[np.bool_], down: NDArray[np.bool_]) -> Integers:
    """Connected components of pixels that are linked to the right, (h, w - 1), or downwards, (h - 1, w)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    height = across.shape[0]
    width = down.shape[1]
    starts = np.ones((height, width), dtype=np.bool_)
    starts[:, 1:] = ~across
    run = np.cumsum(starts.reshape(-1)).reshape(height, width) - 1  # equal for linked pixels of one row
    # Runs of a row are the nodes of a graph, links downwards its edges: far fewer than pixels.
    above = run[:-1][down]
    below = run[1:][down]
    runs = int(run.max()) + 1
    links = coo_array((np.ones(len(above), dtype=np.bool_), (above, below)), shape=(runs, runs))
    labels: Integers = connected_components(links, directed=False)[1][run]
    return labels


def _grown(patches: Integers, pixels: NDArray[np.int16], colours: NDArray[np.float64]) -> Integers:
    """Add each pixel next to a patch to the patch with the closest colour, `_GROWTH` times."""
    if not len(colours):
        return patches
    for _ in range(_GROWTH):
        rows, columns = np.nonzero(patches < 0)
        if not len(rows):
            break
        padded = np.pad(patches, 1, constant_values=-1)
        neighbours = np.stack([padded[rows + 1 + dy, columns + 1 + dx] for dy, dx in _NEIGHBOURS], axis=1)
        distance = np.abs(pixels[rows, columns][:, None] - colours[neighbours]).sum(axis=-1)
        distance[neighbours < 0] = np.inf
        nearest = distance.argmin(axis=1)
        patches = patches.copy()
        patches[rows, columns] = neighbours[np.arange(len(rows)), nearest]
    return patches


def _objects(patches: Integers, colours: NDArray[np.float64]) -> list[int]:
    """The patches of another colour than the background, which is the most frequent one of the border."""
    border = np.concatenate([patches[0], patches[-1], patches[:, 0], patches[:, -1]])
    border = border[border >= 0]
    if not len(border):
        return list(range(len(colours)))
    background = colours[np.bincount(border).argmax()]
    # By the largest difference of a channel: a shadow darkens all of them a little.
    return [patch for patch, colour in enumerate(colours) if np.abs(colour - background).max() > _SHADOW]
