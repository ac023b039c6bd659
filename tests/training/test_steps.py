"""What the steps of a training do, by what `capeval train` writes: losses, weights, the state on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from capeval_core.encoders.uniter import UniterEncoder
from tests.training.scenes import log_of, tensors_of, train, write_set

STILL: dict[str, Any] = {"word_steps": 0, "pretraining_rate": 0.0, "learning_rate": 0.0, "warmup": 0}
STILL |= {"steps": 1, "accumulation": 1, "log_every": 1}
"""No step moves a weight, so losses show what they are made of."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes with a caption of one word each: every batch of two holds the same texts."""
    folder = write_set(tmp_path_factory.mktemp("scenes"), scenes=2)
    rows = [{"image_id": str(i), "caption": caption} for i, caption in enumerate(("star", "heart"))]
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def positive_losses(folder: Path, out: Path, **settings: Any) -> list[float]:
    lines = log_of(train(folder, out, **{**STILL, **settings}))
    return [line["losses"]["positive"] for line in lines if line["phase"] == "matching"]


def test_every_batch_has_a_dropout_of_its_own(scenes: Path, tmp_path: Path) -> None:
    settings = {"matching_steps": 8, "batch_size": 2}
    without = positive_losses(scenes, tmp_path / "without", dropout=0.0, **settings)
    assert without == pytest.approx([without[0]] * 8, abs=1e-6)
    losses = positive_losses(scenes, tmp_path / "with", dropout=0.3, **settings)
    assert min(abs(a - b) for i, a in enumerate(losses) for b in losses[:i]) > 1e-5


def test_every_epoch_has_an_order_of_its_own(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", scenes=5)
    losses = positive_losses(folder, tmp_path / "run", dropout=0.0, matching_steps=30, batch_size=1)
    epochs = np.array(losses).reshape(3, 10)
    np.testing.assert_allclose(np.sort(epochs), np.sort(epochs[:1]).repeat(3, axis=0), atol=1e-6)
    orders = {tuple(np.argsort(epoch)) for epoch in epochs}
    assert len(orders) == 3


def test_a_match_weighs_as_much_as_all_negatives_together(scenes: Path, tmp_path: Path) -> None:
    """Of a head that gives every caption a chance of 1/3: the mean of all captions would lower it."""
    encoder = UniterEncoder.from_pretrained(scenes / "start", device="cpu")
    tensors = encoder.model.state_dict()
    tensors["matching_head.weight"].zero_()
    tensors["matching_head.bias"].copy_(tensors["matching_head.bias"].new_tensor([np.log(2.0), 0.0]))
    UniterEncoder(encoder.config, tensors).save_pretrained(tmp_path / "start")
    settings = {"start": tmp_path / "start", "matching_steps": 1, "pretraining_rate": 1e-3, "batch_size": 2}
    out = train(scenes, tmp_path / "run", **{**STILL, "stored": "float32", **settings})
    other, match = tensors_of(out)["matching_head.bias"]
    assert match == pytest.approx(1e-3, rel=1e-2) and other == pytest.approx(np.log(2) - 1e-3, rel=1e-4)


def test_gradients_are_clipped(scenes: Path, tmp_path: Path) -> None:
    """Adam undoes a factor of all gradients, but not one that leaves them far below its epsilon."""
    start = load_file(scenes / "start" / "model.safetensors")
    moved = {}
    for clip in (0.0, 1e-13):
        settings = {**STILL, "matching_steps": 0, "learning_rate": 1e-2, "stored": "float32", "clip": clip}
        end = tensors_of(train(scenes, tmp_path / str(clip), batch_size=2, **settings))
        still = "matching_head", "ranking_head"
        names = [name for name in end if not name.startswith(still)]
        moved[clip] = max(float(np.abs(end[name] - start[name]).max()) for name in names)
    assert moved[0.0] > 5e-3 and moved[1e-13] < 1e-6


def test_the_state_is_on_the_disk_before_it_replaces_the_last_one(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, replace, synced, states = os.fsync, Path.replace, set[int](), list[bool]()

    def synchronised(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        fsync(file)

    def replaced(path: Path, target: Path) -> Path:
        if Path(target).name == "state.safetensors":
            states.append(path.stat().st_ino in synced)
            synced.clear()
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(Path, "replace", replaced)
    train(scenes, tmp_path / "run", **{**STILL, "matching_steps": 2, "save_every": 1, "batch_size": 2})
    assert states and all(states)
