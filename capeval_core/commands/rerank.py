"""`capeval rerank`: the best of several captions of each image."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from capeval_core.commands import common
from capeval_core.commands.compare import cell_of, compare_systems, write_page
from capeval_core.commands.terminal import interruptible, parser_of, resuming, summary
from capeval_core.errors import Problems, noting
from capeval_core.inputs.files import some_of
from capeval_core.inputs.text_files import FileOptions
from capeval_core.metric import LazyEvidence, prepared
from capeval_core.registry import metric_class
from capeval_core.reports.html import check_report
from capeval_core.reports.tables import System
from capeval_core.result import Result, json_text

_METRIC = "eco"
_COLUMNS = ("filename", "caption")
"""The columns of a submission to the caption re-ranking track of NICE 2024."""


def run(arguments: list[str]) -> int:
    metric = metric_class(_METRIC)
    parser = parser_of("rerank", about=f"{metric.title}: {metric.summary}")
    common.add_flags(parser, FileOptions, title="columns and splits of the files")
    common.add_flags(parser, metric.Options)
    flags = parser.read(arguments)
    if flags.out.suffix.lower() != ".csv":
        raise ValueError(f"--out {flags.out} is not a .csv file: the chosen captions are written as CSV")
    read = [("--candidates", flags.candidates)]
    common.check_output("--out", flags.out, read)  # now, not after hours
    common.check_output("--json", flags.json, [*read, ("--out", flags.out)])
    check_report(flags.report)
    options = common.options_of(metric, common.chosen(flags, metric.Options))
    problems = Problems()
    absent_too = options.on_error == "nan"
    file = common.read_files(
        flags, flags.images, flags.candidates, wide=True, problems=problems, absent_too=absent_too
    )
    pools: dict[str, list[str]] = {}
    for image_id, caption in zip(file.ids, file.captions, strict=True):
        pools.setdefault(image_id, []).append(caption)
    ids, images = list(pools), list(dict(zip(file.ids, file.images, strict=True)).values())
    if not problems:
        common.tell_without_caption(flags.images, images)
        if all(len(pool) == 1 for pool in pools.values()):
            fault = "every image has one candidate, so there is nothing to choose"
            fix = "give {image id: [captions]}, or score them with `capeval score`"
            raise ValueError(f"--candidates {flags.candidates}: {fault}: {fix}")
    with common.naming_rows(ids):
        with noting(problems):
            samples = options.check_input(metric, list(pools.values()), images, progress=True)
        problems.raise_if_any()
        opened = metric(options)
        with interruptible(resuming(options.rows)):
            rows = prepared(opened, samples).encode_all(samples, progress=True)
        result = opened.combine(rows, samples=samples)
    captions = [caption or "" for caption in result.parts["caption"]]
    cell = cell_of(result, LazyEvidence(opened, samples, rows, result))
    system = System(flags.candidates.stem, ids, captions, {_METRIC: cell}, images)
    content = json_text({**result.to_dict(), "ids": ids})
    common.in_turn(
        lambda: common.write("--out", flags.out, _submission(images, result)),
        lambda: common.write("--json", flags.json, content),
        lambda: _print_summary(metric.title, pools, result, flags.out),
        lambda: write_page(flags, compare_systems([system], None), ["rerank", *arguments]),
    )
    return 0 if result.counts.failed < result.counts.captions else 1


def _submission(images: list[Path], result: Result) -> str:
    """The chosen captions as CSV: file name and caption of each image that has one."""
    choices = zip(images, result.parts["caption"], result.parts["choice"], strict=True)
    rows = [_COLUMNS, *((image.name, caption) for image, caption, choice in choices if choice >= 0)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _print_summary(title: str, pools: dict[str, list[str]], result: Result, out: Path) -> None:
    sizes = sorted(map(len, pools.values()))
    extent = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    rows = [
        [title, f"{result.mean:.4f} (mean total, comparable within this set only)"],
        ["images", f"{len(sizes):,} ({result.counts.failed:,} failed)"],
        ["candidates", f"{sum(sizes):,} ({extent} per image)"],
    ]
    doubtful = [image_id for image_id, yes in zip(pools, result.parts["doubtful"], strict=True) if yes]
    if doubtful:
        text = f"{len(doubtful):,} choices match far worse than another candidate: {some_of(doubtful)}"
        rows.append(["doubtful", text])
    if gave_way := sum(bool(rule) for rule in result.parts["gave_way"]):
        text = f"not applied to {gave_way:,} pools, of which they would have left nobody"
        rows.append(["filters", text])
    summary(*rows, ["signature", result.signature], ["chosen", str(out)])
    common.tell_reasons(list(result.errors.values()), result.counts.captions, "captions")
