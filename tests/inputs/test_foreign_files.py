"""Files of captions as datasets, other programs and spreadsheets write them."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capeval_core.errors import FileError, InputError
from capeval_core.inputs.collection import Collection, read_collection
from capeval_core.inputs.file_texts import FileOptions
from tests.inputs.reading import read_candidates, read_references
from tests.support.seams import LIMITS

TEXTS = {"7": ["a dog", 'a "big", black dog'], "8": ["two cats", "cats | on a mat"]}
NAMED = {f"{image_id}.jpg": texts for image_id, texts in TEXTS.items()}


def rows(texts: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(image_id, text) for image_id, own in texts.items() for text in own]


def as_pycocoevalcap(texts: dict[str, list[str]]) -> str:
    return json.dumps(
        {i: [{"image_id": i, "caption": text, "id": 5} for text in own] for i, own in texts.items()}
    )


def as_metadata_lines(texts: dict[str, list[str]]) -> str:
    return "\n".join(json.dumps({"file_name": i, "text": text}) for i, text in rows(texts))


def as_metadata_csv(texts: dict[str, list[str]]) -> str:
    return pd.DataFrame(rows(texts), columns=["file_name", "text"]).to_csv(index=False)


def as_tsv(texts: dict[str, list[str]]) -> str:
    return pd.DataFrame(rows(texts), columns=["image_id", "caption"]).to_csv(index=False, sep="\t")


def as_semicolons(texts: dict[str, list[str]]) -> str:
    return as_tsv(texts).replace("\t", ";").replace("\n", "\r\n")


def as_tokens(texts: dict[str, list[str]]) -> str:
    return "".join(f"{i}#{n}\t{text}\r\n" for i, own in texts.items() for n, text in enumerate(own))


def as_karpathy(texts: dict[str, list[str]], **more: Any) -> str:
    images = [
        {
            "sentids": [1, 2],
            "filename": name,
            "imgid": n,
            "split": "test",
            "sentences": [{"tokens": text.split(), "raw": text, "imgid": n, "sentid": 1} for text in own],
            **more,
        }
        for n, (name, own) in enumerate(texts.items())
    ]
    return json.dumps({"images": images, "dataset": "flickr8k"})


FOREIGN: dict[str, tuple[Callable[[dict[str, list[str]]], str], dict[str, list[str]]]] = {
    "gts.json": (as_pycocoevalcap, TEXTS),
    "metadata.jsonl": (as_metadata_lines, NAMED),
    "metadata.csv": (as_metadata_csv, NAMED),
    "c.tsv": (as_tsv, TEXTS),
    "spreadsheet.csv": (as_semicolons, TEXTS),
    "Flickr8k.token.txt": (as_tokens, NAMED),
    "results_20130124.token": (as_tokens, NAMED),
    "dataset_flickr8k.json": (as_karpathy, NAMED),
    "lines.json": (as_metadata_lines, NAMED),  # JSON lines in spite of the name
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("stored", ["plain", "gzip", "standard input", "other name", "UTF-16"])
def test_files_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stored: str
) -> None:
    write, texts = FOREIGN[name]
    path, data = tmp_path / name, write(texts).encode()
    if stored == "gzip":
        path, data = path.with_name(f"{name}.gz"), gzip.compress(data)
    elif stored == "UTF-16":
        data = data.decode().encode("utf-16")
    elif stored == "other name":
        path = tmp_path / "captions"
    path.write_bytes(data)
    if stored == "standard input":
        path = Path("-")
    for read, expected in ((read_candidates, rows(texts)), (read_references, texts)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert read(path) == expected


def test_parquet_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"file_name": [*NAMED], "captions": [*NAMED.values()]}), file)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.getvalue())))
    assert read_references("-") == NAMED


def test_standard_input_is_one_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="standard input: cannot be both candidates and references: name a"):
        read_collection("-", None, "-")


def test_the_table_of_flickr30k(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "image_name| comment_number| comment\n"
        '7.jpg| 0| "Stop" is on the sign .\n7.jpg| 1| A dog , a cat\n8.jpg| 4   A dog runs .\n'
    )
    with pytest.warns(UserWarning, match=r"results.csv: 1 row lacks the \| between number and caption"):
        found = read_candidates(path)
    assert found == [
        ("7.jpg", '"Stop" is on the sign .'),
        ("7.jpg", "A dog , a cat"),
        ("8.jpg", "A dog runs ."),
    ]
    path.write_text("image_name| comment_number| comment\n7.jpg| A dog\n")
    with pytest.raises(FileError, match="line 2 has 2 cells, the header has 3"):
        read_candidates(path)


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
    path = tmp_path / "c.tsv"
    path.write_text(f"id\tcaption\n{lines}")
    assert [text for _, text in read_candidates(path)] == expected


# ---- columns


def joined(folder: Path, candidates: str, references: str, **options: str) -> Collection:
    (folder / "c.csv").write_text(candidates)
    (folder / "r.csv").write_text(references)
    return read_collection(folder / "c.csv", None, folder / "r.csv", options=FileOptions(**options))


def test_columns_by_name(tmp_path: Path) -> None:
    one = "img,row,generated,gold\n7,0,a dog,a hound\n8,1,a cat,a puss\n"
    options = {"id_column": "img", "caption_column": "generated", "reference_column": "gold"}
    found = joined(tmp_path, one, one, **options)
    assert found.ids == ["7", "8"] and found.captions == ["a dog", "a cat"]
    assert found.references == [["a hound"], ["a puss"]]
    assert joined(
        tmp_path, one, "image_id,text\n8,x\n7,y\n", **options | {"reference_column": "text"}
    ).references
    # One name for both files, where the references have no other texts.
    gold = "image_id,generated\n7,r\n8,s\n"
    assert joined(tmp_path, one, gold, id_column="img", caption_column="generated").references == [
        ["r"],
        ["s"],
    ]


@pytest.mark.parametrize(
    ("candidates", "references", "options", "message"),
    [
        (
            "photo,title\n7,x\n", "id,caption\n7,x\n", {},
            r"c\.csv: the header has 'photo', 'title', but no image_id or .*, and no caption or captions: "
            r"name them with id_column=\"photo\" and caption_column=\"title\"",
        ),
        (
            "id,title\n7,x\n", "id,caption\n7,x\n", {},
            r"c\.csv: the header has 'id', 'title', but no caption or captions: name it with caption_column=",
        ),
        (
            "id,text,comment\n7,x,y\n", "id,caption\n7,x\n", {},
            r"c\.csv: the header has 'id', 'text', 'comment', of which 'text' or 'comment' may be the text: "
            r"name it with caption_column=\"text\"",
        ),
        (
            "id,title\n7,x\n", "id,title,caption\n7,x,y\n", {"caption_column": "title"},
            r"r\.csv: .* of which 'title' or 'caption' may be the text: name it with reference_column=",
        ),
        (
            "id,caption\n7,x\n", "id,caption\n7,x\n", {"caption_column": "titel"},
            r"c\.csv: the header has 'id', 'caption', but no titel",
        ),
        (
            "id,caption\n7,x\n", "id,caption\n7,x\n", {"id_column": "img"},
            r"id_column='img' is no column of .*c\.csv or .*r\.csv: the columns are 'id', 'caption'",
        ),
        (
            "id,caption\n7,x\n", "id,caption\n7,x\n", {"split": "test"},
            r"split='test' is no split of .*: rows there have no split",
        ),
        (
            "id,caption,split\n7,x,test\n8,y,val\n9,z,val\n", "id,caption\n7,x\n", {},
            r"c\.csv: holds the splits 'test' \(1\), 'val' \(2\): choose with split=\"test\"",
        ),
        (
            "id,caption,split\n7,x,test\n8,y,val\n", "id,caption\n7,x\n", {"split": "tests"},
            r"c\.csv: holds no captions of split 'tests', only of 'test' \(1\), 'val' \(1\): did you mean",
        ),
        (
            "id,caption,split\n7,x,test\n8,y,val\n", "id,caption\n7,x\n", {"split": "test,vall"},
            r"split='vall' is no split of .*: the splits are 'test' \(1\), 'val' \(1\)",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_say_what_to_read(
    tmp_path: Path, candidates: str, references: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        joined(tmp_path, candidates, references, **options)


def test_splits(tmp_path: Path) -> None:
    table = "id,caption,split\n7,x,test\n8,y,val\n9,z,train\n"
    references = "id,caption,split\n7,r,test\n8,s,val\n9,t,train\n"
    assert joined(tmp_path, table, references, split="test").ids == ["7"]
    assert joined(tmp_path, table, references, split="val, train").ids == ["8", "9"]
    pd.read_csv(io.StringIO(table), dtype=str).to_parquet(tmp_path / "c.parquet")
    (tmp_path / "r.csv").write_text(references)
    options = FileOptions(split="test")
    assert read_collection(tmp_path / "c.parquet", None, tmp_path / "r.csv", options=options).ids == ["7"]
    # References of other splits are left out by their ids anyway.
    assert joined(tmp_path, "id,caption\n8,y\n", references).references == [["s"]]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "test",
            r"2 of 3 ids \('8', '9'\) have no .* 'test', but in 'train' and 'val': pass split=\"test,tr",
        ),
        (
            "other",
            r"3 of 3 .* 'other', but in 'test' and 'train' and 'val': pass split=\"test,train,val\"",
        ),
    ],
)
def test_references_of_another_split_are_named(tmp_path: Path, split: str, message: str) -> None:
    images = [
        {"filename": f"{n}.jpg", "split": part, "sentences": [{"raw": "r"}]}
        for n, part in ((7, "test"), (8, "val"), (9, "train"), (1, "other"))
    ]
    (tmp_path / "dataset_flickr8k.json").write_text(json.dumps({"images": images}))
    (tmp_path / "c.json").write_text('{"7": "x", "8": "y", "9": "z"}')
    with pytest.raises(InputError, match=message):
        read_collection(
            tmp_path / "c.json", None, tmp_path / "dataset_flickr8k.json", options=FileOptions(split=split)
        )


def test_coco_references_are_found_by_the_names_of_files(tmp_path: Path) -> None:
    """Also where the number of a name is the id of another image."""
    images = [(7, "val2014/street.jpg"), (8, "9.jpg"), (9, "10.jpg")]
    content = {
        "images": [{"id": number, "file_name": name} for number, name in images],
        "annotations": [{"image_id": number, "caption": f"r{number}"} for number, _ in images],
    }
    (tmp_path / "r.json").write_text(json.dumps(content))
    for written in ("street.jpg", "val2014/street.jpg", "street"):
        (tmp_path / "c.json").write_text(json.dumps({written: "x", "9.jpg": "y"}))
        found = read_collection(tmp_path / "c.json", None, tmp_path / "r.json")
        assert found.references == [["r7"], ["r8"]] and found.entries == ["7", "8"]


def test_images_of_karpathy_are_found_in_their_folders(tmp_path: Path) -> None:
    name = "COCO_val2014_000000000007.jpg"
    (tmp_path / "coco" / "val2014").mkdir(parents=True)
    (tmp_path / "coco" / "val2014" / name).touch()
    path = tmp_path / "dataset_coco.json"
    path.write_text(as_karpathy({name: ["a dog"]}, cocoid=7, filepath="val2014"))
    (tmp_path / "results.json").write_text('[{"image_id": 7, "caption": "x"}]')
    found = read_collection(tmp_path / "results.json", tmp_path / "coco", path)
    assert (found.ids, found.references) == (["7"], [["a dog"]])
    assert found.images == [tmp_path / "coco" / "val2014" / name]


def test_rows_may_name_the_file_of_their_id(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "street.jpg").touch()
    (tmp_path / "c.jsonl").write_text('{"id": 7, "file_name": "street.jpg", "text": "x"}')
    found = read_collection(tmp_path / "c.jsonl", tmp_path / "images")
    assert (found.ids, found.images) == (["7"], [tmp_path / "images" / "street.jpg"])


# ---- warnings and refusals


def test_equal_complaints_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": 7, "title": "x"}\n' * 1000 + "{}\n")
    with pytest.raises(FileError) as caught:
        read_candidates(path)
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "2 problems with the input:"
    assert lines[1].startswith(
        f"{path}: line 1, line 2, line 3 and 997 more have 'id', 'title', but no caption"
    )


def test_captions_that_repeat_and_captions_that_are_references(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"c\.csv: 2 captions that their images have already: each counts"):
        joined(tmp_path, "id,caption\n7,x\n7,x\n8,y\n7,x\n", "id,caption\n7,r\n8,s\n")
    with pytest.warns(UserWarning, match="every caption is one of its own references") as caught:
        joined(tmp_path, "id,caption\n7,x\n8,y\n", "id,caption\n7,r\n7,x\n8,y\n")
    assert len(caught) == 1


def test_files_that_may_be_swapped(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    one, two = "id,caption\n7,x\n8,y\n", "id,caption\n7,r\n7,s\n8,t\n8,u\n"
    joined(tmp_path, one, two)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"c\.csv: 2 captions and one reference of each image: are the two"):
        joined(tmp_path, two, one)


def test_rows_with_ids_of_their_own_go_by_the_file_name(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(f'{{"id": {n}, "file_name": "a.jpg", "text": "x{n}"}}' for n in (1, 2)))
    for options in (None, FileOptions(id_column="file_name")):
        assert read_collection(path, tmp_path, options=options).ids == ["a.jpg"] * 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.csv", "id,caption\n7,x\n".encode("utf-16-le"), "holds NUL characters, as UTF-16 without a byte"),
        ("c.json", b"\xff\xfe{", "is not UTF-16 (truncated data): write it again"),
        ("c.json.gz", gzip.compress(b'{"7": "x"}', mtime=0)[:-9], "is damaged ("),
        ("c.json.gz", b"\x1f\x8b\x08" + bytes(40), "is damaged ("),
        ("c.json.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("c.txt", b"7.jpg#0\ta dog\nand more\n", "line 2 is 'and more', expected a file name, #"),
        ("c.json", b'{"7": [{"title": "x"}]}', "id '7'[0] has 'title', but no caption or captions"),
        ("c.json", b'{"7": [{"caption": 5}]}', "id '7'[0] is the number 5: expected a string"),
        ("c.json", b'{"images": [{"sentences": [{}], "filename": "a"}]}', "image 0 (id 'a'): sentences[0] "),
        ("c.json", b'{"images": [{"sentences": 5, "filename": "a"}]}', "image 0 (id 'a'): sentences is the"),
        ("c.jsonl", b'{"id": 1' + b"0" * 5000 + b', "text": "x"}', "JSON that cannot be read (Exceeds"),
        ("c", b"[" * 200_000, "JSON that cannot be read ("),
        ("c", b"\x00\x01\x02" * 50, "holds NUL characters"),
        ("c", b"\x89PNX", "is not UTF-8 (byte 0x89 at position 0)"),
    ],
)  # fmt: skip
def test_hostile_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FileError) as caught:
        read_candidates(path)
    assert str(caught.value).startswith(f"{path}: {message}"), caught.value
    assert len(str(caught.value)) < 500


def test_a_small_file_does_not_become_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json.gz"
    path.write_bytes(gzip.compress(b'{"7": "x"}' + bytes(1 << 10)))
    monkeypatch.setattr(LIMITS, "file_bytes", 1 << 9)
    with pytest.raises(FileError, match="is longer than"):
        read_candidates(path)
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(FileError, match="standard input: is longer than"):
            read_candidates("-")


def test_the_id_of_an_annotation_names_no_image(tmp_path: Path) -> None:
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / name).touch()
    annotations = [{"image_id": 1, "id": 2, "caption": "a"}, {"image_id": 2, "id": 1, "caption": "b"}]
    (tmp_path / "c.json").write_text(json.dumps(annotations))
    found = read_collection(tmp_path / "c.json", tmp_path)
    assert [Path(image).name for image in found.images] == ["1.jpg", "2.jpg"]
