"""Flipped bits and killed runs: damage costs a computation and a warning, never a wrong score.

    python -m benchmarks.faults [--flips 1000] [--kills 40] [--seed 0]

One random bit is flipped in a file of kept rows, of cached features or of weights, and the same captions are
scored again through the public doors. A flip is silent if rows come out that differ from those of intact
files by more than rounding; that count must be 0. Kills end a run at a random moment (SIGKILL) until one
comes to its end; what is on disk then must be the rows of a run without kills.
`benchmarks/results/faults.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import multiprocessing
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from capeval_core.metric import CaptionMetric

TOLERANCE = 1e-7  # of runs that were killed
ROUNDING = 1e-6  # of features that are computed again in other batches
METRIC = "refpacs"  # rows with lists, features of images and of texts
HARMLESS = "harmless"
WARNED = "warned"
REFUSED = "refused"
SILENT = "silent"
RAW = "raw error"
OUTCOMES = {
    HARMLESS: "no effect",
    WARNED: "computed again, with a warning",
    REFUSED: "refused, file named",
    SILENT: "other rows without a word",
    RAW: "any other error",
}
_BATCH = 4  # captions between two writings of rows


def flip_a_bit(folder: Path, rng: np.random.Generator, *, files: str = "*", by_size: bool = False) -> Path:
    """Flip one random bit of a random file and return its path; a large file is likelier if `by_size`."""
    paths = sorted(path for path in folder.rglob(files) if path.is_file() and path.stat().st_size)
    sizes = np.array([path.stat().st_size if by_size else 1 for path in paths], dtype=np.float64)
    path = paths[int(rng.choice(len(paths), p=sizes / sizes.sum()))]
    content = bytearray(path.read_bytes())
    bit = int(rng.integers(8 * len(content)))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return path


class Flips:
    """Small inputs, their rows, and a folder of rows, of features and of weights to be damaged."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        from capeval_core.cache import FeatureCache
        from capeval_core.weights.folder import TINY

        self.folder = folder
        self.rng = np.random.default_rng(seed)
        self.given = inputs(24)
        memory = FeatureCache()
        self.metric = opened(cache=memory)
        self.expected = self._rows(self.metric)
        for captions in (8, 16, 24):  # a shard each
            few = opened(cache=memory, rows=folder / "rows")
            few.encode_all(few.check(*(part[:captions] for part in self.given)))
            few.stores.flush()
        self._rows(opened(cache=folder / "features"))
        gc.collect()  # closes the database, so that all of it stands in one file
        shutil.copytree(TINY / "pacs", folder / "weights")

    def rows(self, count: int) -> Counter[str]:
        """Flips in shards and in the stamp."""

        def score(damaged: Path) -> pa.Table:
            return self._rows(opened(cache=self.metric.run["cache"], rows=damaged))

        return self._outcomes(count, "rows", score)

    def features(self, count: int) -> Counter[str]:
        """Flips in the database of cached features."""
        return self._outcomes(
            count, "features", lambda damaged: self._rows(opened(cache=damaged)), by_size=True
        )

    def weights(self, count: int, files: str) -> Counter[str]:
        """Flips in the tensors, or in the config beside them."""
        from capeval_core.cache import FeatureCache

        def score(damaged: Path) -> pa.Table:
            return self._rows(opened(weights=damaged, cache=FeatureCache()))

        return self._outcomes(count, "weights", score, files=files)

    def _rows(self, metric: CaptionMetric) -> pa.Table:
        rows = metric.encode_all(metric.check(*self.given))
        metric.stores.flush()
        return rows

    def _outcomes(self, count: int, kind: str, score: Any, **choice: Any) -> Counter[str]:
        outcomes = Counter(dict.fromkeys(OUTCOMES, 0))
        for number in range(count):
            damaged = self.folder / f"{kind}-{number}"
            shutil.copytree(self.folder / kind, damaged)
            flip_a_bit(damaged, self.rng, **choice)
            outcomes[self._outcome(score, damaged)] += 1
            shutil.rmtree(damaged)
            if number % 100 == 99:
                gc.collect()  # closes databases
        return outcomes

    def _outcome(self, score: Any, damaged: Path) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                rows = score(damaged)
            except ValueError as error:
                return REFUSED if damaged.name in str(error) else RAW
            except Exception as error:  # what a user would meet as a traceback
                print(f"{damaged.name}: {type(error).__name__}: {error}", file=sys.stderr)
                return RAW
        if difference(rows, self.expected) > ROUNDING:
            return SILENT
        return WARNED if any(damaged.name in str(each.message) for each in caught) else HARMLESS


def opened(**options: Any) -> CaptionMetric:
    """The metric with the embedded small weights."""
    import capeval_core

    return capeval_core.load(METRIC, **{"weights": "tiny", "device": "cpu", **options})


def inputs(captions: int) -> tuple[list[str], list[Any], list[list[str]]]:
    """Seeded captions, an image for every other one, and up to three references."""
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (24, 24, 3), dtype=np.uint8) for _ in range((captions + 1) // 2)]
    texts = [f"caption {i} of a {('red', 'blue', 'green')[i % 3]} square" for i in range(captions)]
    references = []
    for i in range(captions):
        references.append([f"reference {j} of image {i // 2}" for j in range(1 + i % 3)])
    return texts, [images[i // 2] for i in range(captions)], references


def difference(rows: pa.Table, expected: pa.Table) -> float:
    """The largest difference of two tables' numbers; infinite if anything else differs."""
    from capeval_core.rows import canonical

    rows = canonical(rows)
    expected = canonical(expected)
    if not rows.schema.equals(expected.schema) or len(rows) != len(expected):
        return float("inf")
    return max(_apart(rows[name].to_pylist(), expected[name].to_pylist()) for name in rows.column_names)


def _apart(value: Any, expected: Any) -> float:
    if isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        return max(map(_apart, value, expected), default=0.0)
    if isinstance(value, float) and isinstance(expected, float):
        distance = abs(value - expected)
        return distance if np.isfinite(distance) or repr(value) != repr(expected) else 0.0
    return 0.0 if value == expected and type(value) is type(expected) else float("inf")


@dataclass
class Kills:
    """What came of runs that were killed and started again.

    kills: how many. runs: which came to their end. damaged: warnings or errors of what read their rows.
    kept: share of all rows on disk after each kill. worst: largest difference to rows of a run without kills.
    """

    kills: int = 0
    runs: int = 0
    damaged: int = 0
    kept: list[float] = field(default_factory=list)
    worst: float = 0.0


def kill_runs(folder: Path, count: int, *, captions: int = 240, seed: int = 0) -> Kills:
    """Kill so many runs at random moments, each started again where the last one stopped."""
    rng = np.random.default_rng(seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["capeval_core.scores.pac", "capeval_core.encoders.clip", __name__])

    def start(number: int) -> Any:
        run = processes.Process(target=score_all, args=(folder / str(number), captions))
        run.start()
        return run

    start(-1).join()  # starts the server, too
    began = time.perf_counter()
    start(-2).join()
    seconds = time.perf_counter() - began
    expected = _kept(folder / "-2")
    kills = Kills()
    number = 0
    while kills.kills < count or not kills.runs:
        run = start(number)
        run.join(timeout=float(rng.uniform(0, seconds)) if kills.kills < count else None)
        killed = run.exitcode is None
        if killed:
            run.kill()
            run.join()
            kills.kills += 1
        elif run.exitcode:
            raise RuntimeError(f"a run ended with {run.exitcode}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rows = _kept(folder / str(number))
        kills.damaged += len(caught)
        if killed:
            kills.kept.append(len(rows) / captions)
        else:
            kills.runs += 1
            kills.worst = max(kills.worst, difference(rows, expected))
            number += 1
    return kills


def score_all(folder: Path, captions: int) -> None:
    """One run: rows of all captions, written every few captions."""
    metric = opened(rows=folder)
    samples = metric.check(*inputs(captions))
    for start in range(0, captions, _BATCH):
        metric.encode_all(samples.select(range(start, min(start + _BATCH, captions))))
        metric.stores.flush()


def _kept(folder: Path) -> pa.Table:
    """The rows that a run left on disk."""
    import pyarrow as pa

    from capeval_core.rows import canonical
    from capeval_core.store import read_kept

    empty = opened().ROW.empty_table()
    tables = [read_kept(path)[0].select(empty.column_names) for path in sorted(folder.glob("*.parquet"))]
    return canonical(pa.concat_tables([empty, *(table.cast(empty.schema) for table in tables)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    part = arguments.flips // 10
    with tempfile.TemporaryDirectory() as folder:
        flips = Flips(Path(folder), arguments.seed)
        table = {
            "kept rows: files": flips.rows(5 * part),
            "cached features: the database": flips.features(3 * part),
            "weights: tensors": flips.weights(part, "*.safetensors"),
            "weights: config": flips.weights(arguments.flips - 9 * part, "config.json"),
        }
    with tempfile.TemporaryDirectory() as folder:
        kills = kill_runs(Path(folder), arguments.kills, seed=arguments.seed)
    print(report(table, kills, arguments.seed))
    if any(outcomes[SILENT] or outcomes[RAW] for outcomes in table.values()) or kills.worst > TOLERANCE:
        sys.exit(1)


def report(table: dict[str, Counter[str]], kills: Kills, seed: int) -> str:
    """The table of flips and the sentence of kills, in Markdown."""
    lines = [
        "# Faults: flipped bits and killed runs",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, {METRIC} with weights `tiny`, "
        f"`python -m benchmarks.faults --seed {seed}`. A flip is one random bit of one file.",
        "",
        f"| damaged | flips | {' | '.join(OUTCOMES.values())} |",
        "| --- " * (2 + len(OUTCOMES)) + "|",
    ]
    for what, outcomes in table.items():
        lines.append(
            f"| {what} | {outcomes.total()} | {' | '.join(str(outcomes[name]) for name in OUTCOMES)} |"
        )
    total = sum(table.values(), Counter())
    flipped = sum(outcomes.total() for outcomes in table.values())
    lines.append(f"| all | {flipped} | {' | '.join(str(total[name]) for name in OUTCOMES)} |")
    shares = ", ".join(f"{np.quantile(kills.kept, q):.0%}" for q in (0.0, 0.5, 1.0))
    return "\n".join(
        [
            *lines,
            "",
            f"{kills.kills} kills at random moments of {kills.runs} runs, which were started again until "
            f"their end: rows differ from those of a run without kills by at most {kills.worst:.1g}, and "
            f"{kills.damaged} files were damaged. Of the rows, {shares} were on disk at a kill (least, "
            "median, most).",
        ]
    )


if __name__ == "__main__":
    main()
