"""`capeval convert box-features`, `capeval convert x152`, and `capeval regions` with those weights."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from capeval_core.inputs.box_stores import BoxFeatureStore
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.scores.box_source import box_source_opener
from tests.cli.conftest import Ran
from tests.inputs.box_writing import SIZE, detected
from tests.support.seeded import x152, x152_checkpoint

Capeval = Callable[..., Ran]


def info(seed: int, n: int = 7) -> dict[str, Any]:
    """What `extract_features.py` saves of an image."""
    found = detected(seed, n)
    return {
        "bbox": found["boxes"],
        "num_boxes": np.int64(n),
        "objects": np.arange(n - 1),
        "image_width": SIZE[0],
        "image_height": SIZE[1],
        "cls_prob": np.full((n, 4), 0.25, np.float32),
        "image_id": f"COCO_{seed}",
        "features": found["features"],
    }


def entry_of(saved: dict[str, Any]) -> dict[str, Any]:
    """What `convert_to_lmdb.py` makes of it."""
    return {
        **{"image_id": saved["image_id"], "image_h": saved["image_height"], "image_w": saved["image_width"]},
        **{"num_boxes": saved["num_boxes"], "boxes": saved["bbox"], "features": saved["features"]},
    }


def in_base64(entry: dict[str, Any]) -> dict[str, Any]:
    """The same as in older releases."""
    arrays = {name: base64.b64encode(entry[name].tobytes()) for name in ("boxes", "features")}
    return {**entry, **arrays}


def write_lmdb(folder: Path, entries: dict[str, bytes]) -> Path:
    with (
        lmdb.open(str(folder), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in entries.items():
            transaction.put(key.encode(), value)
        transaction.put(b"keys", pickle.dumps([key.encode() for key in entries]))
    return folder


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """An LMDB with an entry of arrays and one in base64."""
    one, other = entry_of(info(1)), in_base64(entry_of(info(2)))
    return write_lmdb(tmp_path / "x.lmdb", {"COCO_1": pickle.dumps(one, 3), "COCO_2": pickle.dumps(other, 4)})


def check(out: Path, *seeds: int) -> None:
    store = BoxFeatureStore.open(out)
    assert sorted(store) == [f"COCO_{seed}" for seed in seeds]
    for seed in seeds:
        found, saved = store[f"COCO_{seed}"].decode(), info(seed)
        assert np.array_equal(found.boxes, saved["bbox"]) and found.size == SIZE
        assert np.array_equal(found.features, saved["features"]) and found.scores is None


def test_an_lmdb_becomes_a_folder_that_metrics_read(capeval: Capeval, released: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions"
    ran = capeval("convert", "box-features", released, "--out", out)
    assert ran.status == 0 and "2 written, 0 found, 0 failed" in ran.out
    assert f"--regions {out}" in ran.out
    check(out, 1, 2)
    source = box_source_opener(out)(selection="bua10_100", device=None, dtype="float32")
    assert source.encoder is None
    (visual,) = source.boxes([InputBoxes.of(str(out / "COCO_1.npz"))], cache=None)  # type: ignore[arg-type]
    assert len(visual.load()) == 7

    before = (out / "COCO_1.npz").stat().st_mtime_ns
    (out / "COCO_2.npz").unlink()
    again = capeval("convert", "box-features", released / "data.mdb", "--out", out)
    assert again.status == 0 and "1 written, 1 found, 0 failed" in again.out
    (out / "COCO_2.npz").unlink()
    again = capeval("convert", "box-features", released, "--out", out)
    assert again.status == 0 and "1 written, 1 found, 0 failed" in again.out
    assert (out / "COCO_1.npz").stat().st_mtime_ns == before


def test_pickles_of_every_protocol_and_order_of_bytes(capeval: Capeval, tmp_path: Path) -> None:
    entries = {f"COCO_{protocol}": pickle.dumps(info(protocol), protocol) for protocol in (2, 3, 4, 5)}
    big = {
        name: v.astype(v.dtype.newbyteorder(">"))
        for name, v in info(1).items()
        if name in ("bbox", "features")
    }
    fortran = {name: np.asfortranarray(value) for name, value in big.items()}
    entries["COCO_1"] = pickle.dumps({**info(1), **fortran})
    entries["COCO_6"] = pickle.dumps(info(6), 2).replace(b"numpy._core", b"numpy.core")  # of numpy 1
    path = write_lmdb(tmp_path / "x", entries)
    assert capeval("convert", "box-features", path, "--out", tmp_path / "out").status == 0
    check(tmp_path / "out", 1, 2, 3, 4, 5, 6)


def test_npy_files_one_or_a_folder(capeval: Capeval, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for seed in (1, 2):
        np.save(files / f"COCO_{seed}.npy", info(seed), allow_pickle=True)  # type: ignore[arg-type]
    assert capeval("convert", "box-features", files, "--out", tmp_path / "all").status == 0
    check(tmp_path / "all", 1, 2)
    assert capeval("convert", "box-features", files / "COCO_1.npy", "--out", tmp_path / "one").status == 0
    check(tmp_path / "one", 1)


class Touch:
    """A pickle that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_what_is_wrong_with_an_image_costs_that_image(capeval: Capeval, tmp_path: Path) -> None:
    good = entry_of(info(1))
    nested: Any = 1
    for _ in range(20):
        nested = (nested,) * 10  # a pickle of a few bytes, and an array of 10**20 numbers
    entries = {
        "COCO_1": good,
        "nested": {**good, "image_w": nested},
        "digits": {**good, "image_h": 10**5000},
        "attack": {**good, "features": Touch(tmp_path / "was-here")},
        "no-boxes": {name: value for name, value in good.items() if name != "boxes"},
        "list": [1, 2],
        "text": {**good, "features": "no base64!"},
        "none": {**good, "features": 5},
        "short": {**good, "features": good["features"][:3]},
        "outside": {**good, "image_w": 20},
        "a/b": good,
        "..": good,
    }
    path = write_lmdb(tmp_path / "x", {name: pickle.dumps(entry) for name, entry in entries.items()})
    out = tmp_path / "out"
    ran = capeval("convert", "box-features", path, "--out", out)
    assert ran.status == 0 and "1 written, 0 found, 11 failed" in ran.out
    assert not (tmp_path / "was-here").exists()
    assert sorted(entry.name for entry in out.iterdir()) == ["COCO_1.npz", "regions.json"]
    message = " ".join(ran.err.split())
    for expected in (
        "11 of 12 images failed:",
        "the entry 'attack': the pickle names posix.system: expected NumPy arrays, dicts, texts and numbers",
        "the entry 'no-boxes': there is no 'boxes' or 'bbox'",
        "'nested': [\"width\"] is a tuple of length 10: expected a number of pixels",
        "'digits': [\"size\"] is a tuple of length 2: expected width and height",
        "the entry 'list': the pickle is a list of length 2: expected a dict of box features",
        "the base64 is damaged",
        "is the number 5: expected an array, or base64 of one",
        "there are 7 boxes but 3 rows of features",
        "outside of an image of 20x48",
        "the image id 'a/b' can name no file",
        "the image id '..' can name no file",
    ):
        assert expected in message


def test_what_is_no_release(capeval: Capeval, tmp_path: Path, released: Path) -> None:
    np.save(tmp_path / "plain.npy", np.ones((3, 4)))
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none", "there is no such file or folder: expected 12-in-1's LMDB"),
        ("x.txt", "is a file of another form"),
        ("empty", "holds no such features"),
        ("plain.npy", "it is an array of shape (3, 4) of float64: expected a dict"),
        ("broken.npy", "it is not an .npy file, or damaged"),
    ):
        ran = capeval("convert", "box-features", tmp_path / name, "--out", tmp_path / f"out-{name}")
        assert ran.status in (1, 2) and message in " ".join(ran.err.split()), name
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    ran = capeval("convert", "box-features", released, "--out", tmp_path / "full")
    assert ran.status == 2 and "is not empty" in ran.err


def test_a_released_database_says_what_to_do_where_features_are_read(released: Path) -> None:
    with pytest.raises(Exception, match="capeval convert box-features DATABASE --out FOLDER"):
        BoxFeatureStore.open(released)["COCO_1"].decode()


def test_the_converted_detector_finds_regions(capeval: Capeval, tmp_path: Path) -> None:
    path, weights, images = x152_checkpoint(tmp_path / "model.pth"), tmp_path / "weights", tmp_path / "images"
    settings = {"PRE_NMS_TOP_N_TEST": 50, "POST_NMS_TOP_N_TEST": 30}  # 1,000 of each level take long
    path.with_name("detectron_config.yaml").write_text(json.dumps({"MODEL": {"RPN": settings}}))
    ran = capeval("convert", "x152", path, "--out", weights)
    assert ran.status == 0
    assert "Faster R-CNN, ResNeXt 1-2-1-1, 2x2d, FPN 6; 5 classes; 10 dimensions" in ran.out
    assert f"--references references.json --regions {weights}" in " ".join(ran.out.split())
    config = json.loads((weights / "config.json").read_text())
    images.mkdir()
    for seed in (1, 2):
        pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{seed}.png")
    out = tmp_path / "regions"
    command = ["regions", "--images", images, "--out", out, "--weights", weights, "--device", "cpu"]
    ran = capeval(*command)
    assert ran.status == 0 and "2 written" in ran.out and ", all, float32" in ran.out
    assert json.loads((out / "regions.json").read_text())["selection"] == "all"
    found = BoxFeatureStore.open(out)["1"].decode()
    with Image.open(images / "1.png") as image:
        tiny = x152()
        released = type(tiny)(config, tiny.network.state_dict(), device="cpu").detect(image)
    assert np.array_equal(found.features, released.features) and len(found) <= 100
    assert "2 found" in capeval(*command).out
    ran = capeval(*command[:-2], "--device", "cpu", "--selection", "lxmert36")
    assert ran.status == 2
    assert "--selection lxmert36 is no choice of this region encoder, which has one rule" in ran.err
