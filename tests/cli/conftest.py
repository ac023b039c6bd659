"""A small set of the user's own files, and the command run in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
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


def read_json(path: Path) -> Any:
    """As strict readers do, which know no NaN and no Infinity."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@dataclass(frozen=True)
class Ran:
    """What a command left: exit status, stdout, stderr."""

    status: int
    out: str
    err: str


Capeval = Callable[..., Ran]


@pytest.fixture
def capeval(capsys: pytest.CaptureFixture[str]) -> Capeval:
    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ran(status, *capsys.readouterr())

    return run


TINY = {"--weights": "tiny", "--device": "cpu"}


def unless_given(usual: Mapping[str, object], arguments: Sequence[object]) -> list[object]:
    """Usual flags with their values, less those that the arguments give."""
    return [part for flag, value in usual.items() if flag not in arguments for part in (flag, value)]


@pytest.fixture
def files(tmp_path: Path, images: list[Path]) -> Path:
    """captions.json, references.json, and images/ with ids that hold dots and a COCO name."""
    (tmp_path / "images").mkdir()
    names = ["dog.1.jpg", "dog.2.png", "COCO_val2014_000000000042.png"]
    for image, name in zip(images, names, strict=False):
        shutil.copy(image, tmp_path / "images" / name)
    write_json(tmp_path / "captions.json", CAPTIONS)
    write_json(tmp_path / "references.json", REFERENCES)
    return tmp_path


@pytest.fixture
def score(capeval: Capeval, files: Path) -> Capeval:
    """`capeval score METRIC` on those files; further arguments follow, and win."""

    def run(metric: str, *arguments: object) -> Ran:
        usual = {"--candidates": files / "captions.json", "--images": files / "images"}
        return capeval("score", metric, *unless_given(usual | TINY, arguments), *arguments)

    return run


@pytest.fixture
def scored(score: Capeval, files: Path) -> Callable[..., dict[str, Any]]:
    """The content of the --json file of a run that must go well."""

    def run(metric: str, *arguments: object) -> dict[str, Any]:
        out = files / "scored.json"
        ran = score(metric, *arguments, "--json", out)
        assert ran.status == 0, ran.err
        content: dict[str, Any] = read_json(out)
        return content

    return run
