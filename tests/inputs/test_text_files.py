"""Files of captions and references, as people, datasets and other programs write them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.errors import FileError
from tests.support.seams import LIMITS, read_collection, read_texts

Texts = dict[str, list[str]]
TEXTS = {"7": ["a dog", 'a "big", black dog'], "8": ["two cats", "cats | on a mat"]}
NAMED = {f"{image_id}.jpg": texts for image_id, texts in TEXTS.items()}


def rows(texts: Texts) -> list[tuple[str, str]]:
    return [(image_id, text) for image_id, own in texts.items() for text in own]


def lines(texts: Texts, image_id: str, text: str) -> str:
    return "\n".join(json.dumps({image_id: i, text: t}, ensure_ascii=False) for i, t in rows(texts))


def annotations(texts: Texts) -> str:
    own = [{"image_id": i, "id": n, "caption": t} for n, (i, t) in enumerate(rows(texts))]
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in texts]
    return json.dumps({"info": {}, "images": images, "annotations": own})


def table(texts: Texts, names: tuple[str, str] = ("image_id", "caption")) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([names, *rows(texts)])
    return file.getvalue()


def table_of_lists(texts: Texts) -> str:
    return table({i: [json.dumps(own)] for i, own in texts.items()}, ("id", "captions"))


def parquet(texts: Texts) -> bytes:
    file = io.BytesIO()
    ids = list(texts)
    pq.write_table(
        pa.table({"image_id": ids, "split": ["x"] * len(ids), "captions": [*texts.values()]}), file
    )
    return file.getvalue()


def karpathy(texts: Texts) -> str:
    images = [
        {"filename": name, "imgid": n, "split": "test", "sentences": [{"raw": t, "imgid": n} for t in own]}
        for n, (name, own) in enumerate(texts.items())
    ]
    return json.dumps({"images": images, "dataset": "flickr8k"})


def pycocoevalcap(texts: Texts) -> str:
    return json.dumps({i: [{"image_id": i, "caption": t, "id": 5} for t in own] for i, own in texts.items()})


def tokens(texts: Texts) -> str:
    return "".join(f"{i}#{n}\t{text}\r\n" for i, own in texts.items() for n, text in enumerate(own))


def tabs(texts: Texts) -> str:
    return pd.DataFrame(rows(texts), columns=["image_id", "caption"]).to_csv(index=False, sep="\t")


# ---- forms

FORMS: dict[str, Callable[[Texts], str | bytes]] = {
    "mapping.json": json.dumps,
    "results.json": lambda texts: json.dumps([{"image_id": i, "caption": t} for i, t in rows(texts)]),
    "annotations.json": annotations,
    "lines.jsonl": lambda texts: lines(texts, "image", "caption"),
    "lists.ndjson": lambda texts: "\n".join(json.dumps({"id": i, "captions": t}) for i, t in texts.items()),
    "table.csv": lambda texts: b"\xef\xbb\xbf" + table(texts).encode(),
    "lists.CSV": table_of_lists,
    "table.parquet": parquet,
}
FOREIGN: dict[str, tuple[Callable[[Texts], str], Texts]] = {
    "gts.json": (pycocoevalcap, TEXTS),
    "metadata.jsonl": (lambda texts: lines(texts, "file_name", "text"), NAMED),
    "metadata.csv": (lambda texts: table(texts, ("file_name", "text")), NAMED),
    "c.tsv": (tabs, TEXTS),
    "spreadsheet.csv": (lambda texts: tabs(texts).replace("\t", ";").replace("\n", "\r\n"), TEXTS),
    "Flickr8k.token.txt": (tokens, NAMED),
    "results_20130124.token": (tokens, NAMED),
    "dataset_flickr8k.json": (karpathy, NAMED),
    "lines.json": (lambda texts: lines(texts, "file_name", "text"), NAMED),
}

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20
)  # CRLF may be LF
captions = texts.map(lambda text: f"a {text}")  # lists of single words may be the words of one caption
mappings = st.dictionaries(
    texts.map(str.strip).filter(bool), st.lists(captions, min_size=1, max_size=3), min_size=1, max_size=5
)


@pytest.mark.parametrize("name", FORMS)
@given(mapping=mappings)
def test_every_form_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, mapping: Texts
) -> None:
    path = tmp_path_factory.mktemp("form", numbered=True) / name
    data = FORMS[name](mapping)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert read_texts(path) == read_texts(path, references=True) == rows(mapping)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("stored", ["plain", "gzip", "standard input", "other name", "UTF-16", "UTF-8 mark"])
def test_files_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stored: str
) -> None:
    write, texts = FOREIGN[name]
    path, data = tmp_path / name, write(texts).encode()
    if stored == "gzip":
        path, data = path.with_name(f"{name}.gz"), gzip.compress(data)
    elif stored == "UTF-16":
        data = data.decode().encode("utf-16")
    elif stored == "UTF-8 mark":
        data = b"\xef\xbb\xbf" + data
    elif stored == "other name":
        path = tmp_path / "captions"
    path.write_bytes(data)
    if stored == "standard input":
        path = Path("-")
    for references in (False, True):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert read_texts(path, references) == rows(texts)


def test_parquet_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(parquet(NAMED))))
    assert read_texts("-", references=True) == rows(NAMED)


def written(folder: Path, content: Any, name: str = "c.json") -> Path:
    path = folder / name
    content = content if isinstance(content, (str, bytes)) else json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_file_can_hold_captions_and_references(tmp_path: Path) -> None:
    line = '{"id": "a", "caption": "%s", "references": %s}\n'
    both = line % ("x", '["r", "s"]') + "\n" + line % ("y", '["r", "s"]')
    path = written(tmp_path, both, "both.jsonl")
    with pytest.warns(UserWarning, match="different captions"):
        joined = read_collection(path, None, path)
    assert (joined.ids, joined.captions, joined.references) == (["a", "a"], ["x", "y"], [["r", "s"]] * 2)
    path = written(tmp_path, both + line % ("z", '["r"]'), "both.jsonl")
    with pytest.raises(FileError, match=r"line 4 \(id 'a'\)"):
        read_collection(path, None, path)


def test_the_table_of_flickr30k(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "image_name| comment_number| comment\n"
        '7.jpg| 0| "Stop" is on the sign .\n7.jpg| 1| A dog , a cat\n8.jpg| 4   A dog runs .\n'
    )
    references = read_collection(written(tmp_path, {"7": "x", "8": "y"}), None, path)
    assert references.references == [['"Stop" is on the sign .', "A dog , a cat"], ["A dog runs ."]]
    assert any("1 row lacks" in note for note in references.notes)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('7\t"Stop" on a sign\n8\t"Go\n', ['"Stop" on a sign', '"Go']),  # marks of the caption
        ('7\t"a ""big"" dog"\n8\t"two\tcats"\n', ['a "big" dog', "two\tcats"]),  # marks around a cell
        ('7\t"a dog\n\nand a cat"\n8\tx\n', ["a dog\n\nand a cat", "x"]),
        ('7\t"a dog\n8\ta cat"\n', ['"a dog', 'a cat"']),  # two rows and not one
    ],
)
def test_quotation_marks_in_tables_with_tabs(tmp_path: Path, lines: str, expected: list[str]) -> None:
    path = written(tmp_path, f"id\tcaption\n{lines}", "c.tsv")
    assert [text for _, text in read_texts(path)] == expected


NUMBERED = "id,{}\nw,a dog,a dog,a dog\nx,at one,at two,at three\n"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("caption,caption_2,caption_3", ["one", "two", "three"]),  # the first has no number
        ("caption_3,caption,caption_2", ["two", "three", "one"]),
        ("caption_10,caption_2,caption_1", ["three", "two", "one"]),
        ("caption 3,Caption2,caption_2", ["two", "three", "one"]),
        ("caption_0,caption_1,caption_2", ["one", "two", "three"]),
        ("title,caption_2,caption_1", ["three", "two"]),  # of a later list of names
    ],
)
def test_numbered_columns_are_texts_of_one_image_by_their_numbers(
    tmp_path: Path, header: str, expected: list[str]
) -> None:
    path = written(tmp_path, NUMBERED.format(header), "c.csv")
    texts = [
        text.removeprefix("at ") for image_id, text in read_texts(path, references=True) if image_id == "x"
    ]
    assert texts == expected


@pytest.mark.parametrize(
    ("header", "groups"),
    [
        ("caption,caption_1,caption_2", ["caption", "caption_1,caption_2"]),
        ("caption,caption_0,caption_1", ["caption", "caption_0,caption_1"]),
        ("caption_1,sentence_1,caption", ["caption_1", "sentence_1", "caption"]),
        ("caption_2015,text,caption_1", ["text", "caption_1"]),  # a year is part of a name
    ],
)
def test_columns_of_references_that_differ_are_refused_by_name_and_first_record(
    tmp_path: Path, header: str, groups: list[str]
) -> None:
    content = NUMBERED.replace("w,a dog,a dog,a dog", "w,a dog,,").format(header)
    path = written(tmp_path, content, "c.csv")
    with pytest.raises(FileError) as caught:
        read_texts(path, references=True)
    message = str(caught.value)
    assert f"has {' and '.join(map(repr, groups))}, which differ (line 3)" in message, message
    for group in groups:
        assert f"reference_column={group!r}" in message, message


# ---- lists that became text

LISTS = {"x": ["a dog", "it's a dog"], "y": ['a "big" cat', "a cat, black\nand white"], "z": ["one"]}


@pytest.mark.parametrize("column", ["captions", "references"])
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_lists_that_pandas_wrote_are_read_as_lists(tmp_path: Path, column: str, kind: Any, form: str) -> None:
    own = [str(kind(texts)) for texts in LISTS.values()]
    frame, path = pd.DataFrame({"image_id": list(LISTS), column: own}), tmp_path / f"c.{form}"
    if form == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif form == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    assert read_texts(path, references=True) == rows(LISTS)


def with_cell(folder: Path, cell: str, column: str) -> Path:
    with (folder / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", column), ("x", cell)])
    return folder / "c.csv"


@pytest.mark.parametrize(
    "cell",
    [
        str(np.array(["a dog", "a cat"])),  # without commas, Python would join the two
        "['a dog', nan]",
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
    with pytest.raises(FileError, match=r"c\.csv: line 2 \(id 'x'\): references "):
        read_texts(with_cell(tmp_path, cell, "references"), references=True)


def test_a_broken_list_in_a_column_that_is_named_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"image_id": "x", "mine": "['a dog', 'it's']"}) + "\n")
    with pytest.raises(FileError, match=r"\(id 'x'\): mine "):
        read_texts(path, caption_column="mine")


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
    path = with_cell(tmp_path, text, "caption")
    assert read_texts(path) == read_texts(path, references=True) == [("x", text)]
    path = written(tmp_path, b'id,captions\na,x\nb,[sic] y\nc," [""p"", ""q""]"\n', "d.csv")
    assert read_texts(path) == [("a", "x"), ("b", "[sic] y"), ("c", "p"), ("c", "q")]


@pytest.mark.parametrize("word", ["nan", "NaN", "None", "null"])
def test_words_for_a_missing_value_are_warned_of_once(tmp_path: Path, word: str) -> None:
    path = written(tmp_path, f"id,caption\nx,{word}\ny,a dog\nz,{word}\nw,nan bread\n", "c.csv")
    with pytest.warns(UserWarning, match=r"c.csv: 2 of 4 captions") as caught:
        assert read_texts(path)[0] == ("x", word)
    assert len(caught) == 1


# ---- what cannot be read


def test_all_that_is_wrong_with_a_file_comes_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": 1}\nnot json\n{"caption": "x"}\n' + b'{"id": 7}\n' * 1000, "c.jsonl")
    with pytest.raises(FileError) as caught:
        read_collection(path, None)
    found = [problem.where.removeprefix(f"{path}: ") for problem in caught.value.problems]
    assert len(found) == 1003
    assert {"line 1 (id '1'): caption", "line 3: the id", "line 4 (id '7'): caption"} <= {*found}
    assert len(str(caught.value).splitlines()) == 4  # equal ones are one line


def test_an_error_names_the_line_of_the_file_also_where_a_split_is_read(tmp_path: Path) -> None:
    rows = [
        {"image_id": "a", "caption": "x", "split": "train"},
        {"image_id": "b", "caption": "y", "split": "test"},
        {"image_id": "c", "caption": 7, "split": "test"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(FileError) as caught:
        read_collection(path, None, split="test")
    assert [problem.where for problem in caught.value.problems] == [f"{path}: line 3 (id 'c'): caption"]


def test_an_error_names_the_caption_of_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": ["x", 7], "b": ["y"]})
    with pytest.raises(FileError) as caught:
        read_collection(path, None, wide=True)
    assert [problem.where for problem in caught.value.problems] == [f"{path}: id 'a': value[1]"]


def test_a_small_file_does_not_become_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, gzip.compress(b'{"7": "x"}' + bytes(1 << 10)), "c.json.gz")
    monkeypatch.setattr(LIMITS, "file_bytes", 1 << 9)
    with pytest.raises(FileError, match="is longer than"):
        read_texts(path)
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(FileError, match="standard input is longer than"):
            read_texts("-")
