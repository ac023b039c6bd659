from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.inputs.visual import InputImage
from capeval_core.training.captioned import CaptionedImages, open_dataset, read_captioned

COLUMNS: dict[str, Any] = {
    "split": "train",
    "image_column": "image",
    "caption_column": "caption",
    "id_column": None,
}


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (8, 6), (shade, 0, 0))


def shades(captioned: CaptionedImages) -> list[int]:
    """What each image shows."""
    loaded = [visual.load() for visual in captioned.visuals()]
    return [image.convert("RGB").getpixel((0, 0))[0] for image in loaded]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved dataset whose image 7 has two rows."""
    rows = {
        "image": [picture(10), picture(20), picture(10)],
        "caption": ["a dog", "a cat", "two dogs"],
        "cocoid": [7, 8, 7],
    }
    features = datasets.Features(
        {"image": datasets.Image(), "caption": datasets.Value("string"), "cocoid": datasets.Value("int64")}
    )
    part = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": part}).save_to_disk(tmp_path / "set")
    return tmp_path / "set"


def test_a_dataset_gives_every_row_its_image_or_rows_of_an_id_one(folder: Path) -> None:
    each = open_dataset(str(folder), **COLUMNS)
    assert (each.ids, each.images) == (["0", "1", "2"], ["0", "1", "2"])
    assert each.captions == ["a dog", "a cat", "two dogs"] and shades(each) == [10, 20, 10]
    joined = open_dataset(str(folder), **COLUMNS | {"id_column": "cocoid"})
    assert (joined.ids, joined.images) == (["7", "8"], ["7", "8", "7"])
    assert shades(joined) == [10, 20] == shades(joined)  # they can be opened again
    assert each.fingerprint != joined.fingerprint


def test_a_column_may_hold_lists_of_captions(tmp_path: Path) -> None:
    rows = {"image": [picture(1), picture(2)], "captions": [["a", "b"], ["c"]]}
    features = datasets.Features(
        {"image": datasets.Image(), "captions": datasets.List(datasets.Value("string"))}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "set")
    found = open_dataset(str(tmp_path / "set"), **COLUMNS | {"caption_column": "captions"})
    assert (found.images, found.captions) == (["0", "0", "1"], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "val"}, r"split='val' is not in .*set \(train\)"),
        ({"caption_column": "captions"}, "caption_column='captions' is no column .*did you mean 'caption'"),
        ({"id_column": "id"}, "id_column='id' is no column of"),
    ],
)
def test_wrong_parts_of_a_dataset_are_named(changed: dict[str, str], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        open_dataset(str(folder), **COLUMNS | changed)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"could not be loaded as a dataset \(.*save_to_disk"):
        open_dataset(str(tmp_path), **COLUMNS)


def test_files_give_all_captions_of_each_image(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, shade in (("a.png", 5), ("COCO_val2014_000000000042.png", 6)):
        picture(shade).save(tmp_path / "images" / name)
    (tmp_path / "captions.json").write_text(json.dumps({"42": ["x", " "], "a": "y"}))
    with pytest.warns(UserWarning, match="1 captions are empty and left out"):
        found = read_captioned(tmp_path / "captions.json", tmp_path / "images")
    assert (found.ids, found.images, found.captions) == (["42", "a"], ["42", "a"], ["x", "y"])
    assert shades(found) == [6, 5]
    assert all(isinstance(visual, InputImage) for visual in found.visuals())
    (tmp_path / "captions.json").write_text(json.dumps({"b": "z"}))
    with pytest.raises(FileError, match=r"\('b'\) has no image"):
        read_captioned(tmp_path / "captions.json", tmp_path / "images")


def test_rows_with_a_number_go_by_the_column_that_names_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, shade in (("1", 10), ("2", 20)):
        picture(shade).save(tmp_path / "images" / f"{name}.png")
    rows = [{"id": n, "image_path": f"{3 - n}.png", "caption": f"shade {n}"} for n in (1, 2)]
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(FileError, match='id_column="image_path"'):
        read_captioned(path, tmp_path / "images")
    path.write_text("\n".join(json.dumps({**row, "id": row["id"] + 5}) for row in rows))
    found = read_captioned(path, tmp_path / "images")
    assert found.captions == ["shade 1", "shade 2"] and shades(found) == [20, 10]
