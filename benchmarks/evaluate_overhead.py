"""What the `evaluate` module costs on top of the core, for images in memory.

    python -m benchmarks.evaluate_overhead [--images 500] [--repeats 3]

Both sides score the same PIL images of 640x480 with the embedded small weights, so the encoder is as cheap
as it gets and the overhead as visible as it gets. Printed is evaluate over core: the goal is at most 1.1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import evaluate
import numpy as np
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache

MODULE = str(Path(__file__).resolve().parent.parent / "metrics" / "pacs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (480, 640, 3), dtype=np.uint8) for _ in range(arguments.images)]
    captions = [f"image number {i} of noise" for i in range(arguments.images)]

    core = capeval_core.load("pacs", weights="tiny", cache=FeatureCache(0))
    module = evaluate.load(MODULE, weights="tiny", cache=FeatureCache(0))
    ratios = []
    for turn in range(arguments.repeats + 1):
        images = [Image.fromarray(array) for array in noise]
        start = time.perf_counter()
        result = core.score(captions, images)
        middle = time.perf_counter()
        images = [Image.fromarray(array) for array in noise]
        begin = time.perf_counter()
        value = module.compute(predictions=captions, images=images)["pac_s"]
        ratio = (time.perf_counter() - begin) / (middle - start)
        if abs(value - result.mean) > 1e-9:
            raise RuntimeError(f"the two paths differ: {value} and {result.mean}")
        if turn:  # the first turn warms up
            ratios.append(ratio)
    print(
        f"{arguments.images} PIL images of 640x480: evaluate / core = {statistics.median(ratios):.3f} "
        f"(from {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
