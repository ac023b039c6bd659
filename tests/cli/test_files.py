"""`capeval score` on files that pandas wrote, that cannot be written down, or that are no images."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.conftest import CAPTIONS, REFERENCES, Ran
from tests.inputs.photographs import encoded, photograph


def test_references_that_pandas_wrote_are_lists(scored: Callable[..., dict[str, Any]], files: Path) -> None:
    expected = scored("refpacs", "--references", files / "references.json")
    table = pd.DataFrame({"image_id": [*REFERENCES], "references": [*REFERENCES.values()]})
    table.to_csv(files / "references.csv")
    assert scored("refpacs", "--references", files / "references.csv")["scores"] == expected["scores"]


def test_names_that_cannot_be_written_are_refused_before_any_work(
    score: Callable[..., Ran], files: Path
) -> None:
    (files / "captions.json").write_text('{"dog.1": "a dog", "caf\\udce9": "a cat"}')
    (files / "out.json").write_text("kept")
    ran = score("pacs", "--json", files / "out.json", "--weights", files / "nowhere")
    assert ran.status == 2 and "which is not UTF-8" in ran.err and "nowhere" not in ran.err
    assert (files / "out.json").read_text() == "kept"


def test_an_image_that_is_no_photograph_is_refused_by_its_format(
    score: Callable[..., Ran], files: Path
) -> None:
    (files / "images" / "dog.1.jpg").write_bytes(encoded(photograph(), "EPS"))
    ran = score("pacs")
    assert ran.status == 2 and "image of 'dog.1'" in ran.err and "in the format EPS" in ran.err


def test_captions_from_standard_input_and_references_of_a_split(
    scored: Callable[..., dict[str, Any]], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scored("refpacs", "--references", files / "references.json")
    images = [
        {"filename": f"{image_id}.jpg", "split": "test", "sentences": [{"raw": text} for text in texts]}
        for image_id, texts in REFERENCES.items()
    ]
    images.append({"filename": "other.jpg", "split": "val", "sentences": [{"raw": "a car"}]})
    (files / "karpathy.json").write_text(json.dumps({"images": images}))
    data = "".join(f"{image_id}\t{text}\n" for image_id, texts in CAPTIONS.items() for text in texts)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"img\twords\n" + data.encode())))
    columns = ["--id-column", "img", "--caption-column", "words"]
    given = ["--candidates", "-", "--references", files / "karpathy.json", "--split", "test", *columns]
    assert scored("refpacs", *given)["scores"] == expected["scores"]


def test_equal_images_are_said_to_be_one(score: Callable[..., Ran], files: Path) -> None:
    shutil.copy(files / "images" / "dog.1.jpg", files / "images" / "again.jpg")
    shutil.copy(files / "images" / "dog.1.jpg", files / "images" / "third.jpg")
    captions = {"dog.1": ["a", "b"], "again": "c", "dog.2": "d"}
    (files / "captions.json").write_text(json.dumps(captions))
    ran = score("pacs")
    assert (
        "warning: 1 of 3 images is equal to another, e.g. 'again' to 'dog.1': equal ones count as" in ran.err
    )
    (files / "captions.json").write_text(json.dumps(captions | {"third": "e"}))
    assert "warning: 2 of 4 images are equal to others" in score("pacs").err
    (files / "captions.json").write_text(json.dumps({"dog.1": ["a", "b"], "dog.2": "d"}))
    assert "equal" not in score("pacs").err


ORDER = {"2": "a dog", "3": "a cat on a mat", "1": "rain"}
"""Captions by the number in an image's name, in the order of their rows, which are numbered from 1."""


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
def numbered(files: Path, scored: Callable[..., dict[str, Any]]) -> Callable[[str], list[float]]:
    """Makes a folder `in` of images `1`, `2`, `3` behind a prefix; their RefPAC-S in the order of `ORDER`."""

    def make(prefix: str) -> list[float]:
        (files / "in").mkdir()
        for number, image in enumerate(sorted((files / "images").iterdir()), start=1):
            shutil.copy(image, files / "in" / f"{prefix}{number}.png")
        by_name = {f"{prefix}{number}": text for number, text in ORDER.items()}
        (files / "c.json").write_text(json.dumps(by_name))
        (files / "r.json").write_text(json.dumps({name: f"{text} there" for name, text in by_name.items()}))
        given = ("--candidates", files / "c.json", "--references", files / "r.json", "--images", files / "in")
        scores: list[float] = scored("refpacs", *given)["scores"]
        return scores

    return make


COLUMNS = ["filename", "file_name", "image_path", "img", "path", "url"]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_columns_that_name_different_images_are_refused(
    form: str,
    column: str,
    files: Path,
    score: Callable[..., Ran],
    scored: Callable[..., dict[str, Any]],
    numbered: Callable[[str], list[float]],
) -> None:
    expected, names = numbered(""), [f"{number}.png" for number in ORDER]
    rows = write_rows(files / f"c.{form}", column, names, [*ORDER.values()])
    given = ("--images", files / "in", "--references", files / "r.json", "--candidates", rows)
    ran = score("refpacs", *given, "--weights", files / "nowhere")
    assert ran.status == 2 and f"--id-column {column}" in ran.err and "nowhere" not in ran.err
    assert "'id'" in ran.err and f"{column!r}" in ran.err and "3 rows" in ran.err
    assert scored("refpacs", *given, "--id-column", column)["scores"] == pytest.approx(expected, abs=1e-7)
    assert scored("refpacs", *given, "--id-column", "id")["scores"] != pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("references", ["by name", "by id", "rows"])
def test_the_column_that_names_images_counts(
    references: str,
    column: str,
    files: Path,
    scored: Callable[..., dict[str, Any]],
    numbered: Callable[[str], list[float]],
) -> None:
    expected, names = numbered("photo-"), [f"photo-{number}.png" for number in ORDER]
    rows = write_rows(files / "c.csv", column, names, [*ORDER.values()])
    texts = [f"{text} there" for text in ORDER.values()]
    if references == "by id":
        (files / "r.json").write_text(json.dumps(dict(enumerate(texts, start=1))))
    elif references == "rows":  # two of each image, which numbers of rows tell apart
        write_rows(
            files / "r.csv", column, [name for name in names for _ in "ab"], [t for t in texts for _ in "ab"]
        )
    given = ("--references", files / f"r.{'csv' if references == 'rows' else 'json'}", "--candidates", rows)
    found = scored("refpacs", "--images", files / "in", *given)
    assert found["scores"] == pytest.approx(expected, abs=1e-7)


def test_columns_that_agree_are_one(
    files: Path, scored: Callable[..., dict[str, Any]], numbered: Callable[[str], list[float]]
) -> None:
    expected = numbered("COCO_val2014_00000000000")
    rows = [
        {
            "image_id": int(number),
            "file_name": f"COCO_val2014_00000000000{number}.png",
            "id": place,
            "caption": text,
        }
        for place, (number, text) in enumerate(ORDER.items(), start=1)  # `id` is COCO's of the annotation
    ]
    (files / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ("--references", files / "r.json", "--candidates", files / "c.jsonl")
    found = scored("refpacs", "--images", files / "in", *given)
    assert found["scores"] == pytest.approx(expected, abs=1e-7) and found["ids"] == ["2", "3", "1"]


def test_references_of_another_column_are_refused_without_images_too(
    files: Path, capeval: Callable[..., Ran]
) -> None:
    names = [f"{number}.png" for number in ORDER]
    rows = write_rows(files / "c.csv", "filename", names, [*ORDER.values()])
    by_name = write_rows(files / "r.csv", "filename", names, [*ORDER.values()])
    (files / "r.json").write_text(json.dumps(ORDER))
    (files / "c.json").write_text(json.dumps(ORDER))
    for candidates, references in ((rows, files / "r.json"), (files / "c.json", by_name)):
        given = ("score", "rougel", "--candidates", candidates, "--references", references)
        ran = capeval(*given)
        assert ran.status == 2 and "--id-column filename" in ran.err
        out = files / "scores.json"
        assert capeval(*given, "--id-column", "filename", "--json", out).status == 0
        assert json.loads(out.read_text())["scores"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["data/val/{}.png", "http://x.org/{}.png", "/mnt/{}.png"])
def test_paths_name_references_too(name: str, files: Path, capeval: Callable[..., Ran]) -> None:
    names = [name.format(number) for number in ORDER]
    rows = write_rows(files / "c.csv", "path", names, [*ORDER.values()])
    (files / "r.json").write_text(json.dumps({f"{number}.png": text for number, text in ORDER.items()}))
    given = ("score", "rougel", "--candidates", rows, "--references", files / "r.json")
    ran = capeval(*given)
    assert ran.status == 2 and "--id-column path" in ran.err
    out = files / "scores.json"
    assert capeval(*given, "--id-column", "path", "--json", out).status == 0
    assert json.loads(out.read_text())["scores"] == [1.0, 1.0, 1.0]


def test_references_of_two_images_are_refused(files: Path, capeval: Callable[..., Ran]) -> None:
    (files / "c.json").write_text(json.dumps({"train/1.png": "a dog", "val/1.png": "a cat"}))
    (files / "r.json").write_text(json.dumps({"1.png": ["a dog"]}))
    ran = capeval("score", "rougel", "--candidates", files / "c.json", "--references", files / "r.json")
    assert ran.status == 2 and "'train/1.png' and 'val/1.png'" in ran.err


@pytest.mark.parametrize("gap", [{}, {"filename": None}])
def test_a_chosen_column_counts_in_every_row(
    gap: dict[str, None], files: Path, capeval: Callable[..., Ran]
) -> None:
    rows = [{"id": 9, "filename": "2.png", "caption": "a dog"}, {"id": 1, "caption": "a cat", **gap}]
    (files / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ("--candidates", files / "c.jsonl", "--references", files / "r.json", "--id-column", "filename")
    (files / "r.json").write_text(json.dumps(ORDER))
    ran = capeval("score", "rougel", *given)
    assert ran.status == 2 and "line 2: filename" in ran.err


def appended(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    """The lines of a run and of its continuation."""
    rows = [{"image_id": i, "caption": text} for run in (first, second) for i, text in run.items()]
    return "\n".join(map(json.dumps, rows))


def test_images_with_captions_of_two_runs_are_counted(score: Callable[..., Ran], files: Path) -> None:
    lines = files / "c.jsonl"
    first = {"dog.1": "a dog", "dog.2": "a cat", "42": "rain"}
    lines.write_text(appended(first, {"dog.2": "a kitten", "42": "a wet street", "dog.1": "a dog"}))
    ran = score("pacs", "--candidates", lines)
    assert ran.status == 0 and "2 images have different captions in several rows" in ran.err
    assert "'dog.2', '42'; 4 captions" in ran.err and "{image id: [captions]}" in ran.err
    assert "1 caption that its image has already" in ran.err
    lines.write_text(appended(first, first))
    ran = score("pacs", "--candidates", lines)
    assert ran.status == 0 and "3 captions that their images have already" in ran.err
    assert "different" not in ran.err
    assert "different" not in score("pacs").err  # whose captions of an image are a list


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
    command: list[str], capeval: Callable[..., Ran], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    rows = [{"photo": "42", "words": text, "split": split} for text in "ab" for split in ("test", "val")]
    Path("c.json").write_text(json.dumps(rows))
    assert "but no image_id or" in (ran := capeval(*command, "c.json")).err and ran.status == 2
    assert "name them with --id-column photo and --" in ran.err
    columns = ["--id-column", "photo", "--caption-column", "words"]
    assert "holds the splits 'test' (2), 'val' (2): choose with --split test" in (
        capeval(*command, "c.json", *columns).err
    )
    message = "holds no captions of split 'tset', only of 'test' (2), 'val' (2): did you mean 'test'?"
    assert message in capeval(*command, "c.json", *columns, "--split", "tset").err
