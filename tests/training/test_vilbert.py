"""`capeval train vilbert`: a kill changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capeval_core.cli import main
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
SHORT: dict[str, Any] = {"steps": 6, "warmup": 2, "batch_size": 3, "accumulation": 2}
SHORT |= {"learning_rate": 3e-3, "save_every": 2, "log_every": 3}


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


@pytest.mark.system
def test_a_killed_training_resumes_bit_for_bit(scenes: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_until_killed(arguments(scenes, out), saves=3)
    assert not (out / "weights").exists()
    check_flipped_bits(arguments(scenes, out), out)
    train(scenes, out)
    for name in ("weights/model.safetensors", "weights/config.json", "log.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def test_features_beyond_the_type_in_which_they_are_kept_are_refused(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "boxes"
    line = ["regions", "--images", scenes / "images", "--out", folder, "--weights", "tiny", "--device", "cpu"]
    assert main([*map(str, line)]) == 0
    path = sorted(folder.glob("*.npz"))[3]
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "features": arrays["features"] * np.float32(1e9)})
    capsys.readouterr()
    assert main(arguments(scenes, tmp_path / "run", regions=folder)) == 2
    told = capsys.readouterr().err
    assert path.stem in told and "exceeds the range of float16" in told
