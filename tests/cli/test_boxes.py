"""`capeval convert box-features`: released features become folders that metrics read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from capeval_core.demo import demo_set
from tests.cli.conftest import Capeval, read_json, write_json

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


def test_a_stale_folder_of_features_is_refused_or_made_again(capeval: Capeval, tmp_path: Path) -> None:
    """Features of another picture under the same name, of another type, of another encoder."""
    images, out = tmp_path / "images", tmp_path / "boxes"
    images.mkdir()
    for name, scene in zip("ab", demo_set(), strict=False):
        (images / f"{name}.png").write_bytes(scene.image.read_bytes())
    given = ["regions", "--images", images, "--weights", "tiny", "--device", "cpu", "--out"]
    assert capeval(*given, out).status == 0
    before = {name: (out / f"{name}.npz").read_bytes() for name in "ab"}
    (images / "a.png").write_bytes(demo_set()[5].image.read_bytes())
    ran = capeval(*given, out)
    assert ran.status == 0 and "1 written, 1 found" in ran.out
    assert capeval(*given, tmp_path / "fresh").status == 0
    for name in "ab":
        found = (out / f"{name}.npz").read_bytes()
        assert found == (tmp_path / "fresh" / f"{name}.npz").read_bytes()
        assert (found == before[name]) == (name == "b")
    stamp = read_json(out / "regions.json")
    for key, shown in (("fingerprint", "encoder"), ("selection", "selection"), ("dtype", "dtype")):
        write_json(out / "regions.json", stamp | {key: "other"})
        ran = capeval(*given, out)
        assert ran.status == 2 and f"has regions of {shown} " in ran.err
        assert (out / "a.npz").read_bytes() == (tmp_path / "fresh" / "a.npz").read_bytes()
