"""Which boxes are kept: the rules, against the same in plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from capeval_core.regions.selection import ONE_THING, boxes_kept, enough_boxes
from capeval_core.regions.suppression import Suppression, class_confidences

Floats = NDArray[np.float32]
BOXES = st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 10**6)))


def drawn(n: int, seed: int, classes: int = 5) -> tuple[Floats, Floats]:
    """Boxes that often overlap, and scores of classes of which some are equal."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 12, (n, 2))
    boxes = np.concatenate([corners, corners + random.integers(1, 12, (n, 2))], axis=1)
    return boxes.astype(np.float32), random.integers(0, 9, (n, classes)).astype(np.float32) / 10


def overlap_of(one: Floats, other: Floats) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(shared / (areas - shared))


def survivors(boxes: Floats, scores: Floats, overlap: float) -> list[int]:
    """Indices of the boxes that no better one of the survivors covers, best first."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(overlap_of(boxes[index], boxes[better]) <= overlap for better in kept):
            kept.append(index)
    return kept


@pytest.mark.parametrize(
    ("above", "stored", "kept"),
    [
        *((30, 60, 30), (4, 40, 10), (0, 36, 10), (120, 120, 100), (3, 7, 7), (10, 30, 10), (11, 30, 11)),
        *((100, 110, 100), (101, 110, 100), (0, 0, 0)),
    ],
)
def test_ten_to_a_hundred_boxes_by_the_number_above_the_threshold(above: int, stored: int, kept: int) -> None:
    confidences = np.where(np.arange(stored) < above, 0.9, 0.1).astype(np.float32)
    assert boxes_kept(confidences) == kept
    assert boxes_kept(confidences[::-1]) == kept  # the count decides, wherever the confident ones are
    assert boxes_kept(confidences, threshold=-1) == min(36, stored)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_threshold_itself_is_not_above_it_in_any_type(dtype: Any) -> None:
    confidences = np.full(30, 0.2, dtype=dtype)
    assert boxes_kept(confidences) == 10
    above: Any = np.nextafter(confidences, np.ones_like(confidences))
    assert boxes_kept(above) == 30


def test_a_confidence_just_above_is_rounded_away_in_half_precision() -> None:
    confidences = np.full(30, 0.200005, dtype=np.float32)
    assert (boxes_kept(confidences), boxes_kept(confidences.astype(np.float16))) == (30, 10)


@settings(max_examples=60)
@given(BOXES, st.sampled_from([0.3, 0.5, 0.7]))
def test_class_confidences_are_those_of_plain_loops(size: tuple[int, int], overlap: float) -> None:
    boxes, scores = drawn(*size)
    expected = np.zeros(len(boxes), dtype=np.float32)
    for column in range(scores.shape[1]):
        for index in survivors(boxes, scores[:, column], overlap):
            expected[index] = max(expected[index], scores[index, column])
    assert class_confidences(boxes, scores, Suppression(overlap)).tolist() == expected.tolist()


def test_the_confidence_of_a_covered_box_is_that_of_another_class() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9]], dtype=np.float32)
    scores = np.array([[0.9, 0.1], [0.8, 0.3]], dtype=np.float32)
    assert class_confidences(boxes, scores, ONE_THING).tolist() == [np.float32(0.9), np.float32(0.3)]


def test_boxes_of_exactly_that_overlap_both_stay() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 5]], dtype=np.float32)
    scores = np.array([[0.9], [0.8]], dtype=np.float32)
    assert class_confidences(boxes, scores, Suppression(0.5))[1] == np.float32(0.8)
    assert class_confidences(boxes, scores, Suppression(0.49))[1] == 0


@settings(max_examples=60)
@given(BOXES, st.integers(1, 12), st.integers(0, 3))
def test_enough_boxes_are_those_of_plain_loops(size: tuple[int, int], least: int, more: int) -> None:
    boxes, scores = drawn(*size, classes=1)
    most = least + more
    expected: list[int] = []
    for overlap in (0.1, 0.4, 0.8):
        expected = survivors(boxes, scores[:, 0], overlap)[:most]
        if len(expected) >= least:
            break
    found = enough_boxes(boxes, scores[:, 0], (0.1, 0.4, 0.8), least, most)
    assert found.tolist() == expected
