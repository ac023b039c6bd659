"""`capeval rerank`: the best of several captions of each image."""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import dataclass
from pathlib import Path

from capeval_core.commands.arguments import add_flags, chosen, in_words_of_the_user, with_ids
from capeval_core.commands.files import FILES, add_file_flags, read_files
from capeval_core.commands.interrupts import resumable
from capeval_core.commands.outputs import Outputs, check_output, tell_failures, write
from capeval_core.commands.systems import ScoredSystem
from capeval_core.commands.systems_output import (
    add_report_flag,
    check_page,
    compare_systems,
    write_page,
)
from capeval_core.commands.terminal import WHOLE_LINES, Parser, complain, paragraph, table
from capeval_core.errors import Problems, beside
from capeval_core.evidence import Evidence
from capeval_core.inputs.folder import bare, names_in, some_of
from capeval_core.inputs.text_files import FileOptions
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class
from capeval_core.result import Result, json_text

METRIC = "eco"
COLUMNS = ("filename", "caption")
"""The columns of a submission to the caption re-ranking track of NICE 2024."""


@dataclass(frozen=True)
class CandidateFile:
    """The candidates of each image, in the file's order."""

    ids: list[str]
    images: list[Path]
    captions: list[list[str]]


def run(arguments: list[str]) -> int:
    metric = metric_class(METRIC)
    flags = _parser(metric).read(arguments)
    for flag, out in (("--out", flags.out), ("--json", flags.json)):  # now, not after hours
        check_output(flag, out, flags, ("candidates",))
    if flags.json is not None and flags.out.resolve() == flags.json.resolve():
        raise ValueError(f"--out and --json are both {flags.out}: name two files")
    check_page(flags)
    with in_words_of_the_user(metric.Options):
        options = metric.Options.of(METRIC, chosen(flags, metric.Options))
        metric.check_options(options)
    problems = Problems()
    file = _read(flags, problems, absent_too=options.on_error == "nan")
    with resumable(options), in_words_of_the_user([FileOptions, metric.Options], file.ids):
        with beside(problems):
            samples = with_ids(
                metric.check_input(options, file.captions, file.images, progress=True), file.ids
            )
        opened = metric(options)
        rows = opened.prepared(samples).encode_all(samples, progress=True)
        result = opened.combine(rows, samples=samples)
    outputs = Outputs()
    with outputs.next():
        write("--out", flags.out, submission(file, result))
    with outputs.next():
        if flags.json is not None:
            content = {**result.to_dict(), "ids": file.ids}
            write("--json", flags.json, json_text(content))
    print(_summary(metric, file, result, flags.out))
    tell_failures(result)
    with outputs.next():
        chosen_captions = [caption or "" for caption in result.parts["caption"]]
        evidence = {METRIC: Evidence(opened, samples, rows, result)}
        name, found = flags.candidates.stem, {METRIC: result}
        system = ScoredSystem(name, file.ids, chosen_captions, file.images, None, found, evidence)
        write_page(flags, compare_systems([system], None), ["rerank", *arguments])
    outputs.finish()
    return 0 if result.counts.failed < result.counts.captions else 1


def submission(file: CandidateFile, result: Result) -> str:
    """The chosen captions as CSV: file name and caption of each image that has one."""
    choices = zip(file.images, result.parts["caption"], result.parts["choice"], strict=True)
    rows = [COLUMNS, *((image.name, caption) for image, caption, choice in choices if choice >= 0)]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read(flags: argparse.Namespace, problems: Problems, *, absent_too: bool) -> CandidateFile:
    candidates, images = flags.candidates, flags.images
    collection = read_files(flags, images, wide=True, problems=problems, absent_too=absent_too)
    captions: dict[str, list[str]] = {}
    paths: dict[str, Path] = {}
    for image_id, caption, image in zip(collection.ids, collection.captions, collection.images, strict=True):
        captions.setdefault(image_id, []).append(caption)
        paths[image_id] = image
    if len(problems):
        return CandidateFile(list(captions), list(paths.values()), list(captions.values()))
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
    return CandidateFile(list(captions), list(paths.values()), list(captions.values()))


def _summary(metric: type[CaptionMetric], file: CandidateFile, result: Result, out: Path) -> str:
    sizes = sorted(map(len, file.captions))
    extent = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    gave_way = [rule for rule in result.parts["gave_way"] if rule]
    doubtful = [image_id for image_id, yes in zip(file.ids, result.parts["doubtful"], strict=True) if yes]
    rows = [
        [metric.title, f"{result.mean:.4f} (mean total, comparable within this set only)"],
        ["images", f"{len(sizes):,} ({result.counts.failed:,} failed)"],
        ["candidates", f"{sum(sizes):,} ({extent} per image)"],
        ["signature", result.signature],
        ["chosen", str(out)],
    ]
    if gave_way:
        rows.insert(
            3, ["filters", f"not applied to {len(gave_way):,} pools, of which they would have left nobody"]
        )
    if doubtful:
        names = some_of(doubtful)
        rows.insert(
            3, ["doubtful", f"{len(doubtful):,} choices match far worse than another candidate: {names}"]
        )
    return table(rows, width=WHOLE_LINES)


def _parser(metric: type[CaptionMetric]) -> Parser:
    parser = Parser(
        prog="capeval rerank",
        usage="capeval rerank --candidates FILE --images FOLDER --out BEST.csv [options]",
        description=paragraph(f"{metric.title}: {metric.summary}"),
        epilog=paragraph(
            f"{FILES} A CSV file may also have one row per image: its file name, then its candidates, "
            "under a header that begins with filename. "
            f"BEST.csv has the columns {' and '.join(COLUMNS)}, as submissions to NICE 2024 have."
        ),
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--candidates", metavar="FILE", type=Path, required=True, help="several captions per image"
    )
    files.add_argument(
        "--images", metavar="FOLDER", type=Path, required=True, help="the images that they describe"
    )
    files.add_argument(
        "--out", metavar="BEST.csv", type=_table_file, required=True, help="write the chosen captions"
    )
    files.add_argument("--json", metavar="OUT", type=Path, help="write the scores of every candidate")
    add_report_flag(files)
    add_file_flags(parser)
    add_flags(parser, metric.Options)
    return parser


def _table_file(name: str) -> Path:
    if Path(name).suffix.lower() != ".csv":
        raise argparse.ArgumentTypeError(f"{name} is not a .csv file: the chosen captions are written as CSV")
    return Path(name)
