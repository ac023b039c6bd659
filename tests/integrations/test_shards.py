"""One shard in, one Parquet file out: scores, windows, reruns, kills, full disks."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capeval_core.errors import FileError
from capeval_core.integrations.shards import BatchScorer, score_shard
from capeval_core.testing import count_forwards
from tests.integrations.shard_files import picture, rows_of, write_parquet


def test_failed_rows_alone_are_scored_again(tmp_path: Path) -> None:
    rows = {"uid": [f"{i}" for i in range(70)], "caption": ["a dog"] * 70, "image": ["x.png"] * 70}
    rows["image"][3] = rows["image"][64] = "late.png"
    rows["caption"][9] = ""
    source, target = write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out.parquet"
    (tmp_path / "x.png").write_bytes(picture(1))
    scorer = BatchScorer("pacs", weights="tiny")
    first = score_shard(source, target, scorer, window=16)
    assert (first.failed, first.scored, first.skipped) == (3, 70, False)
    before = pq.read_table(target)
    (tmp_path / "late.png").write_bytes(picture(2))
    done: list[int] = []
    again = score_shard(source, target, scorer, retry_failed=True, window=16, progress=done.append)
    assert (again.rows, again.failed, again.scored, again.skipped, sum(done)) == (70, 1, 3, False, 3)
    after = pq.read_table(target)
    kept = [i for i in range(70) if i not in (3, 64)]
    assert after.take(kept).equals(before.take(kept)) and after["error"][9].as_py() == "caption is empty"
    assert after["score"][3].as_py() == pytest.approx(after["score"][64].as_py(), abs=1e-6)
    kind = before.schema.field("parts").type
    assert after.schema.field("parts").type == kind and after["parts"].null_count == 1
    write_parquet(source, {**rows, "caption": ["a cat"] * 70})
    with pytest.raises(FileError, match="checksum"):
        score_shard(source, target, scorer, retry_failed=True)


def test_what_is_something_else_is_never_overwritten(tmp_path: Path, weights: str) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(2))
    (tmp_path / "captions.json").write_text("[1, 2]")
    other = write_parquet(tmp_path / "other.parquet", rows_of(2))
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    (tmp_path / "link.parquet").symlink_to(pipe)
    for target in (tmp_path / "captions.json", other, source, tmp_path, pipe, tmp_path / "link.parquet"):
        with pytest.raises(ValueError, match=target.name):
            score_shard(source, target, "pacs", weights=weights)
    assert (tmp_path / "captions.json").read_text() == "[1, 2]"


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(20)), tmp_path / "out" / "0.parquet"

    def replace(rows: int) -> None:
        os.utime(source, (1, 1))

    with pytest.raises(FileError, match=r"0.parquet"):
        score_shard(source, target, "bleu", progress=replace)
    assert list(target.parent.iterdir()) == []


def test_interrupted_by_its_caller_it_leaves_nothing(tmp_path: Path) -> None:
    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    source = write_parquet(tmp_path / "0.parquet", rows_of(30))
    with pytest.raises(KeyboardInterrupt):
        score_shard(source, tmp_path / "out" / "0.parquet", "bleu", window=10, progress=stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_features_of_one_shard_are_forgotten_at_the_next(tmp_path: Path) -> None:
    source, scorer = write_parquet(tmp_path / "0.parquet", rows_of(4)), BatchScorer("pacs", weights="tiny")
    assert scorer.signature
    with count_forwards() as forwards:
        score_shard(source, tmp_path / "1.parquet", scorer)
        once = forwards.items
        score_shard(source, tmp_path / "2.parquet", scorer)
    assert forwards.items == 2 * once > 0
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


def test_the_error_of_a_shard_is_that_of_its_first_failed_row(tmp_path: Path) -> None:
    rows = rows_of(9)
    rows["caption"][2] = None
    rows["caption"][4] = rows["caption"][7] = ""
    source, target = write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out.parquet"
    result = score_shard(source, target, "bleu", window=3)
    assert (result.error, result.failed) == ("caption is missing", 3)
    assert result.failures == {"caption is missing": 1, "caption is empty": 2} and result.outside == 0
    assert score_shard(source, target, "bleu").error == "caption is missing"  # which a note keeps


def test_failures_are_counted_by_kind_and_those_that_a_retry_may_mend(tmp_path: Path, weights: str) -> None:
    names = [f"{i}.png" for i in range(6)]
    (tmp_path / "0.png").write_bytes(picture(0))
    (tmp_path / "5.png").write_text("<html>404</html>")
    rows = {"caption": ["a dog", "a dog", "a dog", "", "a dog", "a dog"], "image": names}
    result = score_shard(
        write_parquet(tmp_path / "0.parquet", rows), tmp_path / "o.parquet", "pacs", weights=weights
    )
    assert (result.failed, result.outside) == (5, 4)  # all but the empty caption
    missing, empty, html = result.failures.items()
    assert missing[1] == 3 and "1.png" in missing[0]
    assert empty == ("caption is empty", 1) and html[1] == 1 and "5.png" in html[0]


def _die(rows: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    source, out = write_parquet(tmp_path / "0.parquet", rows_of(30)), tmp_path / "out"
    keywords = {"window": 10, "progress": _die}
    run = multiprocessing.get_context("fork").Process(
        target=score_shard, args=(source, out / "0.parquet", "bleu"), kwargs=keywords
    )
    run.start()
    run.join()
    assert run.exitcode == -signal.SIGKILL and len(list(out.glob(".*"))) == 1
    beside = []

    def score_another(rows: int) -> None:
        """Another run on the same folder, which leaves alone what this one is writing."""
        if not beside:
            beside.append(score_shard(source, out / "1.parquet", "bleu"))

    assert score_shard(source, out / "0.parquet", "bleu", window=10, progress=score_another).failed == 0
    assert sorted(path.name for path in out.iterdir()) == ["0.parquet", "1.parquet"]


def test_progress_moves_within_a_window(tmp_path: Path, weights: str) -> None:
    rows = {"caption": ["a dog"] * 400, "image": [picture(i) for i in range(399)] + [b""]}
    source = write_parquet(tmp_path / "0.parquet", rows)
    done: list[int] = []
    expected: list[int] = []
    score_shard(
        source,
        tmp_path / "o.parquet",
        "pacs",
        weights=weights,
        progress=done.append,
        expected=expected.append,
    )
    assert sum(done) == 400 == expected[0] and len(done) > 3
