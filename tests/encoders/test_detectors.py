"""Bottom-up attention's detector: which boxes are kept, beside plain loops."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contracts.test_suppression import survivors
from tests.support import seams
from tests.support.seeded import X152_CONFIG, faster_rcnn_release, x152_tensors


def image(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def altered(section: str, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> Any:
    """The seeded Faster R-CNN with another config or other tensors."""
    found = faster_rcnn_release()
    config = {key: value for key, value in json.loads(json.dumps(found.config)).items() if key != "canary"}
    config[section] |= settings
    return seams.network("faster_rcnn", config, {**found.tensors, **(tensors or {})})


def best_scores(boxes: Any, scores: Any, overlap: float) -> list[float]:
    """The best score of each box among the classes whose suppression it survives."""
    best = [0.0] * len(boxes)
    for column in scores.T:
        for index in survivors(boxes, column, overlap):
            best[index] = max(best[index], float(column[index]))
    return best


def test_boxes_outside_of_the_image_are_no_proposals() -> None:
    name = "head.anchors"
    anchors = faster_rcnn_release().tensors[name].clone()
    anchors[::2] -= 5000  # clipped to nothing, wherever they are regressed to
    network = altered("proposals", {name: anchors}, after_nms=200, overlap=0.95)
    boxes = network.propose(network.preprocess(image(0))[0]).boxes
    assert len(boxes) > 0 and bool((boxes[:, 2:] > boxes[:, :2]).all())


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
        best = best_scores(found.boxes.numpy(), scores, 0.3)
        order = sorted(range(len(best)), key=lambda index: -best[index])
        count = min(100, max(10, sum(each > 0.2 for each in best)))
        boxes, kept = network.select(found, scale, (96, 64))
        assert boxes.scores.tolist() == pytest.approx([best[i] for i in order[:count]], abs=1e-6)
        assert kept.tolist() == order[:count]
        assert np.array_equal(boxes.features, found.features.numpy()[order[:count]])


def test_of_equal_confidences_the_first_proposals_are_kept_in_their_order() -> None:
    """As where no class of hundreds of proposals is above the threshold."""
    config = json.loads(json.dumps(X152_CONFIG))
    for threshold in (0.3, 0.4, 0.5):
        config["detections"] |= {"threshold": threshold, "most": 38}
        network = seams.network("x152", config, x152_tensors())
        pixels, scale = network.preprocess(image(1))
        found = network.propose(pixels)
        boxes, kept = network.select(found, scale, (96, 64))
        confident = int(np.count_nonzero(boxes.scores))
        assert len(found.boxes) == 40 and 0 < confident < 35
        assert (
            kept[confident:].tolist()
            == sorted(set(range(40)) - {*kept[:confident].tolist()})[: 38 - confident]
        )
