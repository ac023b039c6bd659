"""One worker of `capeval shards score` against two, and the command's own cost over `metric.score`.

    python -m benchmarks.shards [--repeats 5] [--shards 32] [--rows 400]

Images are decoded pictures of 256x256 (uncompressed files), each with a caption of its own; the weights are
`tiny`, so that everything but the network weighs as much as it ever does. Two workers run on Ray with one
thread each on two cores, which they share with the driver and Ray's own processes; one worker is a process of
one thread that is bound to one core. Runs alternate. Pairs per second are those between the first finished
file of each worker and the last file, so that the start of Python and Ray is left out; the seconds of whole
commands stand beside them. The command's own cost is that of one process against `metric.score` on the same
rows, read from the same files. It takes about four minutes on two idle cores; anything else that runs on them
moves the numbers. `benchmarks/shards.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SIDE = 256
SPEEDUP, OVERHEAD = 1.8, 1.05
COMMAND = "import sys; from capeval_core.cli import main; sys.exit(main(sys.argv[1:]))"
METRIC = ("shards", "score", "pacs", "--weights", "tiny", "--device", "cpu")


def write_pictures(folder: Path, shards: int, rows: int) -> None:
    """Write shards of pictures, no two of which are equal."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 255, SIDE)
    pictures = []
    for _ in range(16):
        across, down = rng.uniform(-1, 1, (2, 3))
        mixed = np.abs(ramp[:, None, None] * down + ramp[None, :, None] * across)
        pictures.append(np.minimum(mixed, 255).astype(np.uint8))
    for shard in range(shards):
        numbers = np.arange(shard * rows, (shard + 1) * rows)
        files = []
        for number in numbers:
            picture = pictures[number % len(pictures)].copy()
            picture[0, 0] = (number & 255, number >> 8 & 255, number >> 16)
            with io.BytesIO() as file:
                Image.fromarray(picture).save(file, "PPM")
                files.append(file.getvalue())
        columns = {
            "uid": [f"{number:08}" for number in numbers],
            "caption": [f"a picture of colours, number {number}" for number in numbers],
            "image": files,
        }
        pq.write_table(pa.table(columns), folder / f"{shard:05}.parquet")


def run_command(inputs: str, out: Path, workers: int) -> tuple[float, float]:
    """Pairs per second between finished files, and seconds of the whole command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    bound = {0} if workers == 1 else os.sched_getaffinity(0)
    given = ("--input", inputs, "--output", str(out), "--workers", str(workers))
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, *METRIC, *given],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, bound),
    )
    seconds = time.perf_counter() - start
    files = sorted(out.glob("0*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    first, *later = files[workers - 1 :]
    rows = sum(pq.read_metadata(path).num_rows for path in later)
    return rows * 1e9 / (later[-1].stat().st_mtime_ns - first.stat().st_mtime_ns), seconds


def overhead(inputs: str, folder: Path, repeats: int) -> list[float]:
    """Processor seconds of the command over those of `metric.score`, interleaved; the first is warm-up."""
    import torch

    import capeval_core
    from capeval_core.cache import FeatureCache
    from capeval_core.cli import main

    torch.set_num_threads(1)
    ratios = []
    for turn in range(repeats + 1):
        start = time.process_time()
        metric = capeval_core.load(
            "pacs", weights="tiny", device="cpu", on_error="nan", cache=FeatureCache(1 << 20)
        )
        for path in sorted(Path(inputs).parent.glob("*.parquet")):
            table = pq.read_table(path)
            metric.score(table["caption"].to_pylist(), table["image"].to_pylist())
        middle = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            status = main([*METRIC, "--input", inputs, "--output", f"{folder}/alone-{turn}"])
        end = time.process_time()
        if status:
            raise RuntimeError(f"the command ended with {status}")
        if turn:
            ratios.append((end - middle) / (middle - start))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--rows", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pictures(folder / "in", arguments.shards, arguments.rows)
        write_pictures(folder / "few", 4, arguments.rows)
        found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for turn in range(arguments.repeats):
            for workers, measured in found.items():
                out = folder / f"out-{turn}-{workers}"
                measured.append(run_command(f"{folder}/in/*.parquet", out, workers))
        ratios = overhead(f"{folder}/few/*.parquet", folder, arguments.repeats)
    speedups = [two[0] / one[0] for one, two in zip(found[1], found[2], strict=True)]
    speedup, cost = statistics.median(speedups), statistics.median(ratios)
    print(
        "\n".join(
            [
                "# One and two workers of `capeval shards score`",
                "",
                f"{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, pacs "
                f"with weights `tiny`, {arguments.shards} shards of {arguments.rows} decoded pictures of "
                f"{SIDE}x{SIDE}, `python -m benchmarks.shards --repeats {arguments.repeats} --shards "
                f"{arguments.shards} --rows {arguments.rows}`.",
                "",
                "| run | pairs/s, one worker | two workers | ratio | whole command, s, one | two |",
                "| --- | --- | --- | --- | --- | --- |",
                *(
                    f"| {turn} | {one[0]:,.0f} | {two[0]:,.0f} | {ratio:.2f} | {one[1]:.1f} | {two[1]:.1f} |"
                    for turn, (one, two, ratio) in enumerate(
                        zip(found[1], found[2], speedups, strict=True), start=1
                    )
                ),
                "",
                f"Two workers are {speedup:.2f} times as fast as one, median of {len(speedups)} (goal "
                f"{SPEEDUP}). `--workers 1` takes {cost:.3f} times the processor seconds of "
                f"`metric.score` on the same rows, median of {len(ratios)}, from {min(ratios):.3f} to "
                f"{max(ratios):.3f} (goal {OVERHEAD}).",
            ]
        )
    )
    if speedup < SPEEDUP or cost > OVERHEAD:
        sys.exit(1)


if __name__ == "__main__":
    main()
