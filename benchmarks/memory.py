"""Peak memory against the number of captions and of images: what grows is the result, not the features.

    python -m benchmarks.memory [--captions 70000] [--images 6000]

Scores so many distinct captions over ten images, and so many distinct images of 50 sizes with one caption
each, and three times as many; each run is a process of its own, with the embedded small weights and a
feature store of 16 MB. The smaller runs fill the store and a window of texts, so printed is what a further
caption or image takes for good. `--keep` shows what images take where nothing is given back.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.workload import in_own_process, peak_memory

STORE = 16 << 20
FEATURE = 4 * 128  # bytes of a feature of the small weights
SIZES = 50


class Images(Sequence[Any]):
    """Distinct JPEGs of 300 to 640 pixels a side, made when they are asked for."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count = count
        self.files = []
        for width, height in rng.integers(300, 640, (SIZES, 2)).tolist():
            coarse = rng.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", quality=85)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: Any) -> Any:
        if place >= self.count:
            raise IndexError(place)
        # What follows the end of a JPEG is not decoded, but makes it another file.
        return {"bytes": self.files[place % SIZES] + place.to_bytes(8, "little"), "path": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--captions", type=int, default=70_000)
    parser.add_argument("--images", type=int, default=6_000)
    parser.add_argument("--keep", action="store_true", help="give no memory back during a run")
    parser.add_argument("--alone", choices=("captions", "images"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(peak_of(arguments.alone, getattr(arguments, arguments.alone), arguments.keep))
        return
    for what in ("captions", "images"):
        few = getattr(arguments, what)
        peaks = [_in_own_process(what, count, arguments.keep) for count in (few, 3 * few)]
        growth = (peaks[1] - peaks[0]) * (1 << 20) / (2 * few)
        print(
            f"peak {peaks[0]:.0f} MB with {few:,} {what}, {peaks[1]:.0f} MB with {3 * few:,}: "
            f"{growth:.0f} bytes for each further one, {growth / FEATURE:.2f} times its feature",
            flush=True,
        )


def _in_own_process(what: str, count: int, keep: bool) -> float:
    flags = ["--keep"] if keep else []
    return float(in_own_process("benchmarks.memory", "--alone", what, f"--{what}", str(count), *flags))


def peak_of(what: str, count: int, keep: bool = False) -> float:
    """Peak resident memory in MB of scoring so many captions over ten images, or so many images."""
    import capeval_core
    from capeval_core import memory
    from capeval_core.cache import FeatureCache

    if keep:
        memory._ROWS = count + 1
    metric = capeval_core.load(
        "pacs", weights="tiny", device="cpu", cache=FeatureCache(STORE), on_error="nan"
    )
    if what == "images":
        metric.score(["a picture of so many"] * count, Images(count))
        return peak_memory()
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (48, 48, 3), dtype=np.uint8) for _ in range(10)]
    texts = [f"image {i} of so many" for i in range(count)]
    metric.score(texts, [images[i % 10] for i in range(count)])
    return peak_memory()


if __name__ == "__main__":
    main()
