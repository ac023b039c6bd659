"""The detectors: which boxes are kept against plain loops, pixels, true sizes; drawn scenes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.support import seams
from tests.support.seeded import X152_CONFIG, faster_rcnn_release, x152


def image(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def altered(section: str, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> Any:
    """The seeded Faster R-CNN with another config or other tensors."""
    found = faster_rcnn_release()
    config = {key: value for key, value in json.loads(json.dumps(found.config)).items() if key != "canary"}
    config[section] |= settings
    return seams.network("faster_rcnn", config, {**found.tensors, **(tensors or {})})


def survivors(boxes: NDArray[np.float32], scores: Any, overlap: float, pixel: float) -> list[int]:
    """Boxes that a suppression leaves, best first, one by one."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        x0, y0, x1, y1 = boxes[index]
        for other in kept:
            a0, b0, a1, b1 = boxes[other]
            shared = max(min(x1, a1) - max(x0, a0) + pixel, 0) * max(min(y1, b1) - max(y0, b0) + pixel, 0)
            union = (x1 - x0 + pixel) * (y1 - y0 + pixel) + (a1 - a0 + pixel) * (b1 - b0 + pixel) - shared
            if shared > overlap * union or (pixel and shared >= overlap * union):
                break
        else:
            kept.append(index)
    return kept


def best_scores(boxes: Any, scores: Any, overlap: float, pixel: float) -> list[float]:
    """The best score of each box among the classes whose suppression it survives."""
    best = [0.0] * len(boxes)
    for column in scores.T:
        for index in survivors(boxes, column, overlap, pixel):
            best[index] = max(best[index], float(column[index]))
    return best


# ---- bottom-up attention's


@pytest.mark.parametrize(("proposals", "sharp"), [(6, 1.0), (40, 0.05), (40, 1.0), (200, 4.0)])
def test_bua10_100_is_what_plain_loops_keep(proposals: int, sharp: float) -> None:
    """All above 0.2, but 10 at least and 100 at most."""
    name = "predictor.cls_score.weight"
    weight = faster_rcnn_release().tensors[name] * sharp
    network = altered("proposals", {name: weight}, after_nms=proposals, overlap=0.95)
    for seed in range(3):
        pixels, scale = network.preprocess(image(seed))
        found = network.propose(pixels)
        scores = torch.softmax(found.class_logits, dim=1)[:, :-1].numpy()
        best = best_scores(found.boxes.numpy(), scores, 0.3, 0)
        order = sorted(range(len(best)), key=lambda index: -best[index])
        count = min(100, max(10, sum(each > 0.2 for each in best)))
        boxes, kept = network.select(found, scale, (96, 64))
        assert boxes.scores.tolist() == pytest.approx([best[i] for i in order[:count]], abs=1e-6)
        assert kept.tolist() == order[:count]
        assert np.array_equal(boxes.features, found.features.numpy()[order[:count]])


# ---- ViLBERT's


@pytest.mark.parametrize(("width", "height"), [(90, 60), (61, 90), (33, 64)])
def test_x152s_pixels_are_resized_between_the_two_nearest(width: int, height: int) -> None:
    """Linearly, by the scale itself and not by the ratio of rounded sizes; then a margin of zeros."""
    network, shown = x152(), image(2, width, height)
    pixels, scale = network.preprocess(shown)
    short, long = 64 / min(width, height), 96 / max(width, height)
    assert scale == (long if round(short * max(width, height)) > 96 else short)
    mean = np.float32(X152_CONFIG["preprocessing"]["mean"])
    source = np.asarray(shown, dtype=np.float32)[:, :, ::-1] - mean
    rows, columns = round(height * scale), round(width * scale)
    assert pixels.shape == (3, -(-rows // 32) * 32, -(-columns // 32) * 32)
    assert not pixels[:, rows:].any() and not pixels[:, :, columns:].any()
    for row, column in np.random.default_rng(0).integers(0, [rows, columns], (60, 2)).tolist():
        y, x = (max((place + 0.5) / scale - 0.5, 0) for place in (row, column))
        top, left = min(int(y), height - 1), min(int(x), width - 1)
        down, right = min(top + 1, height - 1), min(left + 1, width - 1)
        a, b = min(y, height - 1) - top, min(x, width - 1) - left
        upper = source[top, left] * (1 - b) + source[top, right] * b
        lower = source[down, left] * (1 - b) + source[down, right] * b
        expected = upper * (1 - a) + lower * a
        assert pixels[:, row, column].numpy() == pytest.approx(expected, abs=2e-3)
    opaque, clear = (network.preprocess(image(3).convert(mode))[0] for mode in ("RGB", "RGBA"))
    assert torch.equal(opaque, clear)


def test_x152_keeps_the_most_confident_proposals() -> None:
    """By plain loops in which a side has a pixel more, and an overlap at the bound suppresses."""
    network = x152()
    for seed in range(3):
        shown = image(seed, 90, 60)
        pixels, scale = network.preprocess(shown)
        found = network.propose(pixels)
        (kept,) = seams.encode(network, [shown])
        boxes = found.boxes.numpy() / np.float32(scale)
        scores = found.class_logits.softmax(dim=1)[:, 1:].numpy()
        best = best_scores(boxes, scores, X152_CONFIG["detections"]["overlap"], 1)
        order = np.argsort(-np.array(best), kind="stable")[:8]
        assert kept["scores"].tolist() == pytest.approx([best[i] for i in order], abs=1e-6)
        assert np.array_equal(kept["boxes"], boxes[order])
        assert np.array_equal(kept["features"], found.features.numpy()[order])
        assert (found.objectness.diff() <= 0).all() and len(found.boxes) <= 40
        assert (found.boxes >= 0).all() and (found.boxes[:, 2] <= pixels.shape[2] - 1).all()


# ---- of drawn scenes
