"""`capeval train pacs`: its losses, what it tunes, and what a kill, damage or a second process changes."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

import capeval_core
from capeval_core.cli import main
from tests.support.seams import contrastive_loss, image, network, write_positives
from tests.training.pac_pairs import arguments, train, write_pairs
from tests.training.scenes import check_flipped_bits, log_of, run_until_killed, tensors_of

PROMPT = "A photo depicts "
ALL = {"positives": None, "lambda_v": 0, "lambda_t": 0, "validation": 0, "steps": 1, "log_every": 1}
"""One step without positives, on all images."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "set")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images with one caption each, so that nothing is drawn by lot."""
    return write_pairs(tmp_path_factory.mktemp("single") / "set", scenes=8, captions_each=1)


@pytest.fixture(scope="module")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training that nothing stopped."""
    return train(pairs, tmp_path_factory.mktemp("trained") / "run")


def shipped() -> dict[str, Any]:
    """The tensors that trainings start from here."""
    return dict(
        load_file(Path(capeval_core.__file__).parent / "weights" / "tiny" / "pacs" / "model.safetensors")
    )


def test_captions_of_other_images_are_another_training(
    single: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = train(single, tmp_path / "run", **ALL)
    rows = [json.loads(line) for line in (single / "captions.jsonl").read_text().splitlines()]
    ids = [row["image_id"] for row in rows]
    for row, image_id in zip(rows, [*ids[1:], ids[0]], strict=True):
        row["image_id"] = image_id
    swapped = tmp_path / "captions.jsonl"
    swapped.write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert main(arguments(single, out, **ALL, captions=swapped)) == 2
    assert "captions" in capsys.readouterr().err


def test_each_image_that_is_trained_on_and_held_out_is_named(
    single: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (single / "captions.jsonl").read_text().splitlines()
    held_out = [json.dumps({"image_id": "new", "captions": ["a dog"]}), lines[5], lines[2]]
    (tmp_path / "held.jsonl").write_text("\n".join(held_out))
    (single / "images" / "new.png").write_bytes((single / "images" / "0.png").read_bytes())
    settings = {**ALL, "validation_captions": tmp_path / "held.jsonl"}
    assert main(arguments(single, tmp_path / "run", **settings)) == 2
    (single / "images" / "new.png").unlink()
    refusal = capsys.readouterr().err
    assert refusal.count("also trained on") == 2 and "'2'" in refusal and "'5'" in refusal


def test_positives_of_nothing_that_is_trained_on_are_counted(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a scene that is not in the set a caption and two images, of a caption that is not there an image."""
    *lines, _ = (pairs / "captions.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    lines[-1] = json.dumps({**last, "captions": last["captions"][:1]})
    first = json.loads(lines[0])
    lines[0] = json.dumps({**first, "captions": [first["captions"][0], "long " * 99]})
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    train(pairs, tmp_path / "run", captions=tmp_path / "captions.jsonl", steps=1, log_every=1)
    notes = capsys.readouterr().err
    assert "4 positives belong to no image or caption here" in notes
    # Of 19 scenes with 37 captions all but one have a generated caption.
    card = (tmp_path / "run" / "weights" / "README.md").read_text()
    for text in (notes.lower(), card.lower()):
        assert re.search(r"cut off at \d+ tokens: 1 of 55 captions", text)
    assert "Generated positives: 35 images, 18 captions" in card


def features(weights: Any, folder: Path, prompt: str = PROMPT) -> tuple[Tensor, Tensor]:
    """Of the images of a set and of their captions, by weights as metrics use them."""
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    clip = network("clip", weights)
    shown = [image(folder / "images" / f"{row['image_id']}.png") for row in rows]
    parts = [part.features for part in clip.encode_images(shown)]
    texts = clip.encode_texts([prompt + row["captions"][0] for row in rows]).features
    return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(texts)


def scale_of(weights: Path) -> float:
    return math.exp(float(load_file(weights / "model.safetensors")["logit_scale"].item()))


def cosine(a: Tensor, b: Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)) / (
        math.hypot(*a.tolist()) * math.hypot(*b.tolist())
    )


@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.01])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_contrastive_loss_equals_a_float64_loop(count: int, temperature: float) -> None:
    """Eq. 2 word by word."""
    rng = np.random.default_rng(count)
    images, texts = (torch.from_numpy(rng.normal(size=(count, 6))) for _ in range(2))
    expected = 0.0
    for i in range(count):
        own = math.exp(cosine(images[i], texts[i]) / temperature)
        of_image = sum(math.exp(cosine(images[i], texts[j]) / temperature) for j in range(count))
        of_text = sum(math.exp(cosine(images[j], texts[i]) / temperature) for j in range(count))
        expected += -math.log(own / of_image) / count - math.log(own / of_text) / count
    found = contrastive_loss(images, texts, 1 / temperature)
    assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    single = contrastive_loss(images.float(), texts.float(), 1 / temperature)
    assert float(single) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("lora", [0, 2])
def test_the_written_weights_have_the_logged_validation_loss(lora: int, single: Path, tmp_path: Path) -> None:
    """Tuned projections, or adapters that are merged: scored as they were learned."""
    held = write_pairs(tmp_path / "held", scenes=4, captions_each=1)
    for path in (held / "images").iterdir():
        path.rename(single / "images" / f"held{path.name}")
    rows = [json.loads(line) for line in (held / "captions.jsonl").read_text().splitlines()]
    rows = [{**row, "image_id": f"held{row['image_id']}"} for row in rows]
    (held / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (held / "images").rmdir()
    (held / "images").symlink_to(single / "images")
    settings: dict[str, Any] = {**ALL, "steps": 6, "evaluate_every": 7, "batch_size": 4, "lora": lora}
    settings |= {
        "learning_rate": 1e-2,
        "stored": "float32",
        "validation_captions": held / "captions.jsonl",
        "temperature": 1.0,
    }
    out = train(single, tmp_path / "run", **settings)
    expected = contrastive_loss(*features(out / "weights", held), scale_of(out / "weights"))
    assert log_of(out)[-1]["validation_loss"] == pytest.approx(float(expected), rel=1e-4)
    start = contrastive_loss(*features("tiny", held), 1.0)
    assert float(start) != pytest.approx(float(expected), rel=1e-2)


def test_generated_positives_are_paired_with_their_sources(single: Path, tmp_path: Path) -> None:
    """Generated images that are those of their captions, and captions those of their images: equal losses."""
    rows = [json.loads(line) for line in (single / "captions.jsonl").read_text().splitlines()]
    same = []
    for row in rows[1:]:  # the first pair has none
        png = (single / "images" / f"{row['image_id']}.png").read_bytes()
        same += [("caption", row["image_id"], None, row["captions"][0], None)]
        same += [("image", row["image_id"], row["captions"][0], None, png)]
    write_positives(tmp_path / "positives", same[::-1], {})
    settings: dict[str, Any] = {**ALL, "batch_size": 8, "lambda_v": 0.05, "lambda_t": 0.1}
    settings["temperature"] = 1.0
    (line,) = log_of(train(single, tmp_path / "run", **{**settings, "positives": tmp_path / "positives"}))
    images, texts = features("tiny", single)
    real, made = (float(contrastive_loss(images[k:], texts[k:], 1.0)) for k in (0, 1))
    terms = {"real pairs": real, "generated images": made, "generated captions": made}
    assert line["losses"] == pytest.approx({**terms, "all": real + 0.15 * made}, rel=1e-4)
    lists = {"lambda_v": 0, "lambda_t": 0.1, "positives": tmp_path / "positives"}
    (other,) = log_of(train(single, tmp_path / "one", **{**settings, **lists}))
    assert other["losses"].keys() == {"all", "real pairs", "generated captions"}


def test_a_killed_training_resumes_bit_for_bit(pairs: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_until_killed(arguments(pairs, out), saves=3)
    assert not (out / "weights").exists()
    check_flipped_bits(arguments(pairs, out), out)
    train(pairs, out)
    for name in ("weights/model.safetensors", "weights/config.json", "weights/README.md", "log.jsonl"):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def test_a_damaged_state_is_refused_and_a_damaged_log_is_rewritten(
    pairs: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    log, state = (out / "log.jsonl").read_bytes(), (out / "state.pt").read_bytes()
    (out / "log.jsonl").write_bytes(log[:40] + b"{" + log[50:] + b'{"step": 15, "ph')
    for damaged in (state[:500], state[:-90], b""):
        (out / "state.pt").write_bytes(damaged)
        assert main(arguments(pairs, out)) == 2 and "state.pt" in capsys.readouterr().err
    (out / "state.pt").write_bytes(state)
    train(pairs, out)
    assert (out / "log.jsonl").read_bytes() == log


def test_validation_chooses_the_weights_and_ends_the_training(pairs: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.03, "steps": 200, "evaluate_every": 2, "patience": 6}
    out = train(pairs, tmp_path / "run", **settings)
    looks = [(line["validation_loss"], line["step"]) for line in log_of(out) if "validation_loss" in line]
    best = min(looks)
    assert [step for _, step in looks] == list(range(2, best[1] + 7, 2)) and best[1] < 100
    fewer = train(pairs, tmp_path / "fewer", **{**settings, "steps": best[1], "patience": 0})
    np.testing.assert_array_equal(tensors_of(out)["visual.proj"], tensors_of(fewer)["visual.proj"])


def test_lora_trains_adapters_instead_of_projections(pairs: Path, tmp_path: Path) -> None:
    out = train(pairs, tmp_path / "run", lora=2, steps=4, stored="float16")
    before, after = shipped(), tensors_of(out)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed and all(".attn." in name or name == "logit_scale" for name in changed)
    assert {name.split("resblocks")[0] for name in changed} == {
        "transformer.",
        "visual.transformer.",
        "logit_scale",
    }
    card = (out / "weights" / "README.md").read_text()
    assert "adapters of rank 2" in card
    # Of 20 scenes with two captions each 4 are held out; all but one have two images and a caption more.
    assert "32 of 16 images, and 4 images held out" in card
    assert "Generated positives: 38 images, 19 captions, made by" in card and '"captioner": "drawn"' in card
    best, step = min(
        (line["validation_loss"], line["step"]) for line in log_of(out) if "validation_loss" in line
    )
    assert (
        "It took 4 steps" in card
        and f"those of step {step}, with the lowest validation loss, {best:.4f}" in card
    )
    capeval_core.load("pacs", weights=out / "weights", device="cpu")


def test_losses_are_sent_to_the_tracker(pairs: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = train(pairs, tmp_path / "run", tracker="tensorboard")
    (events,) = (out / "tracked").glob("events.*")
    found = EventAccumulator(str(events)).Reload()
    sent = [(event.step, event.value) for event in found.Scalars("validation_loss")]
    logged = [(line["step"], line["validation_loss"]) for line in log_of(out) if "validation_loss" in line]
    assert sent == [(step, pytest.approx(value)) for step, value in logged]
    assert "loss/generated images" in found.Tags()["scalars"]
    # Captions that are held out, with their cosines and what these gained since the look before.
    tables = found.Tensors("examples/text_summary")
    assert [event.step for event in tables] == [step for step, _ in logged]
    assert b"| changed |" in tables[-1].tensor_proto.string_val[0] and found.Images("examples")


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
def test_two_processes_train_the_same_weights_as_one(pairs: Path, tmp_path: Path) -> None:
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
