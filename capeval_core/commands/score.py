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

from capeval_core.commands import common, compare, hub_results, per_caption, terminal
from capeval_core.errors import Problems, naming, noting
from capeval_core.inputs.collection import Joined, read_captions
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.images import Texts, Visual
from capeval_core.inputs.notes import Notes
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.metric import CaptionMetric, CommonOptions, LazyEvidence, Reranker, prepared
from capeval_core.registry import JAVA_METRICS, every_class, media_of, metric_class
from capeval_core.replay.bundle import bundle_of
from capeval_core.reports.diversity import Diversity, diversity
from capeval_core.reports.tables import Cell, System, Systems, interval_text
from capeval_core.run import Task, encode_tasks
from capeval_core.scores.java import check_java

_Metrics = Sequence[type[CaptionMetric]]
_Options = Sequence[CommonOptions]
_LONG_RUN = 1_000
"""Captions from which on it is said how the run could be faster."""


def run(arguments: list[str]) -> int:
    classes = [*every_class(), *map(metric_class, JAVA_METRICS)]
    summaries = {common.command_of(metric): metric.summary for metric in classes}
    names_of_metrics, arguments_left = terminal.first_named(arguments, "score", summaries, open_ended=True)
    metrics, arguments_left = _metrics(names_of_metrics, arguments_left)
    flags = _parser(metrics).read(arguments_left)
    names = compare.names_of_files("--candidates", flags.candidates)
    baseline = compare.baseline_of(flags.baseline, names, flags.candidates)
    is_single = len(names) == len(metrics) == 1
    for name in ("explain", "bundle"):
        if getattr(flags, name) is not None and not is_single:
            raise ValueError(f"--{name} is of one system by one metric: score them one by one")
    compare.check_table(flags)
    common.check_page(flags.report)
    per_caption.check(flags.per_caption)
    evaluation = hub_results.check(flags, names)
    options = _options(metrics, flags)
    _check_files(metrics, options, flags)
    training_captions = _training_captions(flags.training_captions)
    if flags.explain is not None:
        _make_folder(flags.explain, metrics[0], options[0])
    systems, reused = _score(metrics, options, names, flags)
    if reused:
        captions = sum(len(system.ids) for system in systems) * len(metrics)
        terminal.complain(f"{reused:,} of {captions:,} rows were in {options[0].rows}")
    compared = compare.compare_systems(systems, baseline, flags=flags)
    compared = replace(compared, diversity=_diversity(systems, training_captions))
    groups = None if flags.group_by is None else compare.Groups.of(flags.group_by, compared)
    first = systems[0]
    cell = first.cells[metrics[0].name]

    def write_json() -> None:
        if flags.json is not None:
            content = _single_content(first, cell) if is_single else compare.systems_content(compared)
            if groups is not None:
                content["by"] = groups.content()
            common.write("--json", flags.json, content)

    def write_bundle() -> None:
        if flags.bundle is not None:
            common.write("--bundle", flags.bundle, bundle_of(cell.result, first.ids))

    def print_table() -> None:
        if is_single and flags.format is None:
            _print_single(compared, cell, groups)
        else:
            print(compare.show(compared, flags.format, groups), flush=True)

    def write_explanations() -> None:
        if flags.explain is not None:
            _write_explanations(flags.explain, first.ids, cell.result)

    # A full disk must not cost the numbers on the screen, nor a broken pipe the files.
    common.in_turn(
        write_json,
        write_bundle,
        lambda: per_caption.write(flags.per_caption, systems, flags.group_by),
        lambda: hub_results.write(flags, compared, evaluation),
        print_table,
        lambda: _tell_failures(metrics, systems),
        write_explanations,
        lambda: compare.write_page(flags, compared, ["score", *arguments]),
    )
    # Status 1: every caption of every system failed.
    for system in systems:
        for scored in system.cells.values():
            if scored.result.counts.failed < scored.result.counts.captions:
                return 0
    return 1


def _training_captions(path: Path | None) -> list[str] | None:
    """The captions of the file that --training-captions names."""
    if path is None:
        return None
    return [text for _, _, text in read_captions(path, None, FileOptions())]


def _diversity(systems: Sequence[System], training_captions: Sequence[str] | None) -> dict[str, Diversity]:
    """The diversity of each system's captions; truncated: by the metric that reads least of them."""
    diversities = {}
    for system in systems:
        truncated = max(cell.result.counts.truncated for cell in system.cells.values())
        diversities[system.name] = diversity(system.captions, training_captions, truncated=truncated)
    return diversities


def _single_content(system: System, cell: Cell) -> dict[str, Any]:
    """The result of one system by one metric in JSON's types."""
    texts = {"ids": system.ids, "captions": system.captions, "files": system.files}
    return {**compare.cell_content(cell), **texts}


def _print_single(compared: Systems, cell: Cell, groups: compare.Groups | None) -> None:
    """Print the result of one system by one metric, a line for each number."""
    result = cell.result
    interval = cell.interval
    counts = result.counts
    bounds = f"none: {cell.no_interval}"
    if interval is not None:
        extent = f"({interval.level:.0%}, {interval.images:,} {compared.visual}s)"
        bounds = f"{interval_text(compared, cell)} {extent}"
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    if result.unseen:
        special += f"; {result.unseen}"
    column = compared.columns[0]
    rows = [[column.title, compared.number(result.mean)]]
    if compared.intervals != "none":
        rows.append(["interval", bounds])
    for name, value in result.numbers.items():
        if name != result.key:
            rows.append([column.part_titles.get(name, name), compared.number(value)])
    rows.append(["captions", f"{counts.captions:,} ({special})"])
    rows += [["diversity", str(each)] for each in compared.diversity.values()]
    rows.append(["signature", result.signature])
    terminal.summary(*rows)
    if groups is not None:
        print(f"\n{compare.groups_table(groups, None).text()}", flush=True)


def _tell_failures(metrics: _Metrics, systems: Sequence[System]) -> None:
    """Say why captions failed, once for all metrics, and which images are counted once."""
    for system in systems:
        errors = dict(ChainMap(*(cell.result.errors for cell in system.cells.values())))
        items = "captions" if len(systems) == 1 else f"captions of {system.name!r}"
        common.tell_reasons(list(errors.values()), len(system.ids), items)
    metric = _main_metric(metrics)
    if not metric.media:
        return
    ids = systems[0].ids
    groups = systems[0].cells[metric.name].result.groups
    # A group is the content of an image: two ids with one group are copies of a file.
    first_of_group: dict[str, str] = {}
    equal: dict[str, str] = {}  # the first image of equal content, by the ids of the others
    for image_id, group in zip(ids, groups, strict=True):
        if group and first_of_group.setdefault(group, image_id) != image_id:
            equal[image_id] = first_of_group[group]
    if equal:
        are = "is equal to another" if len(equal) == 1 else "are equal to others"
        example = " to ".join(map(repr, next(iter(equal.items()))))
        count = f"{len(equal):,} of {len(set(ids)):,} {argument_of(metric.media)}"
        effect = "equal ones count as one image in intervals and tests"
        terminal.complain(f"warning: {count} {are}, e.g. {example}: {effect}")


# metrics, options and folders


def _metrics(text: str, arguments: Sequence[str]) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics that a text names, and the arguments without `--media`."""
    names = terminal.names_in(text) or [text]
    for name in names:
        if issubclass(metric_class(name), Reranker):
            raise ValueError(f"{name} chooses among several captions of each image: use `capeval rerank`")
    metrics, arguments_left = common.read_metrics("score", names, arguments)
    # Captions are of images or of videos: one command has one folder.
    by_argument = {argument_of(metric.media): common.command_of(metric) for metric in metrics if metric.media}
    if len(by_argument) > 1:
        about = " and ".join(f"{name} is about {argument}" for argument, name in by_argument.items())
        raise ValueError(f"{about}: score them in two commands")
    return metrics, arguments_left


def _main_metric(metrics: _Metrics) -> type[CaptionMetric]:
    """The metric whose medium captions are about: the first on images or videos, else the first on texts."""
    return next((metric for metric in metrics if metric.media), metrics[0])


def _options(metrics: _Metrics, flags: Namespace) -> list[Any]:
    evidence = {"evidence": True} if flags.explain is not None or flags.bundle is not None else {}
    names = [metric.name for metric in metrics]
    options = []
    problems = Problems()
    check_java([metric.title for metric in metrics if metric.name in JAVA_METRICS])
    for metric in metrics:
        with noting(problems):
            keywords = common.chosen(flags, metric.Options) | evidence
            options.append(common.options_of(metric, keywords, flags.set, names))
    problems.raise_if_any()
    return options


def _check_files(metrics: _Metrics, options: _Options, flags: Namespace) -> None:
    """Refuse to score without a folder that is needed; drop what no metric needs, with a warning."""
    title = ",".join(metric.name for metric in metrics)
    about = _main_metric(metrics)
    argument = argument_of(about.media)
    common.check_objects(metrics, flags)
    if about.reads_objects and not flags.references and not flags.objects:
        raise ValueError(f"--objects is missing: name the objects of each image for {title}, or --references")
    if flags.references is not None and not any(metric.needs_references for metric in metrics):
        terminal.note(f"--references only says which file an id is: no references are needed by {title}")
    for name in ARGUMENTS:
        folder = getattr(flags, name)
        if folder is None or name == argument:
            continue
        if argument is None:
            terminal.complain(f"warning: folder {folder} is ignored: texts alone are compared by {title}")
            continue
        fix = f"pass --{argument} FOLDER"
        medium = medium_of(name)
        if medium in media_of(about.name):
            fix += f" or --media {medium}"
        raise ValueError(f"--{name}: {common.command_of(about)} scores {argument}, {fix}")
    # From here on the folder of images or of videos, whichever the metrics score.
    flags.visuals = None if argument is None else getattr(flags, argument)
    for metric, options_of_metric in zip(metrics, options, strict=True):
        if flags.visuals is None and metric.media and not options_of_metric.images_are_ids:
            fix = f"name the folder of {argument} for {metric.name}"
            if "boxes" in metric.media:
                fix += ", or pass --regions FEATURES made before"
            raise ValueError(f"--{argument} is missing: {fix}")


# scoring


def _score(
    metrics: _Metrics, options: _Options, names: Sequence[str], flags: Namespace
) -> tuple[list[System], int]:
    """The results of each system by each metric, and how many rows were reused.

    Files are read and checked, then weights are opened, then all metrics encode together: captions of one
    image by different systems and metrics share its features.
    """
    problems = Problems()
    collections = _read_collections(metrics, options, flags, problems)
    image_ids: list[str] = []
    owners: list[str] = []  # the system of each caption, where there are several
    for name, collection in zip(names, collections, strict=True):
        image_ids += collection.ids
        owners += [name if len(names) > 1 else ""] * len(collection.ids)
    with common.naming_rows(image_ids, owners):
        with noting(problems):
            checked = _check_samples(metrics, options, collections) if image_ids else []
        problems.raise_if_any()
        opened = _open(metrics, options)
        tasks = []
        with terminal.interruptible(terminal.resuming(options[0].rows)):
            for metric, samples in zip(opened, checked, strict=True):
                folders = _row_folders(metric, names, is_only_metric=len(metrics) == 1)
                tasks.append(Task(prepared(metric, *samples), samples, folders))
            _note_faster_type(opened, len(image_ids))
            encode_tasks(tasks, progress=True)
        _note_odd_input(metrics, names, checked)
        systems = []
        for place, (name, collection) in enumerate(zip(names, collections, strict=True)):
            images = collection.images if flags.visuals is not None else None
            system = System(
                name,
                collection.ids,
                collection.captions,
                _cells(tasks, place),
                images=images,
                references=collection.references,
                files=collection.read,
                labels=collection.labels,
            )
            systems.append(system)
    return systems, sum(task.reused for task in tasks)


def _read_collections(
    metrics: _Metrics, options: _Options, flags: Namespace, problems: Problems
) -> list[Joined]:
    """The files of each system, joined by image id. Raises where one cannot be read."""
    medium = (_main_metric(metrics).media or ("image",))[0]
    collections: list[Joined] = []
    for path in flags.candidates:
        with noting(problems):
            collection = common.read_files(
                flags,
                flags.visuals,
                path,
                medium=medium,
                problems=problems,
                absent_too=all(of_metric.on_error == "nan" for of_metric in options),
                group_by=flags.group_by,
                needs_references=any(metric.needs_references for metric in metrics),
            )
            collections.append(collection)
    # A file that cannot be read ends the command; rows that are wrong wait for the check of the others.
    if len(collections) < len(flags.candidates):
        problems.raise_if_any()
    common.tell_notes(collections)
    if flags.visuals is not None and not problems:
        images = [image for collection in collections for image in collection.images]
        common.tell_without_caption(Path(flags.visuals), images, medium)
    return collections


def _open(metrics: _Metrics, options: _Options) -> list[CaptionMetric]:
    """The open metrics; the problems with all of their weights are raised together."""
    problems = Problems()
    opened = []
    for metric, options_of_metric in zip(metrics, options, strict=True):
        flag_of_weights = {"weights": f"--set {metric.name}.weights="} if len(metrics) > 1 else {}
        with noting(problems), naming(flag_of_weights):
            opened.append(metric(options_of_metric))
    problems.raise_if_any()
    return opened


def _row_folders(metric: CaptionMetric, names: Sequence[str], *, is_only_metric: bool) -> list[Path | None]:
    """The folder that keeps the rows of each system by a metric, None without --rows."""
    if metric.options.rows is None:
        return [None] * len(names)
    root = Path(metric.options.rows)
    folders: list[Path | None] = [root / metric.name / name.replace("/", "_") for name in names]
    # A folder that has rows itself is of one metric, and of the first system, which was alone.
    if is_only_metric and (len(names) == 1 or any(root.glob("*.parquet"))):
        folders[0] = root
    return folders


def _cells(tasks: Sequence[Task[CaptionMetric]], place: int) -> dict[str, Cell]:
    """The results of one system, by the names of metrics."""
    cells = {}
    for task in tasks:
        samples = task.systems[place]
        rows = task.rows[place]
        result = task.metric.combine(rows, samples=samples)
        evidence = LazyEvidence(task.metric, samples, rows, result)
        cells[task.metric.name] = compare.cell_of(result, evidence)
    return cells


def _note_faster_type(metrics: Sequence[CaptionMetric], captions: int) -> None:
    """Note, before a long run in float32 on a CPU, which type of numbers is faster there."""
    neural = [metric.options for metric in metrics if metric.network is not None]
    if captions < _LONG_RUN or not neural:
        return
    from capeval_core.models.device import has_bfloat16, resolve_device  # bring torch

    kinds = {(resolve_device(options.device).type, options.dtype) for options in neural}
    if kinds == {("cpu", "float32")} and has_bfloat16():
        faster = "this CPU computes in bfloat16: --dtype bfloat16 takes about a third of the time"
        terminal.note(f"{faster}, and moves single scores by some thousandths")


def _note_odd_input(metrics: _Metrics, names: Sequence[str], checked: Sequence[Sequence[Samples]]) -> None:
    """Note what is odd about the captions of each system and their images, once for all metrics."""
    images = Notes(metrics)
    for place, name in enumerate(names):
        samples_of_metrics = [samples[place] for samples in checked]
        texts = Notes(metrics)
        references = []
        for samples in samples_of_metrics:
            images.add_images(samples)
            if samples.references is not None:
                references.append(samples.references)
        texts.add_texts(samples_of_metrics[0].captions, *references[:1])
        texts.tell(f"{name}: " if len(names) > 1 else "")
    images.tell()


def _check_samples(
    metrics: _Metrics, options: _Options, collections: Sequence[Joined]
) -> list[list[Samples]]:
    """The samples of each system, by each metric. The first metric decodes every distinct picture; the others
    take its visuals instead of paths, broken ones too, which it has refused or kept."""
    captions: list[str] = []
    paths: list[Any] = []
    references: list[Any] = []
    entries: list[Any] = []
    for collection in collections:
        captions += collection.captions
        paths += collection.images
        references += collection.references or []
        entries += collection.entries or []
    ends = [0, *accumulate(len(collection.ids) for collection in collections)]
    visuals: list[Any] | None = None
    checked = []
    for metric, options_of_metric in zip(metrics, options, strict=True):
        decodes = bool(metric.media) and not options_of_metric.images_are_ids
        images = paths
        if decodes and visuals is not None:
            images = visuals
            options_of_metric = replace(options_of_metric, on_error="nan")
        samples = metric.check_input(options_of_metric, captions, images, references or None, progress=True)
        if not metric.media and entries:  # texts alone are grouped by the ids of references
            sources = {}
            for entry, texts in zip(entries, samples.references or [], strict=True):
                sources[entry] = Texts(texts, entry)
            samples = replace(samples, images=[Visual(entry, sources[entry]) for entry in entries])
        if decodes:
            visuals = list(samples.images)
        of_systems = []
        for start, end in pairwise(ends):
            of_systems.append(replace(samples[start:end], indices=range(end - start)))
        checked.append(of_systems)
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
        path = f"{name}-{numbers[name]}"
        explanation = result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        common.write("--explain", folder / f"{path}.json", content)
        if index not in result.errors:
            common.write("--explain", folder / f"{path}.png", explanation.plot())
    drawn = len(ids) - len(result.errors)
    share = f"{drawn:,}" if drawn == len(ids) else f"{drawn:,} of {len(ids):,}"
    print(f"explained  {share} captions in {folder}")


# the parser


def _parser(metrics: _Metrics) -> terminal.Parser:
    """The parser of `score METRIC`; a flag that no metric reads has no text, and so is not shown."""
    about = _main_metric(metrics)
    is_single = len(metrics) == 1
    argument = argument_of(about.media)
    texts = dict.fromkeys(
        ["visuals", "needs", "references", "objects", "explain", "own_options", *ARGUMENTS], ""
    )
    if argument is not None:
        texts["visuals"] = f" --{argument} FOLDER"
        texts[argument] = f"the {argument} that they describe"
        if all("boxes" in metric.media for metric in metrics if metric.media):
            texts[argument] += "; none where --regions names features"
        if "video" in about.media:
            texts[argument] += ": files, or folders of frames"
    if any(metric.needs_references for metric in metrics):
        texts["visuals"] += "\n       --references FILE"
        texts["needs"] = "yes"
        texts["references"] = "reference captions"
    if all(metric.reads_objects for metric in metrics):
        texts["needs"] = ""
        texts["objects"] = "objects of each image: COCO's instances_*.json, or {image id: [names]}"
    options_title = "options of the metric"
    if is_single:
        title = common.command_of(about)
        if about.plots:
            texts["explain"] = "draw where each caption's score comes from, into a new folder"
    else:
        title = ",".join(metric.name for metric in metrics)
        options_title += "s; each but --set is for all that have it"
        texts["own_options"] = f"any option of one metric, e.g. {metrics[0].name}.device=cuda"
    parser = terminal.parser_of(
        f"score {title}",
        "score METRIC",
        "comparison",
        options=[FileOptions],
        about="\n".join(f"{metric.title}: {metric.summary}" for metric in metrics),
        options_title=options_title,
        **common.media_words(metrics),
        **texts,
    )
    terminal.add_options(parser, options_title, {metric.name: metric.Options for metric in metrics})
    return parser
