"""`capeval regions` and `capeval convert box-features`: folders of box features, which metrics read."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from capeval_core import load
from capeval_core.cache import FeatureCache
from capeval_core.testing import count_forwards
from tests.cli.conftest import Capeval, Ran, write_json

MANIFEST = "regions.json"
SIZE = (64, 48)


def detected(seed: int, n: int = 7) -> dict[str, Any]:
    """What `extract_features.py` of 12-in-1 saves of an image."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 20, (n, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 25, (n, 2))], axis=1).astype(np.float32)
    return {
        **{"bbox": boxes, "num_boxes": np.int64(n), "objects": np.arange(n - 1)},
        **{"image_width": SIZE[0], "image_height": SIZE[1], "cls_prob": np.full((n, 4), 0.25, np.float32)},
        **{"image_id": f"COCO_{seed}", "features": rng.random((n, 2048), dtype=np.float32)},
    }


def entry_of(saved: dict[str, Any]) -> dict[str, Any]:
    """What `convert_to_lmdb.py` makes of it."""
    return {
        **{"image_id": saved["image_id"], "image_h": saved["image_height"], "image_w": saved["image_width"]},
        **{"num_boxes": saved["num_boxes"], "boxes": saved["bbox"], "features": saved["features"]},
    }


def write_lmdb(folder: Path, entries: dict[str, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as writer:
        for key, value in entries.items():
            writer.put(key.encode(), value)
        writer.put(b"keys", pickle.dumps([key.encode() for key in entries]))
    return folder


def check(out: Path, *seeds: int) -> None:
    assert sorted(path.stem for path in out.glob("*.npz")) == [f"COCO_{seed}" for seed in seeds]
    for seed in seeds:
        saved = detected(seed)
        with np.load(out / f"COCO_{seed}.npz") as found:
            assert np.array_equal(found["boxes"], saved["bbox"]) and tuple(found["size"]) == SIZE
            assert np.array_equal(found["features"], saved["features"]) and "scores" not in found


def test_a_released_lmdb_becomes_a_folder_and_goes_on(capeval: Capeval, tmp_path: Path) -> None:
    big = {
        name: np.asfortranarray(value.astype(value.dtype.newbyteorder(">")))
        for name, value in detected(1).items()
        if name in ("bbox", "features")
    }
    entries = {
        f"COCO_{protocol}": pickle.dumps(entry_of(detected(protocol)), protocol) for protocol in (2, 4)
    }
    entries["COCO_1"] = pickle.dumps({**detected(1), **big})
    entries["COCO_6"] = pickle.dumps(detected(6), 2).replace(b"numpy._core", b"numpy.core")  # of numpy 1
    path, out = write_lmdb(tmp_path / "x.lmdb", entries), tmp_path / "out"
    assert "4 written, 0 found, 0 failed" in capeval("convert", "box-features", path, "--out", out).out
    check(out, 1, 2, 4, 6)
    (out / "COCO_2.npz").unlink()
    again = capeval("convert", "box-features", path / "data.mdb", "--out", out)
    assert again.status == 0 and "1 written, 3 found, 0 failed" in again.out
    write_json(tmp_path / "c.json", {"COCO_1": "a dog"})
    scored = capeval(
        "score", "umic", "--candidates", tmp_path / "c.json", "--regions", out, "--weights", "tiny"
    )
    assert scored.status == 2 and "2,048" in scored.err  # tiny reads features of another detector
    np.save(tmp_path / "COCO_1.npy", detected(1), allow_pickle=True)  # type: ignore[arg-type]
    assert capeval("convert", "box-features", tmp_path / "COCO_1.npy", "--out", tmp_path / "one").status == 0
    check(tmp_path / "one", 1)


class Touch:
    """A pickle that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_what_is_wrong_with_an_image_costs_that_image(capeval: Capeval, tmp_path: Path) -> None:
    good = entry_of(detected(1))
    entries = {
        "COCO_1": good,
        "digits": {**good, "image_h": 10**5000},
        "attack": {**good, "features": Touch(tmp_path / "was-here")},
        "no-boxes": {name: value for name, value in good.items() if name != "boxes"},
        "list": [1, 2],
        "text": {**good, "features": "no base64!"},
        "short": {**good, "features": good["features"][:3]},
        "outside": {**good, "image_w": 20},
        "a/b": good,
        "..": good,
    }
    path = write_lmdb(tmp_path / "x", {name: pickle.dumps(entry) for name, entry in entries.items()})
    ran = capeval("convert", "box-features", path, "--out", tmp_path / "out")
    assert ran.status == 0 and "1 written, 0 found, 9 failed" in ran.out
    assert not (tmp_path / "was-here").exists()
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["COCO_1.npz", MANIFEST]
    assert all(f"'{name}'" in ran.err for name in entries if name != "COCO_1")


@pytest.fixture
def folder(tmp_path: Path, images: list[Path]) -> Path:
    """Six images, and a text."""
    (tmp_path / "images").mkdir()
    for image in images:
        shutil.copy(image, tmp_path / "images")
    (tmp_path / "images" / "notes.txt").write_text("x")
    return tmp_path / "images"


@pytest.fixture
def regions(capeval: Capeval, folder: Path) -> Capeval:
    def run(*arguments: object) -> Ran:
        out = folder.parent / "out"
        given = ["--images", folder, "--out", out, "--weights", "tiny", "--device", "cpu"]
        return capeval("regions", *given, *arguments)

    return run


def files_in(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_folder_scores_as_its_images(regions: Capeval, folder: Path) -> None:
    assert regions().status == 0
    ids = sorted(path.stem for path in (folder.parent / "out").glob("*.npz"))
    captions, paths = [f"a star and {i}" for i in ids], [next(folder.glob(f"{i}.*")) for i in ids]
    settings: dict[str, Any] = {"weights": "tiny", "device": "cpu", "cache": FeatureCache(0)}
    expected = load("umic", **settings).score(captions, paths)
    found = load("umic", **settings, regions=str(folder.parent / "out"))
    assert found.score(captions, paths).scores == found.score(captions, ids).scores == expected.scores


def test_images_that_have_their_file_are_skipped(regions: Capeval, folder: Path, images: list[Path]) -> None:
    assert regions().status == 0
    out = folder.parent / "out"
    before, times = files_in(out), {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "1.npz").write_bytes(before["1.npz"][:500])  # damaged
    (out / "2.npz").unlink()
    shutil.copy(images[5], folder / "3.png")  # another image
    shutil.copy(images[1], folder / "new.png")
    ran = regions()
    assert ran.status == 0 and "4 written" in ran.out and "3 found, 0 failed" in ran.out
    after = files_in(out)
    assert {name for name in after if after[name] != before.get(name)} == {"3.npz", "new.npz"}
    kept = {name for name, time in times.items() if (out / name).stat().st_mtime_ns == time}
    assert kept == {"0.npz", "4.npz", "5.npz", MANIFEST}
    with count_forwards() as counts:
        assert "0 written, 7 found, 0 failed" in regions().out
    assert counts.items <= 8  # the canary of weights


def test_a_folder_has_regions_of_one_encoder(regions: Capeval, folder: Path) -> None:
    assert regions().status == 0
    out = folder.parent / "out"
    before = files_in(out)
    assert regions("--selection", "lxmert36", "--dtype", "float16").status == 2
    manifest = json.loads(before[MANIFEST])
    write_json(out / MANIFEST, {**manifest, "encoder": "./folder@1234", "fingerprint": "1234"})
    assert regions().status == 2
    write_json(out / MANIFEST, {**manifest, "encoder": "./folder@1234"})  # the same, elsewhere
    assert regions().status == 0
    (out / MANIFEST).unlink()
    assert regions().status == 2
    assert {name: data for name, data in before.items() if name != MANIFEST} == files_in(out)
