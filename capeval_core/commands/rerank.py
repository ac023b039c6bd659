"""`capeval rerank`: the best of several captions of each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from capeval_core.commands import common
from capeval_core.commands.compare import cell_of, compare_systems, write_page
from capeval_core.commands.terminal import interruptible, parser_of, resuming, summary
from capeval_core.errors import Problems, noting
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.files import some_of
from capeval_core.metric import LazyEvidence, prepared
from capeval_core.registry import metric_class
from capeval_core.reports.tables import System
from capeval_core.result import Result

_METRIC = "eco"


def run(arguments: list[str]) -> int:
    metric = metric_class(_METRIC)  # the one that chooses, so the command needs no name of a metric
    about = f"{metric.title}: {metric.summary}"
    flags = parser_of("rerank", options=[FileOptions, metric.Options], about=about).read(arguments)
    if flags.out.suffix.lower() != ".csv":
        raise ValueError(f"--out {flags.out} is not a .csv file: the chosen captions are written as CSV")
    common.check_page(flags.report)
    options = common.options_of(metric, common.chosen(flags, metric.Options))
    # Problems of the files and of the captions in them are told together, each under the name of its image.
    problems = Problems()
    file = common.read_files(
        flags,
        flags.images,
        flags.candidates,
        problems=problems,
        wide=True,
        absent_too=options.on_error == "nan",
    )
    common.tell_notes([file])
    pools: dict[str, list[str]] = {}
    for image_id, caption in zip(file.ids, file.captions, strict=True):
        pools.setdefault(image_id, []).append(caption)
    ids = list(pools)
    images = list(dict(zip(file.ids, file.images, strict=True)).values())  # one of each pool
    if not problems:
        common.tell_without_caption(flags.images, images)
        # A file of one caption per image is meant for `capeval score`, whose answer would be taken for ours.
        if all(len(pool) == 1 for pool in pools.values()):
            problem = "every image has one candidate, so there is nothing to choose"
            fix = "give {image id: [captions]}, or score them with `capeval score`"
            raise ValueError(f"--candidates {flags.candidates}: {problem}: {fix}")
    with common.naming_rows(ids):
        with noting(problems):
            samples = metric.check_input(options, list(pools.values()), images, progress=True)
        problems.raise_if_any()
        opened = metric(options)
        with interruptible(resuming(options.rows)):
            rows = prepared(opened, samples).encode_all(samples, progress=True)
        result = opened.combine(rows, samples=samples)
    captions = [caption or "" for caption in result.parts["caption"]]  # None of an image that failed
    cell = cell_of(result, LazyEvidence(opened, samples, rows, result))
    system = System(flags.candidates.stem, ids, captions, {_METRIC: cell}, images)
    common.in_turn(
        lambda: common.write("--out", flags.out, _submission(images, result)),
        lambda: common.write("--json", flags.json, {**result.to_dict(), "ids": ids}),
        lambda: _print_summary(metric.title, pools, result, flags.out),
        lambda: write_page(flags, compare_systems([system], None), ["rerank", *arguments]),
    )
    return 0 if result.counts.failed < result.counts.captions else 1


def _submission(images: list[Path], result: Result) -> str:
    """The chosen captions in the columns of a submission to the caption re-ranking track of NICE 2024."""
    table = pd.DataFrame({"filename": [image.name for image in images], "caption": result.parts["caption"]})
    has_choice = np.array(result.parts["choice"]) >= 0  # -1 of an image that failed
    # One end of line on every system, so that the same choices are the same file.
    return str(table[has_choice].to_csv(index=False, lineterminator="\n"))


def _print_summary(title: str, pools: dict[str, list[str]], result: Result, out: Path) -> None:
    """Print the mean, and the choices that someone should look at."""
    sizes = sorted(map(len, pools.values()))
    extent = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    rows = [
        [title, f"{result.mean:.4f} (mean total, comparable within this set only)"],
        ["images", f"{len(sizes):,} ({result.counts.failed:,} failed)"],
        ["candidates", f"{sum(sizes):,} ({extent} per image)"],
    ]
    doubtful_ids = []
    for image_id, is_doubtful in zip(pools, result.parts["doubtful"], strict=True):
        if is_doubtful:
            doubtful_ids.append(image_id)
    if doubtful_ids:
        count = f"{len(doubtful_ids):,} choices match far worse than another candidate"
        rows.append(["doubtful", f"{count}: {some_of(doubtful_ids)}"])
    # A filter that refuses every caption of a pool is not applied to it: some caption has to be chosen.
    gave_way_count = sum(map(bool, result.parts["gave_way"]))
    if gave_way_count:
        text = f"not applied to {gave_way_count:,} pools, of which they would have left nobody"
        rows.append(["filters", text])
    summary(*rows, ["signature", result.signature], ["chosen", str(out)])
    common.tell_reasons(list(result.errors.values()), result.counts.captions, "captions")
