"""Regions from files and from Python: formats, ids, and everything that can be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.inputs.visual import InputImage
from capeval_core.regions import rle
from capeval_core.regions.colours import ColourRegions
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.source import RegionsError

MASK = np.zeros((6, 8), bool)
MASK[1:4, 2:7] = True
RUNS = {"size": [6, 8], "counts": rle.encode(MASK).tolist()}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "COCO_val2014_000000000042.png"
    Image.new("RGB", (8, 6), "red").save(path)
    return path


@pytest.mark.parametrize(
    "entry",
    [
        MASK,
        RUNS,
        RUNS | {"counts": rle.compress(rle.encode(MASK))},
        RUNS | {"counts": rle.compress(rle.encode(MASK)).encode()},
        {"segmentation": RUNS, "score": 1, "category_id": 3},
        {"bbox": [2, 1, 5, 3]},
    ],
)
def test_ways_to_write_a_region(entry: Any, image: Path) -> None:
    regions = PrecomputedRegions({"42": [entry]}).segment(image)
    assert (regions.masks() == MASK).all()
    assert regions.boxes.tolist() == [[2, 1, 7, 4]]
    assert regions.quality.tolist() == [1]


@pytest.mark.parametrize("name", ["42", "COCO_val2014_000000000042", "COCO_val2014_000000000042.png"])
def test_ids_are_those_of_captions(name: str, image: Path) -> None:
    assert len(PrecomputedRegions({name: [RUNS], "7": []}).segment(image)) == 1
    data = {"bytes": image.read_bytes(), "path": str(image)}
    assert len(PrecomputedRegions({name: [RUNS], "7": []}).segment(data)) == 1
    with Image.open(image) as opened:
        assert len(PrecomputedRegions({name: [RUNS], "7": []}).segment(opened)) == 1


def test_files(tmp_path: Path, image: Path) -> None:
    annotation = {"image_id": 42, "segmentation": RUNS, "score": 0.75}
    coco = {"images": [{"id": 5, "file_name": image.name}], "annotations": [annotation | {"image_id": 5}]}
    for content in ({"42": [RUNS | {"score": 0.75}]}, [annotation], coco):
        file = tmp_path / "masks.json"
        file.write_text(json.dumps(content))
        source = PrecomputedRegions.read(file)
        assert source.name == "precomputed:masks.json"
        assert source.segment(image).quality.tolist() == [0.75]


def test_images_without_names_are_identified_by_content() -> None:
    red, blue = Image.new("RGB", (8, 6), "red"), Image.new("RGB", (8, 6), "blue")
    source = PrecomputedRegions.of([red, blue, red], [[MASK], [], [MASK]])
    assert len(source.segment(red.copy())) == 1
    assert len(source.segment(blue)) == 0
    with pytest.raises(ValueError, match=r"masks\[2\] differ from those of an earlier, equal image"):
        PrecomputedRegions.of([red, blue, red], [[MASK], [], [~MASK]])
    with pytest.raises(ValueError, match=r"len\(masks\)=1 but len\(images\)=2"):
        PrecomputedRegions.of([red, blue], [[]])


def test_colour_regions_can_be_stored(tmp_path: Path) -> None:
    from tools.scenes import draw, sample_scene

    draw(sample_scene(np.random.default_rng(1))).save(tmp_path / "a.png")
    made = ColourRegions().segment(tmp_path / "a.png")
    (tmp_path / "kept.json").write_text(json.dumps({"a": made.coco()}))
    kept = PrecomputedRegions.read(tmp_path / "kept.json").segment(tmp_path / "a.png")
    assert (kept.masks() == made.masks()).all()
    assert kept.boxes.tolist() == made.boxes.tolist()
    assert kept.quality.tolist() == made.quality.tolist()


def test_masks_that_do_not_fit_are_named_all_at_once(image: Path) -> None:
    other = {"size": [8, 6], "counts": [48]}
    short = {"size": [6, 8], "counts": [40]}
    broken = {"size": [6, 8], "counts": "61X\x07"}
    box = {"bbox": [1, 2, -3, 4]}
    source = PrecomputedRegions({"42": [RUNS, other, short, broken, MASK.T, box]})
    with pytest.raises(RegionsError) as caught:
        source.segment(InputImage.of(image, "images[3]"))
    _, *lines = map(str.strip, str(caught.value).splitlines())
    assert [line.split(" of ")[0] for line in lines] == [f"images[3]: mask {i}" for i in range(1, 6)]
    assert all(image.name in line for line in lines)
    assert "is 8 high and 6 wide, but the image is 6 high and 8 wide" in lines[0]
    assert "cover 40 pixels, expected 6 * 8" in lines[1]
    assert "character '\\x07' at 3" in lines[2]
    assert "expected [x, y, width, height]" in lines[4]


def test_empty_masks_are_dropped_and_an_empty_list_has_no_region(image: Path) -> None:
    regions = PrecomputedRegions({"42": [np.zeros((6, 8), bool), MASK]}).segment(image)
    assert (len(regions), regions.dropped) == (1, 1)
    assert len(PrecomputedRegions({"42": []}).segment(image)) == 0


def test_unknown_and_ambiguous_images(image: Path) -> None:
    with pytest.raises(RegionsError, match=r"no precomputed masks of .*42\.png.* 2 images: 1, 2\)"):
        PrecomputedRegions({"1": [], "2": []}).segment(image)
    with pytest.raises(RegionsError, match="may mean any of the masks of 042, 42"):
        PrecomputedRegions({"42": [], "042": []}).segment(image)


def test_all_wrong_entries_are_named_at_once() -> None:
    masks: dict[str, Any] = {
        "a": [MASK.astype(np.uint8), "x", {"size": [1, 1]}],
        "b": RUNS,
        "c": [{"segmentation": [[0, 0, 1, 1, 2, 2]]}],
    }
    with pytest.raises(TypeError, match="5 problems") as caught:
        PrecomputedRegions(masks)
    for part in ("masks['a'][0] is an array uint8", "masks['b'] is a dict: expected a list", "a polygon"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "not JSON"),
        ("[" * 100_000, "JSON that cannot be read"),
        ("3", "it holds a int, expected a list of annotations"),
        ("[1]", "annotation 0 has no image_id"),
        ('{"a": 1}', r"masks\['a'\] is a int: expected a list"),
        ('[{"bbox": [1, 2, 3, 4]}]', "annotation 0 has no image_id"),
        ('{"images": [{"file_name": "a.jpg"}], "annotations": []}', r"images\[0\] has no id or no file_name"),
        ('{"a": [], "a": []}', "the key 'a' comes twice; give all regions of an image in one list"),
    ],
)
def test_files_that_hold_something_else(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "masks.json").write_text(content)
    with pytest.raises(FileError, match=rf"masks\.json: {message}"):
        PrecomputedRegions.read(tmp_path / "masks.json")
    with pytest.raises(FileError, match="there is no such file"):
        PrecomputedRegions.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"size": [30, 40], "counts": [1, None]}, r"has the counts '\[1, None\]': expected run lengths"),
        ({"size": 30, "counts": [1200]}, r"has the size '30': expected \[height, width\]"),
        ({"size": [30, 40, 1], "counts": [1200]}, r"has the size \[30, 40, 1\]: expected \[height, width\]"),
        ({"size": [30, 40], "counts": [-5, 1205]}, "has damaged counts: a run of -5 pixels"),
        ({"size": [30, 40], "counts": "garbage~~"}, "has damaged counts: character"),
        ({"bbox": ["a", 2, 3, 4]}, r"has the bbox .*: expected \[x, y, width, height\]"),
        ({"bbox": [1, 2, 3, 4], "score": "x"}, "has the score 'x': expected a number"),
    ],
)
def test_a_damaged_mask_is_named(entry: dict[str, Any], message: str) -> None:
    shown = Image.new("RGB", (40, 30))
    shown.filename = "a.png"  # type: ignore[attr-defined]
    with pytest.raises(RegionsError, match=f"mask 0 of .*{message}"):
        PrecomputedRegions({"a": [entry]}).find(InputImage.of(shown))


def test_fingerprints_cover_the_masks() -> None:
    prints = [
        PrecomputedRegions(masks).fingerprint
        for masks in (
            {"a": [MASK]},
            {"a": [~MASK]},
            {"b": [MASK]},
            {"a": [RUNS]},
            {"a": [RUNS | {"score": 1}]},
        )
    ]
    assert len(set(prints)) == 5
    assert PrecomputedRegions({"a": [MASK.copy()]}).fingerprint == prints[0]


def test_images_without_a_name_have_regions_by_content() -> None:
    shown = np.full((6, 8, 3), 200, dtype=np.uint8)
    with pytest.raises(
        RegionsError, match=r"no precomputed masks of .*PrecomputedRegions\.of\(images, masks\)"
    ):
        PrecomputedRegions({"42": [RUNS]}).segment(shown)
    assert len(PrecomputedRegions.of([shown], [[RUNS]]).segment(shown.copy())) == 1
