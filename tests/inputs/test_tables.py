"""CSV as people and pandas write it, and what other forms do with the same texts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capeval_core.errors import FileError
from capeval_core.inputs.collection import Collection, read_collection
from capeval_core.inputs.samples import check_pools, check_samples
from tests.inputs.reading import read_candidates, read_references

LISTS = [["a dog", "it's a dog"], ['a "big" cat', "a cat, black\nand white"], ["one"]]
IDS = ["x", "y", "z"]


def refused(path: Path, read: Any = read_candidates) -> str:
    with pytest.raises(FileError) as caught:
        read(path)
    return str(caught.value).replace(str(path), path.name)


# ---- lists that became text


@pytest.mark.parametrize("column", ["captions", "references"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_that_pandas_wrote_are_read_as_lists(tmp_path: Path, column: str, kind: Any) -> None:
    table = pd.DataFrame({"image_id": IDS, column: [kind(texts) for texts in LISTS]})
    table.to_csv(tmp_path / "c.csv", index=False)
    assert "['a dog', " in (tmp_path / "c.csv").read_text() or kind is tuple
    assert read_references(tmp_path / "c.csv") == dict(zip(IDS, LISTS, strict=True))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_list_in_text_is_a_list_in_every_form(tmp_path: Path, form: str) -> None:
    rows = [{"id": i, "captions": str(texts)} for i, texts in zip(IDS, LISTS, strict=True)]
    path = tmp_path / f"c.{form}"
    if form == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif form == "csv":
        pd.DataFrame(rows).to_csv(path)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    expected = [(i, text) for i, texts in zip(IDS, LISTS, strict=True) for text in texts]
    assert read_candidates(path) == expected


@pytest.mark.parametrize(
    "cell",
    [
        str(np.array(["a dog", "a cat"])),  # without commas, Python would join the two
        str(np.array(["a dog", "a cat"], dtype=object)),
        "['a dog', nan]",
        "['a dog', None]",
        "[nan]",
        "[None, 'a dog']",
        "['a dog', 'a c",  # cut off
        "['a dog'] + ['a cat']",
        "['a dog', __import__('os').getcwd()]",
        "['a dog', ['a cat']]",
        "['a dog', 5]",
        "('a dog', nan)",
    ],
)
def test_a_list_that_is_not_one_of_strings_is_refused(tmp_path: Path, cell: str) -> None:
    pd.DataFrame({"id": ["x"], "references": [cell]}).to_csv(tmp_path / "c.csv", index=False)
    found = refused(tmp_path / "c.csv", read_references)
    assert found.startswith("c.csv: line 2 (id 'x'): references begins like a list but cannot be read as one")
    assert "JSON" in found


@pytest.mark.parametrize(
    "text",
    [
        "[sic] a dog",
        "[a dog]",
        "[unclear] man ['s hat]",
        '["Stop"] on a sign',
        "a dog ['a', 'b']",
        "(a dog)",
        "[]",
        "[5]",
        "['",
        "('a' is written on a wall) and a door",
    ],
)
def test_captions_may_begin_with_a_bracket(tmp_path: Path, text: str) -> None:
    with (tmp_path / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "caption"), ("x", text)])
    assert read_candidates(tmp_path / "c.csv") == [("x", text)]
    assert read_references(tmp_path / "c.csv") == {"x": [text]}


@pytest.mark.parametrize("cell", ["['a dog', 'a cat']", '["a dog"]', "['a dog' 'a cat']", "['a dog', nan]"])
def test_a_list_in_a_column_of_single_captions_is_refused(tmp_path: Path, cell: str) -> None:
    pd.DataFrame({"id": ["x"], "caption": [cell]}).to_csv(tmp_path / "c.csv", index=False)
    for read in (read_candidates, read_references):
        found = refused(tmp_path / "c.csv", read)
        assert found.startswith("c.csv: line 2: caption is a list written as text (")
        assert "call the column captions" in found
    pd.DataFrame({"id": ["x"], "captions": [["a"]], "caption": [cell]}).to_csv(tmp_path / "c.csv")
    assert read_references(tmp_path / "c.csv") == {"x": ["a"]}


def test_references_in_json_are_no_lists_in_text_but_a_captioner_may_write_one(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"x": "['a dog', 'a cat']"}))
    assert "id 'x' is a list written as text" in refused(path, read_references)
    assert read_candidates(path) == [("x", "['a dog', 'a cat']")]


def test_references_in_python_are_no_lists_in_text() -> None:
    grey = np.full((4, 6), 128, "uint8")
    given = pd.Series([["a"], "['a dog', 'a cat']", "[sic] a dog"])
    with pytest.raises(ValueError, match=r"^references\[1\] is a list written as text: pass the list, ast"):
        check_samples(["x"] * 3, [grey] * 3, given, needs_references=True)


# ---- one row per image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a.png", "b.png", "42.png"):
        (folder / name).write_bytes(b"x")
    return folder


def read_wide(images: Path, content: str) -> Collection:
    path = images.parent / "pools.csv"
    path.write_text(content)
    return read_collection(path, images, wide=True)


@pytest.mark.parametrize("first", ["a.png", "a", "42", "000042", "nobody", "a.png "])
def test_without_a_header_no_image_is_lost(images: Path, first: str) -> None:
    with pytest.raises(FileError, match=r"line 1 has '.*expected a header that begins with .* or filename"):
        read_wide(images, f"{first},a dog,two dogs\nb.png,a cat,two cats\n")
    found = read_wide(images, f"filename,1,2\n{first.replace('nobody', 'a').strip()},a dog,two dogs\n")
    assert found.captions == ["a dog", "two dogs"]


def test_an_id_that_does_not_come_first_is_no_caption(images: Path) -> None:
    with pytest.raises(FileError, match="expected a header that begins with image_id"):
        read_wide(images, ",filename,1,2\n42,a.png,a dog,two dogs\n")
    assert read_wide(images, ",1,2\n42,a dog,two dogs\n").ids == ["42", "42"]


def test_ragged_rows_are_not_more_candidates(images: Path) -> None:
    with pytest.raises(FileError) as caught:
        read_wide(images, "filename,1,2\na.png,a dog, black,two dogs\nb.png,a cat\n42,x,\n")
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "2 problems with the input:"
    assert "pools.csv: line 2 has 4 cells, the header has 3: quote captions that hold commas" in lines[1]
    assert "pools.csv: line 3 has 2 cells, the header has 3" in lines[2]


def test_a_list_in_a_cell_is_not_one_candidate(images: Path) -> None:
    with pytest.raises(FileError, match=r"line 2 \(id 'a.png'\): a cell is a list written as text"):
        read_wide(images, "filename,pool\na.png,\"['a dog', 'two dogs']\"\n")


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("other", ["0042", "42.png", "images/42", "COCO_val2014_000000000042.jpg"])
def test_an_image_has_one_id(images: Path, wide: bool, other: str) -> None:
    path = images.parent / "c.json"
    path.write_text(json.dumps({"42": ["x"], "a": ["w"], other: ["y", "z"]}))
    with pytest.raises(FileError) as caught:
        read_collection(path, images, wide=wide)
    assert str(caught.value) == (
        f"{path}: the ids '42' and {other!r} both mean '42.png': write its id in one way"
    )


# ---- cells and lines


def test_a_cell_longer_than_csv_reads(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('id,caption\nx,"two\nlines"\n\ny,"a dog\n' + "z,a cat\n" * 40_000)
    assert refused(path).startswith("c.csv: line 5 has a cell of more than 131,072 characters: close the")
    path.write_text("id,caption\nx," + "a" * 131_072 + "\n")
    assert len(read_candidates(path)[0][1]) == 131_072


def test_lines_are_counted_by_where_a_row_begins(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text('id,caption\n"x","two\nlines"\n\n"y","three\n\nlines",more\n')
    assert refused(path) == ("c.csv: line 5 has 3 cells, the header has 2: quote captions that hold commas")


def test_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["x"]), pa.array(["y"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["id", "caption", "caption"]), tmp_path / "c.parquet")
    assert refused(tmp_path / "c.parquet").startswith("c.parquet: 'caption' names several columns")


# ---- words for what is missing, and lists among single captions


@pytest.mark.parametrize("word", ["nan", "NaN", "None", "null"])
def test_words_for_a_missing_value_are_warned_of_once(tmp_path: Path, word: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"id,caption\nx,{word}\ny,a dog\nz,{word}\nw,nan bread\n")
    with pytest.warns(UserWarning, match=r"c.csv: 2 of 4 captions are a word .* \(ids 'x', 'z'\)") as caught:
        assert read_candidates(path)[0] == ("x", word)
    assert len(caught) == 1


def test_captions_that_were_lists_are_scored_with_one_warning() -> None:
    grey = np.full((4, 6), 128, "uint8")
    texts = ["['a dog', 'a cat']", '["Stop"] on a sign', "['a dog', nan]"]
    with pytest.warns(UserWarning, match="2 of 3 captions are lists written as text") as caught:
        assert check_samples(texts, [grey] * 3, needs_references=False).captions == texts
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="2 of 3 captions are lists written as text") as caught:
        assert check_pools([texts], [grey]).captions == texts
    assert len(caught) == 1


def test_a_reference_that_was_a_list_and_cannot_be_read_is_refused_in_python_too() -> None:
    grey = np.full((4, 6), 128, "uint8")
    with pytest.raises(ValueError, match=r"references\[0\] is a list written as text"):
        check_samples(["x"], [grey], ["['a dog' 'a cat']"], needs_references=True)
