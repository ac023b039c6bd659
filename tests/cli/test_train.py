"""`capeval train`: what is wrong is told before any weights are opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capeval_core.weights.folder import WeightsFolder
from tests.cli.conftest import Ran
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
    assert "'pacs' cannot be trained here (known: umic, vilbert)" in capeval("train", "pacs").err
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
