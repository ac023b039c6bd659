"""`capeval train pacs`: short trainings of real weights on drawn scenes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate import PartialState
from PIL import Image

import capeval_core
from capeval_core.cli import main
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.models.batching import count_forwards
from capeval_core.training import pacs_run
from capeval_core.training.log import TrainingLog
from capeval_core.training.pairs import PairOrder, Pairs, held_out
from capeval_core.training.projections import Temperature
from capeval_core.training.state import locked
from capeval_core.weights.folder import TINY
from tests.support.seeded import encoder
from tests.training.pac_pairs import arguments, train, write_pairs
from tests.training.scenes import log_of, run_until_killed, tensors_of

TUNED = {"visual.proj", "text_projection", "logit_scale"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "set")


@pytest.fixture(scope="module")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training that nothing stopped."""
    return train(pairs, tmp_path_factory.mktemp("trained") / "run")


def tiny() -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(TINY / "pacs" / "model.safetensors"))


def test_the_projections_and_the_temperature_alone_are_tuned(trained: Path) -> None:
    before, after = tiny(), tensors_of(trained)
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == TUNED
    assert {after[name].dtype.name for name in TUNED} == {"float32"}
    assert {after[name].dtype.name for name in after.keys() - TUNED} == {"float16"}


def test_the_loss_falls(pairs: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    tensors = {
        name: tensor.clone()
        for name, tensor in ClipEncoder.from_pretrained("tiny").model.state_dict().items()
    }
    tensors["text_projection"] += 0.5 * torch.randn(tensors["text_projection"].shape)
    config = {**ClipEncoder.from_pretrained("tiny").config}
    config.pop("canary")
    ClipEncoder(config, tensors, device="cpu").save_pretrained(start)
    settings: dict[str, Any] = {"steps": 60, "learning_rate": 3e-3, "log_every": 20, "validation": 0.4}
    log = log_of(train(pairs, tmp_path / "run", start=start, evaluate_every=20, **settings))
    losses = [line["losses"]["all"] for line in log]
    judged = [line["validation_loss"] for line in log]
    assert losses[-1] < 0.5 * losses[0] and judged[-1] < judged[0]


def test_a_killed_training_goes_on_as_if_nothing_had_been(pairs: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_until_killed(arguments(pairs, out), saves=3)
    assert not (out / "weights").exists()
    train(pairs, out)
    for name in ("weights/model.safetensors", "weights/config.json", "weights/README.md", "log.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def test_the_folder_scores_and_has_curves_and_a_card(pairs: Path, trained: Path) -> None:
    metric = capeval_core.load("pacs", weights=trained / "weights", device="cpu")
    result = metric.score(["a red star"], [pairs / "images" / "0.png"])
    assert np.isfinite(result.mean)
    with Image.open(trained / "curves.png") as curves:
        assert curves.size[0] == 960
    log = log_of(trained)
    assert [line["step"] for line in log if "validation_loss" in line] == [3, 6, 9, 12]
    assert log[0]["losses"].keys() == {"all", "real pairs", "generated images", "generated captions"}
    assert log[0]["learning_rate"] == log[-1]["learning_rate"] == 1e-3
    config = json.loads((trained / "weights" / "config.json").read_text())
    assert config["constants"]["prompt"] == config["training"]["prompt"] == "A photo depicts "
    assert config["training"]["lambda_v"] == 0.05 and config["training"]["positives"]
    card = (trained / "weights" / "README.md").read_text()
    best = min((line["validation_loss"], line["step"]) for line in log if "validation_loss" in line)
    for part in (
        "L = L(V, T) + 0.05 L(V', T) + 0.1 L(V, T')",
        "32 of 16 images, and 4 images held out",
        "38 images, 19 captions, made by",
        '{"captioner": "drawn", "seed": 5}',
        f"step {best[1]}, with the lowest validation loss, {best[0]:.4f}",
        "as it was learned",
        "| learning_rate | 0.001 |",
    ):
        assert part in card, card


def test_the_best_weights_by_validation_are_kept_and_end_the_training(pairs: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.03, "steps": 200, "evaluate_every": 2, "patience": 6}
    out = train(pairs, tmp_path / "run", **settings)
    looks = [(line["validation_loss"], line["step"]) for line in log_of(out) if "validation_loss" in line]
    best = min(looks)
    assert [step for _, step in looks] == list(range(2, best[1] + 7, 2)) and best[1] < 100
    fewer = train(pairs, tmp_path / "fewer", **{**settings, "steps": best[1], "patience": 0})
    np.testing.assert_array_equal(tensors_of(out)["visual.proj"], tensors_of(fewer)["visual.proj"])


def test_outputs_of_the_towers_are_shared_by_trainings(pairs: Path, trained: Path, tmp_path: Path) -> None:
    with count_forwards() as count:
        out = train(pairs, tmp_path / "run", towers=trained / "towers")
    assert count.items < 10  # the canary of the weights, written and opened
    assert not (out / "towers").exists()
    np.testing.assert_array_equal(tensors_of(out)["visual.proj"], tensors_of(trained)["visual.proj"])


def test_damaged_outputs_are_computed_again(
    pairs: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    towers = tmp_path / "towers"
    towers.mkdir()
    for path in (trained / "towers").iterdir():
        content = path.read_bytes()
        (towers / path.name).write_bytes(content[:-5] if path.suffix == ".bin" else content)
    out = train(pairs, tmp_path / "run", towers=towers)
    assert "what it held is computed again" in " ".join(capsys.readouterr().err.split())
    np.testing.assert_array_equal(tensors_of(out)["visual.proj"], tensors_of(trained)["visual.proj"])


def test_without_positives_the_weights_are_0(pairs: Path, trained: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 1, "log_every": 1, "towers": trained / "towers"}
    out = train(pairs, tmp_path / "run", positives=None, lambda_v=0, lambda_t=0, **settings)
    losses = log_of(out)[0]["losses"]
    assert losses.keys() == {"all", "real pairs"} and losses["all"] == losses["real pairs"]
    augmented = log_of(train(pairs, tmp_path / "augmented", **settings))[0]["losses"]
    assert augmented["real pairs"] == losses["real pairs"]  # of the first step, before anything is tuned
    total = (
        augmented["real pairs"] + 0.05 * augmented["generated images"] + 0.1 * augmented["generated captions"]
    )
    assert augmented["all"] == pytest.approx(total, rel=1e-5)
    card = (out / "weights" / "README.md").read_text()
    assert "L = L(V, T) (equations" in card and "Generated positives: none" in card


def test_the_prompt_is_put_before_captions_and_recorded(pairs: Path, trained: Path, tmp_path: Path) -> None:
    bare = train(pairs, tmp_path / "run", prompt="")
    config = json.loads((bare / "weights" / "config.json").read_text())
    assert config["constants"]["prompt"] == config["training"]["prompt"] == ""
    first, other = (log_of(run)[0]["losses"]["real pairs"] for run in (bare, trained))
    assert first != pytest.approx(other, rel=0.01)


def test_matrices_alone_decay(pairs: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 3, "weight_decay": 200, "evaluate_every": 3}
    before, after = tiny(), tensors_of(train(pairs, tmp_path / "run", **settings))
    for name in ("visual.proj", "text_projection"):
        ratio = np.linalg.norm(after[name]) / np.linalg.norm(before[name].astype(np.float32))
        assert ratio == pytest.approx((1 - 1e-3 * 200) ** 3, abs=0.02)
    assert after["logit_scale"] == pytest.approx(before["logit_scale"].astype(np.float32), abs=0.01)


@pytest.mark.parametrize(("every", "what"), [(1, "validation loss"), (12, "loss")])
def test_a_training_that_diverges_ends_with_an_error(
    every: int, what: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"weight_decay": 1e36, "evaluate_every": every, "towers": pairs / "towers"}
    assert main(arguments(pairs, tmp_path / "out", **given)) == 2
    found = " ".join(capsys.readouterr().err.split())
    assert f"the {what} is not a finite number after" in found and "diverged" in found
    assert not (tmp_path / "out" / "weights").exists()


def test_two_trainings_do_not_share_a_folder(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with locked(out, PartialState()):
        assert main(arguments(pairs, out, towers=pairs / "towers")) == 2
    assert f"{out}: another training is writing into it" in " ".join(capsys.readouterr().err.split())
    train(pairs, out, towers=pairs / "towers")  # the lock ends with its training
    assert not {path.name for path in out.iterdir()} & {"towers", "regions"}


def test_images_held_out_are_not_trained_on_and_each_step_is_bounded(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on: set[int] = set()

    class Noted(PairOrder):
        def chosen(self, number: int) -> Pairs:
            chosen = super().chosen(number)
            trained_on.update(chosen.images.tolist())
            return chosen

    monkeypatch.setattr(pacs_run, "PairOrder", Noted)
    bound = Mock(wraps=Temperature.bound)
    monkeypatch.setattr(Temperature, "bound", lambda model: bound(model))
    train(pairs, tmp_path / "run")
    assert bound.call_count == 12  # the temperature stays in its bounds after each step
    expected, out = held_out(20, 0.2, seed=42)
    assert trained_on == {*expected.tolist()} and len(out) == 4


def test_captions_for_validation_are_held_out(pairs: Path, tmp_path: Path) -> None:
    rows = (pairs / "captions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(rows[:14]))
    (tmp_path / "held.jsonl").write_text("".join(rows[14:]))
    files = {"captions": tmp_path / "train.jsonl", "validation_captions": tmp_path / "held.jsonl"}
    out = train(pairs, tmp_path / "run", **files)
    assert "28 of 14 images, and 6 images held out" in (out / "weights" / "README.md").read_text()


def test_captions_that_are_cut_off_are_counted(
    pairs: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "ut off" not in (trained / "weights" / "README.md").read_text()
    rows = [json.loads(line) for line in (pairs / "captions.jsonl").read_text().splitlines()]
    rows[3]["captions"][1] = " star" * 80
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    out = train(pairs, tmp_path / "run", captions=path, towers=pairs / "towers", steps=2)
    cut = "ut off at 77 tokens: 1 of 59 captions"
    assert capsys.readouterr().err.count(cut) == 1
    assert f"- C{cut}, generated and held-out ones among them." in (out / "weights" / "README.md").read_text()


def test_a_resnets_attention_pool_is_tuned(pairs: Path, tmp_path: Path) -> None:
    encoder("pacs-resnet-tiny").save_pretrained(tmp_path / "start")
    out = train(pairs, tmp_path / "run", start=tmp_path / "start", steps=4, weight_decay=0)
    before, after = encoder("pacs-resnet-tiny").model.state_dict(), tensors_of(out)
    changed = {name for name in after if not np.array_equal(before[name].numpy(), after[name])}
    pool = {name for name in after if name.startswith("visual.attnpool.")} - {"visual.attnpool.k_proj.bias"}
    assert changed - {"visual.attnpool.k_proj.bias"} == pool | {"text_projection", "logit_scale"}
    rows = {path.stem: len(json.loads(path.read_text())["keys"]) for path in (out / "towers").glob("*.json")}
    sizes = {path.stat().st_size // rows[path.stem] for path in (out / "towers").glob("*.bin")}
    assert sizes == {512 * 2 * 2 * 2, 64 * 4}  # float16 of 2 x 2 positions; float32 of texts
    capeval_core.load("pacs", weights=out / "weights", device="cpu")


def test_adapters_are_trained_in_place_of_projections(pairs: Path, tmp_path: Path) -> None:
    out = train(pairs, tmp_path / "run", lora=2, steps=4, stored="float16")
    before, after = tiny(), tensors_of(out)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed and all(".attn." in name or name == "logit_scale" for name in changed)
    assert {name.split("resblocks")[0] for name in changed} == {
        "transformer.",
        "visual.transformer.",
        "logit_scale",
    }
    assert "adapters of rank 2" in (out / "weights" / "README.md").read_text()
    capeval_core.load("pacs", weights=out / "weights", device="cpu")


def test_adapters_resume_exactly(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"lora": 2, "steps": 6, "save_every": 2, "evaluate_every": 6, "patience": 0}
    whole = train(pairs, tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLog, "draw", Mock(side_effect=[None, ConnectionAbortedError]))
        assert main(arguments(pairs, tmp_path / "stopped", **settings)) == 2
    assert not (tmp_path / "stopped" / "weights").exists()
    train(pairs, tmp_path / "stopped", **settings)
    assert log_of(whole) == log_of(tmp_path / "stopped")
    for name, tensor in tensors_of(whole).items():
        np.testing.assert_array_equal(tensor, tensors_of(tmp_path / "stopped")[name], err_msg=name)


def test_curves_go_to_trackers(pairs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = train(pairs, tmp_path / "run", tracker="tensorboard")
    (events,) = (out / "tracked").glob("events.*")
    found = EventAccumulator(str(events)).Reload()
    sent = [(event.step, event.value) for event in found.Scalars("validation_loss")]
    logged = [(line["step"], line["validation_loss"]) for line in log_of(out) if "validation_loss" in line]
    assert sent == [(step, pytest.approx(value)) for step, value in logged]
    assert "loss/generated images" in found.Tags()["scalars"]


GRADIENTS = """
import sys
from pathlib import Path
import numpy as np
import torch

step, first = torch.optim.AdamW.step, []

def stepped(optimiser, *arguments):
    if not first:
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        first.extend(parameter.grad.numpy().copy() for parameter in parameters)
    return step(optimiser, *arguments)

torch.optim.AdamW.step = stepped
"""
"""Code that notes the gradients of the first step; Adam itself hides by how much they are too long."""
WRITTEN = """
from capeval_core.cli import main
assert main(sys.argv[2:]) == 0
np.savez(sys.argv[1], *first)
"""


@pytest.mark.system
def test_two_processes_train_as_one(pairs: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 4, "evaluate_every": 2, "log_every": 1, "weight_decay": 0}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    started = []
    for rank in (alone, *ranks):
        out = tmp_path / rank["WORLD_SIZE"]
        file = str(tmp_path / f"{rank['RANK']}-of-{rank['WORLD_SIZE']}.npz")
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", GRADIENTS + WRITTEN, file, *arguments(pairs, out, **settings)],
                env={
                    **os.environ,
                    **(rank if rank is not alone else {}),
                    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"},
                },
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    errors = [process.communicate(timeout=1200)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    expected, *found = (np.load(tmp_path / name) for name in ("0-of-1.npz", "0-of-2.npz", "1-of-2.npz"))
    for name in expected.files:
        scale = np.abs(expected[name]).max()
        for gradients in found:
            np.testing.assert_allclose(gradients[name], expected[name], atol=1e-5 * scale, err_msg=name)
    one, two = log_of(tmp_path / "1"), log_of(tmp_path / "2")
    for line, other in zip(one, two, strict=True):
        assert line["losses"] == pytest.approx(other["losses"], rel=1e-4)
        loss = line.get("validation_loss", 0.0)
        assert loss == pytest.approx(other.get("validation_loss", 0.0), rel=1e-3, abs=1e-7)
