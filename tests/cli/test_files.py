"""Which column of a file names its images, for every command that reads captions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.conftest import REFERENCES, Capeval, read_json, write_json

Scored = Callable[..., dict[str, Any]]
ORDER = {"2": "a dog", "3": "a cat on a mat", "1": "rain"}
"""Captions by the number in an image's name, in the order of their rows, which are numbered from 1."""
COLUMNS = ["filename", "file_name", "image_path", "img", "path", "url"]


def test_references_that_pandas_wrote_are_lists(scored: Scored, files: Path) -> None:
    expected = scored("refpacs", "--references", files / "references.json")
    table = pd.DataFrame({"image_id": [*REFERENCES], "references": [*REFERENCES.values()]})
    table.to_csv(files / "references.csv")
    assert scored("refpacs", "--references", files / "references.csv")["scores"] == expected["scores"]


def write_rows(path: Path, column: str, names: Sequence[str], captions: Sequence[str]) -> Path:
    """Rows with a number `id` and a column of names, as CSV, JSON lines or Parquet."""
    table = pd.DataFrame({"id": range(1, len(names) + 1), column: names, "caption": captions})
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return path


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
    ("form", "column"), [(form, c) for form in ("csv", "jsonl", "parquet") for c in COLUMNS]
)
def test_columns_that_name_different_images_are_refused(
    form: str,
    column: str,
    files: Path,
    score: Capeval,
    scored: Scored,
    numbered: Callable[[str], list[float]],
) -> None:
    expected, names = numbered(""), [f"{number}.png" for number in ORDER]
    rows = write_rows(files / f"c.{form}", column, names, [*ORDER.values()])
    given = ("--images", files / "in", "--references", files / "r.json", "--candidates", rows)
    ran = score("refpacs", *given, "--weights", files / "nowhere")
    assert ran.status == 2 and f"--id-column {column}" in ran.err and "nowhere" not in ran.err
    assert scored("refpacs", *given, "--id-column", column)["scores"] == pytest.approx(expected, abs=1e-6)
    assert scored("refpacs", *given, "--id-column", "id")["scores"] != pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("references", ["by name", "by id", "rows"])
def test_the_column_that_names_images_counts(
    references: str, column: str, files: Path, scored: Scored, numbered: Callable[[str], list[float]]
) -> None:
    expected, names = numbered("photo-"), [f"photo-{number}.png" for number in ORDER]
    rows = write_rows(files / "c.csv", column, names, [*ORDER.values()])
    texts = [f"{text} there" for text in ORDER.values()]
    if references == "by id":
        write_json(files / "r.json", dict(enumerate(texts, start=1)))
    elif references == "rows":  # two of each image, which numbers of rows tell apart
        twice = [name for name in names for _ in "ab"]
        write_rows(files / "r.csv", column, twice, [text for text in texts for _ in "ab"])
    given = ("--references", files / f"r.{'csv' if references == 'rows' else 'json'}", "--candidates", rows)
    found = scored("refpacs", "--images", files / "in", *given)
    assert found["scores"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["{}.png", "data/val/{}.png", "http://x.org/{}.png", "/mnt/{}.png"])
def test_names_are_those_of_references_without_images_too(name: str, files: Path, capeval: Capeval) -> None:
    names = [name.format(number) for number in ORDER]
    rows = write_rows(files / "c.csv", "path", names, [*ORDER.values()])
    write_json(files / "r.json", {f"{number}.png": text for number, text in ORDER.items()})
    given = ("score", "rougel", "--candidates", rows, "--references", files / "r.json")
    ran = capeval(*given)
    assert ran.status == 2 and "--id-column path" in ran.err
    assert capeval(*given, "--id-column", "path", "--json", files / "scores.json").status == 0
    assert read_json(files / "scores.json")["scores"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("candidates", "flags", "part"),
    [
        ([{"id": "train/1.png", "caption": "a"}, {"id": "val/1.png", "caption": "b"}], [], "'train/1.png'"),
        ([{"id": 9, "filename": "2.png", "caption": "a"}, {"id": 1, "caption": "b"}], ["filename"], "line 2"),
        ([{"filename": "2.png", "caption": "a"}, {"filename": None, "caption": "b"}], ["filename"], "line 2"),
    ],
)
def test_rows_that_name_no_image_of_their_own_are_refused(
    candidates: list[Any], flags: list[str], part: str, files: Path, capeval: Capeval
) -> None:
    (files / "c.jsonl").write_text("\n".join(map(json.dumps, candidates)))
    given = ("--candidates", files / "c.jsonl", "--references", write_json(files / "r.json", ORDER))
    ran = capeval("score", "rougel", *given, *(["--id-column", *flags] if flags else []))
    assert ran.status == 2 and part in ran.err


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
    rows = [{"photo": "42", "words": text, "split": split} for text in "ab" for split in ("test", "val")]
    write_json(Path("c.json"), rows)
    assert "name them with --id-column photo and --" in capeval(*command, "c.json").err
    columns = ["--id-column", "photo", "--caption-column", "words"]
    assert "choose with --split test" in capeval(*command, "c.json", *columns).err
    assert "did you mean 'test'?" in capeval(*command, "c.json", *columns, "--split", "tset").err
