"""Captions and references of files, joined with images by ids that are written in several ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capeval_core.errors import FileError
from tests.inputs.test_text_files import written
from tests.support.seams import read_collection


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"x")
    path.mkdir(exist_ok=True)
    return path


def found(folder: Path, *ids: str) -> list[Path]:
    """The images of these ids. The file of captions lies beside the folder, or in this one."""
    candidates = written(folder.parent if folder.name else folder, dict.fromkeys(ids, "x"))
    images: list[Path] = read_collection(candidates, folder).images
    return images


# ---- ids and names


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
    (folder / "loop.jpg").symlink_to("loop.jpg")
    assert found(folder, image_id) == [folder / name]


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
    folder = folder_of(tmp_path / "images", "b.jpg", "dogs/a.jpg", "dogs/000000000042.jpg")
    assert found(folder, image_id) == [folder / name]
    monkeypatch.chdir(folder)
    assert read_collection(tmp_path / "c.json", Path()).images == [Path(name)]


def test_the_exact_name_wins_and_what_is_ambiguous_or_missing_comes_at_once(tmp_path: Path) -> None:
    names = ["COCO_train2014_000000000007.jpg", "COCO_val2014_000000000007.jpg"]
    folder = folder_of(tmp_path / "images", "a.jpg", "a.png", "42.jpg", "000000000042.jpg", *names)
    assert found(folder, "a.png", "42") == [folder / "a.png", folder / "42.jpg"]
    with pytest.raises(FileError) as caught:
        found(folder, "a", "7", "42", *"uvwxyz")
    ambiguous, two, missing = str(caught.value).split("\n  ")[1:]
    assert "the id 'a' is ambiguous, it can mean 'a.jpg' and 'a.png'" in ambiguous
    assert "the id '7' is ambiguous" in two
    assert "6 of 9 ids ('u', 'v', 'w', 'x', 'y', ...)" in missing


# ---- joining


def test_a_collection_joins_ids_written_in_several_ways(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "COCO_val2014_000000000042.jpg", "dog.png")
    own = [("42", "x"), ("dog", "y"), ("dog", "z")]
    candidates = written(tmp_path, [{"image_id": i, "caption": text} for i, text in own])
    content = {"COCO_val2014_000000000042.jpg": ["r", "s"], "dog": ["t"], "unasked": ["u"]}
    joined = read_collection(candidates, folder, written(tmp_path, content, "r.json"))
    assert (joined.ids, joined.captions) == (["42", "dog", "dog"], ["x", "y", "z"])
    assert joined.images == [folder / name for name in ("COCO_val2014_000000000042.jpg", *["dog.png"] * 2)]
    assert joined.references == [["r", "s"], ["t"], ["t"]]
    assert read_collection(candidates, folder).references is None


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("other", ["0042", "42.png", "images/42", "COCO_val2014_000000000042.jpg"])
def test_an_image_and_its_references_have_one_id(tmp_path: Path, wide: bool, other: str) -> None:
    folder = folder_of(tmp_path / "images", "a.png", "b.png", "42.png")
    path = written(tmp_path, {"42": ["x"], "a": ["w"], other: ["y", "z"]})
    with pytest.raises(FileError, match=r"the ids '42' and .* both mean '42\.png'"):
        read_collection(path, folder, wide=wide)
    references = written(tmp_path, {"042": ["r"], "0042": ["s"]}, "r.json")
    with pytest.raises(FileError, match="the id '42' is ambiguous, it can mean '0042' and '042'"):
        read_collection(written(tmp_path, {"42": "x"}), folder, references)


def test_coco_references_are_found_by_the_names_of_files(tmp_path: Path) -> None:
    """Also where the number of a name is the id of another image."""
    images = [(7, "val2014/street.jpg"), (8, "9.jpg"), (9, "10.jpg")]
    content = {
        "images": [{"id": number, "file_name": name} for number, name in images],
        "annotations": [{"image_id": number, "caption": f"r{number}"} for number, _ in images],
    }
    references = written(tmp_path, content, "r.json")
    for name in ("street.jpg", "val2014/street.jpg", "street"):
        joined = read_collection(written(tmp_path, {name: "x", "9.jpg": "y"}), None, references)
        assert joined.references == [["r7"], ["r8"]] and joined.entries == ["7", "8"]
    folder = folder_of(tmp_path / "images", "street.jpg")
    joined = read_collection(written(tmp_path, [{"image_id": 7, "caption": "x"}]), folder, references)
    assert joined.images == [folder / "street.jpg"]


def test_two_files_of_one_id_are_refused_with_both(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "street.jpg", "9.jpg")
    references = coco(tmp_path, {7: "street.jpg"}, (7,))
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": 7, "file_name": "9.jpg", "text": "x"}')
    with pytest.raises(FileError, match=r"'7' has the image '9\.jpg'.*'street\.jpg' by the references"):
        read_collection(path, folder, references)
    path.write_text('{"id": 7, "file_name": "street.jpg", "text": "x"}')
    assert read_collection(path, folder, references).images == [folder / "street.jpg"]


def test_images_of_karpathy_are_found_in_their_folders(tmp_path: Path) -> None:
    name = "COCO_val2014_000000000007.jpg"
    folder = folder_of(tmp_path / "coco", f"val2014/{name}")
    image = {"filename": name, "filepath": "val2014", "cocoid": 7, "sentences": [{"raw": "a dog"}]}
    references = written(tmp_path, {"images": [image]}, "dataset_coco.json")
    joined = read_collection(written(tmp_path, [{"image_id": 7, "caption": "x"}]), folder, references)
    assert (joined.ids, joined.references) == (["7"], [["a dog"]])
    assert joined.images == [folder / "val2014" / name]


def coco(folder: Path, names: dict[int, str], ids: tuple[int, ...] = (7, 8)) -> Path:
    images = [{"id": i, "file_name": name} for i, name in names.items()]
    own = [{"image_id": i, "caption": f"caption {i}"} for i in ids]
    return written(folder, {"images": images, "annotations": own})


def test_rows_with_an_id_and_a_file_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", "street.jpg", "1.jpg")
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": 7, "file_name": "street.jpg", "text": "x"}')
    joined = read_collection(path, folder)
    assert (joined.ids, joined.images) == (["7"], [folder / "street.jpg"])
    path.write_text("\n".join(f'{{"id": {n}, "file_name": "1.jpg", "text": "x{n}"}}' for n in (1, 2)))
    for options in ({}, {"id_column": "file_name"}):
        assert read_collection(path, folder, **options).ids == ["1.jpg"] * 2
    folder_of(folder, "2.jpg", "a/1.jpg")
    path.write_text('{"id": 7, "file_name": "a/1.jpg", "text": "x"}')
    assert read_collection(path, folder).images == [folder / "a" / "1.jpg"]
    own = [{"image_id": 1, "id": 2, "caption": "a"}, {"image_id": 2, "id": 1, "caption": "b"}]
    assert read_collection(written(tmp_path, own), folder).images == [folder / "1.jpg", folder / "2.jpg"]


# ---- columns and splits


def joined(folder: Path, candidates: str, references: str, **options: str) -> Any:
    (folder / "c.csv").write_text(candidates)
    (folder / "r.csv").write_text(references)
    return read_collection(folder / "c.csv", None, folder / "r.csv", **options)


def test_columns_by_name(tmp_path: Path) -> None:
    one = "img,row,generated,gold\n7,0,a dog,a hound\n8,1,a cat,a puss\n"
    options = {"id_column": "img", "caption_column": "generated", "reference_column": "gold"}
    got = joined(tmp_path, one, one, **options)
    assert got.ids == ["7", "8"] and got.captions == ["a dog", "a cat"]
    assert got.references == [["a hound"], ["a puss"]]
    other = joined(tmp_path, one, "image_id,text\n8,x\n7,y\n", **options | {"reference_column": "text"})
    assert other.references == [["y"], ["x"]]
    # One name for both files, where the references have no other texts.
    gold = "image_id,generated\n7,r\n8,s\n"
    both = joined(tmp_path, one, gold, id_column="img", caption_column="generated")
    assert both.references == [["r"], ["s"]]


# ---- warnings


def test_captions_that_repeat_that_are_references_or_that_may_be_swapped(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    one, two = "id,caption\n7,x\n8,y\n", "id,caption\n7,r\n7,s\n8,t\n8,u\n"
    joined(tmp_path, one, two)
    assert not recwarn.list
    for candidates, references, message in (
        ("id,caption\n7,x\n7,x\n8,y\n7,x\n", "id,caption\n7,r\n8,s\n", r"2 captions that their images have"),
        (one, "id,caption\n7,r\n7,x\n8,y\n", "every caption is one of its own references"),
        (two, one, r"2 captions and one reference of each image: are the two files swapped"),
    ):
        with pytest.warns(UserWarning, match=rf"c\.csv: {message}"):
            joined(tmp_path, candidates, references)


# ---- one row per image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "images", "a.png", "b.png", "42.png")


def wide(images: Path, content: str) -> Any:
    return read_collection(written(images.parent, content, "pools.csv"), images, wide=True)


def test_wide_tables_have_one_row_per_image(images: Path) -> None:
    got = wide(images, 'filename,x,y,z\na.png,one,"two, three",\n\nb.png,four,,five\n')
    assert got.ids == ["a.png", "a.png", "b.png", "b.png"]
    assert got.captions == ["one", "two, three", "four", "five"]
    usual = wide(images, "image_id,caption\na,one\na,two\nb,three\n")
    assert usual.captions == ["one", "two", "three"]
    assert wide(images, ",1,2\n42,a dog,two dogs\n").ids == ["42", "42"]
    assert wide(images, "image| 1| 2\na.png | a dog| two dogs\n").ids == ["a.png", "a.png"]


@pytest.mark.parametrize(
    ("content", "places"),
    [
        *[(f"{first},a dog,two dogs\nb.png,a cat,two cats\n", ["line 1 has"])
          for first in ("a.png", "a", "42", "000042", "nobody", "a.png ")],
        (",filename,1,2\n42,a.png,a dog,two dogs\n", ["header that begins with image_id"]),
        ("filename,1,2\na.png,a dog, black,two dogs\nb.png,a cat\n42,x,\n", ["line 2 has 4", "line 3 has 2"]),
        ("filename,pool\na.png,\"['a dog', 'two dogs']\"\n", ["line 2 (id 'a.png')"]),
        ("filename,x\na.png,one\nb.png,\na.png,two\n", ["line 3 (id 'b.png')", "line 4: the id 'a.png'"]),
        ('filename,x\na.png,"one\n', ["line 2 is not CSV"]),
    ],
)  # fmt: skip
def test_wide_tables_that_lose_no_caption(images: Path, content: str, places: list[str]) -> None:
    with pytest.raises(FileError) as caught:
        wide(images, content)
    assert all(place in str(caught.value) for place in places), str(caught.value)
    with pytest.raises(FileError):
        read_collection(images.parent / "pools.csv", images)


def test_standard_input_is_one_file(images: Path) -> None:
    with pytest.raises(FileError, match="standard input cannot be both"):
        read_collection(Path("-"), None, Path("-"))
