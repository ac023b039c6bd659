"""Suppression of all classes at once, beside the plain double loop and torchvision's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.ops import nms

from capeval_core.regions.device_suppression import best_on_device
from capeval_core.regions.suppression import Suppression, class_confidences

Array = NDArray[Any]
CAFFE, PLAIN = Suppression(0.5, pixel=1, at_bound=True), Suppression(0.5)


def drawn(n: int, classes: int, seed: int = 0) -> tuple[Array, Array]:
    """Boxes with whole corners, of which many overlap by exactly the bound, and scores with ties."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 12, (n, 2))
    boxes = np.concatenate([corners, corners + random.integers(0, 12, (n, 2))], axis=1).astype(np.float32)
    return boxes, random.integers(0, 20, (n, classes)).astype(np.float32) / 20


def ratio(one: Array, other: Array, pixel: float) -> float:
    """Intersection over union of two boxes, by Python's numbers rounded to float32."""
    sides = [min(one[k + 2], other[k + 2]) - max(one[k], other[k]) + pixel for k in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0] + pixel) * (box[3] - box[1] + pixel) for box in (one, other)]
    return float(np.float32(shared / (sum(areas) - shared))) if sum(areas) > shared else 0.0


def greedy(boxes: Array, scores: Array, rule: Suppression) -> list[int]:
    """Indices that survive, best first, by two loops."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda index: -scores[index]):
        overlaps = [ratio(boxes[other], boxes[index], rule.pixel) for other in kept]
        if not any(o >= rule.overlap if rule.at_bound else o > rule.overlap for o in overlaps):
            kept.append(index)
    return kept


@pytest.mark.parametrize("rule", [CAFFE, PLAIN, Suppression(0.5, pixel=1), Suppression(0.5, at_bound=True)])
def test_survivors_are_those_of_two_loops(rule: Suppression) -> None:
    for n, classes in ((1, 1), (7, 3), (40, 11)):
        boxes, scores = drawn(n, classes, seed=n)
        survives = rule.survivors(boxes, scores)
        for of_class in range(classes):
            kept = greedy(boxes, scores[:, of_class], rule)
            assert sorted(kept) == np.flatnonzero(survives[:, of_class]).tolist()
        order = np.argsort(-scores[:, 0], kind="stable")
        best = rule.best(boxes[order], most=5)
        assert order[best].tolist() == greedy(boxes, scores[:, 0], rule)[:5]


def test_the_rules_differ_where_boxes_share_exactly_the_bound() -> None:
    """The drawn boxes tell all four rules apart, or the test above would not."""
    boxes, scores = drawn(40, 11, seed=40)
    rules = [CAFFE, PLAIN, Suppression(0.5, pixel=1), Suppression(0.5, at_bound=True)]
    assert len({rule.survivors(boxes, scores).tobytes() for rule in rules}) == 4


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.6, 0.7])
def test_without_a_pixel_it_is_torchvisions(overlap: float) -> None:
    """Also where whole corners share exactly the bound, which float32 rounds up or down."""
    random = np.random.default_rng(3)
    boxes = drawn(200, 1)[0]
    boxes[:, 2:] += 1
    scores = random.random((200, 9)).astype(np.float32)
    survives = Suppression(overlap).survivors(boxes, scores)
    for of_class in range(9):
        kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores[:, of_class].copy()), overlap)
        assert sorted(kept.tolist()) == np.flatnonzero(survives[:, of_class]).tolist()


@pytest.mark.parametrize("rule", [CAFFE, PLAIN, Suppression(0.3), Suppression(0.7, pixel=1, at_bound=True)])
def test_a_gpus_way_keeps_the_same_boxes(rule: Suppression) -> None:
    groups = []
    for n in (0, 1, 40, 300):
        boxes, scores = drawn(n, 1, seed=n)
        groups.append(boxes[np.argsort(-scores[:, 0], kind="stable")])
    for most in (5, 1000):
        kept = best_on_device(rule, [torch.from_numpy(boxes) for boxes in groups], most)
        assert [own.tolist() for own in kept] == [rule.best(boxes, most).tolist() for boxes in groups]


def test_boxes_that_are_not_usable_neither_survive_nor_suppress() -> None:
    boxes = drawn(200, 1)[0]
    usable = np.random.default_rng(1).random(200) < 0.6
    (kept,) = best_on_device(PLAIN, [torch.from_numpy(boxes)], 1000, torch.from_numpy(usable))
    assert kept.tolist() == np.flatnonzero(usable)[PLAIN.best(boxes[usable], 1000)].tolist()


def test_a_gpus_way_follows_a_chain_to_its_end() -> None:
    """Each box overlaps the next one only, so that whether the last one survives depends on all."""
    x = np.arange(101, dtype=np.float32) * 4
    boxes = np.stack([x, x * 0, x + 10, x * 0 + 10], axis=1)
    (kept,) = best_on_device(Suppression(0.4), [torch.from_numpy(boxes)], 1000)
    assert kept.tolist() == list(range(0, 101, 2)) == Suppression(0.4).best(boxes, 1000).tolist()


def test_the_bound_of_caffes_kernel_is_in_float32() -> None:
    boxes = np.float32([[0, 0, 9, 9], [0, 0, 9, 6]])  # 7 of 10 rows of pixels
    assert Suppression(0.7, pixel=1, at_bound=True).pairs(boxes[0], boxes[1])
    assert not Suppression(0.7, pixel=1).pairs(boxes[0], boxes[1])


def test_confidences_are_the_best_scores_of_classes_that_are_survived() -> None:
    boxes, scores = drawn(40, 11)
    for threshold in (0.0, 0.8):
        expected = np.zeros(40, dtype=np.float32)
        for of_class in range(11):
            for index in greedy(boxes, scores[:, of_class], CAFFE):
                if scores[index, of_class] > threshold:
                    expected[index] = max(expected[index], scores[index, of_class])
        found = class_confidences(boxes, scores, CAFFE, threshold)
        assert found.tolist() == expected.tolist()
    assert 0 < np.count_nonzero(found) < 40


def test_nothing_and_boxes_without_area() -> None:
    empty = np.zeros((0, 4), dtype=np.float32)
    assert class_confidences(empty, np.zeros((0, 3), dtype=np.float32), CAFFE).shape == (0,)
    assert PLAIN.best(empty, 3).tolist() == []
    point = np.float32([[5, 5, 5, 5], [5, 5, 5, 5]])
    assert PLAIN.best(point, 3).tolist() == [0, 1]  # no area, no overlap
    assert CAFFE.best(point, 3).tolist() == [0]  # a pixel each, the same one
