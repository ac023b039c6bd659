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

from tests.support.seams import open_regions

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
        for mask, score in zip(masks, [0.2, 0.4, 0.4, 0.4], strict=True)
    ]
    regions = regions_of(*entries, size=(5, 7))
    best = regions.limited(2)
    assert (best.masks() == masks[1:3]).all() and len(regions) == 4 and regions.limited(4) is regions
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
