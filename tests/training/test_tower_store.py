"""Stored outputs of towers: by content, resumable, and computed again where a file is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capeval_core.training.tower_store import TowerStore


def store(folder: Path, name: str = "clip-1", dtype: str = "float32") -> TowerStore:
    return TowerStore(folder, name, (2, 3), dtype)


def row(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((2, 3), value, dtype=np.float32) + np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = store(tmp_path)
    for part in (["a", "b"], ["c"]):
        for key in part:
            written.put(key, row(ord(key)))
        written.flush()
    return tmp_path


def test_rows_come_back_by_key_in_any_order(folder: Path) -> None:
    opened = store(folder)
    rows = opened.rows(opened.places(["c", "a", "c"])).numpy()
    np.testing.assert_array_equal(rows, [row(ord("c")), row(ord("a")), row(ord("c"))])
    assert opened.missing(["d", "a", "d"]) == ["d"]


def test_stores_of_other_names_or_dtypes_share_a_folder(folder: Path) -> None:
    assert store(folder, "clip-2").missing(["a"]) == ["a"]
    assert store(folder, dtype="float16").missing(["a"]) == ["a"]


def test_what_was_not_flushed_is_missing(folder: Path) -> None:
    interrupted = store(folder)
    interrupted.put("d", row(1))
    assert interrupted.missing(["d"]) == [] and store(folder).missing(["d", "a"]) == ["d"]


@pytest.mark.parametrize("suffix", [".bin", ".json"])
def test_a_damaged_shard_is_computed_again(folder: Path, suffix: str) -> None:
    size = {path: path.stat().st_size for path in folder.glob("*.bin")}
    rows = max(size, key=lambda path: size[path])
    path = rows.with_suffix(suffix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged .* computed again"):
        opened = store(folder)
    assert opened.missing(["a", "b", "c"]) == ["a", "b"]
    assert store(folder).missing(["a", "b", "c"]) == ["a", "b"]  # and without a warning now


def test_a_lost_file_of_rows_is_noticed(folder: Path) -> None:
    for path in folder.glob("*.bin"):
        path.unlink()
    with pytest.warns(UserWarning, match="damaged"):
        assert store(folder).missing(["a", "c"]) == ["a", "c"]


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exceeds the range of float16"):
        store(tmp_path, dtype="float16").put("a", row(1e6))
