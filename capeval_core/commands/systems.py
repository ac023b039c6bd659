"""Systems on the command line: their names, their files, and their scores by several metrics."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from capeval_core.commands.arguments import (
    chosen,
    flag_of,
    in_words_of_set,
    in_words_of_the_user,
    options_set,
    with_ids,
)
from capeval_core.commands.files import read_files
from capeval_core.commands.interrupts import interruptible
from capeval_core.commands.metrics import Metrics, about, command_of, folder_of, title_of
from capeval_core.commands.terminal import announce, complain
from capeval_core.errors import Piece, Problem, Problems, ProblemsError, Setting, beside, did_you_mean
from capeval_core.evidence import Evidence
from capeval_core.inputs.collection import Collection
from capeval_core.inputs.folder import bare, names_in
from capeval_core.inputs.media import argument_of
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.text_files import FileOptions
from capeval_core.metric import CaptionMetric
from capeval_core.options import Options, Settings
from capeval_core.result import Result
from capeval_core.row_store import check_folder
from capeval_core.several import Task, encode_tasks
from capeval_core.weights.folder import WeightsError

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class ScoredSystem:
    """A system's captions and its results, by the name of the metric.

    images, references: None where they are not known. results: by the name of the metric, and so is
    evidence, which is made when it is asked for.
    """

    name: str
    ids: Sequence[str]
    captions: Sequence[str]
    images: Sequence[Any] | None
    references: Sequence[Sequence[str]] | None
    results: dict[str, Result]
    evidence: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)


def names_of_files(flag: str, paths: Sequence[str | Path]) -> list[str]:
    """The names of systems by their files: without the extension, with as many folders as tell them apart.

    Raises:
        ValueError: a file comes twice.

    >>> names_of_files("--candidates", ["runs/a/val.json", "runs/b/val.json", "test.json.gz"])
    ['a/val', 'b/val', 'test']
    """
    files = [Path(path) for path in paths]
    resolved = [path if str(path) == STANDARD_INPUT else Path(os.path.realpath(path)) for path in files]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise ValueError(f"{flag} {paths[place]} comes twice: name each system once")
    names = ["stdin" if str(path) == STANDARD_INPUT else _stem(path) for path in files]
    for depth in range(1, max(len(path.parts) for path in resolved)):
        alike = {name for name in names if names.count(name) > 1}
        if not alike:
            break
        names = [
            "/".join([*path.parts[:-1][-depth:], _stem(path)]) if name in alike else name
            for name, path in zip(names, resolved, strict=True)
        ]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _stem(path: Path) -> str:
    return Path(path.stem).stem if path.suffix == ".gz" else path.stem


def baseline_of(given: str | None, names: Sequence[str], paths: Sequence[str | Path]) -> str | None:
    """The system that `--baseline` names, by its name or its file; else the first, None if it is alone.

    Raises:
        ValueError: no system has this name, or there is one system only.
    """
    if given is None:
        return names[0] if len(names) > 1 else None
    if len(names) == 1:
        raise ValueError(f"--baseline {given}: there is one system only, name several")
    for name, path in zip(names, paths, strict=False):
        if given in (name, str(path)):
            return name
    if given in names:
        return given
    hint = did_you_mean(given, names)
    raise ValueError(f"--baseline {given}: there is no such system{hint} (there are {', '.join(names)})")


def options_of(metrics: Metrics, names: Sequence[str], flags: argparse.Namespace) -> list[Options]:
    """The checked options of each metric, by the flags; `names` are those of the systems."""
    problems, options = Problems(), []
    for metric in metrics:
        keywords = chosen(flags, metric.Options)
        of_set: dict[str, Any] = {}
        if len(metrics) > 1:
            if metric.default_weights is None:
                keywords.pop("weights", None)
            of_set = options_set(flags.set, metric.name, [each.name for each in metrics])
            keywords |= of_set
        if flags.explain is not None:
            keywords["evidence"] = True
        try:
            with in_words_of_set(metric.name, of_set):
                own = metric.Options.of(metric.name, keywords)
                metric.check_options(replace(own, rows=None))
            for folder in folders_of_rows(metric, own, names, several=len(metrics) > 1):
                if folder is not None:
                    check_folder(folder)
            options.append(own)
        except ProblemsError as error:
            problems.extend(error.problems)
    with in_words_of_the_user([metric.Options for metric in metrics]):
        problems.raise_if_any()
    return options


def score_systems(
    metrics: Metrics,
    options: Sequence[Options],
    names: Sequence[str],
    folder: str | None,
    flags: argparse.Namespace,
) -> tuple[list[ScoredSystem], int]:
    """Each system's results, and how many rows were reused; one metric and one system are the smallest.

    folder: of images or videos, from `folder_of_run`.
    """
    problems = Problems()
    absent_too = all(own.on_error == "nan" for own in options)
    collections = _read(names, flags, folder, about(metrics), problems, absent_too=absent_too)
    how = "with --rows FOLDER a run can be resumed"
    if options[0].rows is not None:
        how = f"rows are kept in {options[0].rows}: run the same command again to resume"
    ids = [image_id for collection in collections for image_id in collection.ids]
    owners = [
        name if len(names) > 1 else ""
        for name, collection in zip(names, collections, strict=True)
        for _ in collection.ids
    ]
    kinds: list[type[Settings]] = [FileOptions, *(metric.Options for metric in metrics)]
    with interruptible(how), in_words_of_the_user(kinds, ids, owners):
        with beside(problems):
            checked = _checked(metrics, options, collections, ids) if ids else []
        tasks = [
            Task(
                metric.prepared(*systems),
                systems,
                folders_of_rows(type(metric), own, names, several=len(metrics) > 1),
            )
            for metric, own, systems in zip(_opened(metrics, options), options, checked, strict=True)
        ]
        encode_tasks(tasks, progress=True)
        results = [
            [
                task.metric.combine(rows, samples=own)
                for rows, own in zip(task.rows, task.systems, strict=True)
            ]
            for task in tasks
        ]
    scored = [
        ScoredSystem(
            name,
            collection.ids,
            collection.captions,
            collection.images if folder is not None else None,
            collection.references,
            {metric.name: of_metric[place] for metric, of_metric in zip(metrics, results, strict=True)},
            {}
            if flags.report is None
            else {
                task.metric.name: Evidence(
                    task.metric, task.systems[place], task.rows[place], of_metric[place]
                )
                for task, of_metric in zip(tasks, results, strict=True)
            },
        )
        for place, (name, collection) in enumerate(zip(names, collections, strict=True))
    ]
    return scored, sum(task.reused for task in tasks)


def folder_of_run(metrics: Metrics, options: Sequence[Options], flags: argparse.Namespace) -> str | None:
    """The folder of images or videos, None where no metric opens any; it drops references that none needs.

    Raises:
        ValueError: it is missing.
    """
    if flags.references is not None and not any(metric.needs_references for metric in metrics):
        verb = "need" if len(metrics) > 1 else "needs"
        complain(f"warning: {title_of(metrics)} {verb} no references: --references is ignored")
        flags.references = None
    folder = folder_of(metrics, flags)
    for metric, own in zip(metrics, options, strict=True):
        if folder is None and metric.media and not metric.images_are_ids(own):
            whom = f"{command_of(metric)}: " if len(metrics) > 1 else ""
            argument = flag_of(str(argument_of(metric.media)))
            raise ValueError(
                f"{whom}{argument} is missing: name the folder of images, or pass --regions FEATURES made "
                "before"
            )
    return folder


def folders_of_rows(
    metric: type[CaptionMetric], options: Options, names: Sequence[str], *, several: bool
) -> list[Path | None]:
    """Where a metric keeps the rows of each system: `--rows` itself, or METRIC/SYSTEM below it for several.

    several: whether there are several metrics.
    """
    if options.rows is None:
        return [None] * len(names)
    folder = Path(options.rows)
    if len(names) == 1 and not several:
        return [folder]
    return [folder / metric.name / name.replace("/", "_") for name in names]


def _read(
    names: Sequence[str],
    flags: argparse.Namespace,
    folder: str | None,
    metric: type[CaptionMetric],
    problems: Problems,
    *,
    absent_too: bool,
) -> list[Collection]:
    """The collections of all systems; `problems` with their rows are noted, others are one error."""
    collections = []
    medium = (metric.media or ("image",))[0]
    for path in flags.candidates:
        announce(f"reading {path} ...")
        try:
            collection = read_files(
                flags, folder, candidates=path, medium=medium, problems=problems, absent_too=absent_too
            )
            collections.append(collection)
        except ProblemsError as error:
            if len(names) == 1:
                raise
            problems.add(str(error))
    if len(collections) < len(names):
        problems.raise_if_any()
    if folder is not None and not len(problems):
        _tell_without_caption(folder, medium, collections)
    return collections


def _tell_without_caption(folder: str, medium: str, collections: Sequence[Collection]) -> None:
    """Say how many images of a folder no system has a caption of, and which, unless they are most of it."""
    captioned = {Path(image).name for one in collections for image in one.images}
    there = [name for name in names_in(Path(folder), medium) if bare(name, medium) != name]
    without = sorted(set(there) - captioned)
    if not without:
        return
    have = (
        f"1 {medium} of the folder has"
        if len(without) == 1
        else f"{len(without):,} {medium}s of the folder have"
    )
    listed = ", ".join(repr(bare(name, medium)) for name in without[:3])
    shown = f" ({listed}{', ...' if len(without) > 3 else ''})" if len(without) < len(captioned) else ""
    complain(f"note: {have} no caption{shown}")


def _checked(
    metrics: Metrics, options: Sequence[Options], collections: Sequence[Collection], ids: Sequence[str]
) -> list[list[Samples]]:
    """The samples of each system, by each metric; every distinct picture is decoded once."""
    captions = [caption for collection in collections for caption in collection.captions]
    paths = [image for collection in collections for image in collection.images]
    references = [texts for collection in collections for texts in collection.references or []] or None
    entries = [entry for collection in collections for entry in collection.entries or []] or None
    visuals: list[Any] | None = None
    checked = []
    for metric, own in zip(metrics, options, strict=True):
        by_id = metric.images_are_ids(own)
        shared = bool(metric.media) and not by_id and visuals is not None
        samples = metric.check_input(
            replace(own, on_error="nan") if shared else own,
            captions,
            visuals if shared else paths,
            references,
            progress=True,
        )
        samples = with_ids(samples, ids, metric.media, entries)
        if metric.media and not by_id:
            visuals = list(samples.images)
        ends = [0, *accumulate(len(collection.ids) for collection in collections)]
        checked.append([replace(samples[a:b], indices=range(b - a)) for a, b in pairwise(ends)])
    return checked


def _opened(metrics: Metrics, options: Sequence[Options]) -> list[CaptionMetric]:
    """The metrics with their weights; one error names all weights that are missing."""
    problems, opened = Problems(), []
    for metric, own in zip(metrics, options, strict=True):
        announce(f"opening {metric.name} ...")
        try:
            opened.append(metric(replace(own, rows=None)))  # a folder may be of several systems
        except WeightsError as error:
            if len(metrics) > 1:
                error.change(partial(_of_metric, metric.name))
            problems.extend(error.problems)
    if len(problems):
        raise WeightsError(problems)
    return opened


def _of_metric(name: str, problem: Problem) -> Problem:
    """A problem whose advice on weights is for one metric of several."""

    def directed(piece: Piece) -> Piece:
        if isinstance(piece, Setting) and piece.name == "weights" and piece.value != "tiny":
            return replace(piece, name="set", value=f"{name}.weights={piece.value}")
        return piece

    return problem.changed(directed)
