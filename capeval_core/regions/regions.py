"""The regions of an image, masks with their quality and boxes; and the interface of their sources."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problem
from capeval_core.inputs.images import ImageError, InputImage, Visual
from capeval_core.regions import rle
from capeval_core.regions.rle import Mask, Runs

Floats = NDArray[np.float32]

WITHOUT = (
    'To run without it: regions="colours" (drawn scenes only), or masks of your own, regions="masks.json" '
    "(COCO run lengths by image id)."
)
_CACHE_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one image: n masks at its own size, run-length encoded; immutable.

    size: (height, width) of the image. runs: the masks, run-length encoded as COCO does. quality: (n,)
    float32, by the source: a predicted intersection over union or the score of a box, higher is better.
    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels: the boxes that prompted the masks, else the smallest
    around them. dropped: number of empty masks of the source, which are left out.
    """

    size: tuple[int, int]
    runs: tuple[Runs, ...]
    quality: Floats
    boxes: Floats
    dropped: int = 0
    areas: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "areas", np.array([rle.area(runs) for runs in self.runs], dtype=np.int64))
        arrays: list[NDArray[Any]] = [self.quality, self.boxes, self.areas, *self.runs]
        # They are shared between threads and by the cache.
        for array in arrays:
            array.setflags(write=False)

    @classmethod
    def of(
        cls,
        masks: Iterable[Mask],
        quality: Sequence[float] | Floats | None = None,
        *,
        size: tuple[int, int] | None = None,
    ) -> Regions:
        """Regions of boolean arrays (h, w), encoded one by one; empty ones are dropped and counted."""
        runs: list[Runs] = []
        for index, mask in enumerate(masks):
            mask = np.asarray(mask, dtype=np.bool_)
            size = size or (mask.shape[0], mask.shape[1])
            if mask.shape != size:
                raise ValueError(f"masks[{index}] has shape {mask.shape}, expected {size}")
            runs.append(rle.encode(mask))
        if size is None:
            raise ValueError("there is no mask: pass the size of the image")
        return cls.of_runs(runs, size, quality)

    @classmethod
    def of_runs(
        cls,
        runs: Sequence[Runs],
        size: tuple[int, int],
        quality: Sequence[float] | Floats | None = None,
        boxes: Sequence[Sequence[float]] | Floats | None = None,
    ) -> Regions:
        """Regions of run-length encoded masks; `boxes` (n, 4), None: the smallest around each mask."""
        count = len(runs)
        qualities = np.ones(count) if quality is None else np.asarray(quality)
        if boxes is None:
            boxes = [rle.bounding_box(mask, size) for mask in runs]
        corners = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
        if qualities.shape != (count,) or len(corners) != count:
            raise ValueError(
                f"{count} masks need as many qualities and boxes, found {qualities.shape} and {corners.shape}"
            )
        regions = cls((int(size[0]), int(size[1])), tuple(runs), qualities.astype(np.float32), corners)
        # An empty mask has no feature: the tower would see none of the image.
        not_empty = np.flatnonzero(regions.areas).tolist()
        return replace(regions.select(not_empty), dropped=count - len(not_empty))

    def __len__(self) -> int:
        return len(self.runs)

    def masks(self, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """Masks `start` to `stop` (excluded) as an array (k, h, w); by default all of them."""
        part = self.runs[start:stop]
        masks = np.empty((len(part), *self.size), dtype=np.bool_)
        for index, runs in enumerate(part):
            masks[index] = rle.decode(runs, self.size)
        return masks

    def select(self, indices: Iterable[int]) -> Regions:
        """The regions of these indices, in their order."""
        rows = list(indices)
        runs = tuple(self.runs[row] for row in rows)
        return replace(self, runs=runs, quality=self.quality[rows], boxes=self.boxes[rows])

    def limited(self, max_regions: int) -> Regions:
        """The regions of the highest quality, in their order; of equal ones the earlier."""
        if max_regions < 1:
            raise ValueError(f"max_regions={max_regions}: expected at least 1")
        if len(self) <= max_regions:
            return self
        best = np.argsort(-self.quality, kind="stable")[:max_regions]
        return self.select(sorted(best.tolist()))


class RegionSource(ABC):
    """Image -> regions; it may be used from several threads at once.

    name: in the signature. fingerprint: changes with everything that regions depend on; features of regions
    are cached under it.
    """

    name: str
    fingerprint: str

    def segment(self, image: object) -> Regions:
        """The regions of a PIL image, a path, an array or an `InputImage`, at its own size, or none.

        ImageError: the image cannot be read, or its regions cannot be loaded or made.
        """
        return self.find(image if isinstance(image, Visual) else InputImage.of(image))

    @abstractmethod
    def find(self, image: InputImage) -> Regions:
        """As `segment`, for an `InputImage`; the argument of an ImageError's `Problem` is `image.where`."""


class LimitedRegions(RegionSource):
    """The regions of a source, limited to the `max_regions` of the highest quality, in the source's order."""

    def __init__(self, source: RegionSource, max_regions: int) -> None:
        self.source = source
        self.max_regions = max_regions
        self.name = source.name
        self.fingerprint = f"{source.fingerprint}, best {max_regions}"

    def find(self, image: InputImage) -> Regions:
        return self.source.find(image).limited(self.max_regions)


class CachedRegions(RegionSource):
    """LRU cache of 256 MB around a source: explanations need regions again after their features are made."""

    def __init__(self, source: RegionSource) -> None:
        self.source = source
        self.name = source.name
        self.fingerprint = source.fingerprint
        self._cache = FeatureCache(_CACHE_BYTES)

    def find(self, image: InputImage) -> Regions:
        cached = self._cache.get([image.key])
        if cached:
            # The cache keeps arrays: sizes, quality, boxes, then the runs of each mask.
            (height, width, dropped), quality, boxes, *runs = cached[image.key]
            return Regions((int(height), int(width)), tuple(runs), quality, boxes, int(dropped))
        regions = self.source.find(image)
        sizes = np.array([*regions.size, regions.dropped])
        self._cache.put({image.key: (sizes, regions.quality, regions.boxes, *regions.runs)})
        return regions


def name_of(regions: Regions | RegionSource) -> str:
    """A text that names the regions of an image, or their source."""
    if isinstance(regions, RegionSource):
        return f"source {regions.fingerprint}"
    # With the number of runs of each mask, since equal bytes may be cut into masks in several ways.
    lengths = f"runs {regions.size} {[len(runs) for runs in regions.runs]}"
    digest = hashlib.blake2b(lengths.encode(), digest_size=16)
    for runs in regions.runs:
        digest.update(np.ascontiguousarray(runs).data)
    return f"masks {digest.hexdigest()}"


def fitting(regions: Regions, image: InputImage, size: tuple[int, int]) -> Regions:
    """The regions, if they fit the image; else an ImageError that names the difference."""
    if not isinstance(regions, Regions):
        problem = f"its source gave a {type(regions).__name__}, expected Regions"
        raise ImageError(Problem(image.where, problem, "pass masks through Regions.of(masks)", sentence=True))
    if regions.size == size:
        return regions
    height, width = size
    problem = (
        f"its regions are of an image {regions.size[0]} x {regions.size[1]}, but {image.name} is {height} "
        f"pixels high and {width} wide"
    )
    raise ImageError(
        Problem(image.where, problem, "make them of the image itself, not of a copy", sentence=True)
    )
