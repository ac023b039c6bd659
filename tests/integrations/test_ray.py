"""Shards scored by workers of Ray that are killed, or whose device is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capeval_core.cli import main
from capeval_core.integrations.shards import BatchScorer, ShardResult
from tests.integrations.breaking import BREAKS, BreakingPacS
from tests.integrations.shard_inputs import workers, write_shards
from tests.support.seams import score_shards


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Ray on this machine, for the tests of this module."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray", reason="needs Ray: pip install capeval[ray]")
    pytest.importorskip("ray.data")
    context = ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield context.address_info["address"]
    ray.shutdown()


def test_a_killed_worker_costs_no_row(cluster: str, tmp_path: Path) -> None:
    uids = write_shards(tmp_path / "in", shards=6, rows=400)
    scorer = BatchScorer("pacs", weights="tiny")
    killed: list[int] = []

    def kill() -> None:
        """Kill a worker once the first shard is done."""
        while not list((tmp_path / "out").glob("0*.parquet")):
            time.sleep(0.02)
        killed.extend(workers()[:1])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    results = score_shards(tmp_path / "in", tmp_path / "out", scorer, workers=2)
    thread.join()
    assert killed and all(isinstance(result, ShardResult) for result in results)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [uid for table in tables for uid in table["uid"].to_pylist()] == uids


def test_a_worker_whose_device_is_lost_fails_one_shard_and_is_replaced(cluster: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_shards(tmp_path / "in", shards=5, rows=20)
    broken = tmp_path / "in" / "00001.parquet"
    table = pq.read_table(broken)
    captions = pa.array([BREAKS, *table["caption"].to_pylist()[1:]])
    pq.write_table(table.set_column(table.column_names.index("caption"), "caption", captions), broken)
    scorer = BatchScorer(BreakingPacS(BreakingPacS.Options.of("pacs", {"weights": "tiny"})))
    results = score_shards(tmp_path / "in", tmp_path / "out", scorer, workers=1)
    outcomes = {Path(outcome.source).stem: outcome for outcome in results}
    assert "device-side assert triggered" in outcomes.pop("00001").reason
    # All others, though one process would have failed each after the first error.
    assert all(isinstance(outcome, ShardResult) and not outcome.failed for outcome in outcomes.values())
    assert len(outcomes) == 4 and not (tmp_path / "out" / "00001.parquet").exists()


def test_a_shard_that_kills_every_worker_is_given_up(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on with the others and names it; the next run tries again."""
    write_shards(tmp_path / "in", shards=4, rows=20)
    deadly = tmp_path / "in" / "00001.parquet"
    pq.write_table(pq.read_table(deadly)[:7], deadly)
    deaths = tmp_path / "deaths"

    def kill(rows: int) -> None:
        if rows == 7:
            with deaths.open("a") as file:
                file.write("one\n")
            os.kill(os.getpid(), signal.SIGKILL)

    scorer = BatchScorer("pacs", weights="tiny", device="cpu")
    results = score_shards(tmp_path / "in", tmp_path / "out", scorer, workers=2, progress=kill)
    assert deaths.read_text() == "one\n" * 3 and len(results) == 4
    (failed,) = (result for result in results if not isinstance(result, ShardResult))
    assert failed.source == str(deadly) and not (tmp_path / "out" / deadly.name).exists()
    given = ("--weights", "tiny", "--device", "cpu", "--input", f"{tmp_path}/in/*", "--workers", "1")
    assert main(["shards", "score", "pacs", *given, "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "4 shards (3 finished before)" in out and "67 (0 failed" in out
