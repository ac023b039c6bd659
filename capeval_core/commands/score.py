"""`capeval score`: the user's own captions and images, of one system or several, by one metric or several."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
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
    # The cheaper a check, the earlier: flags, then options, then files, and weights are opened last.
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
        # Of rows, not of captions: a caption has one by each metric.
        rows = sum(len(system.ids) for system in systems) * len(metrics)
        terminal.complain(f"{reused:,} of {rows:,} rows were in {options[0].rows}")
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
        # --format asks for a table that a program or a paper takes, even of one number.
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
    if result.truncation_note:
        special += f"; {result.truncation_note}"
    column = compared.columns[0]
    rows = [[column.title, compared.number(result.mean)]]
    if compared.intervals != "none":
        rows.append(["interval", bounds])
    for name, value in result.numbers.items():
        if name != result.key:  # the metric's own number is the first row
            rows.append([column.part_titles.get(name, name), compared.number(value)])
    rows.append(["captions", f"{counts.captions:,} ({special})"])
    for diversity_of_system in compared.diversity.values():
        rows.append(["diversity", str(diversity_of_system)])
    rows.append(["signature", result.signature])
    terminal.summary(*rows)
    if groups is not None:
        print(f"\n{compare.groups_table(groups, None).text()}", flush=True)


def _tell_failures(metrics: _Metrics, systems: Sequence[System]) -> None:
    """Say why captions failed, once for all metrics, and which images are counted once."""
    for system in systems:
        # A broken image fails by every metric: it is one failed caption, with the reason of the first metric,
        # which therefore comes last here.
        errors: dict[int, str] = {}
        for cell in reversed(list(system.cells.values())):
            errors.update(cell.result.errors)
        items = "captions" if len(systems) == 1 else f"captions of {system.name!r}"
        common.tell_reasons(list(errors.values()), len(system.ids), items)
    metric = _main_metric(metrics)
    if not metric.media:
        return
    # The first system stands for all: they caption the same folder of images.
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
    common.check_one_medium({common.command_of(metric): metric for metric in metrics}, "in two commands")
    return metrics, arguments_left


def _main_metric(metrics: _Metrics) -> type[CaptionMetric]:
    """The metric whose medium captions are about: the first on images or videos, else the first on texts."""
    for metric in metrics:
        if metric.media:
            return metric
    return metrics[0]


def _names(metrics: _Metrics) -> str:
    """The names of metrics as one writes them behind `capeval score`."""
    return ",".join(metric.name for metric in metrics)


def _need_references(metrics: _Metrics) -> bool:
    """True if any of the metrics needs references."""
    return any(metric.needs_references for metric in metrics)


def _options(metrics: _Metrics, flags: Namespace) -> list[Any]:
    # Drawings and bundles are made of evidence, which a flag of its own would only let one forget.
    evidence = {"evidence": True} if flags.explain is not None or flags.bundle is not None else {}
    names = [metric.name for metric in metrics]
    options = []
    problems = Problems()
    java_titles = []
    for metric in metrics:
        if metric.name in JAVA_METRICS:
            java_titles.append(metric.title)
    check_java(java_titles)
    for metric in metrics:
        with noting(problems):
            keywords = common.chosen(flags, metric.Options) | evidence
            options.append(common.options_of(metric, keywords, flags.set, names))
    problems.raise_if_any()
    return options


def _check_files(metrics: _Metrics, options: _Options, flags: Namespace) -> None:
    """Refuse to score without a folder that is needed; drop what no metric needs, with a warning."""
    title = _names(metrics)
    about = _main_metric(metrics)
    argument = argument_of(about.media)
    common.check_objects(metrics, flags)
    if about.reads_objects and not flags.references and not flags.objects:
        raise ValueError(f"--objects is missing: name the objects of each image for {title}, or --references")
    if flags.references is not None and not _need_references(metrics):
        terminal.note(f"--references only says which file an id is: no references are needed by {title}")
    for name in ARGUMENTS:
        folder = getattr(flags, name)
        if folder is None or name == argument:
            continue
        # No picture is opened, so that the number is right all the same: no error, as of another medium.
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
        # Box features that were made before are found by the ids of images, which then need not be here.
        if flags.visuals is None and metric.media and not options_of_metric.images_are_ids:
            fix = f"name the folder of {argument} for {metric.name}"
            if "boxes" in metric.media:
                fix += ", or pass --regions FEATURES made before"
            raise ValueError(f"--{argument} is missing: {fix}")


# scoring


def _score(
    metrics: _Metrics, options: _Options, names: Sequence[str], flags: Namespace
) -> tuple[list[System], int]:
    """The results of each system by each metric, and how many rows were reused."""
    # Files are read and checked, then weights are opened, then all metrics encode together: captions of one
    # image by different systems and metrics share its features.
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
            # Before the run, while one can still stop it and choose.
            _note_faster_type(opened, len(image_ids))
            encode_tasks(tasks, progress=True)
        _note_odd_input(metrics, names, checked)
        systems = []
        for place, (name, collection) in enumerate(zip(names, collections, strict=True)):
            # Without a folder the collection has ids in the place of paths, which no page can show.
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
    # An absent image costs its captions only if no metric wants to stop at it.
    absent_too = all(of_metric.on_error == "nan" for of_metric in options)
    collections: list[Joined] = []
    for path in flags.candidates:
        with noting(problems):
            collection = common.read_files(
                flags,
                flags.visuals,
                path,
                medium=medium,
                problems=problems,
                absent_too=absent_too,
                group_by=flags.group_by,
                needs_references=_need_references(metrics),
            )
            collections.append(collection)
    # A file that cannot be read ends the command; rows that are wrong wait for the check of the others.
    if len(collections) < len(flags.candidates):
        problems.raise_if_any()
    common.tell_notes(collections)
    # With problems the paths are not those of the folder yet, and the list would be of the wrong images.
    if flags.visuals is not None and not problems:
        images: list[Path] = []
        for collection in collections:
            images += collection.images
        common.tell_without_caption(Path(flags.visuals), images, medium)
    return collections


def _open(metrics: _Metrics, options: _Options) -> list[CaptionMetric]:
    """The open metrics; the problems with all of their weights are raised together."""
    problems = Problems()
    opened = []
    for metric, options_of_metric in zip(metrics, options, strict=True):
        # Among several, --weights is of all of them: one metric's own are named by --set.
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
    folders: list[Path | None] = []
    for name in names:
        # Files of equal stems are called by their paths, which would nest the folders.
        folders.append(root / metric.name / name.replace("/", "_"))
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
    neural_metrics = [metric for metric in metrics if metric.network is not None]
    if captions < _LONG_RUN or not neural_metrics:
        return
    from capeval_core.models.device import has_bfloat16, resolve_device  # bring torch

    kinds = set()
    for metric in neural_metrics:
        kinds.add((resolve_device(metric.options.device).type, metric.options.dtype))
    # Only where the advice is right for every network of the run.
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
        # Captions and references are the same for every metric: one that takes references has them all.
        texts.add_texts(samples_of_metrics[0].captions, *references[:1])
        texts.tell(f"{name}: " if len(names) > 1 else "")
    # Images after all systems, which share them: a turned one is counted once.
    images.tell()


def _check_samples(
    metrics: _Metrics, options: _Options, collections: Sequence[Joined]
) -> list[list[Samples]]:
    """The samples of each system, by each metric."""
    # All systems are checked as one list, so that an image that several caption is decoded once:
    #
    #     captions   a.json ......... b.json ......
    #     ends       0                7            12     and each system is a slice of the samples
    captions: list[str] = []
    paths: list[Any] = []
    references: list[Any] = []
    entries: list[Any] = []
    ends = [0]
    for collection in collections:
        captions += collection.captions
        paths += collection.images
        references += collection.references or []
        entries += collection.entries or []
        ends.append(len(captions))
    visuals: list[Any] | None = None
    checked = []
    for metric, options_of_metric in zip(metrics, options, strict=True):
        decodes = bool(metric.media) and not options_of_metric.images_are_ids
        images = paths
        # The first metric decodes every distinct picture; the others take its visuals instead of paths,
        # broken ones too: it has refused them or kept them, so the others keep what they get.
        if decodes and visuals is not None:
            images = visuals
            options_of_metric = replace(options_of_metric, on_error="nan")
        samples = metric.check_input(options_of_metric, captions, images, references or None, progress=True)
        if not metric.media and entries:  # texts alone are grouped by the ids of references
            sources: dict[Any, Texts] = {}
            for entry, texts in zip(entries, samples.references or [], strict=True):
                sources[entry] = Texts(texts, entry)
            # One source for all captions of an id, so that they are one cluster in intervals and tests.
            visuals_of_texts = [Visual(entry, sources[entry]) for entry in entries]
            samples = replace(samples, images=visuals_of_texts)
        if decodes:
            visuals = list(samples.images)
        of_systems = []
        for start, end in pairwise(ends):
            # Counted from 0 in each system: its rows have a folder and a result of their own.
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
        # Counted by the name, not by the id: `a/b` and `a_b` have one name, and different files.
        name = image_id.replace("/", "_")
        numbers[name] += 1
        path = f"{name}-{numbers[name]}"
        explanation = result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        common.write("--explain", folder / f"{path}.json", content)
        # What failed has no picture, but a file of numbers that says why.
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
    # A folder can be left out only if no metric looks at the images themselves.
    takes_features = True
    reads_objects = True
    abouts = []
    for metric in metrics:
        takes_features &= not metric.media or "boxes" in metric.media
        reads_objects &= metric.reads_objects
        abouts.append(f"{metric.title}: {metric.summary}")
    if argument is not None:
        texts["visuals"] = f" --{argument} FOLDER"
        texts[argument] = f"the {argument} that they describe"
        if takes_features:
            texts[argument] += "; none where --regions names features"
        if "video" in about.media:
            texts[argument] += ": files, or folders of frames"
    if _need_references(metrics):
        texts["visuals"] += "\n       --references FILE"
        texts["needs"] = "yes"
        texts["references"] = "reference captions"
    # CHAIR finds objects in reference captions or takes them from --objects, so that neither is required.
    if reads_objects:
        texts["needs"] = ""
        texts["objects"] = "objects of each image: COCO's instances_*.json, or {image id: [names]}"
    options_title = "options of the metric"
    if is_single:
        title = common.command_of(about)
        if about.plots:
            texts["explain"] = "draw where each caption's score comes from, into a new folder"
    else:
        title = _names(metrics)
        options_title += "s; each but --set is for all that have it"
        texts["own_options"] = f"any option of one metric, e.g. {metrics[0].name}.device=cuda"
    parser = terminal.parser_of(
        f"score {title}",
        "score METRIC",
        "comparison",
        options=[FileOptions],
        about="\n".join(abouts),
        options_title=options_title,
        **common.media_words(metrics),
        **texts,
    )
    terminal.add_options(parser, options_title, {metric.name: metric.Options for metric in metrics})
    return parser
