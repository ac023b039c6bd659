"""Peak memory against the number of captions: what grows is the result, not the features.

    python -m benchmarks.memory [--captions 70000]

Scores so many distinct captions, and three times as many, each in a process of its own, with the embedded
small weights and a feature store of 16 MB. Both runs fill the store and a window of texts, so printed is
what a further caption takes for good, and that over the bytes of its feature alone.
"""

from __future__ import annotations

import argparse

from benchmarks.workload import in_own_process, peak_memory

STORE = 16 << 20
FEATURE = 4 * 128  # bytes of a feature of the small weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--captions", type=int, default=70_000)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(peak_of(arguments.captions))
        return
    few, many = arguments.captions, 3 * arguments.captions
    peaks = [float(in_own_process("benchmarks.memory", "--alone", "--captions", str(n))) for n in (few, many)]
    growth = (peaks[1] - peaks[0]) * (1 << 20) / (many - few)
    print(
        f"peak {peaks[0]:.0f} MB with {few:,} captions, {peaks[1]:.0f} MB with {many:,}: "
        f"{growth:.0f} bytes per further caption, {growth / FEATURE:.2f} times its feature"
    )


def peak_of(captions: int) -> float:
    """Peak resident memory in MB of scoring so many captions over ten pictures."""
    import numpy as np

    import capeval_core
    from capeval_core.cache import FeatureCache

    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (48, 48, 3), dtype=np.uint8) for _ in range(10)]
    metric = capeval_core.load("pacs", weights="tiny", device="cpu", cache=FeatureCache(STORE))
    texts = [f"picture {i} of so many" for i in range(captions)]
    metric.score(texts, [pictures[i % 10] for i in range(captions)])
    return peak_memory()


if __name__ == "__main__":
    main()
