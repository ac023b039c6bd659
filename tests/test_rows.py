"""Rows on disk: sorted, deduplicated, stamped, and hard to lose."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.rows import COMMON, RowStore, canonical, row_schema

SCHEMA = row_schema(pa.field("cosine", pa.float32()), pa.field("near", pa.list_(pa.float32())))
STAMP = {"metric": "own", "encoder": "abc", "dtype": "float32"}


def rows(*numbers: int, value: float = 0.5, error: str | None = None) -> pa.Table:
    made: list[dict[str, Any]] = [
        {
            "index": i,
            "group": f"g{i}",
            "error": error,
            "truncated": 0,
            "references": 0,
            "empty": False,
            "cosine": value,
            "near": [value] * (i % 3),
        }
        for i in numbers
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def opened(path: Path, **stamp: Any) -> RowStore:
    return RowStore(path, SCHEMA, {**STAMP, **stamp})


def kept(path: Path) -> dict[int, tuple[float, str]]:
    table, content = opened(path).read()
    assert table.schema == SCHEMA
    return {row["index"]: (row["cosine"], content[row["index"]]) for row in table.to_pylist()}


def test_a_schema_begins_with_the_common_columns() -> None:
    assert list(SCHEMA)[: len(COMMON)] == list(COMMON)
    assert SCHEMA.names[len(COMMON) :] == ["cosine", "near"]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1000)), max_size=40))
def test_canonical_rows_are_sorted_and_the_last_of_an_index(pairs: list[tuple[int, int]]) -> None:
    tables = [rows(i, value=float(value)) for i, value in pairs]
    found = canonical(pa.concat_tables([SCHEMA.empty_table(), *tables]))
    last = dict(pairs)
    assert found["index"].to_pylist() == sorted(last)
    assert found["cosine"].to_pylist() == [float(last[i]) for i in sorted(last)]
    assert all(column.num_chunks <= 1 for column in found.columns)
    assert found.schema == SCHEMA


def test_rows_survive_and_the_later_ones_count(tmp_path: Path) -> None:
    with opened(tmp_path / "new" / "folder") as store:
        store.append(rows(2, 0), ["c2", "c0"])
        store.append(rows(1), ["c1"])
        assert store.read()[0]["index"].to_pylist() == [0, 1, 2]  # without a flush of one's own
    with opened(tmp_path / "new" / "folder") as store:
        store.append(rows(0, value=0.25), ["other"])
    assert kept(tmp_path / "new" / "folder") == {0: (0.25, "other"), 1: (0.5, "c1"), 2: (0.5, "c2")}


def test_failures_are_not_kept_and_hide_what_they_replace(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(rows(0, 1), ["c0", "c1"])
        store.append(rows(1, error="broken"), ["changed"])
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_rows_are_written_when_an_error_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path) as store:
        store.append(rows(0), ["c0"])
        raise KeyboardInterrupt
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_rows_are_reused_for_the_same_content_only(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.append(rows(0, 1, 2, 3), ["c0", "c1", "c2", "c3"])
    for store in (opened(tmp_path), first):  # from the disk, and by the store that was given them
        asked: list[int] = []

        def content(place: int, asked: list[int] = asked) -> str:
            asked.append(place)
            return ["c3", "other", "c7"][place]

        found, missing = store.reuse([3, 1, 7], content)
        assert found["index"].to_pylist() == [3] and missing == [1, 2]
        assert asked == [0, 1]  # nothing is read of what cannot be there
    first.append(rows(3, error="broken"), ["c3"])
    assert first.reuse([3], lambda _: "c3")[1] == [0]
    first.append(rows(3, value=0.75), ["c3"])
    assert first.reuse([3], lambda _: "c3")[0]["cosine"].to_pylist() == [0.75]


def test_many_rows_are_written_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowStore, "_ROWS", 4)
    store = opened(tmp_path)
    for i in range(10):
        store.append(rows(i), [f"c{i}"])
    assert sum(len(pq.read_table(shard)) for shard in tmp_path.glob("*.parquet")) == 8


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert kept(tmp_path) == {}
    stamp = json.loads((tmp_path / "stamp.json").read_text())
    assert STAMP.items() <= stamp.items()


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path)
    with pytest.raises(ValueError, match="other settings") as caught:
        opened(tmp_path, dtype="float16", layer=3)
    said = str(caught.value)
    assert "dtype: 'float32' there, 'float16' now" in said and "layer: None there, 3 now" in said
    assert "encoder" not in said and str(tmp_path) in said
    with pytest.raises(ValueError, match="columns"):
        RowStore(tmp_path, row_schema(pa.field("cosine", pa.float64())), STAMP)


def test_a_file_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is a folder of something else"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"notes.txt' is a file"):
        opened(tmp_path / "notes.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize("damage", ["", "{", "[1]", "null"])
def test_a_damaged_stamp_is_told(tmp_path: Path, damage: str) -> None:
    opened(tmp_path)
    (tmp_path / "stamp.json").write_text(damage)
    with pytest.raises(ValueError, match=r"stamp.json is damaged.*delete the folder"):
        opened(tmp_path)


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0123.partial").write_bytes(b'{"metr')
    with opened(tmp_path) as store:
        store.append(rows(0), ["c0"])
    (tmp_path / "4567.partial").write_bytes(b"PAR1")
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_a_damaged_shard_loses_only_its_own_rows(tmp_path: Path) -> None:
    for i in range(3):
        with opened(tmp_path) as store:
            store.append(rows(i), [f"c{i}"])
    damaged = sorted(tmp_path.glob("*.parquet"))[1]
    content = bytearray(damaged.read_bytes())
    content[-40:] = bytes(40)
    damaged.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{damaged.name} is damaged"):
        assert kept(tmp_path).keys() == {0, 2}


def test_stores_can_start_and_write_at_the_same_time(tmp_path: Path) -> None:
    def work(start: int) -> None:
        with opened(tmp_path / "rows") as store:
            for i in range(start, start + 5):
                store.append(rows(i), [f"c{i}"])
                store.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(0, 40, 5)))
    assert kept(tmp_path / "rows").keys() == set(range(40))
    assert not list((tmp_path / "rows").glob("*.partial"))
