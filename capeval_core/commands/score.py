"""`capeval score`: the user's own captions and images."""

from __future__ import annotations

import argparse
from pathlib import Path

from capeval_core.commands.arguments import (
    add_flags,
    add_media,
    chosen,
    command_of,
    flag_of,
    folder_of,
    in_words_of_the_user,
    media_hint,
    read_metric,
    with_ids,
)
from capeval_core.commands.explain import FLAG, make_folder, write_explanations
from capeval_core.commands.files import FILES, add_file_flags, read_files
from capeval_core.commands.interrupts import resumable
from capeval_core.commands.outputs import Outputs, check_output, interval_of, summary, tell_failures, write
from capeval_core.commands.terminal import Parser, complain, paragraph, table
from capeval_core.description import describe_metric
from capeval_core.inputs.collection import Collection
from capeval_core.inputs.media import argument_of
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_classes, variant_classes
from capeval_core.result import Result, json_text
from capeval_core.statistics import Interval


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    metric, rest = read_metric("capeval score", arguments)
    if describe_metric(metric).command != "score":
        raise ValueError(
            f"{metric.name} chooses among several captions of each image: use `capeval rerank`, which "
            "writes the chosen ones"
        )
    parser = _parser(metric)
    if hint := media_hint(metric, rest):
        parser.error(hint)
    flags = parser.read(rest)
    check_output("--json", flags.json, flags, ("candidates", "references"))  # now, not after hours
    collection, result = _score(metric, flags)
    interval = interval_of(result)
    outputs = Outputs()
    with outputs.next():
        if flags.json is not None:
            _write(flags.json, collection, result, interval)
    print(summary(metric.title, result, interval), flush=True)  # whatever a full disk did to the file
    tell_failures(result)
    with outputs.next():
        if flags.explain is not None:
            print(write_explanations(flags.explain, collection, result))
    outputs.finish()
    return 0 if result.counts.failed < result.counts.captions else 1


def _score(metric: type[CaptionMetric], flags: argparse.Namespace) -> tuple[Collection, Result]:
    keywords = chosen(flags, metric.Options)
    if flags.explain is not None:
        keywords["evidence"] = True
    with in_words_of_the_user(metric.Options):
        options = metric.Options.of(metric.name, keywords)
        metric.check_options(options)
    if flags.references is not None and not metric.needs_references:
        complain(f"warning: {metric.name} needs no references: --references is ignored")
        flags.references = None
    folder = folder_of(metric, flags)
    if folder is None and metric.media and not metric.images_are_ids(options):
        raise ValueError(
            "--images is missing: name the folder of images, or pass --regions FEATURES made before"
        )
    if flags.explain is not None:
        if metric.images_are_ids(options):
            raise ValueError(
                f"{FLAG}: there are only box features, and no image is opened to draw them on; "
                "--evidence with --json writes them as numbers"
            )
        make_folder(flags.explain, metric)
    medium = (metric.media or ("image",))[0]
    collection = read_files(flags, folder, medium=medium)
    with resumable(options), in_words_of_the_user(metric.Options, collection.ids):
        samples = metric.check_input(options, collection.captions, collection.images, collection.references)
        opened = metric(options)
        samples = with_ids(samples, collection.ids, metric.media)
        rows = opened.prepared(samples).encode_all(samples, progress=True)
        result = opened.combine(rows, samples=samples)
    return collection, result


def _write(path: Path, collection: Collection, result: Result, interval: Interval | str) -> None:
    content = {
        **result.to_dict(),
        "interval": vars(interval) if isinstance(interval, Interval) else None,
        "ids": collection.ids,
        "captions": collection.captions,
    }
    if result.evidence is not None:
        content["evidence"] = [result.evidence[i] for i in range(len(collection.ids))]
    write("--json", path, json_text(content))


def _parser(metric: type[CaptionMetric]) -> Parser:
    argument = argument_of(metric.media)
    folder = "" if argument is None else f" {flag_of(argument)} FOLDER"
    usage = f"capeval score {command_of(metric)} --candidates FILE{folder}"
    parser = Parser(
        prog=f"capeval score {metric.name}",
        usage=usage + ("\n       --references FILE [options]" if metric.needs_references else " [options]"),
        description=paragraph(f"{metric.title}: {metric.summary}"),
        epilog=paragraph(FILES),
    )
    files = parser.add_argument_group("files")
    files.add_argument("--candidates", metavar="FILE", required=True, help="the captions to score")
    add_media(files, metric, optional="boxes" in metric.media)
    files.add_argument(
        "--references",
        metavar="FILE",
        required=metric.needs_references,
        help="reference captions" if metric.needs_references else "ignored: this metric needs none",
    )
    files.add_argument(
        "--json", metavar="OUT", type=Path, help="write scores, parts, ids and captions to this file"
    )
    files.add_argument(
        FLAG,
        metavar="FOLDER",
        type=Path,
        help="draw where each caption's score comes from, into a new folder"
        if metric.plots
        else "for metrics whose explanations can be drawn",
    )
    add_file_flags(parser)
    add_flags(parser, metric.Options)
    return parser


def _introduce(arguments: list[str]) -> int:
    metrics = metric_classes()
    listed = [*metrics.values(), *variant_classes().values()]
    parser = Parser(
        prog="capeval score",
        usage="capeval score METRIC --candidates FILE --images FOLDER [options]",
        description="Score a file of captions against a folder of images.",
        epilog="metrics:\n"
        + table([[command_of(metric), metric.summary] for metric in listed], indent="  ")
        + "\n\n`capeval score METRIC --help` shows all options.\n\n"
        + paragraph(FILES),
    )
    parser.introduce(arguments, f"the metric comes first: capeval score {{{','.join(metrics)}}} ...")
