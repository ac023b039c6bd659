"""Workers and drivers of `capeval shards score` killed at random moments: is every row there, once and equal?

    python -m benchmarks.shard_kills [--workers 20] [--drivers 20] [--shards 24] [--rows 4000] [--seed 0]

A run of the command scores all shards. Kills (SIGKILL) come at random moments of its work: of one of its two
workers on Ray, which Ray replaces; or of the driver, after which the command is run again, every fifth time
on Ray with two workers and else as the one process that `--workers 1` is. A run that comes to its end is
followed by one into a new folder. What each full folder holds must be the rows of a run without Ray and
without kills. What a kill costs is read from the unfinished files that it leaves.
`benchmarks/shard_kills.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.extras import needed
from tests.integrations.shard_inputs import workers, write_shards

TOLERANCE = 1e-7
METRIC = ("pacs", "--weights", "tiny", "--device", "cpu")


@dataclass
class Kills:
    """What came of runs: kills, runs that ended by themselves, seconds, largest difference, lost rows.

    lost: rows of unfinished files that one kill left; whole windows, since others are never written.
    """

    kills: int = 0
    ends: int = 0
    worst: float = 0.0
    lost: list[int] = field(default_factory=list)


class Runs:
    """Runs of the command on one set of shards, and what they must give."""

    def __init__(self, folder: Path, shards: int, rows: int, seed: int) -> None:
        self.folder, self.shards, self.rows = folder, shards, rows
        self.rng = np.random.default_rng(seed)
        self.uids = write_shards(folder / "in", shards=shards, rows=rows)
        self.processes: Any = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(
            ["capeval_core.commands.shards", "capeval_core.encoders.clip", "datasets"]
        )
        self.number = 0
        self._start(folder / "expected", "--workers", "1").join()
        self.expected = self._merged(folder / "expected")

    def kill(self, count: int, address: str, *, drivers: bool) -> Kills:
        """Kill so many, one after the other."""
        found = Kills()
        run = None
        while found.kills < count or run is not None:
            if run is None:
                alone = drivers and found.kills % 5
                run = self._start(
                    self._out, *(("--workers", "1") if alone else ("--workers", "2", "--ray", address))
                )
                self._wait_for_work(run)
            if found.kills < count:
                run.join(timeout=float(self.rng.uniform(0, 1.5)))
                target = [run.pid] if drivers else workers()
                if run.exitcode is None and target:
                    victim = target[int(self.rng.integers(len(target)))]
                    written = unfinished([victim, *(workers() if drivers else [])])
                    os.kill(victim, signal.SIGKILL)
                    found.kills += 1
                    print(f"kill {found.kills}", file=sys.stderr, flush=True)
                    time.sleep(0.5)
                    found.lost.append(self._lost(written))
                    if drivers:
                        run.join()
                        run = None
                        continue
                    self._wait_for_work(run)
            else:
                run.join()
            if run.exitcode is not None:
                if run.exitcode:
                    raise RuntimeError(f"a run ended with {run.exitcode}")
                found.ends += 1
                found.worst = max(found.worst, self._difference())
                self.number, run = self.number + 1, None
        if self._out.exists():  # the last run was killed
            self._start(self._out, "--workers", "1").join()
            found.ends += 1
            found.worst = max(found.worst, self._difference())
            self.number += 1
        return found

    @property
    def _out(self) -> Path:
        return self.folder / f"out-{self.number}"

    def _start(self, out: Path, *more: str) -> Any:
        files = ("--input", f"{self.folder}/in/*.parquet", "--output", str(out))
        run = self.processes.Process(target=command, args=(["shards", "score", *METRIC, *files, *more],))
        run.start()
        return run

    def _wait_for_work(self, run: Any) -> None:
        """Wait until a worker writes."""
        before = self._finished()
        while run.exitcode is None and self._finished() == before and not self._unfinished():
            run.join(timeout=0.05)

    def _finished(self) -> int:
        return len(list(self._out.glob("0*.parquet")))

    def _unfinished(self) -> set[Path]:
        return set(self._out.glob(".*.partial"))

    def _lost(self, files: list[Path]) -> int:
        """Rows in files that were being written, and that nobody will finish."""
        whole = statistics.median(
            path.stat().st_size for path in (self.folder / "expected").glob("0*.parquet")
        )
        return int(sum(path.stat().st_size for path in files if path.exists()) / whole * self.rows)

    def _merged(self, out: Path) -> pa.Table:
        return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("0*.parquet"))])

    def _difference(self) -> float:
        """The largest difference of scores; infinite if any other row is there, or one twice or missing."""
        table = self._merged(self._out)
        if table["uid"].to_pylist() != self.uids or table["error"].null_count < len(table):
            return float("inf")
        scores, expected = (t["score"].to_numpy() for t in (table, self.expected))
        assert len(np.unique(expected)) > len(expected) // 2  # or no difference would show
        return float(np.abs(scores - expected).max())


def unfinished(processes: list[int]) -> list[Path]:
    """The unfinished files that processes have open."""
    files: set[Path] = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended, or has closed one
            files |= {link.readlink() for link in Path(f"/proc/{process}/fd").iterdir()}
    return [path for path in files if path.name.endswith(".partial")]


def command(arguments: list[str]) -> None:
    """Run the command, without its output."""
    from capeval_core.cli import main

    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
    sys.exit(main(arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--drivers", type=int, default=20)
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with needed("ray"):
        import ray

    session = tempfile.mkdtemp(prefix="capeval-ray-")
    context = ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        _temp_dir=session,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    address = context.address_info["address"]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), arguments.shards, arguments.rows, arguments.seed)
        found = {
            "worker": runs.kill(arguments.workers, address, drivers=False),
            "driver": runs.kill(arguments.drivers, address, drivers=True),
        }
    ray.shutdown()
    shutil.rmtree(session, ignore_errors=True)
    minutes = (time.perf_counter() - begin) / 60
    print(report(found, arguments, minutes))
    if any(kills.worst > TOLERANCE for kills in found.values()):
        sys.exit(1)


def report(found: dict[str, Kills], arguments: argparse.Namespace, minutes: float) -> str:
    flags = " ".join(f"--{name} {value}" for name, value in vars(arguments).items())
    lines = [
        "# Killed workers and drivers of `capeval shards score`",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, pacs with weights `tiny`, "
        f"{arguments.shards} shards of {arguments.rows:,} rows, "
        f"`python -m benchmarks.shard_kills {flags}`, {minutes:.0f} minutes on a shared machine.",
        "",
        "| killed | kills | folders | largest difference | rows lost per kill: median, most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for what, kills in found.items():
        lost = f"{statistics.median(kills.lost):,.0f}, {max(kills.lost):,}" if kills.lost else "n/a"
        lines.append(f"| {what} | {kills.kills} | {kills.ends} | {kills.worst:.1g} | {lost} |")
    return "\n".join(
        [
            *lines,
            "",
            "Every folder was filled in spite of the kills, holds every uid once and in order, and is "
            "compared with a run without Ray and without kills. A shard's file appears when it is "
            "complete, so a kill loses what a worker had of the shard in its hands, at most one shard a "
            "worker (two with the driver): the rows of whole windows are counted here, up to 2,048 more may "
            "have been encoded.",
        ]
    )


if __name__ == "__main__":
    main()
