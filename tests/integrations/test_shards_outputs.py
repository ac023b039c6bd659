"""What becomes of outputs: one table, a check of all, a histogram with a threshold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from capeval_core.cli import main
from capeval_core.errors import FileError
from capeval_core.integrations.shards import check_shards, merge_shards, score_histogram, score_shard
from capeval_core.integrations.shards.distribution import order_statistics
from capeval_core.integrations.shards.outputs import COUNTS, NOTE, sealed, whole_table
from capeval_core.integrations.shards.places import Place
from capeval_core.reports.canvas import REGIONS
from tests.integrations.shard_files import rows_of, write_parquet
from tests.support.seams import LIMITS
from tests.support.small_disk import fill


def write_output(
    path: Path, uids: Sequence[str], scores: Sequence[float | None], signature: str = "capeval:x"
) -> None:
    """An output as `score_shard` writes it, of these scores."""
    none = [None] * len(uids)
    columns = {"uid": list(uids), "score": list(scores), "parts": none, "truncated": none, "error": none}
    table = pa.table({**columns, "score": pa.array(scores, pa.float64())})
    note = {"signature": signature}
    table = table.replace_schema_metadata({NOTE: json.dumps(note)})
    with whole_table(Place.of("target", path), table.schema) as writer:
        writer.write(table)
        counts = {"rows": len(uids), "failed": list(scores).count(None), "truncated": 0}
        writer.add_note(COUNTS, sealed(note, counts))


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
    for where, message in (
        (outputs / "all.parquet", "in the folder of the shards, where it would count as one"),
        (tmp_path / "link.parquet", "in the folder of the shards, where it would count as one"),
        (tmp_path / "scores.txt", "no table by its name"),
        (tmp_path / "new.csv", "no table by its name"),
        (tmp_path / "0.parquet", "is there, and no merged table"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_shards(outputs, where)
    content = bytearray((outputs / "1.parquet").read_bytes())
    content[40] ^= 1
    (outputs / "1.parquet").write_bytes(content)
    with pytest.raises(
        FileError, match=r"out/1.parquet: is cut off or damaged .*: delete it and score its shard"
    ):
        merge_shards(outputs, target)
    write_output(outputs / "1.parquet", ["a"], [0.5])
    (outputs / "3.parquet").write_bytes(b"")
    write_parquet(outputs / "4.parquet", rows_of(2))
    with pytest.raises(FileError) as refused:
        merge_shards(outputs, target)
    for line in (
        "1.parquet: has the signature 'capeval:x', others have 'capeval:rougel|",
        "3.parquet: is cut off",
        "4.parquet: is Parquet of something else",
    ):
        assert line in str(refused.value)
    assert not target.exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(FileError, match="nowhere: does not exist"):
        merge_shards(tmp_path / "nowhere", target)
    with pytest.raises(FileError, match=r"0\.parquet: is a file: pass the folder"):
        check_shards(outputs / "0.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="has no scores of shards"):
        check_shards(tmp_path / "empty")


def test_a_full_disk_leaves_no_merged_table(outputs: Path, small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(OSError, match=r"all.parquet cannot be written .*No space left on device"):
        merge_shards(outputs, small_disk / "all.parquet")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_sound_folder_has_nothing_to_complain_of(outputs: Path) -> None:
    found = check_shards(outputs)
    assert found.ok and (found.shards, found.rows, found.repeated, found.duplicates) == (3, 60, 0, {})
    assert list(found.signatures.values()) == [["0.parquet", "1.parquet", "2.parquet"]]
    write_output(outputs / "3.parquet", ["new"], [0.5])
    assert not check_shards(outputs).ok and not check_shards(outputs).repeated  # of another signature


def test_outputs_without_some_rows_or_columns_are_damaged(outputs: Path) -> None:
    about = pq.read_metadata(outputs / "2.parquet").metadata
    table = pq.read_table(outputs / "2.parquet").replace_schema_metadata(
        {key: about[key] for key in (NOTE, COUNTS)}
    )
    pq.write_table(table[:12], outputs / "1.parquet")
    pq.write_table(table.drop_columns(["error"]), outputs / "2.parquet")
    assert check_shards(outputs).damaged == {
        "1.parquet": "has 12 rows, and should have 20",
        "2.parquet": "has the columns uid, score, parts, truncated, "
        "and should have uid, score, parts, truncated, error",
    }


@pytest.mark.parametrize("in_parts", [False, True])
def test_uids_that_come_twice_are_named_with_their_shards(
    in_parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_parts:
        monkeypatch.setattr(LIMITS, "sorted_rows", 40)
    uids = [f"u{i}" for i in range(300)]
    write_output(tmp_path / "a.parquet", [*uids[:100], "u7"], [0.5] * 101)
    write_output(tmp_path / "b.parquet", [*uids[100:200], "u7", "u50"], [0.5] * 102)
    write_output(tmp_path / "c.parquet", uids[200:], [0.5] * 100)
    found = check_shards(tmp_path)
    assert found.duplicates == {
        "u7": {"a.parquet": 2, "b.parquet": 1},
        "u50": {"a.parquet": 1, "b.parquet": 1},
    }
    assert (found.repeated, found.ok) == (3, False)


def test_equal_hashes_of_different_uids_are_no_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(tmp_path / "a.parquet", ["x", "y", "z", "z"], [0.5] * 4)
    monkeypatch.setattr("capeval_core.integrations.shards.merging.hash", lambda uid: 5, raising=False)
    assert check_shards(tmp_path).duplicates == {"z": {"a.parquet": 2}}
    assert check_shards(tmp_path).repeated == 1


def test_many_duplicates_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    for name in "ab":
        write_output(tmp_path / f"{name}.parquet", [f"u{i}" for i in range(1500)], [0.5] * 1500)
    found = check_shards(tmp_path)
    assert (len(found.duplicates), found.repeated) == (1000, 1500)


def test_the_command_check_names_everything(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shards", "check", str(outputs)]) == 0
    assert "unique" in capsys.readouterr().out
    write_output(outputs / "3.parquet", ["row-000001", "new"], [0.5, 0.6])
    (outputs / "4.parquet").write_bytes(b"PAR1")
    (outputs / "5.parquet").write_bytes(b"text")
    (outputs / ".6.partial").write_bytes(b"")
    assert main(["shards", "check", str(outputs)]) == 1
    shown = capsys.readouterr()
    assert "shards     6 (2 damaged)" in shown.out and "signature  capeval:x (1 shard)" in shown.out
    for line in (
        "4.parquet is cut off or damaged",
        "5.parquet is not Parquet",
        ".6.partial",
        "'row-000001': 1 in 0.parquet, 1 in 3.parquet",
        "score these shards again with one:\n  3.parquet",
    ):
        assert line in shown.err


def test_quantiles_and_threshold_are_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    scores = np.concatenate([rng.normal(0, 1, 4000), np.zeros(3000), -np.zeros(50), rng.random(950) * 1e-9])
    rng.shuffle(scores)
    parts: list[list[float | None]] = [part.tolist() for part in np.array_split(scores, 4)]
    parts[1][5:8] = [None] * 3
    for i, part in enumerate(parts):
        write_output(tmp_path / f"{i}.parquet", [f"{i}-{j}" for j in range(len(part))], part)
    there = np.sort([score for part in parts for score in part if score is not None])
    found = score_histogram(tmp_path, keep=0.3)
    assert (found.scored, found.failed) == (len(there), 3)
    assert found.mean == pytest.approx(there.mean(), abs=1e-12)
    assert found.quantiles == {
        share: np.quantile(there, share, method="inverted_cdf") for share in found.quantiles
    }
    assert found.threshold == there[-round(0.3 * len(there))]
    assert found.kept == (there >= found.threshold).sum() and found.counts.sum() == len(there)


def test_ranks_of_every_float_in_order() -> None:
    values = np.array([-np.inf, -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.0, 1.0000000000000002, np.inf])
    ranks = range(1, len(values) + 1)
    found = order_statistics(lambda: iter([values[::-2], values[-2::-2]]), ranks)
    assert list(found.values()) == values.tolist()


def test_the_command_histogram(outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "scores.png"
    assert main(["shards", "histogram", str(outputs), "--keep", "0.3", "--png", str(png)]) == 0
    shown = capsys.readouterr().out
    scores = pq.read_table(outputs)["score"].drop_null().to_numpy()
    threshold = float(np.sort(scores)[-18])
    kept = (scores >= threshold).sum()
    assert f"score >= {math.floor(threshold * 1e6) / 1e6:.6f} keeps {kept} rows, {kept / 59:.2%}" in shown
    assert "60 (1 without a score)" in shown and shown.count("#") > 60
    with Image.open(png) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or []}
    assert set(REGIONS[:2]) <= colours  # kept and others
    assert main(["shards", "merge", str(outputs), "--output", str(tmp_path / "all.parquet")]) == 0
    assert "rows   60" in capsys.readouterr().out


def test_one_score_or_none_has_a_histogram_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_output(tmp_path / "a.parquet", ["x", "y"], [0.5, None])
    assert main(["shards", "histogram", str(tmp_path), "--keep", "1", "--png", str(tmp_path / "x.png")]) == 0
    assert "score >= 0.500000 keeps 1 row, 100.00%" in capsys.readouterr().out
    write_output(tmp_path / "a.parquet", ["x"], [None])
    assert (
        main(["shards", "histogram", str(tmp_path), "--keep", "0.3", "--png", str(tmp_path / "x.png")]) == 1
    )
    assert capsys.readouterr().out == "rows  1 (1 without a score)\n"
    for share in ("0", "1.5", "nan"):
        assert main(["shards", "histogram", str(tmp_path), "--keep", share]) == 2
