"""Suppression beside the plain double loop and torchvision's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchvision.ops import nms

from tests.support.seams import best_boxes, confidences

Array = NDArray[Any]
CAFFE: dict[str, Any] = {"pixel": 1, "at_bound": True}
RULES: list[dict[str, Any]] = [CAFFE, {}, {"pixel": 1}, {"at_bound": True}]


def drawn(n: int, classes: int, seed: int = 0) -> tuple[Array, Array]:
    """Boxes with whole corners, of which many overlap by exactly the bound, and scores with ties."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 12, (n, 2))
    boxes = np.concatenate([corners, corners + random.integers(0, 12, (n, 2))], axis=1).astype(np.float32)
    return boxes, random.integers(1, 20, (n, classes)).astype(np.float32) / 20


def sorted_boxes(n: int) -> Array:
    boxes, scores = drawn(n, 1, seed=n)
    return boxes[np.argsort(-scores[:, 0], kind="stable")]


def ratio(one: Array, other: Array, pixel: float) -> float:
    """Intersection over union of two boxes, by Python's numbers rounded to float32."""
    sides = [min(one[k + 2], other[k + 2]) - max(one[k], other[k]) + pixel for k in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0] + pixel) * (box[3] - box[1] + pixel) for box in (one, other)]
    return float(np.float32(shared / (sum(areas) - shared))) if sum(areas) > shared else 0.0


def survivors(
    boxes: Array, scores: Array, overlap: float, *, pixel: float = 0, at_bound: bool = False
) -> list[int]:
    """Indices of the boxes that no better one of the survivors covers, best first, by two loops."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        overlaps = [ratio(boxes[other], boxes[index], pixel) for other in kept]
        if not any(o >= overlap if at_bound else o > overlap for o in overlaps):
            kept.append(index)
    return kept


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 30),
    st.integers(1, 6),
    st.integers(0, 10**6),
    st.sampled_from(RULES),
    st.sampled_from([0, 0.5]),
)
def test_confidences_are_those_of_plain_loops(
    n: int, classes: int, seed: int, rule: dict[str, Any], threshold: float
) -> None:
    boxes, scores = drawn(n, classes, seed)
    expected = np.zeros(n, dtype=np.float32)
    for of_class in range(classes):
        for index in survivors(boxes, scores[:, of_class], 0.5, **rule):
            if scores[index, of_class] > threshold:
                expected[index] = max(expected[index], scores[index, of_class])
    assert confidences(boxes, scores, 0.5, threshold, **rule) == expected.tolist()


def test_the_rules_differ_where_boxes_share_exactly_the_bound() -> None:
    """The drawn boxes tell all four rules apart, or the test above would not."""
    boxes, scores = drawn(40, 1, seed=40)
    assert len({tuple(confidences(boxes, scores, 0.5, **rule)) for rule in RULES}) == 4
    one = np.float32([[0, 0, 9, 9], [0, 0, 9, 6]])  # 7 of 10 rows of pixels, which float32 rounds
    scores = np.float32([[0.9], [0.8]])
    assert confidences(one, scores, 0.7, **CAFFE)[1] == 0
    assert confidences(one, scores, 0.7, pixel=1)[1] == np.float32(0.8)


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.6, 0.7])
def test_without_a_pixel_it_is_torchvisions(overlap: float) -> None:
    """Also where whole corners share exactly the bound, which float32 rounds up or down."""
    boxes = drawn(200, 1)[0]
    boxes[:, 2:] += 1
    scores = np.random.default_rng(3).uniform(0.01, 1, (200, 1)).astype(np.float32)
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores[:, 0].copy()), overlap)
    assert np.flatnonzero(confidences(boxes, scores, overlap)).tolist() == sorted(kept.tolist())


@pytest.mark.parametrize("rule", RULES)
def test_the_best_boxes_are_those_of_plain_loops(rule: dict[str, Any]) -> None:
    groups = [sorted_boxes(n) for n in (0, 1, 40, 150)]
    every = [survivors(boxes, -np.arange(len(boxes)), 0.5, **rule) for boxes in groups]
    for most in (5, 1000):
        kept = best_boxes(groups, 0.5, most, **rule)
        assert kept == [own[:most] for own in every]


def test_a_chain_is_followed_to_its_end() -> None:
    """Each box overlaps the next one only, so that whether the last one survives depends on all."""
    x = np.arange(101, dtype=np.float32) * 4
    boxes = np.stack([x, x * 0, x + 10, x * 0 + 10], axis=1)
    assert best_boxes([boxes], 0.4, 1000) == [list(range(0, 101, 2))]
    point = np.float32([[5, 5, 5, 5], [5, 5, 5, 5]])
    assert best_boxes([point], 0.5, 3) == [[0, 1]]  # no area, no overlap
    assert best_boxes([point], 0.5, 3, **CAFFE) == [[0]]  # a pixel each, the same one
