"""`capeval rerank`: the best of several captions of each image."""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import dataclass
from pathlib import Path

from capeval_core.commands import common
from capeval_core.commands.compare import ScoredSystem, add_report_flag, compare_systems, write_page
from capeval_core.commands.terminal import Parser, complain, flag, interruptible, resuming, summary
from capeval_core.errors import Problems, beside
from capeval_core.inputs.folder import bare, names_in, some_of
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.registry import metric_class
from capeval_core.reports.html import check_report
from capeval_core.result import Result, json_text
from capeval_core.several import Evidence

_METRIC = "eco"
_COLUMNS = ("filename", "caption")
"""The columns of a submission to the caption re-ranking track of NICE 2024."""


@dataclass(frozen=True)
class _CandidateFile:
    """The candidates of each image, in the file's order."""

    ids: list[str]
    images: list[Path]
    captions: list[list[str]]


def run(arguments: list[str]) -> int:
    metric = metric_class(_METRIC)
    flags = _parser(metric).read(arguments)
    for name, out in (("--out", flags.out), ("--json", flags.json)):  # now, not after hours
        common.check_output(name, out, [("--candidates", flags.candidates)])
    if flags.json is not None and flags.out.resolve() == flags.json.resolve():
        raise ValueError(f"--out and --json are both {flags.out}: name two files")
    if flags.report is not None:
        check_report(flags.report)
    options = metric.Options.of(_METRIC, common.chosen(flags, metric.Options))
    options.check(metric)
    problems = Problems()
    file = _read(flags, problems, absent_too=options.on_error == "nan")
    with common.naming_rows(file.ids):
        with beside(problems):
            checked = options.check_input(metric, file.captions, file.images, progress=True)
            samples = common.with_ids(checked, file.ids)
        opened = metric(options)
        with interruptible(resuming(options.rows)):
            rows = prepared(opened, samples).encode_all(samples, progress=True)
        result = opened.combine(rows, samples=samples)
    outputs = common.Outputs()
    with outputs.next():
        common.write("--out", flags.out, _submission(file, result))
    with outputs.next():
        if flags.json is not None:
            common.write("--json", flags.json, json_text({**result.to_dict(), "ids": file.ids}))
    _print_summary(metric, file, result, flags.out)
    common.tell_reasons(list(result.errors.values()), result.counts.captions, "captions")
    with outputs.next():
        captions = [caption or "" for caption in result.parts["caption"]]
        evidence = {_METRIC: Evidence(opened, samples, rows, result)}
        name, found = flags.candidates.stem, {_METRIC: result}
        system = ScoredSystem(name, file.ids, captions, file.images, None, found, evidence)
        write_page(flags, compare_systems([system], None), ["rerank", *arguments])
    outputs.finish()
    return 0 if result.counts.failed < result.counts.captions else 1


def _submission(file: _CandidateFile, result: Result) -> str:
    """The chosen captions as CSV: file name and caption of each image that has one."""
    choices = zip(file.images, result.parts["caption"], result.parts["choice"], strict=True)
    rows = [_COLUMNS, *((image.name, caption) for image, caption, choice in choices if choice >= 0)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read(flags: argparse.Namespace, problems: Problems, *, absent_too: bool) -> _CandidateFile:
    candidates, images = flags.candidates, flags.images
    collection = common.read_files(flags, images, wide=True, problems=problems, absent_too=absent_too)
    captions: dict[str, list[str]] = {}
    paths: dict[str, Path] = {}
    for image_id, caption, image in zip(collection.ids, collection.captions, collection.images, strict=True):
        captions.setdefault(image_id, []).append(caption)
        paths[image_id] = image
    file = _CandidateFile(list(captions), list(paths.values()), list(captions.values()))
    if len(problems):
        return file
    used = {image.name for image in paths.values() if image.parent == images}
    unused = sum(bare(name) != name and name not in used for name in names_in(images))
    if unused > 0:
        subject = f"{unused:,} images of {images} have" if unused > 1 else f"one image of {images} has"
        complain(f"warning: {subject} no candidates in {candidates}")
    if all(len(pool) == 1 for pool in captions.values()):
        raise ValueError(
            f"--candidates {candidates}: every image has one candidate, so there is nothing to choose: "
            "give {image id: [captions]}, or score them with `capeval score`"
        )
    return file


def _print_summary(metric: type[CaptionMetric], file: _CandidateFile, result: Result, out: Path) -> None:
    sizes = sorted(map(len, file.captions))
    extent = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    rows = [
        [metric.title, f"{result.mean:.4f} (mean total, comparable within this set only)"],
        ["images", f"{len(sizes):,} ({result.counts.failed:,} failed)"],
        ["candidates", f"{sum(sizes):,} ({extent} per image)"],
    ]
    doubtful = [image_id for image_id, yes in zip(file.ids, result.parts["doubtful"], strict=True) if yes]
    if doubtful:
        text = f"{len(doubtful):,} choices match far worse than another candidate: {some_of(doubtful)}"
        rows.append(["doubtful", text])
    if gave_way := sum(bool(rule) for rule in result.parts["gave_way"]):
        text = f"not applied to {gave_way:,} pools, of which they would have left nobody"
        rows.append(["filters", text])
    summary(*rows, ["signature", result.signature], ["chosen", str(out)])


def _parser(metric: type[CaptionMetric]) -> Parser:
    parser = Parser(
        "rerank",
        "--candidates FILE --images FOLDER --out BEST.csv [options]",
        f"{metric.title}: {metric.summary}",
        f"{common.FILES} A CSV file may also have one row per image: its file name, then its candidates, "
        "under a header that begins with filename. "
        f"BEST.csv has the columns {' and '.join(_COLUMNS)}, as submissions to NICE 2024 have.",
    )
    files = parser.add_argument_group("files")
    flag(files, "--candidates FILE", "several captions per image", required=True)
    flag(files, "--images FOLDER", "the images that they describe", required=True)
    flag(files, "--out BEST.csv", "write the chosen captions", type=_table_file, required=True)
    flag(files, "--json OUT", "write the scores of every candidate")
    add_report_flag(files)
    common.add_file_flags(parser)
    common.add_flags(parser, metric.Options)
    return parser


def _table_file(name: str) -> Path:
    if Path(name).suffix.lower() != ".csv":
        raise argparse.ArgumentTypeError(f"{name} is not a .csv file: the chosen captions are written as CSV")
    return Path(name)
