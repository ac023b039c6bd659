"""The regions of one image: masks, how good each is, and the boxes around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.regions import rle
from capeval_core.regions.rle import Mask, Runs

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Regions:
    """What to look at in one image: n masks at its own size, kept as runs.

    A mask of a photograph of 12 megapixels takes some ten kilobytes as runs and 12 MB as an array: `masks`
    makes arrays of a few at a time. Regions never change; `limited` and `select` give new ones.

    size: (height, width) of the image, in pixels.
    runs: the masks, run-length encoded as COCO does.
    quality: (n,) float32, what the source thinks of each mask: a predicted intersection over union or the
        score of its box, higher is better.
    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels: the boxes that the masks were made from, or else
        the smallest ones around them.
    dropped: empty masks that the source found and left out.

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
        """Regions of boolean arrays (h, w), taken one after another; empty ones are dropped and counted.

        Args:
            masks: an array (n, h, w), or anything that gives arrays (h, w).
            quality: n numbers; None: 1 for all.
            boxes: (n, 4); None: the smallest around each mask.
            size: (h, w), needed where there may be no mask.

        Raises:
            ValueError: masks of different sizes, or none and no size, or not as many of the rest.
        """
        runs: list[Runs] = []
        for index, mask in enumerate(masks):
            mask = np.asarray(mask, dtype=np.bool_)
            size = size or (mask.shape[0], mask.shape[1])
            if mask.shape != size:
                raise ValueError(f"masks[{index}] has shape {mask.shape}, expected {size}")
            runs.append(rle.encode(mask))
        if size is None:
            raise ValueError("without a mask the size of the image must be given")
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
        given = np.ones(count) if quality is None else np.asarray(quality)
        around = [rle.bounding_box(each, size) for each in runs] if boxes is None else boxes
        corners = np.asarray(around, dtype=np.float32).reshape(-1, 4)
        if given.shape != (count,) or len(corners) != count:
            raise ValueError(
                f"{count} masks need as many qualities and boxes, found {given.shape} and {corners.shape}"
            )
        kept = [index for index, each in enumerate(runs) if rle.area(each)]
        return cls(
            size=(int(size[0]), int(size[1])),
            runs=tuple(runs[index] for index in kept),
            quality=given.astype(np.float32)[kept],
            boxes=corners[kept],
            dropped=count - len(kept),
        )

    def __len__(self) -> int:
        return len(self.runs)

    def masks(self, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """Masks `start` to `stop` (excluded) as an array (k, h, w); by default all of them.

        An array takes k * h * w bytes: of a large image ask for a few at a time.
        """
        chosen = self.runs[start:stop]
        masks = np.empty((len(chosen), *self.size), dtype=np.bool_)
        for index, runs in enumerate(chosen):
            masks[index] = rle.decode(runs, self.size)
        return masks

    def batches(self, count: int) -> Iterator[NDArray[np.bool_]]:
        """All masks in order, at most `count` at a time: arrays (k, h, w)."""
        for start in range(0, len(self), count):
            yield self.masks(start, start + count)

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

    def limited(self, most: int | None) -> Regions:
        """The `most` regions of the highest quality, in their order; of equal ones the earlier. None: all.

        Raises:
            ValueError: `most` is less than 1.
        """
        if most is not None and most < 1:
            raise ValueError(f"max_regions={most}: expected at least 1, or None for all regions")
        if most is None or len(self) <= most:
            return self
        best = np.argsort(-self.quality, kind="stable")[:most]
        return self.select(sorted(best.tolist()))

    def coco(self) -> list[dict[str, object]]:
        """Each region as COCO writes it: `segmentation` (compressed runs), `bbox` and `score`.

        What `PrecomputedRegions` reads, so that regions can be made once and kept.
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
