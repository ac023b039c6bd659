"""How many boxes of an image are used, and the refusal of boxes that no network can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.networks import items, opened
from tests.support.seams import encode, first_boxes, network


@pytest.mark.parametrize(
    ("above", "equal", "below", "used"),
    [
        (12, 8, 0, 12),  # a confidence of 0.2 is not above it
        (10, 1, 5, 10),
        (9, 11, 0, 10),
        (0, 0, 20, 10),
        (0, 3, 5, 8),
        (100, 5, 0, 100),
        (101, 0, 9, 100),
    ],
)
def test_boxes_above_a_fifth_are_used_but_10_at_least_and_100_at_most(
    above: int, equal: int, below: int, used: int, tmp_path: Path
) -> None:
    scores = np.array([0.201] * above + [0.2] * equal + [0.1] * below, dtype=np.float32)
    count = len(scores)
    corners = np.arange(count, dtype=np.float32)
    features = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    boxes = np.stack([corners, corners, corners + 5, corners + 5], axis=1)
    np.savez(tmp_path / "a.npz", features=features, boxes=boxes, size=(300, 300), scores=scores)
    for rule, most in (("bua10_100", used), ("lxmert36", min(count, 36))):
        if rule == "lxmert36" and count < 36:  # which takes no fewer
            continue
        found = first_boxes(tmp_path / "a.npz", rule).load()
        assert len(found) == most and found.features.tolist() == features[:most].tolist()
        assert found.boxes.tolist() == boxes[:most].tolist()


def test_features_that_overflow_cost_their_image_and_name_it() -> None:
    whole = opened("scene_regions")
    config = {name: value for name, value in whole.config.items() if name != "canary"}
    tensors: dict[str, Any] = dict(whole.model.state_dict())
    for name in tensors:
        tensors[name] = tensors[name].abs() * 1e30 if name.startswith("convolutions") else tensors[name]
    broken = network("scene_regions", config, tensors)
    for index, found in enumerate(encode(broken, items("scene_regions", 2))):
        assert found["error"].startswith(f"images[{index}]: ") and "not finite" in found["error"]
        assert 'dtype="float32"' in found["error"] and found["key"] == ""
