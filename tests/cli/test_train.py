"""`capeval train`: what is wrong is told before any weights are opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capeval_core.weights.folder import WeightsFolder
from tests.cli.conftest import Ran
from tests.support.seams import write_positives
from tests.support.seeded import encoder
from tests.training import pac_pairs
from tests.training.scenes import arguments, write_set

Capeval = Callable[..., Ran]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_set(tmp_path_factory.mktemp("scenes"), scenes=4)
    (folder / "file").write_text("")
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").write_text("")
    (folder / "other.jsonl").write_text(json.dumps({"image_id": "99", "caption": "a red star"}) + "\n")
    (folder / "words.jsonl").write_text(json.dumps({"image_id": "0", "caption": "a dog"}) + "\n")
    (folder / "judged.json").write_text(json.dumps([{"image_id": "0", "caption": "a"}]))
    return folder


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "--steps 0: expected a number of at least 1"),
        ({"start": None}, "--start '' is missing: pass the weights to start from"),
        ({"start": "tinny"}, "'tinny' is neither a folder, nor a Hub id"),
        ({"captions": None}, "pass either --captions FILE or --dataset NAME"),
        ({"dataset": "x/y"}, "pass either --captions FILE or --dataset NAME"),
        ({"images": None}, "--images is missing"),
        ({"captions": "other.jsonl"}, "('99') has no image"),
        ({"captions": "absent.json"}, "absent.json"),
        ({"regions": "absent.tsv"}, "absent.tsv"),
        ({"tagger": "spicy"}, "--tagger spicy: expected 'spacy'"),
        ({"judgements": "judged.json"}, "judged.json: entry 0 has no finite score"),
        ({"out": "file"}, "file: is a file: choose a folder for --out"),
        ({"out": "full"}, "full: holds more than a training (thesis.tex)"),
        ({"captions": "words.jsonl"}, "the word 'dog', which the tagger of drawn scenes does not know"),
    ],
)
def test_wrong_input_is_refused_before_any_weights_are_read(
    changed: dict[str, Any], message: str, capeval: Capeval, scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: WeightsFolder) -> None:
        raise AssertionError(f"{folder.name} was read")

    monkeypatch.setattr(WeightsFolder, "tensors", refuse)
    monkeypatch.chdir(scenes)
    ran = capeval(*arguments(scenes, **{"out": scenes / "run", **changed}))
    assert ran.status == 2 and message in " ".join(ran.err.split()), ran.err


def test_a_metric_that_cannot_be_trained_is_named(capeval: Capeval) -> None:
    assert "'clips' cannot be trained here (known: pacs, umic, vilbert)" in capeval("train", "clips").err
    assert "the metric comes first" in capeval("train").err


def test_help_shows_every_setting_with_its_default(capeval: Capeval) -> None:
    ran = capeval("train", "umic", "--help")
    assert ran.status == 0
    text = " ".join(ran.out.split())
    for flag in ("--margin X", "--judgements FILE", "--id-column NAME", "--precision {float32,bfloat16}"):
        assert flag in text
    assert "by how much a caption is to be ahead of its negatives (default: 0.2)" in text


def test_weights_of_a_training_score(capeval: Capeval, scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".state.safetensors.partial").write_bytes(b"of a run that was killed early")
    ran = capeval(*arguments(scenes, tmp_path / "run", word_steps=0, matching_steps=0, steps=3))
    assert ran.status == 0, ran.err
    command = ran.out.split("score with it:\n  capeval ")[1].split()
    assert command[:2] == ["score", "umic"] and command[-1] == str(tmp_path / "run" / "weights")
    given = ["--candidates", scenes / "captions.jsonl", "--images", scenes / "images"]
    scored = capeval("score", "umic", *given, "--weights", tmp_path / "run" / "weights", "--device", "cpu")
    assert scored.status == 0 and "UMIC" in scored.out, scored.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--masked-boxes", "1"], "--masked-boxes 1.0: expected less than 1"),
        (["--foils", "-1"], "--foils -1: expected a number of at least 0"),
        (["--warmup", "9", "--masking-steps", "9"], "--warmup 9 is not below the 9 of masking_steps"),
        (["--judgements", "judged.json"], "--judgements"),
    ],
)
def test_settings_of_vilbert_are_checked(
    flags: list[str], message: str, capeval: Capeval, scenes: Path
) -> None:
    given = ["--captions", scenes / "captions.jsonl", "--images", scenes / "images", "--start", "tiny"]
    ran = capeval("train", "vilbert", *given, "--out", scenes / "run", *flags)
    assert ran.status == 2 and message in " ".join(ran.err.split()), ran.err


def test_help_of_vilbert_has_no_judgements(capeval: Capeval) -> None:
    text = " ".join(capeval("train", "vilbert", "--help").out.split())
    assert "masked words, masked boxes, image-text matching" in text and "--judgements" not in text
    assert "--masked-boxes X" in text and "--margin" not in text


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pac_pairs.write_pairs(tmp_path_factory.mktemp("pairs") / "set", scenes=6)
    write_positives(folder / "others", [("caption", "99", None, "a dog", None)], {})
    rows = (folder / "captions.jsonl").read_text().splitlines(keepends=True)
    (folder / "one.jsonl").write_text(json.dumps({"image_id": "0", "caption": "a red star"}))
    (folder / "empty").mkdir()
    (folder / "held.jsonl").write_text("".join(rows[4:]))
    return folder


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": "tinny"}, "'tinny' is neither a folder, nor a Hub id"),
        ({"lambda_v": -1}, "--lambda-v -1.0: expected a number of at least 0"),
        ({"lambda_t": -0.1}, "--lambda-t -0.1: expected a number of at least 0"),
        ({"lora": -2}, "--lora -2: expected a number of at least 0"),
        ({"temperature": 0}, "--temperature 0.0: expected a number of at least 0.001"),
        ({"validation": 1}, "--validation 1.0: expected less than 1"),
        ({"patience": 2}, "--patience 2 is below the 3 of evaluate_every"),
        ({"tracker": "tensorbord"}, "is no tracker of accelerate: did you mean 'tensorboard'?"),
        ({"tracker": "clearml"}, "--tracker clearml needs a package that is not installed: pip install"),
        ({"batch_size": 5}, "--batch-size 5 is more than the 4 images to train on: pass a smaller one"),
        ({"batch_size": 1}, "--batch-size 1: expected a number of at least 2"),
        (
            {"positives": None},
            "--lambda-v 0.05 is a weight of generated images, but there is no folder of positives: pass a "
            "folder that `capeval augment` made as `--positives`, or 0 to train without them",
        ),
        ({"positives": None, "lambda_v": 0}, "--lambda-t 0.1 is a weight of generated captions"),
        ({"positives": "others"}, "no generated captions of these captions"),
        ({"positives": "absent"}, "absent: does not exist: pass a folder that `capeval augment` made"),
        ({"positives": "empty"}, "empty: holds no positives"),
        ({"validation_captions": "held.jsonl"}, "'4' is also trained on"),
        ({"captions": "one.jsonl", "validation_captions": "held.jsonl"}, "--batch-size 4 is more"),
        ({"images": None}, "--images is missing"),
    ],
)
def test_wrong_input_of_pacs_is_refused_before_any_weights_are_read(
    changed: dict[str, Any], message: str, capeval: Capeval, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: WeightsFolder) -> None:
        raise AssertionError(f"{folder.name} was read")

    monkeypatch.setattr(WeightsFolder, "tensors", refuse)
    monkeypatch.chdir(pairs)
    ran = capeval(*pac_pairs.arguments(pairs, **{"out": pairs / "run", **changed}))
    assert ran.status == 2 and message in " ".join(ran.err.split()), ran.err
    assert not (pairs / "run").exists()


def test_adapters_of_a_resnet_are_refused(capeval: Capeval, pairs: Path, tmp_path: Path) -> None:
    encoder("pacs-resnet-tiny").save_pretrained(tmp_path / "start")
    ran = capeval(*pac_pairs.arguments(pairs, tmp_path / "run", start=tmp_path / "start", lora=2))
    assert ran.status == 2 and "--lora 2 is only for ViTs: these weights are a ResNet's" in ran.err


def test_help_of_pacs_shows_positives_and_losses(capeval: Capeval) -> None:
    text = " ".join(capeval("train", "pacs", "--help").out.split())
    for part in (
        "--positives FOLDER",
        "--lambda-v X",
        "(default: 0.05)",
        "--lora N",
        "--validation-captions",
    ):
        assert part in text
    assert "--tagger" not in text and "METRIC is one of pacs" in " ".join(
        capeval("train", "--help").out.split()
    )
