"""Small shards of captioned images, for tests and benchmarks of shards."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

DISTINCT = 16


def write_shards(folder: Path, *, shards: int, rows: int, distinct: int = DISTINCT) -> list[str]:
    """Write Parquet shards of repeated small images with captions of their own; the uids, in order.

    With the small weights of PAC-S no score is 0, below which it cuts: scores can tell rows apart.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = []
    for i in range(distinct):
        pixels = rng.integers(0, 40, (24, 24, 3), dtype=np.uint8)
        pixels[..., i % 3] += 200
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG")
            images.append(file.getvalue())
    uids = [f"{number:08}" for number in range(shards * rows)]
    for shard in range(shards):
        numbers = range(shard * rows, (shard + 1) * rows)
        columns = {
            "uid": [uids[number] for number in numbers],
            "caption": [f"a red square, number {number}" for number in numbers],
            "image": [images[number % distinct] for number in numbers],
        }
        pq.write_table(pa.table(columns), folder / f"{shard:05}.parquet")
    return uids


def workers() -> list[int]:
    """Ids of the processes below this one that are Ray's actors for shards."""
    parents: dict[int, int] = {}
    actors = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            number = int(process.name)
            parents[number] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if b"_ShardWorker" in (process / "cmdline").read_bytes():
                actors.append(number)
        except OSError:  # it has ended
            continue

    def is_below(number: int) -> bool:
        while number := parents.get(number, 0):
            if number == os.getpid():
                return True
        return False

    return [number for number in actors if is_below(number)]
