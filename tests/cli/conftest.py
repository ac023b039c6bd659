"""A small set of the user's own files, and the command run in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capeval_core.cli import main

CAPTIONS = {"dog.1": ["a dog", "two dogs"], "dog.2": ["a cat on a mat"], "42": ["rain"]}
REFERENCES = {
    "dog.1": ["a dog runs", "a brown dog"],
    "dog.2": ["a cat"],
    "42": ["it rains", "wet", "a street"],
}


def refuse_token(token: str) -> None:
    """Let JSON be read as strict readers do, which know no NaN and no Infinity."""
    raise AssertionError(f"{token} is no JSON")


@dataclass(frozen=True)
class Ran:
    """What a command left: exit status, stdout, stderr."""

    status: int
    out: str
    err: str


@pytest.fixture
def capeval(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture
def files(tmp_path: Path, images: list[Path]) -> Path:
    """captions.json, references.json, and images/ with ids that hold dots and a COCO name."""
    (tmp_path / "images").mkdir()
    names = ["dog.1.jpg", "dog.2.png", "COCO_val2014_000000000042.png"]
    for image, name in zip(images, names, strict=False):
        shutil.copy(image, tmp_path / "images" / name)
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    return tmp_path


@pytest.fixture
def score(capeval: Callable[..., Ran], files: Path, seeded_weights: Path) -> Callable[..., Ran]:
    """`capeval score METRIC` on those files; further arguments follow, and win."""

    def run(metric: str, *arguments: object) -> Ran:
        given = ["--candidates", files / "captions.json", "--images", files / "images"]
        return capeval("score", metric, *given, "--weights", seeded_weights, "--device", "cpu", *arguments)

    return run


@pytest.fixture
def scored(score: Callable[..., Ran], files: Path) -> Callable[..., dict[str, Any]]:
    """The content of the --json file of a run that must go well."""

    def run(metric: str, *arguments: object) -> dict[str, Any]:
        out = files / "scored.json"
        ran = score(metric, *arguments, "--json", out)
        assert ran.status == 0, ran.err
        content: dict[str, Any] = json.loads(out.read_text(), parse_constant=refuse_token)
        return content

    return run
