"""Rows on disk: sorted, deduplicated, stamped, and hard to lose."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.inputs.samples import check_samples
from capeval_core.registry import METRICS, metric_class
from capeval_core.row_store import RowStore, check_folder, read_shard, write_shard
from capeval_core.rows import COMMON, RowCollector, canonical, content_key, row_schema
from tests.support.seams import LIMITS
from tests.support.small_disk import fill

SCHEMA = row_schema(pa.field("cosine", pa.float32()), pa.field("near", pa.list_(pa.float32())))
WITHOUT_DOWNLOADS = {name: {"regions": "colours", "phrases": "chunks"} for name in ("hices", "refhices")}
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


@contextmanager
def storing(path: Path, **stamp: Any) -> Iterator[RowStore]:
    """A store that is flushed at the end."""
    store = opened(path, **stamp)
    yield store
    store.flush()


def quietly(call: Callable[..., Any], *given: Any, **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*given, **keywords)


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
    stored = canonical(pa.concat_tables([SCHEMA.empty_table(), *tables]))
    last = dict(pairs)
    assert stored["index"].to_pylist() == sorted(last)
    assert stored["cosine"].to_pylist() == [float(last[i]) for i in sorted(last)]
    assert all(column.num_chunks <= 1 for column in stored.columns)
    assert stored.schema == SCHEMA


def test_rows_survive_and_the_later_ones_count(tmp_path: Path) -> None:
    with storing(tmp_path / "new" / "folder") as store:
        store.append(rows(2, 0), ["c2", "c0"])
        store.append(rows(1), ["c1"])
        assert store.read()[0]["index"].to_pylist() == [0, 1, 2]  # without a flush of one's own
    with storing(tmp_path / "new" / "folder") as store:
        store.append(rows(0, value=0.25), ["other"])
    assert kept(tmp_path / "new" / "folder") == {0: (0.25, "other"), 1: (0.5, "c1"), 2: (0.5, "c2")}


def test_failures_are_not_kept_and_hide_what_they_replace(tmp_path: Path) -> None:
    with storing(tmp_path) as store:
        store.append(rows(0, 1), ["c0", "c1"])
        store.append(rows(1, error="broken"), ["changed"])
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_rows_are_written_when_an_error_ends_the_run(tmp_path: Path) -> None:
    samples = check_samples(["a", "b"], [np.zeros((8, 8, 3), np.uint8)] * 2, needs_references=False)
    collector = RowCollector(samples, SCHEMA, opened(tmp_path), tqdm(disable=True), refuse_errors=True)
    with pytest.raises(KeyboardInterrupt), collector:
        collector.add(rows(0))
        raise KeyboardInterrupt
    assert kept(tmp_path) == {0: (0.5, content_key(samples, 0))}
    collector = RowCollector(samples, SCHEMA, opened(tmp_path), tqdm(disable=True), refuse_errors=True)
    assert [window.captions for window in collector.windows()] == [["b"]]
    with pytest.raises(ValueError, match="it broke"), collector:
        collector.add(rows(1, error="it broke"))


def test_rows_are_reused_for_the_same_content_only(tmp_path: Path) -> None:
    with storing(tmp_path) as first:
        first.append(rows(0, 1, 2, 3), ["c0", "c1", "c2", "c3"])
    for store in (opened(tmp_path), first):  # from the disk, and by the store that was given them
        asked: list[int] = []

        def content(position: int, asked: list[int] = asked) -> str:
            asked.append(position)
            return ["c3", "other", "c7"][position]

        stored, missing = store.reuse([3, 1, 7], content)
        assert stored["index"].to_pylist() == [3] and missing == [1, 2]
        assert asked == [0, 1]  # nothing is read of what cannot be there
    first.append(rows(3, error="broken"), ["c3"])
    assert first.reuse([3], lambda _: "c3")[1] == [0]
    first.append(rows(3, value=0.75), ["c3"])
    assert first.reuse([3], lambda _: "c3")[0]["cosine"].to_pylist() == [0.75]


def test_many_rows_are_written_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "shard_rows", 4)
    store = opened(tmp_path)
    for i in range(10):
        store.append(rows(i), [f"c{i}"])
    assert sum(len(pq.read_table(shard)) for shard in tmp_path.glob("*.parquet")) == 8


def test_rows_are_written_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    store.append(rows(0), ["c0"])
    assert not list(tmp_path.glob("*.parquet"))  # the time is not over
    monkeypatch.setattr(store, "_written_at", time.monotonic() - 2 * LIMITS.shard_seconds)
    store.append(rows(1), ["c1"])
    (shard,) = tmp_path.glob("*.parquet")
    assert pq.read_table(shard)["index"].to_pylist() == [0, 1]
    store.append(rows(2), ["c2"])
    assert list(tmp_path.glob("*.parquet")) == [shard]  # it began again


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert kept(tmp_path) == {}
    stamp = json.loads((tmp_path / "stamp.json").read_text())
    assert STAMP.items() <= stamp.items()


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path)
    with pytest.raises(ValueError, match="other settings") as caught:
        opened(tmp_path, dtype="float16", layer=3)
    message = str(caught.value)
    assert "dtype: 'float32' there, 'float16' now" in message and "layer: None there, 3 now" in message
    assert "encoder" not in message and str(tmp_path) in message
    with pytest.raises(ValueError, match="columns"):
        RowStore(tmp_path, row_schema(pa.field("cosine", pa.float64())), STAMP)


def test_rows_of_another_metric_are_refused_by_its_name_and_not_by_columns(tmp_path: Path) -> None:
    opened(tmp_path)
    for metric, message in (("other", False), (STAMP["metric"], True)):
        with pytest.raises(ValueError, match="holds rows of other settings") as caught:
            RowStore(tmp_path, row_schema(), {**STAMP, "metric": metric})
        assert ("columns" in str(caught.value), "'other' now" in str(caught.value)) == (message, not message)


def test_a_file_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is a folder of something else"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"notes.txt' is a file"):
        opened(tmp_path / "notes.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize("damage", [None, "", "{", "[1]", "null", '{"metric": "ow'])
def test_a_lost_or_cut_stamp_is_made_again_from_the_shards(tmp_path: Path, damage: str | None) -> None:
    with storing(tmp_path) as store:
        store.append(rows(0), ["c0"])
    note = tmp_path / "stamp.json"
    whole = note.read_text()
    if damage is None:
        note.unlink()
    else:
        note.write_text(damage)
    with pytest.raises(ValueError, match=r"other settings.*dtype: 'float32' there, 'float16' now"):
        quietly(opened, tmp_path, dtype="float16")
    with pytest.warns(UserWarning, match=r"stamp\.json is lost or damaged"):
        assert kept(tmp_path) == {0: (0.5, "c0")}
    assert note.read_text() == whole


def test_a_changed_stamp_is_noticed(tmp_path: Path) -> None:
    with storing(tmp_path) as store:
        store.append(rows(0), ["c0"])
    note = tmp_path / "stamp.json"
    note.write_text(note.read_text().replace("float32", "float16"))
    with pytest.raises(ValueError, match="dtype: 'float32' there, 'float16' now"):
        quietly(opened, tmp_path, dtype="float16")
    with pytest.warns(UserWarning, match="lost or damaged"):
        assert kept(tmp_path) == {0: (0.5, "c0")}


def test_a_cut_stamp_without_rows_is_made_again(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "stamp.json").write_text('{"met')
    with pytest.warns(UserWarning, match="lost or damaged"):
        opened(tmp_path)
    assert kept(tmp_path) == {}


def test_a_lost_stamp_above_folders_of_rows_is_made_again(tmp_path: Path) -> None:
    with storing(tmp_path):
        pass
    with storing(tmp_path / "member", layer=3) as store:
        store.append(rows(0), ["c0"])
    (tmp_path / "stamp.json").unlink()
    with pytest.raises(ValueError, match="metric: 'own' there, 'other' now"):
        opened(tmp_path, metric="other")
    opened(tmp_path)
    assert (tmp_path / "stamp.json").is_file()


def test_a_shard_of_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    with storing(tmp_path / "other", encoder="xyz") as store:
        store.append(rows(0), ["c0"])
    with storing(tmp_path / "rows") as store:
        store.append(rows(1), ["c1"])
    (stray,) = (tmp_path / "other").glob("*.parquet")
    (tmp_path / "rows" / stray.name).write_bytes(stray.read_bytes())
    with pytest.raises(ValueError, match=f"{stray.name}.*other settings.*encoder: 'xyz' there, 'abc' now"):
        opened(tmp_path / "rows").read()


def test_what_a_kill_left_half_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0123.partial").write_bytes(b'{"metr')
    with storing(tmp_path) as store:
        store.append(rows(0), ["c0"])
    (tmp_path / "4567.partial").write_bytes(b"PAR1")
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_any_flipped_bit_of_a_shard_is_noticed_and_costs_its_own_rows(tmp_path: Path) -> None:
    for i in range(3):
        with storing(tmp_path) as store:
            store.append(rows(i), [f"c{i}"])
    damaged = sorted(tmp_path.glob("*.parquet"))[1]
    whole = damaged.read_bytes()
    assert len(whole) > 1000
    for position in [*range(0, len(whole), 97), *range(len(whole) - 9, len(whole))]:
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        damaged.write_bytes(content)
        with pytest.warns(UserWarning, match=f"{damaged} is damaged"):
            assert kept(tmp_path).keys() == {0, 2}
    damaged.write_bytes(whole)
    assert kept(tmp_path).keys() == {0, 1, 2}


def test_shards_have_page_checksums_and_any_reader_reads_them(tmp_path: Path) -> None:
    with storing(tmp_path) as store:
        store.append(rows(*range(50)), [f"c{i}" for i in range(50)])
    (shard,) = tmp_path.glob("*.parquet")
    table = pq.read_table(shard, page_checksum_verification=True)
    assert table.select(SCHEMA.names) == rows(*range(50))
    content = bytearray(shard.read_bytes())
    chunk = pq.read_metadata(shard).row_group(0).column(SCHEMA.get_field_index("cosine"))
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1  # within a page's values
    (tmp_path / "copy").write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(tmp_path / "copy", page_checksum_verification=True)


def test_what_is_renamed_into_place_is_on_the_disk_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spy on the real calls: what was handed to the disk, and which files had their names then."""
    calls: list[tuple[str, set[str]]] = []
    sync = os.fsync

    def fsync(opened_file: int) -> None:
        sync(opened_file)
        what = Path(f"/proc/self/fd/{opened_file}").readlink()
        what = what if what.is_absolute() else tmp_path  # a file without a name, which only a check makes
        calls.append(
            ("folder" if what.is_dir() else what.suffix, {path.suffix for path in tmp_path.iterdir()})
        )

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("only Linux says which file an open one is")
    monkeypatch.setattr(os, "fsync", fsync)
    with storing(tmp_path) as store:
        store.append(rows(0), ["c0"])
    assert calls == [
        (".partial", {".partial"}),
        ("folder", {".json"}),
        (".partial", {".partial", ".json"}),
        ("folder", {".json", ".parquet"}),
    ]


def test_stores_can_start_and_write_at_the_same_time(tmp_path: Path) -> None:
    def work(start: int) -> None:
        with storing(tmp_path / "rows") as store:
            for i in range(start, start + 5):
                store.append(rows(i), [f"c{i}"])
                store.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(0, 40, 5)))
    assert kept(tmp_path / "rows").keys() == set(range(40))
    assert not list((tmp_path / "rows").glob("*.partial"))


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As a disk that fills up in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_midway_leaves_no_file_and_one_warning(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append(rows(0), ["c0"])
    store.flush()
    before = sorted(tmp_path.iterdir())
    with warnings.catch_warnings(record=True) as caught, no_file_longer_than(1000):
        warnings.simplefilter("always")
        for i in range(1, 4):
            store.append(rows(i), [f"c{i}"])
            store.flush()
    assert sorted(tmp_path.iterdir()) == before
    (message,) = [str(each.message) for each in caught]
    assert message.startswith(f"rows={str(tmp_path)!r} cannot be written any more (File too large)")
    stored, missing = store.reuse(
        [0, 1, 2, 3], lambda position: f"c{position}"
    )  # the run itself lost nothing
    assert stored["index"].to_pylist() == [0, 1, 2, 3] and missing == []
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_an_interruption_in_the_middle_of_a_write_leaves_no_file_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    store = opened(tmp_path)
    store.append(rows(0), ["c0"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["stamp.json"]
    store.flush()
    assert kept(tmp_path) == {0: (0.5, "c0")}


def test_a_folder_that_is_gone_costs_the_run_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "rows")
    shutil.rmtree(tmp_path / "rows")
    store.append(rows(0), ["c0"])
    with pytest.warns(UserWarning, match="cannot be written any more"):
        store.flush()
    assert store.reuse([0], lambda _: "c0")[1] == []


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (5, TypeError, r"rows=5 is the number 5: pass the path of a folder"),
        (b"rows", TypeError, r"rows=b'rows' is a bytes of length 4: pass the path of a folder"),
        ("", ValueError, r"rows='' is empty: pass the path of a folder"),
        ("a\0b", ValueError, r"rows='a\\x00b' has a NUL character.*leave it out"),
        ("x" * 300, ValueError, r"rows='xxx.*File name too long.*: pass another folder"),
        ("/dev/null", ValueError, r"rows='/dev/null' is a file: pass a folder"),
        ("/dev/null/below", ValueError, r"rows='/dev/null/below': no folder can be made there"),
        ("/proc/rows", ValueError, r"rows='/proc/rows': no folder can be made there"),
    ],
)
def test_a_path_that_can_be_no_folder_of_rows_is_refused_with_what_to_do(
    given: Any, kind: type[Exception], message: str
) -> None:
    for check in (check_folder, opened, metric_with_rows):
        with pytest.raises(kind, match=message) as caught:
            check(given)
        assert isinstance(caught.value, kind)


def metric_with_rows(path: Any) -> None:
    metric = capeval_core.load("clips", weights="tiny", device="cpu")
    metric.score(["a red circle"], [np.zeros((8, 8, 3), np.uint8)], rows=path)


def test_a_folder_where_nothing_can_be_written_passes_with_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("capeval_core.writing.tempfile.TemporaryFile", refuse)
    (tmp_path / ".0.partial").write_bytes(b"")  # what a kill left holds nothing to reuse
    with pytest.raises(ValueError, match=r"nothing can be written there \(Read-only file system\)"):
        check_folder(tmp_path)
    (tmp_path / "stamp.json").write_text(json.dumps(STAMP))
    assert check_folder(tmp_path) == tmp_path


def test_a_check_of_a_folder_changes_nothing(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "new" / "rows") == tmp_path / "new" / "rows"
    assert check_folder(tmp_path) == tmp_path
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").write_text("mine")
    for foreign in (tmp_path, str(tmp_path)):
        with pytest.raises(ValueError, match="is a folder of something else"):
            check_folder(foreign)
    with pytest.raises(ValueError, match=r"notes.txt' is a file"):
        check_folder(tmp_path / "notes.txt")


def test_a_stamp_that_is_no_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stamp.json")
    with pytest.raises(ValueError, match="is a folder of something else"):
        opened(tmp_path)


def test_a_full_disk_is_refused_first_and_given_up_later(small_disk: Path) -> None:
    store = opened(small_disk / "rows")
    store.append(rows(0), ["c0"])
    store.flush()
    fill(small_disk)
    with pytest.raises(ValueError, match=r"no folder can be made there \(No space left on device\)"):
        check_folder(small_disk / "more")
    store.append(rows(1), ["c1"])
    with pytest.warns(UserWarning, match="No space left on device"):
        store.flush()
    assert not list((small_disk / "rows").glob("*.partial"))
    with storing(small_disk / "rows") as again:  # what is there can still be reused
        assert again.read()[0]["index"].to_pylist() == [0]


def test_a_read_only_disk_is_refused_first_and_given_up_later(small_disk: Path) -> None:
    with storing(small_disk / "rows") as store:
        store.append(rows(0), ["c0"])
    (small_disk / "rows" / "stamp.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ValueError, match=r"no folder can be made there \(Read-only file system\)"):
        check_folder(small_disk / "more")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with storing(small_disk / "rows") as store:
            assert store.reuse([0, 1], lambda position: f"c{position}")[1] == [1]
            store.append(rows(1), ["c1"])
    message = [str(each.message) for each in caught]
    assert len(message) == 2 and "lost or damaged" in message[0] and "Read-only file system" in message[1]


def test_each_row_has_the_key_of_its_own_content(weights: str, tmp_path: Path) -> None:
    """A window of several tables: the second one's rows are not the first one's captions."""
    metric = capeval_core.load("clips", weights=weights, device="cpu", cache=FeatureCache())
    captions = [f"a circle number {i}" for i in range(5)]
    samples = metric.check(captions, [np.full((8, 8, 3), i * 40, np.uint8) for i in range(5)])

    with (
        metric.progress_bar(5, False) as bar,
        metric.collector(samples, metric.ROW, tmp_path, metric.stamp(), bar) as collector,
    ):
        for window in collector.windows():
            for table in metric.encode(window):
                for i in range(len(table)):
                    collector.add(table.slice(i, 1))
    metric.flush()
    store = RowStore(tmp_path, metric.ROW, metric.stamp())
    _, content = store.read()
    assert content == {i: content_key(samples, i) for i in range(5)}
    assert store.reuse(range(5), lambda row: content_key(samples, row))[1] == []


def test_rows_of_other_weights_are_refused_by_the_name_of_the_model(
    seeded_weights: Path, tmp_path: Path
) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    first = capeval_core.load("clips", weights="tiny", device="cpu")
    first.score(["a circle"], [image], rows=tmp_path)
    other = capeval_core.load("clips", weights=str(seeded_weights), device="cpu")
    message = (
        f"weights: '{first.models['weights'].fingerprint}' there, '{other.models['weights'].fingerprint}' now"
    )
    with pytest.raises(ValueError, match=f"other settings.*{message}"):
        other.score(["a circle"], [image], rows=tmp_path)


@pytest.mark.parametrize("name", METRICS)
def test_a_stamp_names_the_fingerprint_of_every_model(name: str) -> None:
    weights = {} if metric_class(name).default_weights is None else {"weights": "tiny"}
    metric = capeval_core.load(name, **weights, device="cpu", **WITHOUT_DOWNLOADS.get(name, {}))
    stamp = metric.stamp()
    assert metric.models
    assert {model: stamp.get(model) for model in metric.models} == {
        model: opened_model.fingerprint for model, opened_model in metric.models.items()
    }


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_a_stamp_that_is_no_regular_file_beside_rows_is_refused(tmp_path: Path, kind: str) -> None:
    store = opened(tmp_path)
    store.append(rows(0), ["c0"])
    store.flush()
    (tmp_path / "stamp.json").unlink()
    if kind == "a pipe":
        os.mkfifo(tmp_path / "stamp.json")
        reader = os.open(tmp_path / "stamp.json", os.O_RDONLY | os.O_NONBLOCK)  # a writer would not block
    else:
        (tmp_path / "stamp.json").symlink_to("/dev/zero")
        reader = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(ValueError, match=r"stamp\.json there is no regular file: delete it"):
            quietly(opened, tmp_path)
    finally:
        os.close(reader)


DAMAGED_TABLES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a column is missing": lambda table: table.drop_columns(["cosine"]),
    "a column of another type": lambda table: table.set_column(
        table.schema.get_field_index("cosine"), "cosine", pa.array(["x"] * len(table))
    ),
    "an index that does not fit": lambda table: table.set_column(
        0, "index", pa.array([2**64 - 1], pa.uint64())
    ),
    "an index below 0": lambda table: table.set_column(0, "index", pa.array([-1])),
    "no index": lambda table: table.set_column(0, "index", pa.array([None], pa.int64())),
    "no content": lambda table: table.set_column(
        table.schema.get_field_index("content"), "content", pa.array([None], pa.string())
    ),
    "a column twice": lambda table: table.append_column("cosine", table["cosine"]),
}


def test_a_row_that_waited_long_enough_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs from the last shard, not from the last look for rows."""
    store = opened(tmp_path)
    monkeypatch.setattr(store, "_written_at", time.monotonic() - 2 * LIMITS.shard_seconds)
    store.reuse([0], str)
    store.append(rows(0), ["c0"])
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    store.append(rows(1), ["c1"])
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_rows_of_any_rank_are_stored(tmp_path: Path) -> None:
    """evaluate numbers the rows of process r from r times 2**40."""
    store = opened(tmp_path)
    indices = [0, 300 * 2**40, 2**63 - 1]
    store.append(rows(*indices), ["a", "b", "c"])
    store.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(tmp_path).read()[0]["index"].to_pylist() == indices


@pytest.mark.parametrize("damage", DAMAGED_TABLES)
def test_a_shard_of_other_columns_costs_its_own_rows(tmp_path: Path, damage: str) -> None:
    store = opened(tmp_path)
    for i in range(2):
        store.append(rows(i), [f"c{i}"])
        store.flush()
    damaged = sorted(tmp_path.glob("*.parquet"))[0]
    table, stamp = read_shard(damaged)
    damaged.unlink()
    write_shard(tmp_path, DAMAGED_TABLES[damage](table), stamp)
    written = sorted(tmp_path.glob("*.parquet"))[-1]
    with pytest.warns(UserWarning) as caught:
        stored = kept(tmp_path)
    assert stored == {1: (0.5, "c1")}
    assert [str(written) in str(each.message) for each in caught] == [True]
    assert "computed again" in str(caught[0].message)
