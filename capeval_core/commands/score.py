"""`capeval score`: the user's own captions and images, of one system or several, by one metric or several."""

from __future__ import annotations

from argparse import Namespace
from collections import ChainMap, Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capeval_core.commands import common, compare, per_caption, terminal
from capeval_core.errors import Problems, naming, noting
from capeval_core.inputs.collection import Joined
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.metric import CaptionMetric, CommonOptions, LazyEvidence, Reranker, prepared
from capeval_core.registry import JAVA_METRICS, every_class, media_of, metric_class
from capeval_core.replay.bundle import bundle_of
from capeval_core.reports.tables import Cell, System, Systems
from capeval_core.run import Task, encode_tasks
from capeval_core.scores.java import check_java

_Metrics = Sequence[type[CaptionMetric]]
_Options = Sequence[CommonOptions]
_LONG_RUN = 1_000
"""Captions from which on it is said how the run could be faster."""


def run(arguments: list[str]) -> int:
    listed = [*every_class(), *map(metric_class, JAVA_METRICS)]
    known = {common.command_of(metric): metric.summary for metric in listed}
    given, rest = terminal.first_named(arguments, "score", known, others=True)
    metrics, rest = _metrics(given, rest)
    flags = _parser(metrics).read(rest)
    names = compare.names_of_files("--candidates", flags.candidates)
    baseline = compare.baseline_of(flags.baseline, names, flags.candidates)
    for name in ("explain", "bundle"):
        if getattr(flags, name) is not None and len(names) * len(metrics) > 1:
            raise ValueError(f"--{name} is of one system by one metric: score them one by one")
    common.check_page(flags.report)
    per_caption.check(flags.per_caption)
    options = _options(metrics, flags)
    _check_files(metrics, options, flags)
    if flags.explain is not None:
        _make_folder(flags.explain, metrics[0], options[0])
    systems, reused = _score(metrics, options, names, flags)
    if reused:
        captions = sum(len(system.ids) for system in systems) * len(metrics)
        terminal.complain(f"{reused:,} of {captions:,} rows were in {options[0].rows}")
    compared = compare.compare_systems(systems, baseline, flags=flags)
    groups = None if flags.group_by is None else compare.Groups.of(flags.group_by, compared)
    first, alone = systems[0].cells[metrics[0].name], len(metrics) == len(systems) == 1
    ids = systems[0].ids

    def content() -> dict[str, Any]:
        whole = {**compare.cell_content(first), "ids": ids, "captions": systems[0].captions}
        whole["files"] = systems[0].files
        whole = whole if alone else compare.systems_content(compared)
        return whole if groups is None else {**whole, "by": groups.content()}

    common.in_turn(
        lambda: common.write("--json", flags.json, flags.json and content()),
        lambda: common.write("--bundle", flags.bundle, flags.bundle and bundle_of(first.result, ids)),
        lambda: per_caption.write(flags.per_caption, systems, flags.group_by),
        lambda: _print(compared, first if alone and flags.format is None else None, flags.format, groups),
        lambda: _tell(metrics, systems),
        lambda: _write_explanations(flags.explain, ids, first.result) if flags.explain else None,
        lambda: compare.write_page(flags, compared, ["score", *arguments]),
    )
    counts = [cell.result.counts for system in systems for cell in system.cells.values()]
    return 0 if any(count.failed < count.captions for count in counts) else 1


def _print(compared: Systems, alone: Cell | None, form: str | None, groups: compare.Groups | None) -> None:
    if alone is None:
        print(compare.show(compared, form, groups), flush=True)
        return
    result, interval, counts = alone.result, alone.interval, alone.result.counts
    bounds = f"none: {alone.no_interval}"
    if interval is not None:
        extent = f"({interval.level:.0%}, {interval.images:,} {compared.visual}s)"
        bounds = f"{compared.number(interval.low)} to {compared.number(interval.high)} {extent}"
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    special += f"; {result.unseen}" if result.unseen else ""
    column = compared.columns[0]
    further = [
        [column.part_titles.get(name, name), compared.number(value)]
        for name, value in result.numbers.items()
        if name != result.key
    ]
    terminal.summary(
        [compared.columns[0].title, compared.number(result.mean)],
        ["interval", bounds],
        *further,
        ["captions", f"{counts.captions:,} ({special})"],
        ["signature", result.signature],
    )
    if groups is not None:
        print(f"\n{compare.groups_table(groups, form).text()}", flush=True)


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
    names = terminal.TYPES["NAMES"](given) or [given]
    for name in names:
        if issubclass(metric_class(name), Reranker):
            raise ValueError(f"{name} chooses among several captions of each image: use `capeval rerank`")
    metrics, others = common.read_metrics("score", names, rest)
    by_argument = {argument_of(metric.media): common.command_of(metric) for metric in metrics if metric.media}
    if len(by_argument) > 1:
        about = " and ".join(f"{name} is about {argument}" for argument, name in by_argument.items())
        raise ValueError(f"{about}: score them in two commands")
    return metrics, others


def _about(metrics: _Metrics) -> type[CaptionMetric]:
    return next((metric for metric in metrics if metric.media), metrics[0])


def _options(metrics: _Metrics, flags: Namespace) -> list[Any]:
    evidence = {"evidence": True} if flags.explain is not None or flags.bundle is not None else {}
    names, options, problems = [metric.name for metric in metrics], [], Problems()
    check_java([metric.title for metric in metrics if metric.name in JAVA_METRICS])
    for metric in metrics:
        with noting(problems):
            keywords = common.chosen(flags, metric.Options) | evidence
            options.append(common.options_of(metric, keywords, flags.set, names))
    problems.raise_if_any()
    return options


def _check_files(metrics: _Metrics, options: _Options, flags: Namespace) -> None:
    """Refuse to score without a folder that is needed; drop what no metric needs, with a warning."""
    title, about = ",".join(metric.name for metric in metrics), _about(metrics)
    own = argument_of(about.media)
    given = {name: folder for name in ARGUMENTS if (folder := getattr(flags, name)) is not None}
    if flags.references is not None and not any(metric.needs_references for metric in metrics):
        terminal.note(f"--references only says which file an id is: no references are needed by {title}")
    for name, folder in given.items():
        if own is None:
            terminal.complain(f"warning: folder {folder} is ignored: texts alone are compared by {title}")
        elif name != own:
            more = f" or --media {medium}" if (medium := medium_of(name)) in media_of(about.name) else ""
            fix = f"pass --{own} FOLDER{more}"
            raise ValueError(f"--{name}: {common.command_of(about)} is about {own}, {fix}")
    flags.visuals = given.get(own or "")
    for metric, chosen in zip(metrics, options, strict=True):
        if flags.visuals is None and metric.media and not chosen.images_are_ids:
            more = ", or pass --regions FEATURES made before" * ("boxes" in metric.media)
            raise ValueError(f"--{own} is missing: name the folder of {own} for {metric.name}{more}")


# scoring


def _score(
    metrics: _Metrics, options: _Options, names: Sequence[str], flags: Any
) -> tuple[list[System], int]:
    """Each system's results, and how many rows were reused; one metric and one system are the smallest."""
    problems, collections = Problems(), list[Joined]()
    how: dict[str, Any] = {"medium": (_about(metrics).media or ("image",))[0], "problems": problems}
    how["absent_too"] = all(own.on_error == "nan" for own in options)
    how["group_by"] = flags.group_by
    how["needs_references"] = any(metric.needs_references for metric in metrics)
    for path in flags.candidates:
        with noting(problems):
            collections.append(common.read_files(flags, flags.visuals, path, **how))
    if len(collections) < len(names):  # a file cannot be read; rows that are wrong wait for the others
        problems.raise_if_any()
    common.tell_notes(collections)
    if flags.visuals is not None and not problems:
        images = [image for one in collections for image in one.images]
        common.tell_without_caption(Path(flags.visuals), images, how["medium"])
    owners = [name * (len(names) > 1) for name, one in zip(names, collections, strict=True) for _ in one.ids]
    with common.naming_rows([image_id for one in collections for image_id in one.ids], owners):
        with noting(problems):
            checked = _checked(metrics, options, collections) if owners else []
        problems.raise_if_any()
        opened = []
        for metric, own in zip(metrics, options, strict=True):
            by_metric = {"weights": f"--set {metric.name}.weights="} if len(metrics) > 1 else {}
            with noting(problems), naming(by_metric):
                opened.append(metric(own))
        problems.raise_if_any()
        alone, tasks = len(names) == len(metrics) == 1, []
        with terminal.interruptible(terminal.resuming(options[0].rows)):
            for one, samples in zip(opened, checked, strict=True):
                root = one.options.rows
                below = [f"{one.name}/{name.replace('/', '_')}" for name in names]
                # A folder that has rows itself is of one metric, and of the first system, which was alone.
                if alone or (len(metrics) == 1 and root is not None and any(Path(root).glob("*.parquet"))):
                    below[0] = ""
                folders = [None if root is None else Path(root) / place for place in below]
                tasks.append(Task(prepared(one, *samples), samples, folders))
            _tell_of_types(opened, len(owners))
            encode_tasks(tasks, progress=True)
        _note(metrics, names, checked)
        systems = []
        for place, (name, collection) in enumerate(zip(names, collections, strict=True)):
            cells = {}
            for task in tasks:
                of_system, rows = task.systems[place], task.rows[place]
                result = task.metric.combine(rows, samples=of_system)
                evidence = LazyEvidence(task.metric, of_system, rows, result)
                cells[task.metric.name] = compare.cell_of(result, evidence)
            shown = collection.images if flags.visuals is not None else None
            system = System(
                name,
                collection.ids,
                collection.captions,
                cells,
                images=shown,
                references=collection.references,
                files=collection.read,
                labels=collection.labels,
            )
            systems.append(system)
    return systems, sum(task.reused for task in tasks)


def _tell_of_types(metrics: Sequence[CaptionMetric], captions: int) -> None:
    """Say which type of numbers is slow on this CPU, and before a long run in float32 which is faster."""
    neural = [metric.options for metric in metrics if metric.network is not None]
    if not neural:
        return
    from capeval_core.models.device import has_bfloat16, resolve_device, warn_of_slow  # bring torch

    for options in neural:
        warn_of_slow(options.device, options.dtype)
    kinds = {(resolve_device(options.device).type, options.dtype) for options in neural}
    if captions >= _LONG_RUN and kinds == {("cpu", "float32")} and has_bfloat16():
        faster = "this CPU computes in bfloat16: --dtype bfloat16 takes about a third of the time"
        terminal.note(f"{faster}, and moves single scores by some thousandths")


def _note(metrics: _Metrics, names: Sequence[str], checked: Sequence[Sequence[Samples]]) -> None:
    """Note what is odd about the captions of each system and their images, once for all metrics."""
    images = Notes(metrics)
    for place, name in enumerate(names):
        texts = Notes(metrics)
        of_metrics = [samples[place] for samples in checked]
        references = [samples.references for samples in of_metrics if samples.references is not None]
        texts.add_texts(of_metrics[0].captions, *references[:1])
        texts.tell(f"{name}: " if len(names) > 1 else "")
        for samples in of_metrics:
            images.add_images(samples)
    images.tell()


def _checked(metrics: _Metrics, options: _Options, collections: Sequence[Joined]) -> list[list[Samples]]:
    """The samples of each system, by each metric. The first metric decodes every distinct picture; the others
    take its visuals instead of paths, broken ones too, which it has refused or kept."""
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
        samples = metric.check_input(own, captions, images, references, progress=True)
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
        raise ValueError(f"--explain: no explanation of {common.command_of(metric)} can be drawn; {instead}")
    if common.check_folder(folder, flag="--explain"):
        raise ValueError(f"--explain {folder} is not empty: name a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)


def _write_explanations(folder: Path, ids: Sequence[str], result: Any) -> None:
    """`ID-NUMBER.json` for each caption of each image, and `ID-NUMBER.png` where it has a score."""
    numbers: Counter[str] = Counter()
    for index, image_id in enumerate(tqdm(ids, "explain", disable=None, unit="caption")):
        name = image_id.replace("/", "_")
        numbers[name] += 1
        path, explanation = f"{name}-{numbers[name]}", result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        common.write("--explain", folder / f"{path}.json", content)
        if index not in result.errors:
            common.write("--explain", folder / f"{path}.png", explanation.plot())
    drawn = len(ids) - len(result.errors)
    share = f"{drawn:,}" if drawn == len(ids) else f"{drawn:,} of {len(ids):,}"
    print(f"explained  {share} captions in {folder}")


# the parser


def _parser(metrics: _Metrics) -> terminal.Parser:
    about, several = _about(metrics), len(metrics) > 1
    title = ",".join(metric.name for metric in metrics) if several else common.command_of(about)
    own = argument_of(about.media)
    needs = "yes" * any(metric.needs_references for metric in metrics)
    shown = f"the {own} that they describe" * bool(own)
    if all("boxes" in metric.media for metric in metrics if metric.media):
        shown += "; none where --regions names features" * bool(own)
    if "video" in about.media:
        shown += ": files, or folders of frames"
    drawn = "draw where each caption's score comes from, into a new folder"
    options = "options of the metric" + "s; each but --set is for all that have it" * several
    parser = terminal.parser_of(
        f"score {title}",
        "score METRIC",
        "comparison",
        options=[FileOptions],
        visuals=f" --{own} FOLDER" * bool(own) + "\n       --references FILE" * bool(needs),
        about="\n".join(f"{metric.title}: {metric.summary}" for metric in metrics),
        **common.media_words(metrics),
        **{name: shown * (name == own) for name in ARGUMENTS},  # hidden where they are ignored
        references="reference captions" * bool(needs),
        needs=needs,
        explain=drawn * (not several and about.plots),
        own_options=f"any option of one metric, e.g. {metrics[0].name}.device=cuda" * several,
        options_title=options,
    )
    terminal.add_options(parser, options, {metric.name: metric.Options for metric in metrics})
    return parser
