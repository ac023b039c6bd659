"""`capeval score`: the user's own captions and images, of one system or several, by one metric or several."""

from __future__ import annotations

import argparse
from collections import ChainMap, Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capeval_core.commands import common, compare, terminal
from capeval_core.errors import Problems, naming, noting
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.inputs.text_files import FileOptions, Joined
from capeval_core.metric import CaptionMetric, CommonOptions, LazyEvidence, Reranker, prepared
from capeval_core.registry import every_class, media_of, metric_class
from capeval_core.replay.bundle import bundle_of
from capeval_core.reports.html import check_report
from capeval_core.reports.tables import Cell, System, Systems
from capeval_core.result import json_text
from capeval_core.rows import Task, encode_tasks

_Metrics = Sequence[type[CaptionMetric]]


def run(arguments: list[str]) -> int:
    known = {_command_of(metric): metric.summary for metric in every_class()}
    given, rest = terminal.first_named(arguments, "score", known, others=True)
    metrics, rest = _metrics(given, rest)
    flags = _parser(metrics).read(rest)
    names = compare.names_of_files("--candidates", flags.candidates)
    baseline = compare.baseline_of(flags.baseline, names, flags.candidates)
    read = [*(("--candidates", path) for path in flags.candidates), ("--references", flags.references)]
    common.check_output("--json", flags.json, read)  # now, not after hours
    common.check_output("--bundle", flags.bundle, [*read, ("--json", flags.json)])
    for name, does in (("explain", "draws"), ("bundle", "records")):
        if getattr(flags, name) is not None and len(names) * len(metrics) > 1:
            raise ValueError(f"--{name} {does} one system by one metric: score them one by one")
    check_report(flags.report)
    options = _options(metrics, flags)
    folder = _folder(metrics, options, flags)
    if flags.explain is not None:
        _make_folder(flags.explain, metrics[0], options[0])
    systems, reused = _score(metrics, options, names, folder, flags)
    if reused:
        captions = sum(len(system.ids) for system in systems) * len(metrics)
        terminal.complain(f"{reused:,} of {captions:,} rows were in {options[0].rows}")
    compared = compare.compare_systems(systems, baseline, flags=flags)
    first, alone = systems[0].cells[metrics[0].name], len(metrics) == len(systems) == 1

    def content() -> str:
        if not alone:
            return json_text(compare.systems_content(compared))
        texts = {"ids": systems[0].ids, "captions": systems[0].captions}
        return json_text({**compare.cell_content(first), **texts})

    def bundle() -> str:
        metric, samples, rows = first.result.source
        return json_text(bundle_of(metric, samples, rows, first.result, systems[0].ids))

    common.in_turn(
        lambda: common.write("--json", flags.json, content() if flags.json else ""),
        lambda: common.write("--bundle", flags.bundle, bundle() if flags.bundle else ""),
        lambda: _print(compared, first if alone and flags.format is None else None, flags.format),
        lambda: _tell(metrics, systems),
        lambda: _write_explanations(flags.explain, systems[0].ids, first.result) if flags.explain else None,
        lambda: compare.write_page(flags, compared, ["score", *arguments]),
    )
    counts = [cell.result.counts for system in systems for cell in system.cells.values()]
    return 0 if any(count.failed < count.captions for count in counts) else 1


def _print(compared: Systems, alone: Cell | None, form: str | None) -> None:
    """The table, or the number of one system by one metric."""
    if alone is None:
        print(compare.show(compared, form), flush=True)
        return
    result, interval, counts = alone.result, alone.interval, alone.result.counts
    bounds = f"none: {alone.no_interval}"
    if interval is not None:
        extent = f"({interval.level:.0%}, {interval.images:,} {compared.visual}s)"
        bounds = f"{compared.number(interval.low)} to {compared.number(interval.high)} {extent}"
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    special += f"; {result.unseen}" if result.unseen else ""
    terminal.summary(
        [compared.columns[0].title, compared.number(result.mean)],
        ["interval", bounds],
        ["captions", f"{counts.captions:,} ({special})"],
        ["signature", result.signature],
    )


def _tell(metrics: _Metrics, systems: Sequence[System]) -> None:
    """Say why captions failed, once for all metrics, and which images are counted once."""
    for system in systems:
        errors = dict(ChainMap(*(cell.result.errors for cell in system.cells.values())))
        items = "captions" if len(systems) == 1 else f"captions of {system.name!r}"
        common.tell_reasons(list(errors.values()), len(system.ids), items)
    metric, ids = _about(metrics), systems[0].ids
    groups, first = systems[0].cells[metric.name].result.groups, dict[str, str]()
    pairs = [(one, first.setdefault(group, one)) for one, group in zip(ids, groups, strict=True) if group]
    equal = dict(pair for pair in pairs if metric.media and pair[0] != pair[1])
    if equal:
        are = "is equal to another" if len(equal) == 1 else "are equal to others"
        example = " to ".join(map(repr, next(iter(equal.items()))))
        count = f"{len(equal):,} of {len(set(ids)):,} {argument_of(metric.media)}"
        effect = "equal ones count as one image in intervals and tests"
        terminal.complain(f"warning: {count} {are}, e.g. {example}: {effect}")


# metrics, options and folders


def _metrics(given: str, rest: Sequence[str]) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics that the first argument and `--media` choose, and the other arguments."""
    names = terminal.TYPES["NAMES"](given) or [given]
    for name in names:
        if issubclass(metric_class(name), Reranker):
            raise ValueError(f"{name} chooses among several captions of each image: use `capeval rerank`")
    metrics, others = common.read_metrics("score", names, rest)
    by_argument = {argument_of(metric.media): _command_of(metric) for metric in metrics if metric.media}
    if len(by_argument) > 1:
        about = " and ".join(f"{name} is about {argument}" for argument, name in by_argument.items())
        raise ValueError(f"{about}: score them in two commands")
    return metrics, others


def _command_of(metric: type[CaptionMetric]) -> str:
    """The metric as a command line names it."""
    return metric.name if metric.variant is None else f"{metric.name} --media {metric.variant}"


def _about(metrics: _Metrics) -> type[CaptionMetric]:
    """The first metric that looks at images or videos, else the first."""
    return next((metric for metric in metrics if metric.media), metrics[0])


def _options(metrics: _Metrics, flags: argparse.Namespace) -> list[CommonOptions]:
    """The checked options of each metric, by the flags."""
    evidence = {"evidence": True} if flags.explain is not None or flags.bundle is not None else {}
    keywords = [common.chosen(flags, metric.Options) | evidence for metric in metrics]
    make = partial(
        common.options_of, given=getattr(flags, "set", ()), metrics=[metric.name for metric in metrics]
    )
    return _each(make, metrics, keywords)


def _each(make: Callable[..., Any], *values: Sequence[Any]) -> list[Any]:
    """What is made of each, or one error with the problems of all."""
    problems, made = Problems(), []
    for own in zip(*values, strict=True):
        with noting(problems):
            made.append(make(*own))
    problems.raise_if_any()
    return made


def _folder(metrics: _Metrics, options: Sequence[CommonOptions], flags: argparse.Namespace) -> str | None:
    """The folder of images or videos, None where no metric opens any; it drops references that none needs."""
    title = ",".join(metric.name for metric in metrics)
    if flags.references is not None and not any(metric.needs_references for metric in metrics):
        terminal.complain(f"warning: --references is ignored: no references are needed by {title}")
        flags.references = None
    about = _about(metrics)
    own = argument_of(about.media)
    for argument in ARGUMENTS:
        if argument == own or getattr(flags, argument) is None:
            continue
        if own is not None:
            medium = medium_of(argument)
            other = f" or --media {medium}" if medium in media_of(about.name) else ""
            fault = f"--{argument}: {_command_of(about)} is about {own}"
            raise ValueError(f"{fault}, pass --{own} FOLDER{other}")
        terminal.complain(f"warning: --{argument} is ignored: texts alone are compared by {title}")
    folder: str | None = None if own is None else getattr(flags, own)
    for metric, chosen in zip(metrics, options, strict=True):
        if folder is None and metric.media and not chosen.images_are_ids:
            whom = f"{_command_of(metric)}: " * (len(metrics) > 1)
            more = ", or pass --regions FEATURES made before" * ("boxes" in metric.media)
            raise ValueError(f"{whom}--{own} is missing: name the folder of {own}{more}")
    return folder


# scoring


def _score(
    metrics: _Metrics, options: Sequence[CommonOptions], names: Sequence[str], folder: str | None, flags: Any
) -> tuple[list[System], int]:
    """Each system's results, and how many rows were reused; one metric and one system are the smallest."""
    problems = Problems()
    absent_too = all(own.on_error == "nan" for own in options)
    collections = _read(flags, folder, _about(metrics).media or ("image",), problems, absent_too)
    ids = [image_id for collection in collections for image_id in collection.ids]
    named = zip(names if len(names) > 1 else [""], collections, strict=True)
    with common.naming_rows(ids, [name for name, collection in named for _ in collection.ids]):
        with noting(problems):
            checked = _checked(metrics, options, collections) if ids else []
        problems.raise_if_any()
        opened = _each(partial(_opened, len(metrics) > 1), metrics, options)
        alone, tasks = len(names) == len(metrics) == 1, []
        with terminal.interruptible(terminal.resuming(options[0].rows)):
            for metric, samples in zip(opened, checked, strict=True):
                root = metric.options.rows
                below = [f"{metric.name}/{name.replace('/', '_')}" for name in names]
                # A folder that has rows itself is of one metric, and of the first system, which was alone.
                if alone or (len(metrics) == 1 and root is not None and any(Path(root).glob("*.parquet"))):
                    below[0] = ""
                folders = [None if root is None else Path(root) / place for place in below]
                tasks.append(Task(prepared(metric, *samples), samples, folders))
            encode_tasks(tasks, progress=True)
        systems = []
        for place, (name, own) in enumerate(zip(names, collections, strict=True)):
            cells = {}
            for task in tasks:
                metric, of_system, rows = task.metric, task.systems[place], task.rows[place]
                result = metric.combine(rows, samples=of_system)
                cells[metric.name] = compare.cell_of(result, LazyEvidence(metric, of_system, rows, result))
            images = own.images if folder is not None else None
            systems.append(System(name, own.ids, own.captions, cells, images, own.references))
    return systems, sum(task.reused for task in tasks)


def _opened(several: bool, metric: type[CaptionMetric], options: CommonOptions) -> CaptionMetric:
    terminal.announce(f"opening {metric.name} ...")
    with naming({"weights": f"--set {metric.name}.weights="} if several else {}):
        return metric(options)


def _read(
    flags: Any, folder: str | None, media: Sequence[str], problems: Problems, absent_too: bool
) -> list[Joined]:
    """The collections of all systems; `problems` with their rows are noted, others are one error."""
    collections: list[Joined] = []
    kept = {"medium": media[0], "problems": problems, "absent_too": absent_too}
    for path in flags.candidates:
        terminal.announce(f"reading {path} ...")
        with noting(problems):
            collections.append(common.read_files(flags, folder, path, **kept))
    if len(collections) < len(flags.candidates):
        problems.raise_if_any()
    if folder is not None and not problems:
        images = [image for one in collections for image in one.images]
        common.tell_without_caption(Path(folder), images, media[0])
    return collections


def _checked(
    metrics: _Metrics, options: Sequence[CommonOptions], collections: Sequence[Joined]
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
        images = visuals if decodes and visuals is not None else paths
        own = own if images is paths else replace(own, on_error="nan")
        samples = own.check_input(metric, captions, images, references, progress=True)
        if not metric.media and entries is not None:  # texts alone are grouped by the ids of references
            pairs = zip(entries, samples.references or [], strict=True)
            sources = {entry: Texts(texts, entry) for entry, texts in pairs}
            samples = replace(samples, images=[Visual(entry, sources[entry]) for entry in entries])
        if decodes:
            visuals = list(samples.images)
        checked.append([replace(samples[a:b], indices=range(b - a)) for a, b in pairwise(ends)])
    return checked


# --explain


def _make_folder(folder: Path, metric: type[CaptionMetric], options: CommonOptions) -> None:
    """Have an empty folder for explanations, before anything is scored, or raise."""
    instead = "--evidence with --json writes them as numbers"
    if options.images_are_ids:
        raise ValueError(f"--explain: there are only box features, and no image to draw them on; {instead}")
    if not metric.plots:
        raise ValueError(f"--explain: no explanation of {_command_of(metric)} can be drawn; {instead}")
    if common.check_folder(folder, flag="--explain"):
        raise ValueError(f"--explain {folder} is not empty: name a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)


def _write_explanations(folder: Path, ids: Sequence[str], result: Any) -> None:
    """`ID-NUMBER.json` for each caption of each image, and `ID-NUMBER.png` where it has a score."""
    numbers: Counter[str] = Counter()
    for index, image_id in enumerate(tqdm(ids, "explain", disable=None, unit="caption")):
        name = image_id.replace("/", "_")
        numbers[name] += 1
        path = f"{name}-{numbers[name]}"
        explanation = result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        common.write("--explain", folder / f"{path}.json", json_text(content))
        if index not in result.errors:
            common.write("--explain", folder / f"{path}.png", explanation.plot())
    drawn = len(ids) - len(result.errors)
    share = f"{drawn:,}" if drawn == len(ids) else f"{drawn:,} of {len(ids):,}"
    print(f"explained  {share} captions in {folder}")


# the parser


def _parser(metrics: _Metrics) -> terminal.Parser:
    about, title = _about(metrics), ",".join(metric.name for metric in metrics)
    own = argument_of(about.media)
    needs = "yes" * any(metric.needs_references for metric in metrics)
    usage = f"--media {metrics[0].variant} " if len(metrics) == 1 and metrics[0].variant else ""
    usage += f"--candidates FILE{f' --{own} FOLDER' if own else ''}"
    text = f"the {own} that they describe"
    if all("boxes" in metric.media for metric in metrics if metric.media):
        text += "; none where --regions names features"
    if "video" in about.media:
        text += ": files, or folders of frames"
    drawable = len(metrics) == 1 and metrics[0].plots
    parser = terminal.parser_of(
        f"score {title}",
        "score METRIC",
        "comparison",
        usage=usage + ("\n       --references FILE [options]" if needs else " [options]"),
        about="\n".join(f"{metric.title}: {metric.summary}" for metric in metrics),
        **common.media_words(metrics),
        # What is hidden is refused, or ignored, with a message of its own.
        **{argument: text * (argument == own) for argument in ARGUMENTS},
        references="reference captions" * bool(needs),
        needs=needs,
        explain="draw where each caption's score comes from, into a new folder" * drawable,
    )
    common.add_flags(parser, FileOptions, title="columns and splits of the files")
    several = len(metrics) > 1
    options = "options of the metrics; each but --set is for all that have it"
    if several:
        text = f"any option of one metric, e.g. {metrics[0].name}.device=cuda"
        terminal.flag(parser.group(options), "--set METRIC.OPTION=VALUE", text, action="append", default=[])
    classes = {metric.name: metric.Options for metric in metrics}
    common.add_flags(parser, classes, options if several else "options of the metric")
    return parser
