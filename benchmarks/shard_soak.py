"""A million rows through `capeval shards score`: is memory flat, is time per row constant, is a rerun free?

    nice -n -5 python -m benchmarks.shard_soak [--rows 1000000] [--shards 10] [--weights tiny]

Rows are repeated small images with uids and captions of their own, so nothing is encoded for a second row and
every caption is new. One process with one thread scores them; resident memory and seconds are noted after
every tenth of the rows. Then the same command runs again, on finished shards. Seconds are those of the wall
clock and of the processor: the first depend on what else the machine does. `benchmarks/shard_soak.md` is the
output of this program; its exit status is 1 where memory or processor time is not flat.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import tempfile
import time
from pathlib import Path

from capeval_core.integrations.shards import BatchScorer, score_shard
from capeval_core.integrations.shards.plan import plan_shards
from capeval_core.models.batching import count_forwards
from tests.integrations.shard_inputs import write_shards

MEMORY, SECONDS, RERUN = 0.05, 0.10, 0.02
"""What memory and seconds may differ by from their median, from a tenth of the run on; a rerun's share."""


class Course:
    """Rows, resident bytes, seconds of the wall clock and of the processor, at every mark."""

    def __init__(self, every: int) -> None:
        self.every, self.rows = every, 0
        self.marks: list[tuple[int, int, float, float]] = []
        self._mark()

    def add(self, rows: int) -> None:
        self.rows += rows
        if self.rows >= len(self.marks) * self.every:
            self._mark()

    def _mark(self) -> None:
        self.marks.append((self.rows, resident(), time.perf_counter(), time.process_time()))

    def parts(self) -> list[tuple[int, float, float, float]]:
        """Of each part of the run: rows so far, MB at its end, and both kinds of seconds per 10^5 rows."""
        found = []
        for before, after in zip(self.marks, self.marks[1:], strict=False):
            share = (after[0] - before[0]) / 1e5
            wall, processor = (after[i] - before[i] for i in (2, 3))
            found.append((after[0], after[1] / 1e6, wall / share, processor / share))
        return found


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def spread(values: list[float]) -> float:
    """The largest distance to the median, as a share of it."""
    middle = sorted(values)[len(values) // 2]
    return max(abs(value - middle) for value in values) / middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--weights", default="tiny")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    scorer = BatchScorer("pacs", weights=arguments.weights, device="cpu")
    _ = scorer.signature  # opens the weights
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder, "in"), shards=arguments.shards, rows=arguments.rows // arguments.shards)
        shards = plan_shards([f"{folder}/in/*.parquet"], f"{folder}/out")
        course = Course(arguments.rows // 10)
        for shard in shards:
            score_shard(shard.source, shard.target, scorer, progress=course.add)
        first = course.marks[-1][3] - course.marks[0][3]
        begin = time.process_time()
        with count_forwards() as forwards:
            skipped = [score_shard(shard.source, shard.target, scorer).skipped for shard in shards]
        again = time.process_time() - begin
    parts = course.parts()
    memory = spread([part[1] for part in parts])
    seconds = spread([part[3] for part in parts[1:]])
    walls = spread([part[2] for part in parts[1:]])
    lines = [
        "# A million rows through `capeval shards score`",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, pacs with weights "
        f"`{arguments.weights}`, one thread of a shared machine, {arguments.rows:,} rows in "
        f"{arguments.shards} shards, `python -m benchmarks.shard_soak --rows {arguments.rows} --shards "
        f"{arguments.shards}`.",
        "",
        "| rows | resident, MB | seconds per 10^5 rows | of the processor |",
        "| --- | --- | --- | --- |",
        *(f"| {rows:,} | {mb:.0f} | {wall:.2f} | {cpu:.2f} |" for rows, mb, wall, cpu in parts),
        "",
        f"From a tenth of the run on, resident memory stays within {memory:.1%} of its median (goal "
        f"{MEMORY:.0%}), processor seconds per 10^5 rows within {seconds:.1%} (goal {SECONDS:.0%}), those of "
        f"the wall clock, which other processes share, within {walls:.1%}. A rerun skips "
        f"{sum(skipped)} of {len(skipped)} shards with {forwards.items} items through the network, in "
        f"{again:.2f} s, {again / first:.2%} of the first run's {first:.0f} s (goal {RERUN:.0%}).",
    ]
    print("\n".join(lines))
    if memory > MEMORY or seconds > SECONDS or again > RERUN * first or forwards.items or not all(skipped):
        sys.exit(1)


if __name__ == "__main__":
    main()
