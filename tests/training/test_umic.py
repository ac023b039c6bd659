"""`capeval train umic`: a kill changes nothing, and human judgements choose the weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

import capeval_core
from capeval_core.cli import main
from tests.training.scenes import arguments, check_flipped_bits, log_of, run_until_killed, train, write_set


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training that nothing stopped."""
    return train(scenes, tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.system
def test_a_killed_training_resumes_bit_for_bit(scenes: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_until_killed(arguments(scenes, out), saves=4)
    assert not (out / "weights").exists()
    check_flipped_bits(arguments(scenes, out), out)
    assert [line["step"] for line in log_of(out)] == [3, 4, 6, 8]  # two more steps than the state has
    train(scenes, out)
    for name in ("weights/model.safetensors", "weights/config.json", "log.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def test_judgements_choose_the_weights_and_end_the_training(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (scenes / "captions.jsonl").read_text().splitlines()]
    rng = np.random.default_rng(3)
    judged = [
        {"image_id": row["image_id"], "caption": caption, "score": float(rng.integers(1, 5))}
        for row in rows
        for caption in row["captions"]
    ]
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    settings = {"word_steps": 0, "matching_steps": 0, "steps": 200, "stored": "float32"}
    settings |= {"judgements": tmp_path / "judged.json", "evaluate_every": 2, "patience": 3}
    blank = [{**judged[0], "caption": " "}, {**judged[1], "image_id": None}, *judged[2:]]
    (tmp_path / "blank.json").write_text(json.dumps(blank))
    refused = settings | {"judgements": tmp_path / "blank.json"}
    assert main(arguments(scenes, tmp_path / "run", **refused)) == 2
    told = capsys.readouterr().err
    assert "entry 0 has no caption" in told and "entry 1 has no image id" in told
    out = train(scenes, tmp_path / "run", **settings)
    looks = [(line["correlation"], line["step"]) for line in log_of(out) if "correlation" in line]
    best = max(looks)[0]
    steps = [step for _, step in looks]
    assert steps == list(range(2, 2 * len(steps) + 1, 2)) and steps[-1] < 200
    first_best = next(step for tau, step in looks if tau == best)
    assert steps[-1] == first_best + 2 * 3
    metric = capeval_core.load("umic", weights=out / "weights", device="cpu", regions="tiny")
    captions = [caption for row in rows for caption in row["captions"]]
    images = [scenes / "images" / f"{row['image_id']}.png" for row in rows for _ in row["captions"]]
    tau = kendalltau(metric.score(captions, images).scores, [row["score"] for row in judged], variant="c")
    assert tau.statistic == pytest.approx(best, abs=0.02)  # other batches may change the order of near ones
