"""`capeval train vilbert`: kills, losses, and what is masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capeval_core.cli import main
from tests.support.seams import mask_boxes
from tests.training.scenes import arguments_of, check_flipped_bits, run_until_killed
from tools.tiny import write_scenes, write_start

NARROW = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
SIZES: dict[str, Any] = {
    "text": {**NARROW, "num_hidden_layers": 2, "max_position_embeddings": 64},
    "visual": {**NARROW, "num_hidden_layers": 1},
    "co_attention": {"hidden_size": 16, "num_attention_heads": 2},
    "text_layers_before": [0, 1],
    "visual_layers_before": [0, 1],
    "tasks": 0,
}
SHORT: dict[str, Any] = {"masking_steps": 3, "steps": 5, "warmup": 2, "batch_size": 3, "accumulation": 2}
SHORT |= {"masking_rate": 3e-3, "learning_rate": 3e-3, "save_every": 2, "log_every": 3}


def arguments(folder: Path, out: Path, **settings: Any) -> list[str]:
    return arguments_of("vilbert", folder, out, **{**SHORT, **settings})


def train(folder: Path, out: Path, **settings: Any) -> Path:
    assert main(arguments(folder, out, **settings)) == 0
    return out


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, 8, seed=5)
    write_start("vilbert", folder / "start", 0, SIZES)
    return folder


@pytest.fixture(scope="module")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(scenes, tmp_path_factory.mktemp("trained") / "run")


def test_a_killed_training_goes_on_as_if_nothing_had_been(
    scenes: Path, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run_until_killed(arguments(scenes, out), saves=3)
    assert not (out / "weights").exists()
    check_flipped_bits(arguments(scenes, out), out)
    train(scenes, out)
    for name in ("weights/model.safetensors", "weights/config.json", "log.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def test_a_hidden_box_leaves_nothing_of_its_features() -> None:
    features = np.float32([[0, 0], [1, 0], [3, 8], [5, 8], [7, 4]])
    features[0] = features[1:].mean(axis=0)
    places = np.float32(
        [[0, 0, 1, 1], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.4], [0.5, 0.5, 1, 1], [0.4, 0.5, 1, 1]]
    )
    area = (places[:, 2:] - places[:, :2]).prod(axis=1, keepdims=True)
    locations = np.concatenate([places, area], axis=1)
    patterns = set()
    for seed in range(99):
        masked, where, hidden = mask_boxes(features, locations, 0.25, np.random.default_rng(seed))
        patterns.add(tuple(hidden.tolist()))
        assert hidden[1] == hidden[2] and hidden[3] == hidden[4] and not hidden[0]  # those overlap
        assert not masked[hidden].any()
        np.testing.assert_array_equal(masked[1:][~hidden[1:]], features[1:][~hidden[1:]])
        left = features[1:][~hidden[1:]]
        np.testing.assert_allclose(masked[0], left.mean(axis=0) if len(left) else [0, 0])
        np.testing.assert_array_equal(where, locations)
    assert len(patterns) == 4
