"""The regions of an image, masks with their quality and boxes; and what finds them."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import Problem
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.regions import rle
from capeval_core.regions.rle import Mask, Runs

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

WITHOUT = (
    'To run without it: regions="colours" (drawn scenes only), or masks of your own, regions="masks.json" '
    "(COCO run lengths by image id)."
)
"""How to work without a model, for messages."""
_CACHE_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one image: n masks at its own size, run-length encoded; immutable.

    A mask of 12 megapixels takes about ten kilobytes as runs and 12 MB as an array: `masks` decodes a few at
    a time.

    size: (height, width) of the image, in pixels.
    runs: the masks, run-length encoded as COCO does.
    quality: (n,) float32, by the source: a predicted intersection over union or the score of a box, higher is
        better.
    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels: the boxes that prompted the masks, else the smallest
        around them.
    dropped: number of empty masks of the source, which are left out.

    >>> halves = np.zeros((2, 4, 6), dtype=bool)
    >>> halves[0, :, :3] = halves[1, :, 3:] = True
    >>> regions = Regions.of(halves, quality=[0.5, 0.9])
    >>> len(regions), regions.areas.tolist(), regions.boxes.tolist()
    (2, [12, 12], [[0.0, 0.0, 3.0, 4.0], [3.0, 0.0, 6.0, 4.0]])
    >>> regions.limited(1).masks()[0, 0].tolist()
    [False, False, False, True, True, True]
    """

    size: tuple[int, int]
    runs: tuple[Runs, ...]
    quality: Floats
    boxes: Floats
    dropped: int = 0
    areas: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        areas = np.array([rle.area(runs) for runs in self.runs], dtype=np.int64)
        object.__setattr__(self, "areas", areas)
        arrays: list[NDArray[Any]] = [self.quality, self.boxes, areas, *self.runs]
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
        """Regions of boolean arrays (h, w), encoded one by one; empty ones are dropped and counted.

        Args:
            masks: an array (n, h, w), or an iterable of arrays (h, w).
            quality: n numbers; None: 1 for all.
            size: (h, w), required where there may be no mask.

        Raises:
            ValueError: masks of different sizes, no mask and no size, or not one quality per mask.
        """
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
        kept = [index for index, mask in enumerate(runs) if rle.area(mask)]
        every = cls((int(size[0]), int(size[1])), tuple(runs), qualities.astype(np.float32), corners)
        return replace(every.select(kept), dropped=count - len(kept))

    def __len__(self) -> int:
        return len(self.runs)

    def masks(self, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """Masks `start` to `stop` (excluded) as an array (k, h, w); by default all of them."""
        chosen = self.runs[start:stop]
        masks = np.empty((len(chosen), *self.size), dtype=np.bool_)
        for index, runs in enumerate(chosen):
            masks[index] = rle.decode(runs, self.size)
        return masks

    def select(self, indices: Iterable[int]) -> Regions:
        """The regions of these indices, in their order."""
        chosen = list(indices)
        runs = tuple(self.runs[index] for index in chosen)
        return replace(self, runs=runs, quality=self.quality[chosen], boxes=self.boxes[chosen])

    def limited(self, max_regions: int) -> Regions:
        """The regions of the highest quality, in their order; of equal ones the earlier.

        Raises:
            ValueError: `max_regions` is less than 1.
        """
        if max_regions < 1:
            raise ValueError(f"max_regions={max_regions}: expected at least 1")
        if len(self) <= max_regions:
            return self
        best = np.argsort(-self.quality, kind="stable")[:max_regions]
        return self.select(sorted(best.tolist()))


Masks: TypeAlias = "Regions | NDArray[np.bool_] | Tensor"
"""Regions, or masks (n, h, w), boolean."""


class RegionsError(ImageError):
    """The regions of an image could not be loaded; the message names the image, the reason and a fix."""


class RegionSource(ABC):
    """Image -> regions.

    A source may be used from several threads at once. The same image always gives the same regions.

    name: its name in the signature.
    fingerprint: changes with everything that regions depend on: weights, code and settings. Features of
        regions are cached under it, so equal fingerprints mean equal regions.
    """

    name: str
    fingerprint: str

    def segment(self, image: Any) -> Regions:
        """The regions of an image, at its own size; there may be none.

        Args:
            image: a PIL image, a path, an array, or an `InputImage`.

        Raises:
            ImageError: the image cannot be read.
            RegionsError: its regions could not be loaded or made.
        """
        return self.find(InputImage.of(image, "image") if not isinstance(image, InputImage) else image)

    @abstractmethod
    def find(self, image: InputImage) -> Regions:
        """As `segment`, for an `InputImage`; the argument of a RegionsError's `Problem` is `image.where`."""


class LimitedRegions(RegionSource):
    """The regions of a source, limited to the `max_regions` of the highest quality, in the source's order.

    >>> from capeval_core.regions.colours import ColourRegions
    >>> from capeval_core.demo import demo_set
    >>> image = demo_set()[0].image
    >>> len(ColourRegions().segment(image)), len(LimitedRegions(ColourRegions(), 2).segment(image))
    (3, 2)
    """

    def __init__(self, source: RegionSource, max_regions: int) -> None:
        self.source, self.max_regions = source, max_regions
        self.name = source.name
        self.fingerprint = f"{source.fingerprint}, best {max_regions}"

    def find(self, image: InputImage) -> Regions:
        return self.source.find(image).limited(self.max_regions)


class CachedRegions(RegionSource):
    """LRU cache of 256 MB around a source: explanations need regions again after their features are made."""

    def __init__(self, source: RegionSource) -> None:
        self.source, self.name, self.fingerprint = source, source.name, source.fingerprint
        self._cache: OrderedDict[str, Regions] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, image: InputImage) -> Regions:
        with self._lock:
            found = self._cache.pop(image.key, None)
            if found is not None:
                self._cache[image.key] = found
                return found
        found = self.source.find(image)
        with self._lock:
            if image.key not in self._cache:
                self._cache[image.key] = found
                self._bytes += _size(found)
            while self._bytes > _CACHE_BYTES:
                self._bytes -= _size(self._cache.popitem(last=False)[1])
        return found


def _size(regions: Regions) -> int:
    return 400 + sum(120 + runs.nbytes for runs in regions.runs)


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
    return np.asarray(masks.cpu() if hasattr(masks, "cpu") else masks)
