"""Masks as runs: against a plain way of computing, and what `Regions` promises."""

from __future__ import annotations

import tracemalloc
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from capeval_core.regions import rle
from capeval_core.regions.regions import Regions

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9)))


@given(MASKS)
def test_runs_are_cocos(mask: np.ndarray) -> None:
    runs = rle.encode(mask)
    # The definition: pixels column by column, zeros first.
    plain, value = [0], False
    for pixel in mask.T.reshape(-1):
        if bool(pixel) != value:
            plain.append(0)
            value = not value
        plain[-1] += 1
    assert runs.tolist() == plain
    assert rle.decompress(rle.compress(runs)) == plain
    assert (rle.decode(runs, mask.shape) == mask).all()
    assert rle.area(runs) == mask.sum()
    rows, columns = np.nonzero(mask)
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else (0, 0, 0, 0)
    assert rle.bounding_box(runs, mask.shape) == box


@given(st.data())
def test_rectangles(data: st.DataObject) -> None:
    height, width = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    box = data.draw(st.tuples(*[st.floats(-3, 10)] * 4))
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    expected = (x >= box[0]) & (x < box[2]) & (y >= box[1]) & (y < box[3])
    assert (rle.decode(rle.of_box(box, (height, width)), (height, width)) == expected).all()


def test_compressed_runs_of_pycocotools() -> None:
    """`counts` that pycocotools 2.0 writes."""
    runs = [300, 7, 5, 900, 20]
    assert rle.compress(np.array(runs, dtype=np.uint32)) == r"\975mk0?"
    assert rle.decompress(r"\975mk0?") == runs


def some(count: int = 4, size: tuple[int, int] = (5, 7)) -> np.ndarray:
    return np.random.default_rng(0).random((count, *size)) < 0.5


def test_masks_come_back_in_slices() -> None:
    masks = some()
    regions = Regions.of(masks, quality=[0.1, 0.4, 0.2, 0.3])
    assert (regions.masks() == masks).all()
    assert (regions.masks(1, 3) == masks[1:3]).all()
    assert (np.concatenate([regions.masks(0, 3), regions.masks(3)]) == masks).all()
    assert regions.areas.tolist() == masks.sum((1, 2)).tolist()


def test_limits_keep_the_best_in_order_and_change_nothing() -> None:
    regions = Regions.of(some(), quality=[0.2, 0.4, 0.4, 0.4], boxes=np.arange(16).reshape(4, 4))
    best = regions.limited(2)
    assert (best.masks() == some()[1:3]).all()
    assert best.boxes.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(regions) == 4
    assert regions.limited(4) is regions
    with pytest.raises(ValueError, match="max_regions=0: expected at least 1"):
        regions.limited(0)
    with pytest.raises(ValueError, match="read-only"):
        regions.quality[0] = 1
    with pytest.raises(FrozenInstanceError):
        regions.size = (1, 1)  # type: ignore[misc]


def test_empty_masks_are_dropped_and_counted() -> None:
    masks = some()
    masks[1] = False
    regions = Regions.of(masks, quality=[1, 2, 3, 4])
    assert regions.dropped == 1
    assert regions.quality.tolist() == [1, 3, 4]
    assert (regions.masks() == masks[[0, 2, 3]]).all()


def test_no_region() -> None:
    regions = Regions.of([], size=(5, 7))
    assert len(regions) == 0
    assert regions.masks().shape == (0, 5, 7)
    assert regions.boxes.shape == (0, 4)
    assert len(regions.limited(3)) == 0
    with pytest.raises(ValueError, match="size of the image"):
        Regions.of([])


def test_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"masks\[1\] has shape \(2, 3\), expected \(5, 7\)"):
        Regions.of([some()[0], np.ones((2, 3), bool)])
    with pytest.raises(ValueError, match="4 masks need as many qualities"):
        Regions.of(some(), quality=[1])


def test_five_hundred_regions_of_a_photograph_are_small() -> None:
    size, count = (2000, 3000), 500
    boxes = [(i * 5.0, i * 3.0, i * 5.0 + 400, i * 3.0 + 400) for i in range(count)]
    tracemalloc.start()
    regions = Regions.of_runs([rle.of_box(box, size) for box in boxes], size)
    for start in range(0, count, 4):
        assert regions.masks(start, start + 4).shape == (4, *size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(regions.limited(30)) == 30
    assert peak < 100e6  # all of them as arrays would take 3 GB
