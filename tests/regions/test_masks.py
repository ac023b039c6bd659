"""Masks as runs, against a plain way of computing; and the ways to write the regions of an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from tests.support.seams import mask_regions, open_regions

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(2, 9), st.integers(2, 9)))
MASK = np.zeros((6, 8), bool)
MASK[1:4, 2:7] = True
RUNS = {"size": [6, 8], "counts": [13, 3, 3, 3, 3, 3, 3, 3, 3, 3, 8]}


def blank(height: int, width: int, name: str = "a.png") -> Image.Image:
    image: Any = Image.new("L", (width, height))
    image.filename = name
    return image


def regions_of(*entries: Any, size: tuple[int, int]) -> Any:
    return open_regions({"a": list(entries)}).segment(blank(*size))


def plain_runs(mask: NDArray[np.bool_]) -> list[int]:
    """COCO's definition: pixels column by column, zeros first."""
    plain, value = [0], False
    for pixel in mask.T.reshape(-1):
        if bool(pixel) != value:
            plain.append(0)
            value = not value
        plain[-1] += 1
    return plain


def compressed(runs: list[int]) -> str:
    """COCO's text: differences to the run before the last one, in groups of five bits."""
    text = ""
    for i, run in enumerate(runs):
        value, more = run - runs[i - 2] if i > 2 else run, True
        while more:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text += chr((bits | 32 * more) + 48)
    return text


@given(MASKS)
def test_run_lengths_equal_those_of_coco(mask: NDArray[np.bool_]) -> None:
    runs = {"size": list(mask.shape), "counts": plain_runs(mask)}
    packed = runs | {"counts": compressed(plain_runs(mask))}
    found = regions_of(mask, runs, packed, size=mask.shape)
    rows, columns = np.nonzero(mask)
    if not len(rows):
        assert (len(found), found.dropped) == (0, 3)
        return
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert found.boxes.tolist() == [box] * 3 and found.areas.tolist() == [mask.sum()] * 3
    assert [own.tolist() for own in found.runs] == [plain_runs(mask)] * 3


def test_compressed_runs_of_pycocotools_are_read() -> None:
    """`counts` that pycocotools 2.0 writes."""
    found = regions_of({"size": [44, 28], "counts": r"\975mk0?"}, size=(44, 28))
    assert found.runs[0].tolist() == [300, 7, 5, 900, 20]


@pytest.mark.parametrize(
    "entry",
    [
        MASK,
        RUNS,
        RUNS | {"counts": compressed(plain_runs(MASK))},
        RUNS | {"counts": compressed(plain_runs(MASK)).encode()},
        {"segmentation": RUNS, "score": 1, "category_id": 3},
        {"bbox": [2, 1, 5, 3]},
    ],
)
def test_every_form_of_a_region_gives_the_same_mask(entry: Any) -> None:
    regions = regions_of(entry, size=(6, 8))
    assert (regions.masks() == MASK).all()
    assert regions.boxes.tolist() == [[2, 1, 7, 4]] and regions.quality.tolist() == [1]


def test_a_limit_keeps_the_best_regions_in_their_order() -> None:
    masks = np.random.default_rng(0).random((4, 5, 7)) < 0.5
    entries = [
        {"segmentation": {"size": [5, 7], "counts": plain_runs(mask)}, "score": score}
        for mask, score in zip(masks, [0.2, 0.4, 0.4, 0.9], strict=True)
    ]
    regions = regions_of(*entries, size=(5, 7))
    for most, places in ((1, [3]), (2, [1, 3]), (3, [1, 2, 3])):
        best = regions.limited(most)
        assert (best.masks() == masks[places]).all() and best.quality.tolist() == regions.quality[
            places
        ].tolist()
        assert best.boxes.tolist() == regions.boxes[places].tolist()
        assert best.areas.tolist() == masks[places].sum((1, 2)).tolist()
    assert len(regions) == 4 and regions.limited(4) is regions and regions.limited(5) is regions
    assert (regions.masks(1, 3) == masks[1:3]).all() and (regions.masks(3) == masks[3:]).all()
    with pytest.raises(ValueError):
        regions.limited(0)
    with pytest.raises(ValueError):
        regions.quality[0] = 1


def test_empty_masks_are_dropped_and_counted() -> None:
    regions = regions_of(np.zeros((6, 8), bool), MASK, size=(6, 8))
    assert (len(regions), regions.dropped) == (1, 1)
    none = open_regions({"a": []}).segment(blank(6, 8))
    assert len(none) == 0 and none.masks().shape == (0, 6, 8) and none.boxes.shape == (0, 4)


def test_region_files_are_read_as_coco_defines_them(tmp_path: Path) -> None:
    annotation = {"image_id": 42, "segmentation": RUNS, "score": 0.75}
    names = [{"id": 5, "file_name": "42.png"}, {"id": 6, "file_name": "empty.png"}]
    coco = {"images": names, "annotations": [annotation | {"image_id": 5}]}
    file = tmp_path / "masks.json"
    for content in ({"42": [RUNS | {"score": 0.75}]}, [annotation], coco):
        file.write_text(json.dumps(content))
        for spec in (file, str(file)):
            source = open_regions(spec)
            assert source.name == "precomputed:masks.json"
            regions = source.segment(blank(6, 8, "42.png"))
            assert regions.quality.tolist() == [0.75] and (regions.masks() == MASK).all()
    assert not len(source.segment(blank(6, 8, "empty.png")))  # which has no annotation


def test_fingerprints_differ_where_masks_differ() -> None:
    flat = np.zeros((8, 6), bool)
    flat.reshape(-1)[:] = MASK.reshape(-1)  # the same bits in another shape
    written: list[Any] = [{"a": [MASK]}, {"a": [~MASK]}, {"b": [MASK]}, {"a": [RUNS]}, {"a": [flat]}]
    prints = [open_regions(masks).fingerprint for masks in [*written, {"a": [RUNS | {"score": 1}]}]]
    assert len(set(prints)) == 6
    assert open_regions({"a": [MASK.copy()]}).fingerprint == prints[0]


def test_a_region_that_does_not_fit_the_image_is_named_with_both_sizes() -> None:
    """By its place in the list, although those before it fit or do not."""
    small = {"size": [5, 8], "counts": [40]}
    short = {"size": [6, 8], "counts": [13, 3]}
    negative = {"size": [6, 8], "counts": [50, -2]}
    cut = RUNS | {"counts": compressed(plain_runs(MASK))[:-1] + "P"}
    lacking = {"bbox": [2, 1, 5]}
    more = {"bbox": [2, 1, 5, 3, 9]}
    inverted = {"bbox": [2, 1, -5, 3]}
    entries = [
        MASK,
        MASK.T,
        MASK,
        small,
        short,
        negative,
        cut,
        lacking,
        more,
        inverted,
        RUNS | {"score": "x"},
    ]
    with pytest.raises(ValueError, match="9 problems") as caught:
        regions_of(*entries, size=(6, 8))
    lines = {int(line.split("mask ")[1].split()[0]): line for line in str(caught.value).splitlines()[1:]}
    assert list(lines) == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    image = "6 high and 8 wide"
    assert "8 high and 6 wide" in lines[1] and lines[1].index("8 high and 6") < lines[1].index(image)
    assert "5 high and 8 wide" in lines[3] and image in lines[3]
    assert "16 pixels" in lines[4] and "6 * 8" in lines[4]
    assert "counts" in lines[5] and "counts" in lines[6]
    for index in (7, 8, 9):
        assert "bbox" in lines[index] and "[x, y, width, height]" in lines[index]
    assert "score" in lines[10] and "'x'" in lines[10].replace('"', "")


def test_an_annotation_brings_its_own_box_and_the_predicted_quality() -> None:
    annotation = {"segmentation": RUNS, "bbox": [1, 0.5, 6, 4], "predicted_iou": 0.25, "score": 0.75}
    without = {**annotation, "predicted_iou": None}
    worst = {**annotation, "predicted_iou": 0}
    regions = regions_of(annotation, without, worst, {"bbox": [1, 2, 3, 4]}, size=(6, 8))
    assert regions.quality.tolist() == [0.25, 0.75, 0, 1]
    assert regions.boxes.tolist() == [[1, 0.5, 7, 4.5]] * 3 + [[1, 2, 4, 6]]
    assert regions.areas.tolist() == [15, 15, 15, 12]
    flat = regions_of({"bbox": [1, 2, 3, 0]}, {"bbox": [1, 2, 0, 3]}, MASK, size=(6, 8))
    assert (len(flat), flat.dropped) == (1, 2)


def test_a_box_covers_the_pixels_whose_centres_lie_in_it() -> None:
    halves = {"bbox": [0.5, 1.5, 2, 2]}  # from centre to centre: the first is inside, the last is not
    beyond = {"bbox": [-3, -3, 6.6, 5.4]}
    outside = {"bbox": [8, 0, 4, 4]}
    regions = regions_of(halves, beyond, outside, size=(6, 8))
    expected = np.zeros((2, 6, 8), bool)
    expected[0, 1:3, 0:2] = True
    expected[1, 0:2, 0:4] = True
    assert (regions.masks() == expected).all() and regions.dropped == 1


def test_masks_of_equal_ids_are_one_source_in_any_order() -> None:
    first = open_regions({"a": [MASK], "b": [~MASK]})
    assert open_regions({"b": [~MASK], "a": [MASK]}).fingerprint == first.fingerprint
    assert open_regions({"a": [MASK, ~MASK], "b": []}).fingerprint != first.fingerprint
    assert open_regions({"a": [~MASK], "b": [MASK]}).fingerprint != first.fingerprint


WRONG_FILES: list[tuple[Any, str]] = [
    ([{"image_id": 1, "segmentation": RUNS}, {"segmentation": RUNS}], "annotation 1 has no image_id"),
    ([{"image_id": 1, "segmentation": RUNS}, {"image_id": 2}, 5], "annotation 2 has no image_id"),
    (
        {"images": [{"id": 1, "file_name": "a"}, {"id": 2}], "annotations": []},
        "images[1] has no id or no file_name",
    ),
    ({"images": [{"file_name": "a"}], "annotations": []}, "images[0] has no id or no file_name"),
    ({"annotations": {"1": RUNS}}, "holds a dict"),
    (7, "holds a int"),
    ({"a": [RUNS], "b": [RUNS, 3]}, "masks['b'][1] is a int"),
    ({"a": [RUNS], "b": RUNS}, "masks['b'] is a dict"),
    ({"a": [RUNS, {"segmentation": [[1, 2, 3, 4, 5, 6]]}]}, "masks['a'][1] is a polygon"),
    ({"a": [RUNS, {"segmentation": {"size": [6, 8]}}]}, "masks['a'][1] is unknown"),
]


@pytest.mark.parametrize(("content", "message"), WRONG_FILES)
def test_what_is_wrong_in_a_file_of_regions_is_named_by_its_place(
    content: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "masks.json"
    file.write_text(json.dumps(content))
    with pytest.raises((ValueError, TypeError)) as caught:
        open_regions(file)
    assert str(file) in str(caught.value) and message in str(caught.value)


def test_damaged_characters_of_counts_are_named() -> None:
    with pytest.raises(ValueError) as caught:
        regions_of({"size": [6, 8], "counts": "1\x01"}, {"size": [6, 8], "counts": "P"}, size=(6, 8))
    assert "mask 0" in str(caught.value) and "'\\x01' at 1" in str(caught.value)
    assert "mask 1" in str(caught.value) and "inside a number" in str(caught.value)


def test_masks_of_several_sizes_are_refused_by_their_index() -> None:
    with pytest.raises(ValueError) as caught:
        mask_regions([MASK, MASK, MASK[:5]])
    assert "masks[2]" in str(caught.value) and "(5, 8)" in str(caught.value) and "(6, 8)" in str(caught.value)
    with pytest.raises(ValueError, match="size"):
        mask_regions([])


@pytest.mark.parametrize("name", ["objects", "rectangles", "everything"])
def test_a_threshold_of_boxes_is_a_share(name: str) -> None:
    for value in ("-0.1", "1.1", "nan", "", "x"):
        with pytest.raises(ValueError) as caught:
            open_regions(f"{name}:threshold={value}")
        assert f"threshold={value}" in str(caught.value)
        if name == "everything":
            assert "no boxes" in str(caught.value)
        else:
            assert "from 0 to 1" in str(caught.value) and f"{name}:threshold=0.2" in str(caught.value)
    with pytest.raises(ValueError, match="did you mean") as caught:
        open_regions(f"{name}:treshold=0.2")
    assert f"{name} has no setting 'treshold'" in str(caught.value) and "'threshold'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("object", "'objects'"),
        ("colours:x", "'colours'"),
        ("objects:", "'objects'"),
        ("xyz", ""),
        ("rectangle:a", "'rectangles'"),
    ],
)
def test_a_source_of_regions_that_is_not_known(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="regions") as caught:
        open_regions(name)
    assert repr(name) in str(caught.value)
    assert all(repr(kind) in str(caught.value) for kind in ("objects", "everything", "rectangles", "colours"))
    assert ("did you mean" in str(caught.value)) is bool(hint) and hint in str(caught.value)
    with pytest.raises(TypeError, match="regions"):
        open_regions(5)
