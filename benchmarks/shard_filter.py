"""Memory of `capeval shards filter` by the number of rows, and what killed runs of it lose.

    python -m benchmarks.shard_filter [--rows 100000 1000000] [--kills 20] [--out FILE.md]

Shards of 10,000 small rows, JSON lines and Parquet in turns, are scored by ROUGE-L, which needs no picture;
the best 30% are kept. Then the run over the fewest rows is killed at random moments so often, and its files
are compared with those of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.project import __version__

_SHARD = 10_000
_WORDS = ("red", "dog", "runs", "on", "wet", "grass", "near", "a", "small", "house")


def write_shards(folder: Path, rows: int) -> None:
    """Write shards of captions with one reference each."""
    folder.mkdir()
    generator = random.Random(0)
    for shard in range(rows // _SHARD):
        columns: dict[str, list[object]] = {"uid": [], "caption": [], "references": []}
        for row in range(_SHARD):
            words = generator.choices(_WORDS, k=12)
            columns["uid"].append(f"{shard * _SHARD + row:09}")
            columns["caption"].append(" ".join(words[:6]))
            columns["references"].append([" ".join(words[3:])])
        if shard % 2:
            pq.write_table(pa.table(columns), folder / f"{shard:05}.parquet")
            continue
        records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{shard:05}.jsonl").write_text(text, encoding="utf-8")


def run(*arguments: object, kill_after: float | None = None) -> tuple[int, float, float]:
    """Status, seconds and peak of resident memory in MB of a command of capeval; status -9: killed."""
    command = [sys.executable, "-m", "capeval_core", *map(str, arguments)]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if kill_after is not None:
        try:
            process.wait(kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
    if process.returncode is not None:  # it came to its end before it would have been killed
        return process.returncode, time.monotonic() - start, 0.0
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - start, usage.ru_maxrss / 1024


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, but for hidden ones."""
    content = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return content


def killed_runs(scores: Path, folder: Path, kills: int, seconds: float) -> str:
    """What runs lose that are killed so often, each at a random moment of its `seconds`."""
    generator = random.Random(0)
    command = ("shards", "filter", scores, "--keep", "0.3", "--output", folder / "killed")
    killed = 0
    finished_early = 0
    while killed < kills:
        status, _, _ = run(*command, kill_after=generator.uniform(0.3, 1.0) * seconds)
        killed += status == -9
        if status == 0:  # all shards are there: the next ones begin anew, but for one shard
            finished_early += 1
            for path in sorted((folder / "killed" / "filter").glob("*.json"))[1:]:
                path.unlink()
                (folder / "killed" / path.name.removesuffix(".json")).unlink()
    status, _, _ = run(*command)
    expected = digests(folder / "kept")
    difference = {name for name, _ in expected.items() ^ digests(folder / "killed").items()}
    return (
        f"After {killed} kills ({finished_early} runs between them came to their end, after which all but "
        f"one shard were deleted) the last run ends with status {status}; {len(difference)} files differ "
        f"from the {len(expected)} of a run that was not killed, missing and left over ones included."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = [
        "# Memory and kills of `capeval shards filter`",
        "",
        f"`python -m benchmarks.shard_filter --rows {' '.join(map(str, arguments.rows))} --kills "
        f"{arguments.kills}`, {datetime.date.today()}, capeval {__version__}, {os.cpu_count()} cores,",
        f"load {os.getloadavg()[0]:.1f} at the start (above 1 the machine is not quiet).",
        "",
        "| rows | shards | seconds | rows/s | peak of resident memory, MB |",
        "| --- | --- | --- | --- | --- |",
    ]
    verdict = ""
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_shards(folder / "in", rows)
            scored = run("shards", "score", "rougel", "--input", folder / "in", "--output", folder / "scores")
            assert scored[0] == 0, "rows could not be scored"
            command = ("shards", "filter", folder / "scores", "--keep", "0.3", "--output", folder / "kept")
            status, seconds, peak = run(*command)
            assert status == 0, "rows could not be filtered"
            line = f"| {rows:,} | {rows // _SHARD} | {seconds:.1f} | {rows / seconds:,.0f} | {peak:.0f} |"
            lines.append(line)
            print(line, flush=True)
            if not verdict:
                verdict = killed_runs(folder / "scores", folder, arguments.kills, seconds)
                print(verdict, flush=True)
    text = "\n".join([*lines, "", verdict, ""])
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
