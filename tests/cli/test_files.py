"""Which column of a file names its images, for every command that reads captions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Capeval, write_json

Scored = Callable[..., dict[str, Any]]
ORDER = {"2": "a dog", "3": "a cat on a mat", "1": "rain"}
"""Captions by the number in an image's name, in the order of their rows, which are numbered from 1."""


@pytest.fixture
def numbered(files: Path, scored: Scored) -> Callable[[str], list[float]]:
    """Makes a folder `in` of images `1`, `2`, `3` behind a prefix; their RefPAC-S in the order of `ORDER`."""

    def make(prefix: str) -> list[float]:
        (files / "in").mkdir()
        for number, image in enumerate(sorted((files / "images").iterdir()), start=1):
            shutil.copy(image, files / "in" / f"{prefix}{number}.png")
        by_name = {f"{prefix}{number}": text for number, text in ORDER.items()}
        write_json(files / "c.json", by_name)
        write_json(files / "r.json", {name: f"{text} there" for name, text in by_name.items()})
        given = ("--candidates", files / "c.json", "--references", files / "r.json", "--images", files / "in")
        scores: list[float] = scored("refpacs", *given)["scores"]
        return scores

    return make


@pytest.mark.parametrize(
    "command",
    [
        ["score", "cider", "--references", "c.json", "--candidates"],
        ["rerank", "--images", "images", "--out", "best.csv", "--candidates"],
        ["augment", "captions", "--images", "images", "--out", "new", "--captions"],
        ["train", "pacs", "--images", "images", "--start", "tiny", "--out", "new", "--captions"],
    ],
)
def test_every_command_has_columns_and_splits(
    command: list[str], capeval: Capeval, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    rows = [{"scene": "42", "wording": text, "split": split} for text in "ab" for split in ("test", "val")]
    write_json(Path("c.json"), rows)
    message = capeval(*command, "c.json").err
    assert "-column NAME" in message and "that of ids with --id-column NAME" in message
    columns = ["--id-column", "scene", "--caption-column", "wording"]
    assert "choose with --split test" in capeval(*command, "c.json", *columns).err
    assert "only of 'test' (2)" in capeval(*command, "c.json", *columns, "--split", "tset").err
