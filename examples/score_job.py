# /// script
# requires-python = ">=3.11"
# dependencies = ["capeval"]
#
# [tool.uv.sources]
# capeval = { path = ".." }
# ///
"""Score the captions of a data set on the Hub, on a machine that is not yours if you like.

    uv run examples/score_job.py me/captions --metric pacs --split test
    hf jobs uv run --flavor a10g-small -s HF_TOKEN examples/score_job.py me/captions --push-to me/scores

A job on the Hub gets this file alone: for it, name the repository in the place of the path above,
`capeval = { git = "ADDRESS" }`.

It writes scores.parquet (a row per caption: its row in the data set, score, parts, error) and summary.json
(number, interval, signature) into --out, and with --push-to both into a data set of yours. Weights without an
open licence need --accept.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import HfApi

import capeval_core
from capeval_core.cli import main as capeval

FILES = ("README.md", "scores.parquet", "summary.json")
CARD = """---
tags: [capeval]
---
# Scores of the captions of {dataset}

{title} {number} ({interval}), {captions} captions of the split {split}, {failed} without a score.

    {signature}
"""


def read(arguments: argparse.Namespace) -> datasets.Dataset:
    """The data set, with images as they are stored: a decoder would turn them by their EXIF orientation."""
    pairs = datasets.load_dataset(arguments.dataset, arguments.config, split=arguments.split)
    columns = [arguments.caption, *filter(None, [arguments.references])]
    if arguments.image is not None:
        columns.append(arguments.image)
    missing = [name for name in columns if name not in pairs.column_names]
    if missing:
        names = ", ".join(pairs.column_names)
        raise SystemExit(f"{arguments.dataset} has no column {missing[0]!r}, only {names}: name yours")
    if arguments.image is not None:
        pairs = pairs.cast_column(arguments.image, datasets.Image(decode=False))
    return pairs


def summary_of(result: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """What belongs beside the number."""
    summary: dict[str, Any] = {
        "dataset": arguments.dataset,
        "split": arguments.split,
        "metric": result.metric,
    }
    summary |= {"mean": result.mean, "signature": result.signature, "counts": vars(result.counts)}
    try:
        interval = result.interval()
        summary["interval"] = [interval.low, interval.high]
    except ValueError as error:
        summary["interval"] = None
        summary["no_interval"] = str(error)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--config")
    parser.add_argument("--split", default="test")
    parser.add_argument("--metric", default="pacs")
    parser.add_argument("--weights")
    parser.add_argument("--caption", default="caption", help="the column of captions")
    parser.add_argument("--image", default="image", help="the column of images; none: not looked at")
    parser.add_argument("--references", help="the column of lists of references")
    parser.add_argument("--accept", action="store_true", help="accept the terms of weights")
    parser.add_argument("--out", type=Path, default=Path("scores"))
    parser.add_argument("--push-to", help="a data set of yours on the Hub")
    arguments = parser.parse_args()
    if arguments.image == "none":
        arguments.image = None
    options: dict[str, Any] = {"on_error": "nan"}
    if arguments.weights:
        options["weights"] = arguments.weights
    elif capeval(["fetch", arguments.metric, *(["--accept"] if arguments.accept else [])]):
        return 1

    pairs = read(arguments)
    metric = capeval_core.load(arguments.metric, **options)
    images = None if arguments.image is None else pairs[arguments.image]
    references = None if arguments.references is None else pairs[arguments.references]
    result = metric.score(pairs[arguments.caption], images, references, progress=True)

    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = result.to_pandas().drop(columns="group").reset_index(names="row")
    rows.to_parquet(arguments.out / "scores.parquet")
    summary = summary_of(result, arguments)
    (arguments.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (arguments.out / "README.md").write_text(card_of(summary, metric.title))
    print(json.dumps(summary, indent=1))
    if arguments.push_to:
        push(arguments.out, arguments.push_to)
    return 0


def card_of(summary: dict[str, Any], title: str) -> str:
    """The card of the data set of scores."""
    interval = summary.get("no_interval")
    if interval is None:
        low, high = summary["interval"]
        interval = f"95% interval {low:.4f} to {high:.4f}"
    about = {key: summary[key] for key in ("dataset", "split", "signature")}
    number = f"{summary['mean']:.4f}"
    return CARD.format(**about, **summary["counts"], title=title, number=number, interval=interval)


def push(folder: Path, name: str) -> None:
    """Put the files of a folder into a data set on the Hub, which is private if it is new."""
    hub = HfApi()
    hub.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
    hub.upload_folder(folder_path=folder, repo_id=name, repo_type="dataset", allow_patterns=list(FILES))
    print(f"pushed to {name}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
