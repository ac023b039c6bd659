"""`capeval score`: the user's own captions and images, of one system or several, by one metric or several."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capeval_core.commands import common, compare
from capeval_core.commands.terminal import (
    Parser,
    announce,
    complain,
    first_named,
    flag,
    interruptible,
    resuming,
    summary,
)
from capeval_core.errors import Problems, ProblemsError, beside, naming
from capeval_core.inputs.folder import bare, names_in
from capeval_core.inputs.samples import Samples, argument_of
from capeval_core.inputs.text_files import Joined
from capeval_core.kept import check_folder
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.options import Options, describe_options
from capeval_core.registry import every_class
from capeval_core.reports.html import check_report
from capeval_core.result import Result, json_text
from capeval_core.several import Evidence, Task, encode_tasks
from capeval_core.statistics import Interval
from capeval_core.weights.folder import WeightsError


def run(arguments: list[str]) -> int:
    known = {common.command_of(metric): metric.summary for metric in every_class()}
    about = (
        "Score a file of captions against a folder of images, with one metric or several, with commas; "
        "or compare several files, one for each system."
    )
    usage = "--candidates FILE [FILE] --images FOLDER"
    first_named(arguments, "score", "METRIC", usage, about, known, epilog=common.FILES)
    metrics, rest = common.read_metrics(arguments)
    parser = _parser(metrics)
    if hint := _option_of_others(parser, metrics, rest):
        parser.error(hint)
    flags = parser.read(rest)
    names = compare.names_of_files("--candidates", flags.candidates)
    baseline = compare.baseline_of(flags.baseline, names, flags.candidates)
    read = [*(("--candidates", path) for path in flags.candidates), ("--references", flags.references)]
    common.check_output("--json", flags.json, read)  # now, not after hours
    if flags.explain is not None and len(names) * len(metrics) > 1:
        raise ValueError("--explain draws one system by one metric: score them one by one")
    if flags.report is not None:
        check_report(flags.report)
    options = _options(metrics, names, flags)
    folder = _folder_of_run(metrics, options, flags)
    if flags.explain is not None:
        _make_folder(flags.explain, metrics[0], options[0])
    systems, reused = _score_systems(metrics, options, names, folder, flags)
    if reused:
        captions = sum(len(system.ids) for system in systems) * len(metrics)
        complain(f"{reused:,} of {captions:,} rows were in {options[0].rows}")
    return _finish(metrics, systems, baseline, flags, arguments)


def _finish(
    metrics: common.Metrics,
    systems: Sequence[compare.ScoredSystem],
    baseline: str | None,
    flags: argparse.Namespace,
    arguments: Sequence[str],
) -> int:
    """Write and print what is asked for; the exit status."""
    compared = compare.compare_systems(
        systems, baseline, one_run=True, digits=flags.digits, times_100=flags.times_100
    )
    alone = systems[0] if len(metrics) == len(systems) == 1 else None
    result = systems[0].results[metrics[0].name]
    outputs = common.Outputs()
    with outputs.next():
        if flags.json is not None:
            content = compare.systems_content(compared, systems)
            if alone is not None:
                content = {**compare.result_content(result), "ids": alone.ids, "captions": alone.captions}
            common.write("--json", flags.json, json_text(content))
    if alone is not None and flags.format is None:
        counts, interval = result.counts, compare.interval_of(result)
        special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
        bounds = f"none: {interval}"
        if isinstance(interval, Interval):
            extent = f"({interval.level:.0%}, {interval.images:,} images)"
            bounds = f"{compared.number(interval.low)} to {compared.number(interval.high)} {extent}"
        summary(
            [metrics[0].title, compared.number(result.mean)],
            ["interval", bounds],
            ["captions", f"{counts.captions:,} ({special})"],
            ["signature", result.signature],
        )
    else:
        print(
            compare.show(compared, flags.format or "text"), flush=True
        )  # whatever a full disk did to the file
    for system in systems:  # why captions failed, once for all metrics
        errors: dict[int, str] = {}
        for own in system.results.values():
            errors = own.errors | errors
        items = "captions" if len(systems) == 1 else f"captions of {system.name!r}"
        common.tell_reasons(list(errors.values()), len(system.ids), items)
    if argument := argument_of(common.about(metrics).media):
        _tell_equal_images(systems[0].ids, systems[0].results[common.about(metrics).name].groups, argument)
    with outputs.next():
        if flags.explain is not None:
            print(_write_explanations(flags.explain, systems[0].ids, result))
    with outputs.next():
        compare.write_page(flags, compared, ["score", *arguments])
    outputs.finish()
    results = [result for system in systems for result in system.results.values()]
    return 0 if any(result.counts.failed < result.counts.captions for result in results) else 1


def _tell_equal_images(ids: Sequence[str], groups: Sequence[str], noun: str) -> None:
    """Say how many images are counted once in intervals and tests because their content is equal."""
    first: dict[str, str] = {}
    equal: dict[str, str] = {}
    for image_id, group in zip(ids, groups, strict=True):
        if group and first.setdefault(group, image_id) != image_id:  # no group: it could not be read
            equal[image_id] = first[group]
    if equal:
        image_id, other = next(iter(equal.items()))
        are = "is equal to another" if len(equal) == 1 else "are equal to others"
        complain(
            f"warning: {len(equal):,} of {len(set(ids)):,} {noun} {are}, e.g. {image_id!r} to {other!r}: "
            "equal ones count as one image in intervals and tests"
        )


# options and folders


def _option_of_others(parser: Parser, metrics: common.Metrics, rest: Sequence[str]) -> str | None:
    """What to say of a flag that is an option of other metrics than these."""
    for name in (one.partition("=")[0] for one in rest if one.startswith("--")):
        if parser.knows(name):
            continue
        if name == "--weights":
            return f"{name}: {common.title_of(metrics)} have no weights"
        owners = [
            common.command_of(metric)
            for metric in every_class()
            if any(common.flag_of(one.name) == name and one.flag for one in describe_options(metric.Options))
        ]
        if owners:
            return f"{name} is an option of {', '.join(owners)}, not of {common.title_of(metrics)}"
    return None


def _options(metrics: common.Metrics, names: Sequence[str], flags: argparse.Namespace) -> list[Options]:
    """The checked options of each metric, by the flags; `names` are those of the systems."""
    problems, options = Problems(), []
    for metric in metrics:
        keywords = common.chosen(flags, metric.Options)
        of_set: dict[str, Any] = {}
        if len(metrics) > 1:
            if metric.default_weights is None:
                keywords.pop("weights", None)
            of_set = common.options_set(flags.set, metric.name, [each.name for each in metrics])
            keywords |= of_set
        if flags.explain is not None:
            keywords["evidence"] = True
        try:
            with naming(common.in_set(metric.name, of_set)):
                own = metric.Options.of(metric.name, keywords)
                replace(own, rows=None).check(metric)
            for folder in _folders_of_rows(metric, own, names, several=len(metrics) > 1):
                if folder is not None:
                    check_folder("rows", folder)
            options.append(own)
        except ProblemsError as error:
            problems.extend(error.problems)
    problems.raise_if_any()
    return options


def _folders_of_rows(
    metric: type[CaptionMetric], options: Options, names: Sequence[str], *, several: bool
) -> list[Path | None]:
    """Where the rows of each system are kept: `--rows`, or METRIC/SYSTEM below it where there are several."""
    if options.rows is None:
        return [None] * len(names)
    folder = Path(options.rows)
    if len(names) == 1 and not several:
        return [folder]
    return [folder / metric.name / name.replace("/", "_") for name in names]


def _folder_of_run(
    metrics: common.Metrics, options: Sequence[Options], flags: argparse.Namespace
) -> str | None:
    """The folder of images or videos, None where no metric opens any; it drops references that none needs."""
    if flags.references is not None and not any(metric.needs_references for metric in metrics):
        verb = "need" if len(metrics) > 1 else "needs"
        complain(f"warning: {common.title_of(metrics)} {verb} no references: --references is ignored")
        flags.references = None
    folder = common.folder_of(metrics, flags)
    for metric, own in zip(metrics, options, strict=True):
        if folder is None and metric.media and not own.images_are_ids:
            whom, argument = (
                f"{common.command_of(metric)}: " * (len(metrics) > 1),
                str(argument_of(metric.media)),
            )
            more = ", or pass --regions FEATURES made before" * ("boxes" in metric.media)
            raise ValueError(
                f"{whom}{common.flag_of(argument)} is missing: name the folder of {argument}{more}"
            )
    return folder


# scoring


def _score_systems(
    metrics: common.Metrics,
    options: Sequence[Options],
    names: Sequence[str],
    folder: str | None,
    flags: argparse.Namespace,
) -> tuple[list[compare.ScoredSystem], int]:
    """Each system's results, and how many rows were reused; one metric and one system are the smallest."""
    problems = Problems()
    collections = _read(names, flags, folder, metrics, problems, [own.on_error for own in options])
    ids = [image_id for collection in collections for image_id in collection.ids]
    several = len(names) > 1
    pairs = zip(names, collections, strict=True)
    owners = [name if several else "" for name, collection in pairs for _ in collection.ids]
    with common.naming_rows(ids, owners):
        with beside(problems):
            checked = _checked(metrics, options, collections, ids) if ids else []
        opened = _opened(metrics, options)
        with interruptible(resuming(options[0].rows)):
            tasks = [
                Task(
                    prepared(metric, *systems),
                    systems,
                    _folders_of_rows(type(metric), own, names, several=len(metrics) > 1),
                )
                for metric, own, systems in zip(opened, options, checked, strict=True)
            ]
            encode_tasks(tasks, progress=True)
        scored = [
            _scored(place, name, own, tasks, folder is not None, flags.report is not None)
            for place, (name, own) in enumerate(zip(names, collections, strict=True))
        ]
    return scored, sum(task.reused for task in tasks)


def _scored(
    place: int, name: str, own: Joined, tasks: Sequence[Task], with_images: bool, with_evidence: bool
) -> compare.ScoredSystem:
    """One system's results by each metric."""
    results: dict[str, Result] = {}
    evidence: dict[str, Evidence] = {}
    for task in tasks:
        samples, rows = task.systems[place], task.rows[place]
        results[task.metric.name] = result = task.metric.combine(rows, samples=samples)
        if with_evidence:
            evidence[task.metric.name] = Evidence(task.metric, samples, rows, result)
    images = own.images if with_images else None
    return compare.ScoredSystem(name, own.ids, own.captions, images, own.references, results, evidence)


def _read(
    names: Sequence[str],
    flags: argparse.Namespace,
    folder: str | None,
    metrics: common.Metrics,
    problems: Problems,
    on_error: Sequence[str],
) -> list[Joined]:
    """The collections of all systems; `problems` with their rows are noted, others are one error."""
    collections: list[Joined] = []
    medium = (common.about(metrics).media or ("image",))[0]
    kept = {"medium": medium, "problems": problems, "absent_too": {*on_error} == {"nan"}}
    for path in flags.candidates:
        announce(f"reading {path} ...")
        try:
            collections.append(common.read_files(flags, folder, candidates=path, **kept))
        except ProblemsError as error:
            if len(names) == 1:
                raise
            problems.add(str(error))
    if len(collections) < len(names):
        problems.raise_if_any()
    if folder is not None and not len(problems):
        _tell_without_caption(folder, medium, collections)
    return collections


def _tell_without_caption(folder: str, medium: str, collections: Sequence[Joined]) -> None:
    """Say how many images of a folder no system has a caption of, and which, unless they are most of it."""
    captioned = {Path(image).name for one in collections for image in one.images}
    there = {name for name in names_in(Path(folder), medium) if bare(name, medium) != name}
    if without := sorted(there - captioned):
        one = len(without) == 1
        have = f"1 {medium} of the folder has" if one else f"{len(without):,} {medium}s of the folder have"
        listed = ", ".join(repr(bare(name, medium)) for name in without[:3])
        shown = f" ({listed}{', ...' if len(without) > 3 else ''})" if len(without) < len(captioned) else ""
        complain(f"note: {have} no caption{shown}")


def _checked(
    metrics: common.Metrics, options: Sequence[Options], collections: Sequence[Joined], ids: Sequence[str]
) -> list[list[Samples]]:
    """The samples of each system, by each metric.

    The first metric decodes every distinct picture; the others take its visuals instead of the paths, and let
    those that are broken pass, since the first one has refused or kept them.
    """
    captions = [caption for collection in collections for caption in collection.captions]
    paths = [image for collection in collections for image in collection.images]
    references = [texts for collection in collections for texts in collection.references or []] or None
    entries = [entry for collection in collections for entry in collection.entries or []] or None
    ends = [0, *accumulate(len(collection.ids) for collection in collections)]
    visuals: list[Any] | None = None
    checked = []
    for metric, own in zip(metrics, options, strict=True):
        decodes = bool(metric.media) and not own.images_are_ids
        if decodes and visuals is not None:
            own = replace(own, on_error="nan")
        images = visuals if decodes and visuals is not None else paths
        samples = own.check_input(metric, captions, images, references, progress=True)
        samples = common.with_ids(samples, ids, metric.media, entries)
        if decodes:
            visuals = list(samples.images)
        checked.append([replace(samples[a:b], indices=range(b - a)) for a, b in pairwise(ends)])
    return checked


def _opened(metrics: common.Metrics, options: Sequence[Options]) -> list[CaptionMetric]:
    """The metrics with their weights; one error names all weights that are missing."""
    problems, opened = Problems(), []
    for metric, own in zip(metrics, options, strict=True):
        announce(f"opening {metric.name} ...")
        try:
            with naming(common.in_set(metric.name, ["weights"] * (len(metrics) > 1))):
                opened.append(metric(replace(own, rows=None)))  # a folder may be of several systems
        except WeightsError as error:
            problems.extend(error.problems)
    if len(problems):
        raise WeightsError(problems)
    return opened


# --explain


def _make_folder(folder: Path, metric: type[CaptionMetric], options: Options) -> None:
    """Have an empty folder for explanations, before anything is scored, or raise."""
    if options.images_are_ids:
        raise ValueError(
            "--explain: there are only box features, and no image is opened to draw them on; "
            "--evidence with --json writes them as numbers"
        )
    if not metric.plots:
        able = ", ".join(common.command_of(class_) for class_ in every_class() if class_.plots)
        raise ValueError(
            f"--explain: what explains {common.command_of(metric)} cannot be drawn, only that of {able}; "
            "--evidence with --json writes it as numbers"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--explain {folder} is a file: name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise OSError(f"--explain {folder}: no folder can be made there ({error.strerror})") from error
    if filled:
        raise ValueError(f"--explain {folder} is not empty: name a new or an empty folder")


def _write_explanations(folder: Path, ids: Sequence[str], result: Result) -> str:
    """Write `ID-NUMBER.png` and `ID-NUMBER.json` for each caption of each image; a line that says how many.

    Slashes of ids become underscores. A caption without a score has no image; its numbers say why.
    """
    numbers: Counter[str] = Counter()
    drawn = 0
    for index, image_id in enumerate(tqdm(ids, "explain", disable=None, unit="caption")):
        name = image_id.replace("/", "_")
        numbers[name] += 1
        path = folder / f"{name}-{numbers[name]}"
        explanation = result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        common.write("--explain", path.with_name(path.name + ".json"), json_text(content))
        if index not in result.errors:
            drawing = common.png_bytes(explanation.plot())  # type: ignore[attr-defined]
            common.write("--explain", path.with_name(path.name + ".png"), drawing)
            drawn += 1
    share = f"{drawn:,}" if drawn == len(ids) else f"{drawn:,} of {len(ids):,}"
    return f"explained  {share} captions in {folder}"


# the parser


def _parser(metrics: common.Metrics) -> Parser:
    argument = argument_of(common.about(metrics).media)
    folder = "" if argument is None else f" {common.flag_of(argument)} FOLDER"
    needs = any(metric.needs_references for metric in metrics)
    media = f" --media {metrics[0].variant}" if len(metrics) == 1 and metrics[0].variant else ""
    parser = Parser(
        f"score {common.title_of(metrics)}",
        f"{media} --candidates FILE{folder}".strip()
        + ("\n       --references FILE [options]" if needs else " [options]"),
        "\n".join(f"{metric.title}: {metric.summary}" for metric in metrics),
        common.FILES,
    )
    files = parser.add_argument_group("files")
    text = "the captions to score; several files are several systems, which are compared"
    flag(files, "--candidates FILE", text, nargs="+", type=str, required=True)
    common.add_media(files, metrics)
    text = "reference captions" if needs else argparse.SUPPRESS  # accepted, with a warning
    flag(files, "--references FILE", text, type=str, required=needs)
    flag(files, "--json OUT", "write scores, parts, ids and captions to this file")
    drawable = len(metrics) == 1 and metrics[0].plots
    text = "draw where each caption's score comes from, into a new folder"
    flag(files, "--explain FOLDER", text if drawable else argparse.SUPPRESS)
    compare.add_comparison_flags(parser)
    common.add_file_flags(parser)
    if len(metrics) == 1:
        common.add_flags(parser, metrics[0].Options)
    else:
        without = {"weights": [metric.name for metric in metrics if metric.default_weights is None]}
        common.add_flags_of_several(parser, {metric.name: metric.Options for metric in metrics}, without)
    return parser
