"""The regions of one image: masks, their quality and boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.regions import rle
from capeval_core.regions.rle import Mask, Runs

Floats = NDArray[np.float32]


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
        boxes: Sequence[Sequence[float]] | Floats | None = None,
        *,
        size: tuple[int, int] | None = None,
    ) -> Regions:
        """Regions of boolean arrays (h, w), encoded one by one; empty ones are dropped and counted.

        Args:
            masks: an array (n, h, w), or an iterable of arrays (h, w).
            quality: n numbers; None: 1 for all.
            boxes: (n, 4); None: the smallest around each mask.
            size: (h, w), required where there may be no mask.

        Raises:
            ValueError: masks of different sizes, no mask and no size, or not one quality and box per mask.
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
        return cls.of_runs(runs, size, quality, boxes)

    @classmethod
    def of_runs(
        cls,
        runs: Sequence[Runs],
        size: tuple[int, int],
        quality: Sequence[float] | Floats | None = None,
        boxes: Sequence[Sequence[float]] | Floats | None = None,
    ) -> Regions:
        """Regions of run-length encoded masks; arguments as for `of`."""
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
        return cls(
            size=(int(size[0]), int(size[1])),
            runs=tuple(runs[index] for index in kept),
            quality=qualities.astype(np.float32)[kept],
            boxes=corners[kept],
            dropped=count - len(kept),
        )

    def __len__(self) -> int:
        return len(self.runs)

    def masks(self, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """Masks `start` to `stop` (excluded) as an array (k, h, w); by default all of them.

        An array takes k * h * w bytes: decode a few at a time of a large image.
        """
        chosen = self.runs[start:stop]
        masks = np.empty((len(chosen), *self.size), dtype=np.bool_)
        for index, runs in enumerate(chosen):
            masks[index] = rle.decode(runs, self.size)
        return masks

    def select(self, indices: Iterable[int]) -> Regions:
        """The regions of these indices, in their order."""
        chosen = list(indices)
        return Regions(
            size=self.size,
            runs=tuple(self.runs[index] for index in chosen),
            quality=self.quality[chosen],
            boxes=self.boxes[chosen],
            dropped=self.dropped,
        )

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

    def coco(self) -> list[dict[str, object]]:
        """The regions as COCO annotations: `segmentation` (compressed runs), `bbox` and `score`.

        `PrecomputedRegions` reads them, so that regions can be made once and stored.
        """
        height, width = self.size
        return [
            {
                "segmentation": {"size": [height, width], "counts": rle.compress(runs)},
                "bbox": [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])],
                "score": float(quality),
            }
            for runs, quality, box in zip(self.runs, self.quality, self.boxes, strict=True)
        ]
