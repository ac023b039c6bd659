"""`capeval regions` and `capeval convert box-features`: folders of box features, which metrics read."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from capeval_core import load
from capeval_core.cache import FeatureCache
from tests.cli.conftest import Capeval, Ran, write_json

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


def test_the_folder_scores_as_its_images(regions: Capeval, folder: Path) -> None:
    assert regions().status == 0
    ids = sorted(path.stem for path in (folder.parent / "out").glob("*.npz"))
    captions, paths = [f"a star and {i}" for i in ids], [next(folder.glob(f"{i}.*")) for i in ids]
    settings: dict[str, Any] = {"weights": "tiny", "device": "cpu", "cache": FeatureCache(0)}
    expected = load("umic", **settings).score(captions, paths)
    found = load("umic", **settings, regions=str(folder.parent / "out"))
    assert found.score(captions, paths).scores == found.score(captions, ids).scores == expected.scores
