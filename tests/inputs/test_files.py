from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.inputs.collection import read_collection
from tests.inputs.reading import find_images, read_candidates, read_references

Mapping = dict[str, list[str]]


def rows(mapping: Mapping) -> list[tuple[str, str]]:
    return [(image_id, text) for image_id, texts in mapping.items() for text in texts]


def as_json(mapping: Mapping) -> bytes:
    return json.dumps(mapping).encode()


def as_results(mapping: Mapping) -> bytes:
    return json.dumps([{"image_id": i, "caption": text} for i, text in rows(mapping)]).encode()


def as_annotations(mapping: Mapping) -> bytes:
    annotations = [{"image_id": i, "id": n, "caption": t} for n, (i, t) in enumerate(rows(mapping))]
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in mapping]
    return json.dumps({"info": {}, "images": images, "annotations": annotations}).encode()


def as_lines(mapping: Mapping) -> bytes:
    lines = [json.dumps({"image": i, "caption": t}, ensure_ascii=False) for i, t in rows(mapping)]
    return "\n".join(lines).encode()


def as_lines_of_lists(mapping: Mapping) -> bytes:
    return b"".join(json.dumps({"id": i, "captions": t}).encode() + b"\n" for i, t in mapping.items())


def as_csv(mapping: Mapping) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("image_id", "caption"), *rows(mapping)])
    return b"\xef\xbb\xbf" + file.getvalue().encode()


def as_csv_of_lists(mapping: Mapping) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("id", "captions"), *((i, json.dumps(t)) for i, t in mapping.items())])
    return file.getvalue().encode()


def as_parquet(mapping: Mapping) -> bytes:
    file = io.BytesIO()
    table = pa.table(
        {"image_id": list(mapping), "split": ["x"] * len(mapping), "captions": [*mapping.values()]}
    )
    pq.write_table(table, file)
    return file.getvalue()


FORMS: dict[str, tuple[str, Callable[[Mapping], bytes]]] = {
    "mapping": (".json", as_json),
    "results": (".json", as_results),
    "annotations": (".json", as_annotations),
    "lines": (".jsonl", as_lines),
    "lines of lists": (".ndjson", as_lines_of_lists),
    "csv": (".csv", as_csv),
    "csv of lists": (".CSV", as_csv_of_lists),
    "parquet": (".parquet", as_parquet),
}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
ids = texts.filter(bool)
mappings = st.dictionaries(ids, st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=5)


@pytest.mark.parametrize("form", FORMS)
@given(mapping=mappings)
def test_every_form_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, form: str, mapping: Mapping
) -> None:
    extension, write = FORMS[form]
    path = tmp_path_factory.mktemp("form", numbered=True) / f"texts{extension}"
    path.write_bytes(write(mapping))
    assert read_candidates(path) == rows(mapping)
    assert read_references(path) == mapping


def written(folder: Path, content: Any, name: str = "c.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def complaint(folder: Path, content: Any, name: str = "c.json") -> str:
    path = written(folder, content, name)
    with pytest.raises(FileError) as caught:
        read_candidates(path)
    return str(caught.value).replace(str(path), name)


def test_one_caption_per_image_and_numbers_as_ids(tmp_path: Path) -> None:
    assert read_candidates(written(tmp_path, {"7": "a", "b": ["c", "d"]})) == [
        ("7", "a"), ("b", "c"), ("b", "d"),
    ]  # fmt: skip
    assert read_candidates(written(tmp_path, [{"image_id": 42, "caption": "a", "id": 1}])) == [("42", "a")]
    table = pa.table({"image_id": [42.0, 7.0], "caption": ["a", "b"]})
    pq.write_table(table, tmp_path / "c.parquet")
    assert read_candidates(tmp_path / "c.parquet") == [("42", "a"), ("7", "b")]


def test_one_file_can_hold_captions_and_references(tmp_path: Path) -> None:
    lines = b'{"id": "a", "caption": "x", "references": ["r", "s"]}\n\n'
    lines += b'{"id": "a", "caption": "y", "references": ["r", "s"]}\n'
    path = written(tmp_path, lines, "both.jsonl")
    assert read_candidates(path) == [("a", "x"), ("a", "y")]
    assert read_references(path) == {"a": ["r", "s"]}
    path = written(tmp_path, lines + b'{"id": "a", "references": ["r"]}', "both.jsonl")
    with pytest.raises(FileError, match=r"line 4 \(id 'a'\): references differ from those given"):
        read_references(path)


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    for name, data in (
        ("c.json", b'{"a": "x"}'),
        ("c.jsonl", b'{"id": "a", "caption": "x"}'),
        ("c.csv", b"id,caption\r\na,x\r\n"),
    ):
        assert read_candidates(written(tmp_path, b"\xef\xbb\xbf" + data, name)) == [("a", "x")]


def test_an_image_may_be_called_annotations(tmp_path: Path) -> None:
    assert read_references(written(tmp_path, {"annotations": ["x"]})) == {"annotations": ["x"]}


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_is_no_file_of_captions(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "photo", kind)
    with pytest.raises(
        FileError, match=rf"is an image \({kind}\): expected a file of text, such as captions"
    ):
        read_collection(tmp_path / "photo", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n", "is empty"),
        (b"{}", "holds no captions"),
        (b'{"a": "x",\n "b"}', "not JSON (line 2, column 5: Expecting ':' delimiter)"),
        (
            b'{"id": "a", "caption": "x"}\n{"id": "b"}',  # lines, whatever the file's name
            "line 2 has 'id', but no caption or captions",
        ),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 0xff at position 7): convert it"),
        (
            b'{"a": "x", "b": "y", "a": "z"}',
            "the key 'a' comes twice; for several captions of an image use {image id: [captions]}",
        ),
        (b'{"a": ' + b"9" * 9000 + b"}", "JSON that cannot be read (Exceeds the limit"),
        (b"[" * 200_000, "JSON that cannot be read ("),
        ({"a": None, "b": "x"}, "id 'a' is null: expected a caption or a list of them"),
        ({"a": 5, "b": "x"}, "id 'a' is the number 5: expected a caption or a list of them"),
        ({"a": ["x", 5]}, "id 'a'[1] is the number 5: expected a string"),
        ({"a": ["x", None]}, "id 'a'[1] is null: expected a string"),
        ({"a": []}, "id 'a' is an empty list"),
        ({"": "x"}, "an image id is an empty string"),
        ({"a": {"b": 1}}, "unknown form, found an object with 'a': a dict of length 1; read are {image id"),
        (["x"], "unknown form, found a list with a str of length 1; read are {image id: caption}"),
        ([], "unknown form, found an empty list; read are"),
        (5, "unknown form, found the number 5; read are"),
        (None, "unknown form, found null; read are"),
        (
            [{"image_id": 1, "title": "x"}],
            "entry 0 has 'image_id', 'title', but no caption or captions: name it with caption_column=",
        ),
        (
            [{"caption": "x"}],
            "entry 0 has 'caption', but no image_id or image or id or filename or file_name or image_name",
        ),
        ([{"id": 1, "caption": 5}], "entry 0 (id '1'): caption is the number 5: expected a string"),
        ([{"id": 1.5, "caption": "x"}], "entry 0: id is the number 1.5: expected a string or a whole number"),
        ([{"id": True, "caption": "x"}], "entry 0: id is the bool True: expected a string or a whole"),
        ([{"id": "", "caption": "x"}], "entry 0: id is an empty string: expected a string or a whole"),
        (
            {"annotations": [{"image_id": 3, "category_id": 2}], "images": []},
            "annotation 0 has 'image_id', 'category_id', but no caption or captions",
        ),
    ],
)
def test_json_that_cannot_be_used(tmp_path: Path, content: Any, message: str) -> None:
    found = complaint(tmp_path, content)
    assert found.startswith(f"c.json: {message}"), found


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", b'{"id": 1, "caption": "x"}\n{"id": 2,', "not JSON (line 2, column 10: "),
        ("c.jsonl", b"[1, 2]", "line 1 is a list of length 2: expected an object with an id and a caption"),
        ("c.jsonl", b'{"id": 1, "id": 2, "caption": "x"}', "the key 'id' comes twice"),
        (
            "c.csv",
            b"image,title\na,x\n",
            "the header has 'image', 'title', but no caption or captions: name it with caption_column",
        ),
        (
            "c.csv",
            b"id,caption,caption\na,x,y\n",
            "'caption' names several columns: give every column a name",
        ),
        (
            "c.json",
            b'{"images": [{"id": 7, "file_name": "a"}, {"id": 7, "file_name": "b"}], '
            b'"annotations": [{"image_id": 7, "caption": "x"}]}',
            "image 1: the id '7' is also that of 'a'",
        ),
        ("c.csv", b"id,caption\na,x,y\n", "line 2 has 3 cells, the header has 2"),
        ("c.csv", b'id,caption\na,"x\n', "line 2 is not CSV ("),
        ("c.csv", b"id,caption\n", "holds no captions"),
        ("c.csv", b"id,caption\n,x\n", "line 2: id is an empty string"),
        ("c.parquet", b"PAR1 and more", "is not Parquet, or damaged ("),
        (
            "c.txt",
            b"a dog",
            "the first line is 'a dog', expected a header that names an id and a caption",
        ),
        ("captions", b"[1, 2]", "unknown form, found a list with the number 1; read are {image id: caption}"),
    ],
)
def test_other_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    found = complaint(tmp_path, content, name)
    assert found.startswith(f"{name}: {message}"), found


def test_parquet_without_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"id": ["a"], "title": ["x"]}), path)
    with pytest.raises(FileError, match="the columns are 'id', 'title', but no caption or captions: name it"):
        read_candidates(path)
    pq.write_table(pa.table({"id": ["a", "b"], "caption": ["x", None]}), path)
    with pytest.raises(FileError, match=r"row 1 \(id 'b'\): caption is null: expected a string"):
        read_candidates(path)


def test_cells_of_lists_may_hold_plain_texts(tmp_path: Path) -> None:
    deep = "[" * 100_000
    assert read_candidates(written(tmp_path, f"id,captions\na,{deep}\n".encode(), "d.csv")) == [("a", deep)]
    path = written(tmp_path, b'id,captions\na,x\nb,[sic] y\nc," [""p"", ""q""]"\n', "c.csv")
    assert read_candidates(path) == [("a", "x"), ("b", "[sic] y"), ("c", "p"), ("c", "q")]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    loop = tmp_path / "c.json"
    loop.symlink_to(loop)
    with pytest.raises(FileError, match=r"c\.json: cannot be read \("):
        read_candidates(loop)
    with pytest.raises(FileError, match=r"c\.json: cannot be read \("):
        find_images(loop)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no\.json: there is no such file"):
        read_candidates(tmp_path / "no.json")
    with pytest.raises(FileError, match="is a folder, expected a file"):
        read_candidates(tmp_path)


def test_all_that_is_wrong_with_a_file_comes_at_once(tmp_path: Path) -> None:
    found = complaint(tmp_path, b'{"id": 1}\nnot json\n{"caption": "x"}\n', "c.jsonl")
    assert found.startswith("3 problems with the input:\n  c.jsonl: line 1 has 'id', but no caption")
    assert "(line 2, column 1: Expecting value)" in found
    assert "line 3 has 'caption', but no image_id or image or id or filename" in found


# ---- folders


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("image_id", "name"),
    [
        ("a", "a.jpg"),
        ("a.b", "a.b.jpg"),
        ("a.jpg", "a.jpg"),
        ("a.jpg", "a.jpg.png"),
        ("a", "a.JPEG"),
        ("a.tmp", "a.tmp"),
        ("42", "42.png"),
        ("42", "000000000042.jpg"),
        ("42", "COCO_val2014_000000000042.jpg"),
        ("COCO_val2014_000000000042", "000000000042.jpg"),
        ("COCO_val2014_000000000042.jpg", "COCO_val2014_000000000042.jpg"),
        ("000000000042.jpg", "COCO_train2014_000000000042.png"),
    ],
)
def test_an_id_finds_its_image(tmp_path: Path, image_id: str, name: str) -> None:
    folder = folder_of(tmp_path / "images", name, "other.jpg", "142.jpg", "a_42.jpg", "._a.jpg", "a.txt")
    assert find_images(folder, [image_id]) == {image_id: folder / name}


@pytest.mark.parametrize(
    ("image_id", "name"),
    [
        ("dogs/a.jpg", "dogs/a.jpg"),  # from the folder
        ("dogs/a", "dogs/a.jpg"),
        ("./dogs/42", "dogs/000000000042.jpg"),
        ("images/b.jpg", "b.jpg"),  # from where the folder lies
        ("images/dogs/a.jpg", "dogs/a.jpg"),
    ],
)
def test_an_id_may_be_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_id: str, name: str
) -> None:
    folder = folder_of(tmp_path / "images", "b.jpg")
    folder_of(folder / "dogs", "a.jpg", "000000000042.jpg")
    assert find_images(folder, [image_id]) == {image_id: folder / name}
    monkeypatch.chdir(folder)
    assert find_images(".", [image_id]) == {image_id: Path(name)}


@pytest.mark.parametrize("image_id", ["../images/b.jpg", "elsewhere/b.jpg", "cats/a.jpg", "/b.jpg"])
def test_a_path_from_elsewhere_finds_nothing(tmp_path: Path, image_id: str) -> None:
    folder = folder_of(tmp_path / "images", "b.jpg")
    folder_of(folder / "dogs", "a.jpg")
    with pytest.raises(FileError, match=r"has no image; it holds files like 'b.jpg'. An id is an image's"):
        find_images(folder, [image_id])


def test_the_folder_that_has_the_image_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "b.jpg")
    folder_of(folder / "cats", "b.jpg")
    folder_of(folder / "dogs", "a.jpg")
    with pytest.raises(FileError, match=r"files like 'b.jpg'; that of 'a' is in its folder 'dogs'. An id is"):
        find_images(folder, ["b", "a"])


def test_an_absolute_id_does_not_leave_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "b.jpg")
    outside = folder_of(tmp_path / "outside", "a.jpg", "42.jpg")
    escapes = [f"{outside}/a.jpg", f"{outside}/a", f"{outside}/42", f"/{outside}/a.jpg"]
    escapes += ["../outside/a.jpg", "images/../../outside/a.jpg", f"{folder}/../outside/a.jpg"]
    for image_id in escapes:
        with pytest.raises(FileError, match="has no image"):
            find_images(folder, [image_id])
        with pytest.raises(FileError, match="has no image"):
            read_collection(written(tmp_path, {image_id: "x"}), folder)


def test_the_exact_name_wins(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "a.jpg", "a.png", "42.jpg", "000000000042.jpg")
    assert find_images(folder, ["a.png", "42"]) == {"a.png": folder / "a.png", "42": folder / "42.jpg"}


def test_ambiguous_and_missing_ids_are_reported_at_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "a.jpg", "a.png", "b.jpg")
    names = ["COCO_train2014_000000000007.jpg", "COCO_val2014_000000000007.jpg"]
    folder_of(folder, *names)
    with pytest.raises(FileError) as caught:
        find_images(folder, ["a", "7", "b", *"uvwxyz"])
    assert str(caught.value).split("\n  ") == [
        "3 problems with the input:",
        f"{folder}: the id 'a' is ambiguous, it can mean 'a.jpg' and 'a.png'",
        f"{folder}: the id '7' is ambiguous, it can mean '{names[0]}' and '{names[1]}'",
        f"{folder}: 6 of 9 ids ('u', 'v', 'w', 'x', 'y', ...) have no image; it holds files like "
        f"'{names[0]}', '{names[1]}', 'a.jpg'. An id is an image's file name, with or without its "
        "extension, its path from that folder, or its COCO number",
    ]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such folder"):
        find_images(tmp_path / "no")
    with pytest.raises(FileError, match="is a file, expected a folder of images"):
        find_images(written(tmp_path, b"x"))
    empty = folder_of(tmp_path / "empty")
    with pytest.raises(FileError, match=r"has no image; it holds no files \(its subfolders are looked"):
        find_images(empty, ["a"])
    folder = folder_of(tmp_path / "images", "b.jpg")
    with pytest.raises(FileError, match=r"1 of 1 ids \('a'\) has no image; it holds files like 'b.jpg'"):
        find_images(folder, ["a"])


# ---- joining


def test_a_collection_joins_ids_written_in_several_ways(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "COCO_val2014_000000000042.jpg", "dog.png")
    candidates = written(tmp_path, [{"image_id": 42, "caption": "x"}, {"image_id": "dog", "caption": "y"}])
    content = {"COCO_val2014_000000000042.jpg": ["r", "s"], "dog": ["t"], "unasked": ["u"]}
    references = written(tmp_path, content, "r.json")
    collection = read_collection(candidates, folder, references)
    assert collection.ids == ["42", "dog"]
    assert collection.captions == ["x", "y"]
    assert collection.images == [folder / "COCO_val2014_000000000042.jpg", folder / "dog.png"]
    assert collection.references == [["r", "s"], ["t"]]
    assert read_collection(candidates, folder).references is None


def test_several_captions_of_an_image_are_several_rows(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "a.jpg")
    candidates = written(tmp_path, {"a": ["x", "y"]})
    collection = read_collection(candidates, folder, written(tmp_path, {"a": "r"}, "r.json"))
    assert collection.captions == ["x", "y"]
    assert collection.images == [folder / "a.jpg"] * 2
    assert collection.references == [["r"], ["r"]]


def test_the_file_name_of_annotations_is_used(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "street.jpg")
    images = [{"id": 7, "file_name": "val2014/street.jpg"}]
    content = {"images": images, "annotations": [{"image_id": 7, "caption": "r"}]}
    references = written(tmp_path, content, "r.json")
    candidates = written(tmp_path, [{"image_id": 7, "caption": "x"}])
    assert read_collection(candidates, folder, references).images == [folder / "street.jpg"]


def test_everything_that_does_not_match_is_reported_at_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "a.jpg", "c.jpg", "c.png")
    candidates = written(tmp_path, {"a": "x", "b": "y", "c": "z"})
    references = written(tmp_path, {"a": ["r"], "c": ["s"], "c.jpg": ["t"]}, "r.json")
    with pytest.raises(FileError) as caught:
        read_collection(candidates, folder, references)
    first, ambiguous, missing, unknown = str(caught.value).split("\n  ")
    assert first == "3 problems with the input:"
    assert ambiguous == f"{folder}: the id 'c' is ambiguous, it can mean 'c.jpg' and 'c.png'"
    assert missing.startswith(f"{folder}: 1 of 3 ids ('b') has no image; it holds files like 'a.jpg', ")
    assert unknown == f"{references}: 1 of 3 ids ('b') has no references; it has ids like 'a', 'c', 'c.jpg'"


def test_an_id_that_means_two_lists_of_references(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "42.jpg")
    references = written(tmp_path, {"042": ["r"], "0042": ["s"]}, "r.json")
    with pytest.raises(FileError) as caught:
        read_collection(written(tmp_path, {"42": "x"}), folder, references)
    assert str(caught.value) == f"{references}: the id '42' is ambiguous, it can mean '0042' and '042'"


def test_unreadable_files_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        read_collection(tmp_path / "c.json", tmp_path / "images", written(tmp_path, b"[", "r.json"))
    message = str(caught.value)
    assert message.startswith("3 problems with the input:")
    for part in ("c.json: there is no such file", "images: there is no such folder", "r.json: not JSON"):
        assert part in message


def test_wide_csv_has_one_row_per_image(tmp_path: Path, images: list[Path]) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / name).write_bytes(images[1].read_bytes())
    path = tmp_path / "candidates.csv"
    path.write_text('filename,x,y,z\na.png,one,"two, three",\n\nb.png,four,,five\n')
    found = read_collection(path, tmp_path / "images", wide=True)
    assert found.ids == ["a.png", "a.png", "b.png", "b.png"]
    assert found.captions == ["one", "two, three", "four", "five"]
    path.write_text("image_id,caption\na,one\na,two\nb,three\n")  # the usual form is read as ever
    assert read_collection(path, tmp_path / "images", wide=True).captions == ["one", "two", "three"]
    path.write_text("filename,x\na.png,one\nb.png,\na.png,two\n")
    with pytest.raises(FileError) as caught:
        read_collection(path, tmp_path / "images", wide=True)
    for told in ("line 3 (id 'b.png'): its captions is an empty list", "line 4: the id 'a.png' comes twice"):
        assert told in str(caught.value)
    with pytest.raises(FileError, match="the header has"):
        read_collection(path, tmp_path / "images")
    path.write_text('filename,x\na.png,"one\n')
    with pytest.raises(FileError, match=r"candidates\.csv: line 2 is not CSV \("):
        read_collection(path, tmp_path / "images", wide=True)


def coco(folder: Path, images: Any, ids: tuple[Any, ...] = (7, 8)) -> Path:
    annotations = [{"image_id": i, "caption": f"caption {i}"} for i in ids]
    return written(folder, {"images": images, "annotations": annotations})


def test_a_file_name_that_is_not_there_is_refused_and_not_replaced_by_its_id(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "7.jpg", "8.jpg", "street.jpg")
    images = [{"id": 7, "file_name": "val2014/street.jpg"}, {"id": 8, "file_name": "val2014/beach.jpg"}]
    with pytest.raises(FileError) as caught:
        read_collection(coco(tmp_path, images), folder)
    assert "1 of 2 file_names ('val2014/beach.jpg' of id '8') is not there" in str(caught.value)
    assert "correct the file_name" in str(caught.value)
    found = read_collection(coco(tmp_path, images[:1]), folder)  # an id alone stands for itself
    assert [image.name for image in found.images] == ["street.jpg", "8.jpg"]


def test_images_that_were_all_renamed_to_their_ids_are_used_with_a_warning(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "7.jpg", "8.jpg")
    images = [{"id": 7, "file_name": "street.jpg"}, {"id": 8, "file_name": "beach.jpg"}]
    with pytest.warns(UserWarning, match=r"none of the file_names that 2 of 2 ids are given") as caught:
        found = read_collection(coco(tmp_path, images), folder)
    assert [image.name for image in found.images] == ["7.jpg", "8.jpg"] and len(caught) == 1
    with pytest.raises(FileError, match=r"1 of 3 ids \('9'\) has no image"):
        read_collection(coco(tmp_path, images, (7, 8, 9)), folder)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"id": 7}, "images is a dict of length 1: expected a list"),
        (None, "images is null: expected a list"),
        ([{"id": 7, "file_name": 5}], "image 0: file_name is the number 5: expected a file's name"),
        ([{"id": 7, "file_name": None}], "image 0: file_name is null"),
        ([{"id": 7, "file_name": ""}], "image 0: file_name is empty"),
        (["a.jpg"], "image 0 is a str of length 5: expected an object"),
    ],
)
def test_images_of_annotations_that_cannot_be_read_are_refused(
    tmp_path: Path, images: Any, message: str
) -> None:
    with pytest.raises(FileError, match=message):
        read_candidates(coco(tmp_path, images))
