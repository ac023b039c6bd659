"""Files that hide something: each is read as meant, refused with a way out, or noted with a count."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from capeval_core.cli import main
from capeval_core.errors import FileError
from tests.inputs.test_forms import CAPTIONS, NAMES, REFERENCES, TEXTS, arrow, lines, number, put, table
from tests.support.seams import read_collection

FIRST = {name: texts[0] for name, texts in REFERENCES.items()}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> float:
    """CIDEr-D of the plain forms."""
    folder = tmp_path_factory.mktemp("plain")
    candidates = put(folder, "c.json", CAPTIONS)
    return number(folder, "--candidates", candidates, "--references", put(folder, "r.json", REFERENCES))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What is printed about files that are refused."""
    assert main(["score", "ciderd", *map(str, arguments)]) == 2
    return capsys.readouterr().err


# ---- ids


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "b.jpg"):
        put(tmp_path, f"images/{name}", b"x")
    with pytest.raises(FileError, match=r"'a' is ambiguous.*'a.jpg' and 'a.png'"):
        read_collection(put(tmp_path, "c.json", {"a": "x", "b": "y"}), tmp_path / "images")
    joined = read_collection(put(tmp_path, "d.json", {"a.png": "x"}), tmp_path / "images")
    assert [image.name for image in joined.images] == ["a.png"]


def test_row_numbers_next_to_stems_of_an_unknown_column_are_refused(tmp_path: Path) -> None:
    for place in range(6):
        put(tmp_path, f"images/{place}.jpg", b"x")
    rows = [["id", "asset", "caption"], *([str(n), str(n + 1), text] for n, text in enumerate(TEXTS))]
    candidates = put(tmp_path, "c.csv", table(rows))
    with pytest.raises(FileError, match="'id' and 'asset' name different images"):
        read_collection(candidates, tmp_path / "images")
    joined = read_collection(candidates, tmp_path / "images", id_column="asset")
    assert [image.stem for image in joined.images] == ["1", "2", "3", "4", "5"]


def test_an_id_in_two_splits_needs_a_choice(
    tmp_path: Path, right: float, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = put(tmp_path, "c.json", CAPTIONS)
    parts = {
        "val": [{"image_id": name, "caption": "a zebra"} for name in NAMES],
        "test": [{"image_id": name, "caption": text} for name in NAMES for text in REFERENCES[name]],
    }
    references = put(tmp_path, "r.json", parts)
    message = refused(capsys, "--candidates", candidates, "--references", references)
    assert "splits 'val' and 'test'" in message and "--split test" in message
    chosen = number(tmp_path, "--candidates", candidates, "--references", references, "--split", "test")
    assert chosen == pytest.approx(right, abs=1e-9)


def test_a_split_that_is_stated_around_the_records_can_be_chosen(tmp_path: Path) -> None:
    rows = [{"image_id": name, "caption": text} for name, text in CAPTIONS.items()]
    candidates = put(tmp_path, "c.json", {"split": "val", "predictions": rows})
    assert read_collection(candidates, None, split="val").captions == TEXTS
    with pytest.raises(ValueError, match="no captions of split 'test'"):
        read_collection(candidates, None, split="test")


def test_segments_of_several_videos_have_ids_of_their_own(tmp_path: Path) -> None:
    rows = [{"video_id": name, "timestamp": [0.0, 3.5], "sentence": text} for name, text in CAPTIONS.items()]
    references = [{**row, "sentence": f"{row['video_id']} is here"} for row in rows]
    joined = read_collection(put(tmp_path, "c.json", rows), None, put(tmp_path, "r.json", references))
    assert joined.captions == TEXTS
    assert joined.references == [[f"{name} is here"] for name in NAMES]


def test_segments_of_one_video_that_begin_within_a_second_are_apart(tmp_path: Path) -> None:
    times = [[1000 + 0.2 * number, 2000.5] for number in range(len(TEXTS))]
    texts = [f"{name} is here" for name in NAMES]
    candidates = put(tmp_path, "c.json", {"film": {"timestamps": times, "sentences": TEXTS}})
    references = put(tmp_path, "r.json", {"film": {"timestamps": times, "sentences": texts}})
    joined = read_collection(candidates, None, references)
    assert len(set(joined.ids)) == len(TEXTS) and joined.captions == TEXTS
    assert joined.references == [[text] for text in texts]


def test_two_columns_that_contradict_each_other_are_those_of_the_file_that_is_named(tmp_path: Path) -> None:
    names = {"image_id": ["1", "2", "3"], "cocoid": ["2", "3", "1"]}
    rows = [
        dict(zip(names, pair, strict=True), caption="a cat") for pair in zip(*names.values(), strict=True)
    ]
    single = dict.fromkeys(names["image_id"], "a dog")
    for candidates, references, named in ((single, rows, "r.json"), (rows, single, "c.json")):
        files = put(tmp_path, "c.json", candidates), None, put(tmp_path, "r.json", references)
        with pytest.raises(FileError, match="'image_id' and 'cocoid' name different") as caught:
            read_collection(*files)
        assert [Path(problem.where).name for problem in caught.value.problems] == [named]


def test_rows_have_the_ids_that_join_references_where_files_have_other_names(tmp_path: Path) -> None:
    """Of three columns of names: one finds the references, another one the files."""
    rows = []
    for place, (name, text) in enumerate(CAPTIONS.items()):
        put(tmp_path, f"images/{name}.png", b"x")
        rows.append(
            {"image_id": f"k{place}", "file_name": f"{name}.png", "cocoid": place + 50, "caption": text}
        )
    references = {str(place + 50): text for place, text in enumerate(TEXTS)}
    files = put(tmp_path, "c.json", rows), tmp_path / "images", put(tmp_path, "r.json", references)
    joined = read_collection(*files)
    assert joined.ids == [str(place + 50) for place in range(5)]
    assert [image.stem for image in joined.images] == NAMES


# ---- messages about one record, and how many there are


def test_all_rows_with_commas_are_counted(tmp_path: Path) -> None:
    rows = "".join(f"{name}.jpg,a {name}, and another one\n" for name in NAMES)
    joined = read_collection(put(tmp_path, "c.csv", f"image,caption\n{rows}"), None)
    assert joined.captions == [f"a {name}, and another one" for name in NAMES]
    assert any("5 rows have commas" in note for note in joined.notes)


PLACES: dict[str, tuple[str, Any, str]] = {
    "a line break in a cell": ("c.csv", 'image,caption\na,"x\ny"\n\nb,x y\n,x y\n', "line 6"),
    "too many cells": ("c.csv", 'image,caption\na,"x\n\ny"\nb,x y\nc,"x",y\n', "line 6"),
    "too few cells": ("c.csv", 'image,caption\na,"x\ny"\n\nb,x y\nc\n', "line 6"),
    "two line breaks": ("c.csv", 'image,caption\n"a","x\ny"\nb,"x\ny"\n"","x y"\n', "line 6"),
    "Excel's mark": ("c.csv", 'sep=;\nimage;caption\na;"x\ny"\n;x y\n', "line 5"),
    "old ends of lines": ("c.csv", "image,caption\ra,x y\r\r,x y\r", "line 4"),
    "tabs": ("c.tsv", "image\tcaption\n\na\tx y\n\tx y\n", "line 4"),
    "bars": ("c.csv", "image_name| comment_number| comment\na.jpg| 0| x y\n\n| 0| x y\n", "line 4"),
    "tokens": ("c.token", "a.jpg#0\tx y\n\nb.jpg#0\tx y\nc.jpg x y\n", "line 4"),
    "lines of objects": ("c.jsonl", '{"image": "a", "caption": "x y"}\n\n{"caption": "x y"}\n', "line 3"),
    "objects": ("c.json", [{"image": "a", "caption": "x y"}, {"caption": "x y"}], "entry 1"),
    "columns": ("c.json", {"image_id": ["a", None], "caption": ["x y", "x y"]}, "row 1"),
    "orient=split": (
        "c.json", {"columns": ["image", "caption"], "data": [["a", "x y"], [None, "x y"]]}, "row 1"
    ),
    "Arrow": ("c.arrow", arrow({"image": ["a", None], "caption": ["x y", "x y"]}), "row 1"),
}  # fmt: skip


@pytest.mark.parametrize("form", PLACES)
def test_a_message_names_the_record_as_the_file_has_it(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind records of several lines, and blank ones."""
    name, content, place = PLACES[form]
    references = put(tmp_path, "r.json", {"a": "x y", "b": "x y", "c": "x y"})
    message = refused(capsys, "--candidates", put(tmp_path, name, content), "--references", references)
    assert f"{place}:" in message or f"{place} " in message, message


# ---- several references


@pytest.mark.parametrize("mark", ["|||", " | ", "<sep>"])
def test_several_references_in_one_cell_are_refused(
    tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["image", "captions"], *([name, mark.join(texts)] for name, texts in REFERENCES.items())]
    references = put(tmp_path, "r.csv", table(rows))
    message = refused(capsys, "--candidates", put(tmp_path, "c.json", CAPTIONS), "--references", references)
    assert repr(mark) in message and "as a list" in message


@pytest.mark.parametrize(("mark", "words"), [("\n", "several lines"), ("; ", "a semicolon")])
def test_references_that_may_be_several_are_noted(
    tmp_path: Path, mark: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    references = put(tmp_path, "r.json", {name: mark.join(texts) for name, texts in REFERENCES.items()})
    number(tmp_path, "--candidates", put(tmp_path, "c.json", CAPTIONS), "--references", references)
    assert f"5 references hold {words}".replace("hold several", "have several") in capsys.readouterr().err


def test_what_one_annotator_left_out_is_noted_and_what_all_left_out_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = put(tmp_path, "c.json", CAPTIONS)
    first = put(tmp_path, "a.json", FIRST)
    second = put(tmp_path, "b.json", {name: REFERENCES[name][1] for name in NAMES if name != "bus"})
    joined = read_collection(candidates, None, [first, second])
    assert joined.references == [REFERENCES[name][: 1 if name == "bus" else 2] for name in NAMES]
    (note,) = [text for text in joined.notes if "1 of 5" in text and "'bus'" in text]
    assert note.startswith(f"{second}: ")
    without = put(tmp_path, "a.json", {name: text for name, text in FIRST.items() if name != "bus"})
    message = refused(capsys, "--candidates", candidates, "--references", without, "--references", second)
    assert "('bus') has no references" in message


def test_marks_written_as_numbers_leave_references_out(
    tmp_path: Path, right: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["image", "caption", "is_rejected"], ["dog", "Quality issues are too severe", "1.0"]]
    rows += [[name, text, "0.0"] for name, texts in REFERENCES.items() for text in texts]
    references = put(tmp_path, "r.csv", table(rows))
    found = number(tmp_path, "--candidates", put(tmp_path, "c.json", CAPTIONS), "--references", references)
    assert found == pytest.approx(right, abs=1e-9)
    assert "1 reference is left out, marked by is_rejected" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["Karpathy", "lists of lists"])
def test_words_without_a_text_are_one_reference_each(tmp_path: Path, right: float, form: str) -> None:
    words = {name: [text.split() for text in texts] for name, texts in REFERENCES.items()}
    content: dict[str, Any] = dict(words)
    if form == "Karpathy":
        images = [
            {"filename": f"{name}.jpg", "sentences": [{"tokens": tokens} for tokens in texts]}
            for name, texts in words.items()
        ]
        content = {"images": images}
    references = put(tmp_path, "r.json", content)
    found = number(tmp_path, "--candidates", put(tmp_path, "c.json", CAPTIONS), "--references", references)
    assert found == pytest.approx(right, abs=1e-9)


# ---- texts and tables


def test_a_blank_line_is_an_empty_text_and_moves_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = put(tmp_path, "hyp.txt", "a dog\n\na bus\n")
    references = put(tmp_path, "ref.txt", "the dog\nthe cat\nthe bus\n")
    joined = read_collection(candidates, None, references)
    assert joined.captions == ["a dog", "", "a bus"]
    assert joined.references == [["the dog"], ["the cat"], ["the bus"]]
    shifted = put(tmp_path, "ref.txt", "the dog\n\nthe bus\nthe sea\n")
    assert "4 records" in refused(capsys, "--candidates", candidates, "--references", shifted)


@pytest.mark.parametrize("ending", ["txt", "csv"])
def test_the_name_of_an_only_column_is_not_a_caption(tmp_path: Path, ending: str) -> None:
    texts = ["a dog", "two cats, asleep", "BMW cars"]
    quoted = "".join(f'"{text}"\n' for text in texts)
    candidates = put(tmp_path, f"c.{ending}", f"caption\n{quoted}")
    references = put(tmp_path, f"r.{ending}", f"Reference\n{quoted}")
    joined = read_collection(candidates, None, references)
    assert joined.captions == texts and joined.references == [[text] for text in texts]


def test_a_text_may_begin_as_a_bitmap_does(tmp_path: Path) -> None:
    path = put(tmp_path, "c.txt", "BMW on a road\na dog\n")
    assert read_collection(path, None, path).captions == ["BMW on a road", "a dog"]


def test_the_line_that_tells_excel_of_semicolons_is_not_the_header(tmp_path: Path, right: float) -> None:
    rows = table([["image", "caption"], *([name, text] for name, text in CAPTIONS.items())], delimiter=";")
    candidates = put(tmp_path, "c.csv", f"sep=;\r\n{rows}")
    references = put(tmp_path, "r.json", REFERENCES)
    found = number(tmp_path, "--candidates", candidates, "--references", references)
    assert found == pytest.approx(right, abs=1e-9)


def test_a_decimal_comma_is_not_taken_for_the_end_of_a_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{name},0,5,{text}\n" for name, text in CAPTIONS.items())
    candidates = put(tmp_path, "c.csv", f"image,score,caption\n{rows}")
    references = put(tmp_path, "r.json", REFERENCES)
    message = refused(capsys, "--candidates", candidates, "--references", references)
    assert "4 cells, the header has 3" in message and "--caption-column" not in message


def test_rows_of_a_workbook_may_end_early(tmp_path: Path, right: float) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("captions")
    sheet.append(["image", "caption", "note"])
    for name, text in CAPTIONS.items():
        sheet.append([name, text])
    file = io.BytesIO()
    book.save(file)
    candidates = put(tmp_path, "c.xlsx", file.getvalue())
    references = put(tmp_path, "r.json", REFERENCES)
    found = number(tmp_path, "--candidates", candidates, "--references", references)
    assert found == pytest.approx(right, abs=1e-9)


def test_objects_of_one_id_each_are_read_in_a_list(tmp_path: Path, right: float) -> None:
    candidates = put(tmp_path, "c.json", [{name: text} for name, text in CAPTIONS.items()])
    references = put(tmp_path, "r.json", REFERENCES)
    found = number(tmp_path, "--candidates", candidates, "--references", references)
    assert found == pytest.approx(right, abs=1e-9)


def test_an_answer_in_json_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"image": name, "response": json.dumps({"caption": text})} for name, text in CAPTIONS.items()]
    candidates = put(tmp_path, "c.jsonl", lines(rows))
    number(tmp_path, "--candidates", candidates, "--references", put(tmp_path, "r.json", REFERENCES))
    assert "5 of 5 captions hold marks" in capsys.readouterr().err


# ---- folders of datasets


@pytest.mark.parametrize("form", ["one split", "splits", "Parquet shards"])
def test_a_saved_dataset_is_read(
    tmp_path: Path, form: str, right: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame({"file_name": [f"{name}.jpg" for name in NAMES], "caption": TEXTS})
    other = rows.assign(caption="a zebra")
    folder = tmp_path / "data"
    flags: list[str] = []
    if form == "one split":
        Dataset.from_pandas(rows).save_to_disk(folder)
        other.to_feather(folder / "cache-0123.arrow")  # as `map` leaves it there
    elif form == "splits":
        parts = {"train": Dataset.from_pandas(other), "test": Dataset.from_pandas(rows)}
        DatasetDict(parts).save_to_disk(folder)
        flags = ["--split", "test"]
    else:
        folder.mkdir()
        rows[:2].to_parquet(folder / "test-00000-of-00002.parquet")
        rows[2:].to_parquet(folder / "test-00001-of-00002.parquet")
    references = put(tmp_path, "r.json", REFERENCES)
    if flags:
        message = refused(capsys, "--candidates", folder, "--references", references)
        assert "--split test" in message
    found = number(tmp_path, "--candidates", folder, "--references", references, *flags)
    assert found == pytest.approx(right, abs=1e-9)
