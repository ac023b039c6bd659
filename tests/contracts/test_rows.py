"""Kept rows beyond the contract of stores: when they are written, which are used, memory that is freed."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from capeval_core.rows import COMMON, canonical, row_schema
from capeval_core.testing import count_forwards
from tests.support.seams import LIMITS, open_regions

SCHEMA = row_schema(pa.field("cosine", pa.float32()))
CAPTIONS = [f"a circle number {i}" for i in range(6)]


@pytest.fixture(scope="module", autouse=True)
def _opened() -> Iterator[None]:
    """The encoder stays open, so that its canary is not counted again."""
    kept = capeval_core.load("clips", weights="tiny")
    yield
    del kept


def images() -> list[Any]:
    return [np.full((8, 8, 3), i * 40, np.uint8) for i in range(6)]


def score(folder: Path, captions: int = 6, **options: Any) -> Result:
    metric = capeval_core.load("clips", **{"weights": "tiny", "cache": FeatureCache(), **options})
    return metric.score(CAPTIONS[:captions], images()[:captions], rows=folder)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1000)), max_size=40))
def test_canonical_rows_are_sorted_and_the_last_of_an_index(pairs: list[tuple[int, int]]) -> None:
    common = {"group": "g", "error": None, "truncated": 0, "references": 0, "empty": False}
    rows = [{"index": i, **common, "cosine": float(value)} for i, value in pairs]
    stored = canonical(pa.Table.from_pylist(rows, schema=SCHEMA))
    last = dict(pairs)
    assert stored["index"].to_pylist() == sorted(last)
    assert stored["cosine"].to_pylist() == [float(last[i]) for i in sorted(last)]
    assert stored.schema == SCHEMA and list(SCHEMA)[: len(COMMON)] == list(COMMON)


@pytest.mark.parametrize(
    ("limits", "shards"),
    [({}, 1), ({"shard_rows": 2}, 3), ({"shard_seconds": -1}, 6), ({"shard_rows": 4}, 2)],
)
def test_rows_are_written_after_a_number_of_them_and_after_a_time(
    limits: dict[str, Any], shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"texts_between_shards": 1, **limits}.items():
        monkeypatch.setattr(LIMITS, name, value)
    score(tmp_path)
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("*.parquet"))]
    assert len(tables) == shards and {"index", "group", "cosine"} <= set(tables[0].column_names)
    assert [index for table in tables for index in table["index"].to_pylist()] == list(range(6))


def test_a_damaged_file_costs_its_own_rows(tmp_path: Path) -> None:
    for captions in (2, 4, 6):
        expected = score(tmp_path, captions)
    damaged = sorted(tmp_path.glob("*.parquet"))[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    (tmp_path / ".0.partial").write_bytes(b"PAR1")  # what a kill leaves
    with count_forwards() as forwards, pytest.warns(UserWarning, match=damaged.name):
        assert score(tmp_path) == expected
    assert forwards.items == 4  # two captions and their images


def test_a_failed_row_hides_the_one_before_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    metric = capeval_core.load("clips", weights="tiny", on_error="nan", rows=tmp_path / "rows")
    assert list(metric.score(["a dog"], [path]).errors) == [0]
    source = Path(capeval_core.__file__).parent / "demo"
    shutil.copy(next(source.rglob("*.png")), path)
    expected = metric.score(["a dog"], [path])
    assert expected.errors == {} and metric.score(["a dog"], [path]) == expected


def test_a_row_is_tried_again_where_its_image_was_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is the one that failed: what was wrong is a source of regions, or the machine."""
    source = open_regions("colours")
    options: dict[str, Any] = {"weights": "tiny", "regions": source, "on_error": "nan"}

    def score() -> Result:
        metric = capeval_core.load("hices", **options, cache=FeatureCache())
        found: Result = metric.score(CAPTIONS[:2], images()[:2], rows=tmp_path)
        return found

    def fails(_: object) -> None:
        raise OSError("out of file handles")

    with monkeypatch.context() as patch:
        patch.setattr(source, "find", fails)
        assert sorted(score().errors) == [0, 1]
    assert score().errors == {}


@pytest.mark.parametrize("lost", ["note", "nothing"])
def test_settings_are_known_by_every_file(lost: str, seeded_weights: Path, tmp_path: Path) -> None:
    """Also without what lies beside them; a file of another folder is refused by its name."""
    expected = score(tmp_path / "rows")
    score(tmp_path / "other", weights=str(seeded_weights))
    if lost == "note":
        for path in (tmp_path / "rows").iterdir():
            if path.suffix != ".parquet":
                path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"other settings \(weights: '\w+' there, '\w+' now\)"):
            score(tmp_path / "rows", weights=str(seeded_weights))
        with pytest.raises(ValueError, match=r"dtype: 'float32' there, 'bfloat16' now"):
            score(tmp_path / "rows", dtype="bfloat16")
        with count_forwards() as forwards:
            assert score(tmp_path / "rows") == expected
        assert forwards.items == 0
    (stray,) = (tmp_path / "other").glob("*.parquet")
    shutil.copy(stray, tmp_path / "rows")
    with pytest.raises(ValueError, match=f"{stray.name}.*other settings.*weights"):
        score(tmp_path / "rows")


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt", Path("/proc/rows"), Path("x" * 300)):
        with pytest.raises(ValueError, match="rows="):
            score(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_rows_on_a_disk_that_cannot_be_written_are_used(small_disk: Path) -> None:
    expected = score(small_disk / "rows", 4)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ValueError, match=r"Read-only file system"):
        score(small_disk / "more")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with count_forwards() as forwards:
            assert score(small_disk / "rows").scores[:4] == expected.scores
    assert forwards.items == 4
    (message,) = [str(one.message) for one in caught]
    assert "cannot be written any more (Read-only file system)" in message


PROGRAM = """
import ctypes
from pathlib import Path
from capeval_core.run import FreedMemory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(2000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
for place, piece in enumerate(pieces):
    if place % 16 != 15:  # what stays holds the others in the heap
        libc.free(piece)
before = resident()
memory = FreedMemory()
memory.add(10)
few = before - resident()
memory.add(10_000)
print(few >> 20, (before - resident()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no such holes")
def test_holes_between_what_stays_are_given_back_after_many_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    few, many = map(int, done.stdout.split())
    assert abs(few) < 10 and many > 80, done  # of 107 MB
