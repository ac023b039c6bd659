"""Score the pairs of a `datasets` dataset with `map`, one process per GPU.

    python examples/datasets_map.py 'pairs/*.parquet' [--metric pacs] [--weights tiny] [--processes 1]

Process r takes the r-th GPU. Images are read as they are stored: the decoder of `datasets` would turn them by
their EXIF orientation, which the published metrics do not.
"""

from __future__ import annotations

import argparse

import datasets

from capeval_core.integrations.ray import CaptionScorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("input")
    parser.add_argument("--metric", default="pacs")
    parser.add_argument("--weights", default="tiny")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()

    pairs = datasets.Dataset.from_parquet(arguments.input)
    scored = pairs.map(
        CaptionScorer(arguments.metric, weights=arguments.weights),
        batched=True,
        batch_size=1024,
        with_rank=True,
        num_proc=arguments.processes if arguments.processes > 1 else None,
    )
    best = scored.filter(lambda score: score == score, input_columns="score").sort("score", reverse=True)
    print(f"{len(scored):,} pairs, {len(scored) - len(best):,} without a score; the best:")
    for row in best.select(range(min(3, len(best)))):
        print(f"{row['score']:.3f}  {row['caption']}")


if __name__ == "__main__":
    main()
