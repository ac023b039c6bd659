"""Score pairs in a Ray pipeline of your own: images are decoded on CPUs, actors with GPUs only encode.

    python examples/ray_data.py 'pairs/*.parquet' scored/ [--metric pacs] [--weights tiny]
        [--workers 1] [--gpus-per-worker 0] [--ray auto]

The input is a folder, a file or a pattern; its columns are such as `image` (bytes) and `caption`. A broken
image costs its row, whose `error` says why. Where you do not need a pipeline of your own,
`capeval shards score` does this shard by shard, and skips what is finished when it runs again.
"""

from __future__ import annotations

import argparse
import glob
import io
import os
from typing import Any

import numpy as np
from PIL import Image

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.data

from capeval_core.integrations.ray import CaptionScorer


def decoded(batch: dict[str, Any]) -> dict[str, Any]:
    """Images as arrays of pixels, which an actor with a GPU only resizes; a broken one stays as it is."""
    images = np.empty(len(batch["image"]), dtype=object)
    for row, data in enumerate(batch["image"]):
        try:
            images[row] = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        except Exception:  # Pillow raises anything; the scorer says in `error` why this row has no score
            images[row] = data
    return {**batch, "image": images}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--metric", default="pacs")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    parser.add_argument("--ray", help="address of a cluster; default: this machine")
    arguments = parser.parse_args()

    options = {"metric": arguments.metric, "weights": arguments.weights}
    # An actor holds a CPU while it lives, and reading and decoding need one more at least.
    cpus = None if arguments.ray else max(os.cpu_count() or 1, arguments.workers + 1)
    ray.init(address=arguments.ray or "local", num_cpus=cpus, include_dashboard=False if cpus else None)
    # Ray takes no patterns.
    inputs = sorted(glob.glob(arguments.input)) or arguments.input  # noqa: PTH207  (may be an address)
    scored = (
        ray.data.read_parquet(inputs)
        .repartition(8 * arguments.workers)  # one block would keep one actor busy
        .map_batches(decoded, batch_size=256)
        .map_batches(
            CaptionScorer,
            fn_constructor_kwargs=options,
            compute=ray.data.ActorPoolStrategy(size=arguments.workers),
            num_gpus=arguments.gpus_per_worker or None,
            batch_size=1024,
        )
        .drop_columns(["image"])
    )
    scored.write_parquet(arguments.output)
    print(f"{ray.data.read_parquet(arguments.output).count():,} pairs scored into {arguments.output}")


if __name__ == "__main__":
    main()
