"""What becomes of outputs: one table, a check of all, a histogram with a threshold."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capeval_core.errors import FileError
from capeval_core.integrations.shards import check_shards, merge_shards, score_histogram, score_shard
from tests.integrations.shard_files import rows_of, write_parquet


def write_output(path: Path, uids: Sequence[str], first: int = 0) -> None:
    """The scores of as many rows under these uids."""
    rows = {**rows_of(len(uids), first), "uid": list(uids)}
    path.parent.mkdir(exist_ok=True)
    source = write_parquet(path.parent.parent / f"of-{path.name}", rows)
    score_shard(source, path, "rougel")


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Three scored shards of 20 rows each; `1` has a row without a score."""
    folder = tmp_path / "out"
    for i in range(3):
        rows = rows_of(20, first=20 * i)
        if i == 1:
            rows["caption"][3] = ""
        score_shard(write_parquet(tmp_path / f"{i}.parquet", rows), folder / f"{i}.parquet", "rougel")
    return folder


def test_merged_rows_are_those_of_all_shards_in_order(outputs: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    for name in (".x.partial", "._0.parquet", "manifest.json"):
        (outputs / name).write_bytes(b"{}")
    for _ in range(2):  # a merged table is replaced
        assert merge_shards(outputs, target) == 60
        merged = pq.ParquetFile(target)
        assert merged.read()["uid"].to_pylist() == rows_of(60)["uid"]
        expected = pa.concat_tables([pq.read_table(outputs / f"{i}.parquet") for i in range(3)])
        assert merged.read().equals(expected)
        assert json.loads(merged.metadata.metadata[b"capeval_merged"])["shards"] == 3


def test_what_cannot_be_merged_is_refused(outputs: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    (tmp_path / "scores.txt").write_text("mine")
    (tmp_path / "link.parquet").symlink_to(outputs / "all.parquet")
    own = (outputs / "all.parquet", tmp_path / "link.parquet")
    for where in (*own, tmp_path / "scores.txt", tmp_path / "new.csv", tmp_path / "0.parquet"):
        with pytest.raises(ValueError, match=where.name):
            merge_shards(outputs, where)
    content = bytearray((outputs / "1.parquet").read_bytes())
    content[40] ^= 1
    (outputs / "1.parquet").write_bytes(content)
    with pytest.raises(FileError, match=r"out/1.parquet"):
        merge_shards(outputs, target)
    (outputs / "1.parquet").unlink()
    score_shard(tmp_path / "1.parquet", outputs / "1.parquet", "bleu")
    (outputs / "3.parquet").write_bytes(b"")
    write_parquet(outputs / "4.parquet", rows_of(2))
    with pytest.raises(FileError) as refused:
        merge_shards(outputs, target)
    for name in ("1.parquet", "3.parquet", "4.parquet"):
        assert f"out/{name} " in str(refused.value)
    assert not target.exists() and not list(tmp_path.glob(".*"))


def with_uids_as_bytes(table: pa.Table) -> pa.Table:
    return table.set_column(0, "uid", table["uid"].cast(pa.binary()))


def with_a_renamed_part(table: pa.Table) -> pa.Table:
    parts = table["parts"].combine_chunks()
    renamed = pa.StructArray.from_arrays(parts.flatten(), [f"x{field.name}" for field in parts.type])
    return table.set_column(2, "parts", renamed)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(0, 17),
        lambda table: table.rename_columns(["uid", "scorf", *table.column_names[2:]]),
        with_uids_as_bytes,
        with_a_renamed_part,
    ],
    ids=["rows lost", "scores renamed", "uids as bytes", "part renamed"],
)
def test_rows_and_columns_that_are_not_as_written_are_refused(
    change: Callable[[pa.Table], pa.Table], tmp_path: Path
) -> None:
    """What a flipped bit in a footer does: the note is whole, but of other rows and columns."""
    folder = tmp_path / "out"
    for i in range(2):
        source = write_parquet(tmp_path / f"{i}.parquet", rows_of(20, first=20 * i))
        score_shard(source, folder / f"{i}.parquet", "bleu")
    note = {b"capeval_scores": pq.read_metadata(folder / "1.parquet").metadata[b"capeval_scores"]}
    table = change(pq.read_table(folder / "1.parquet"))
    pq.write_table(table.replace_schema_metadata(note), folder / "1.parquet")
    for read in (lambda: merge_shards(folder, tmp_path / "all.parquet"), lambda: score_histogram(folder)):
        with pytest.raises(FileError, match=r"out/1.parquet"):
            read()
    assert not (tmp_path / "all.parquet").exists()
    found = check_shards(folder)
    assert [*found.damaged] == ["1.parquet"] and not found.ok
    with pytest.warns(UserWarning, match=r"out/1.parquet"):  # the next run makes it again
        assert not score_shard(tmp_path / "1.parquet", folder / "1.parquet", "bleu").skipped
    assert check_shards(folder).ok and merge_shards(folder, tmp_path / "all.parquet") == 40


def test_a_uid_that_comes_twice_in_one_shard_is_a_fault(tmp_path: Path) -> None:
    write_output(tmp_path / "out/0.parquet", ["a", "b", "a"])
    write_output(tmp_path / "out/1.parquet", ["c", "d"])
    check = check_shards(tmp_path / "out")
    assert check.duplicates == {"a": {"0.parquet": 2}}
    assert check.repeated == 1 and not check.ok


def test_quantiles_and_threshold_are_exact(tmp_path: Path) -> None:
    for i, count in enumerate((900, 40, 300, 7)):
        write_output(tmp_path / f"out/{i}.parquet", [f"{i}-{j}" for j in range(count)], first=100 * i)
    folder = tmp_path / "out"
    scores = [score for path in folder.iterdir() for score in pq.read_table(path)["score"].to_pylist()]
    there = np.sort(scores)
    found = score_histogram(folder, keep=0.3)
    assert (found.scored, found.failed) == (len(there), 0)
    assert found.mean == pytest.approx(there.mean(), abs=1e-12)
    assert found.quantiles == {
        share: np.quantile(there, share, method="inverted_cdf") for share in found.quantiles
    }
    assert found.threshold == there[-round(0.3 * len(there))]
    assert found.kept == (there >= found.threshold).sum() and found.counts.sum() == len(there)
