"""`capeval score`: the user's own captions and images, of one system or several, by one metric or several."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from capeval_core.commands.arguments import add_flags, add_flags_of_several, flag_of
from capeval_core.commands.explain import FLAG, make_folder, write_explanations
from capeval_core.commands.files import FILES, add_file_flags
from capeval_core.commands.metrics import (
    Metrics,
    about,
    add_media,
    command_of,
    media_hint,
    read_metrics,
    title_of,
)
from capeval_core.commands.outputs import (
    Outputs,
    check_output,
    interval_of,
    summary,
    tell_equal_images,
    tell_reasons,
    write,
)
from capeval_core.commands.systems import (
    ScoredSystem,
    baseline_of,
    folder_of_run,
    names_of_files,
    options_of,
    score_systems,
)
from capeval_core.commands.systems_output import (
    add_comparison_flags,
    check_page,
    compare_systems,
    result_content,
    show,
    systems_content,
    write_page,
)
from capeval_core.commands.terminal import Parser, complain, paragraph, table
from capeval_core.inputs.media import argument_of
from capeval_core.options import describe_options
from capeval_core.registry import every_class, metric_classes
from capeval_core.result import json_text


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    metrics, rest = read_metrics(arguments)
    parser = _parser(metrics)
    if hint := media_hint(about(metrics), rest) or _option_of_others(parser, metrics, rest):
        parser.error(hint)
    flags = parser.read(rest)
    names = names_of_files("--candidates", flags.candidates)
    baseline = baseline_of(flags.baseline, names, flags.candidates)
    _check_outputs(metrics, names, flags)  # now, not after hours
    check_page(flags)
    options = options_of(metrics, names, flags)
    folder = folder_of_run(metrics, options, flags)
    if flags.explain is not None:
        if metrics[0].images_are_ids(options[0]):
            raise ValueError(
                f"{FLAG}: there are only box features, and no image is opened to draw them on; "
                "--evidence with --json writes them as numbers"
            )
        make_folder(flags.explain, metrics[0])
    systems, reused = score_systems(metrics, options, names, folder, flags)
    captions = sum(len(system.ids) for system in systems) * len(metrics)
    if reused:
        complain(f"{reused:,} of {captions:,} rows were in {options[0].rows}")
    return _finish(metrics, systems, baseline, flags, arguments)


def _finish(
    metrics: Metrics,
    systems: Sequence[ScoredSystem],
    baseline: str | None,
    flags: argparse.Namespace,
    arguments: Sequence[str],
) -> int:
    """Write and print what is asked for; the exit status."""
    alone = systems[0] if len(metrics) == len(systems) == 1 else None
    compared = compare_systems(
        systems, baseline, one_run=True, digits=flags.digits, times_100=flags.times_100
    )
    outputs = Outputs()
    with outputs.next():
        if flags.json is not None:
            content = systems_content(compared, systems) if alone is None else _content(alone)
            write("--json", flags.json, json_text(content))
    if alone is not None and flags.format is None:
        (result,) = alone.results.values()
        print(summary(metrics[0].title, result, interval_of(result), compared.number), flush=True)
    else:
        print(show(compared, flags.format or "text"), flush=True)  # whatever a full disk did to the file
    _tell_failures(systems)
    if argument := argument_of(about(metrics).media):
        groups = systems[0].results[about(metrics).name].groups
        tell_equal_images(systems[0].ids, groups, argument)
    with outputs.next():
        if flags.explain is not None and alone is not None:
            (result,) = alone.results.values()
            print(write_explanations(flags.explain, alone.ids, result))
    with outputs.next():
        write_page(flags, compared, ["score", *arguments])
    outputs.finish()
    results = [result for system in systems for result in system.results.values()]
    return 0 if any(result.counts.failed < result.counts.captions for result in results) else 1


def _content(system: ScoredSystem) -> dict[str, object]:
    """What a file of --json holds of one system by one metric."""
    (result,) = system.results.values()
    return {**result_content(result), "ids": system.ids, "captions": system.captions}


def _tell_failures(systems: Sequence[ScoredSystem]) -> None:
    """Say which captions of which system failed and why, the first of them; once for all metrics."""
    for system in systems:
        errors: dict[int, str] = {}
        for result in system.results.values():
            errors = result.errors | errors
        items = "captions" if len(systems) == 1 else f"captions of {system.name!r}"
        tell_reasons(list(errors.values()), len(system.ids), items)


def _check_outputs(metrics: Metrics, names: Sequence[str], flags: argparse.Namespace) -> None:
    read = argparse.Namespace(references=flags.references)
    for place, path in enumerate(flags.candidates):
        setattr(read, f"candidates{place}", path)
    whose = {f"candidates{place}": "--candidates" for place in range(len(names))}
    check_output("--json", flags.json, read, {**whose, "references": "--references"})
    if flags.explain is not None and (len(names) > 1 or len(metrics) > 1):
        raise ValueError(f"{FLAG} draws one system by one metric: score them one by one")


def _option_of_others(parser: Parser, metrics: Metrics, rest: Sequence[str]) -> str | None:
    """What to say of a flag that is an option of other metrics than these."""
    for flag in (one.partition("=")[0] for one in rest if one.startswith("--")):
        if flag in parser._option_string_actions:
            continue
        if flag == flag_of("weights"):
            return f"{flag}: {title_of(metrics)} have no weights"
        owners = [
            command_of(metric)
            for metric in every_class()
            if any(
                flag_of(option.name) == flag and option.flag for option in describe_options(metric.Options)
            )
        ]
        if owners:
            return f"{flag} is an option of {', '.join(owners)}, not of {title_of(metrics)}"
    return None


def _parser(metrics: Metrics) -> Parser:
    argument = argument_of(about(metrics).media)
    folder = "" if argument is None else f" {flag_of(argument)} FOLDER"
    needs = any(metric.needs_references for metric in metrics)
    command = command_of(metrics[0]) if len(metrics) == 1 else title_of(metrics)
    usage = f"capeval score {command} --candidates FILE{folder}"
    described = [f"{metric.title}: {metric.summary}" for metric in metrics]
    parser = Parser(
        prog=f"capeval score {title_of(metrics)}",
        usage=usage + ("\n       --references FILE [options]" if needs else " [options]"),
        description="\n".join(map(paragraph, described)),
        epilog=paragraph(FILES),
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--candidates",
        metavar="FILE",
        nargs="+",
        required=True,
        help="the captions to score; several files are several systems, which are compared",
    )
    add_media(files, metrics)
    files.add_argument(
        "--references",
        metavar="FILE",
        required=needs,
        help="reference captions" if needs else argparse.SUPPRESS,  # accepted, with a warning
    )
    files.add_argument(
        "--json", metavar="OUT", type=Path, help="write scores, parts, ids and captions to this file"
    )
    files.add_argument(
        FLAG,
        metavar="FOLDER",
        type=Path,
        help="draw where each caption's score comes from, into a new folder"
        if len(metrics) == 1 and metrics[0].plots
        else argparse.SUPPRESS,
    )
    add_comparison_flags(parser)
    add_file_flags(parser)
    if len(metrics) == 1:
        add_flags(parser, metrics[0].Options)
    else:
        without = {"weights": [metric.name for metric in metrics if metric.default_weights is None]}
        add_flags_of_several(parser, {metric.name: metric.Options for metric in metrics}, without)
    return parser


def _introduce(arguments: list[str]) -> int:
    metrics = metric_classes()
    parser = Parser(
        prog="capeval score",
        usage="capeval score METRIC[,METRIC] --candidates FILE [FILE] --images FOLDER",
        description=paragraph(
            "Score a file of captions against a folder of images, with one metric or several, with commas; "
            "or compare several files, one for each system."
        ),
        epilog="metrics:\n"
        + table([[command_of(metric), metric.summary] for metric in every_class()], indent="  ")
        + "\n\n`capeval score METRIC --help` shows all options.\n\n"
        + paragraph(FILES),
    )
    parser.introduce(arguments, f"the metric comes first: capeval score {{{','.join(metrics)}}} ...")
