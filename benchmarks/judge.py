"""Clustered resamples of Kendall's tau-b and tau-c against the plain scipy loop.

    python -m benchmarks.judge [--rows 17000] [--images 1000] [--draws 1000] [--levels 4] [--compared 1000]

Rows like those of Flickr8k-Expert: every caption has three ratings of `--levels` levels, about six captions
an image. `--compared`: how many of the resamples scipy computes; its time is scaled to all of them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.stats import kendalltau

from capeval_core.judgements.resampling import Resamples, WeightedRows


def main() -> None:
    parser = argparse.ArgumentParser(description="Clustered resamples of tau-b and tau-c.")
    for name, default in (("rows", 17_000), ("images", 1_000), ("draws", 1_000), ("levels", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compared", type=int, default=1_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    captions = -(-options.rows // 3)
    quality = rng.normal(size=captions)
    scores = np.repeat(np.round(quality + rng.normal(size=captions), 4), 3)[: options.rows]
    levels = np.quantile(quality, np.linspace(0, 1, options.levels + 1)[1:-1])
    ratings = np.digitize(np.repeat(quality, 3)[: options.rows] + rng.normal(size=options.rows), levels)
    groups = [str(image) for image in np.repeat(rng.integers(0, options.images, captions), 3)[: options.rows]]

    start = time.perf_counter()
    resamples = Resamples(groups, draws=options.draws)
    rows = WeightedRows(scores, ratings)
    taus = [rows.taus(resamples.weights(draw)) for draw in range(len(resamples))]
    tau_b, tau_c = (np.array([getattr(one, name) for one in taus]) for name in "bc")
    ours = time.perf_counter() - start
    compared = min(options.compared, options.draws)
    start, largest = time.perf_counter(), 0.0
    for draw in range(compared):
        weights = resamples.weights(draw)
        x, y = np.repeat(scores, weights), np.repeat(ratings, weights)
        for variant, found in (("b", tau_b[draw]), ("c", tau_c[draw])):
            largest = max(largest, abs(kendalltau(x, y, variant=variant).statistic - found))
    scipy = (time.perf_counter() - start) * options.draws / compared
    print(f"{options.rows:,} rows, {options.images:,} images, {options.draws:,} resamples of tau-b and tau-c")
    print(f"scipy, resample by resample   {scipy:8.2f} s")
    print(f"counts of values              {ours:8.2f} s   {scipy / ours:.1f} times as fast")
    print(f"largest difference            {largest:.1e}")


if __name__ == "__main__":
    main()
