"""Parts of all commands: the metrics that are named and their options, names of rows, files."""

from __future__ import annotations

import argparse
import io
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from PIL.Image import Image

from capeval_core.commands.terminal import Parser, complain, flag, note
from capeval_core.errors import did_you_mean, file_error, naming, place
from capeval_core.inputs.collection import Joined, read_collection
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.files import bare, some_of
from capeval_core.inputs.joining import names_below
from capeval_core.inputs.samples import ARGUMENTS, argument_of, medium_of
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.options import Settings
from capeval_core.registry import media_of, metric_class
from capeval_core.reports.html import check_report
from capeval_core.result import json_text
from capeval_core.store import try_writing, write_whole

_MOST_LINES = 20  # of a list

# the metrics that a command line names


def options_of(
    metric: type[CaptionMetric],
    keywords: Mapping[str, Any],
    settings: Sequence[tuple[str, str, Any]] = (),
    metrics: Sequence[str] = (),
) -> Any:
    """The checked options of one of several metrics, by keywords and (metric, option, value) of `--set`."""
    # Its rows and its column of the table would be written twice under one name.
    if metrics.count(metric.name) > 1:
        raise ValueError(f"{metric.name} comes twice: name each metric once")
    by_set: dict[str, Any] = {}
    for name, option, value in settings:
        if name not in metrics:
            raise ValueError(f"--set {name}: {name!r} is not among the metrics{did_you_mean(name, metrics)}")
        if name == metric.name:
            by_set[option] = value
    flag_names = {option: f"--set {metric.name}.{option}=" for option in by_set}
    # `--set` is of one metric, so it wins over a flag, which is of all.
    with naming(flag_names):
        options = metric.Options.of(metric.name, {**keywords, **by_set})
        metric.check_options(options)
    return options


def chosen(arguments: argparse.Namespace, options: type[Settings]) -> dict[str, Any]:
    """The options that are among the arguments."""
    # A flag that was not given leaves no trace in the arguments: the options class knows the defaults.
    values = vars(arguments)
    return {name: values[name] for name in options.describe() if name in values}


def example_of(metric: type[CaptionMetric], weights: Path) -> str:
    """A command that uses weights of a metric."""
    files = f"--candidates captions.json --images images --weights {shlex.quote(str(weights))}"
    if issubclass(metric, Reranker):
        return f"capeval rerank {files} --out best.csv"
    if metric.needs_references:
        files += " --references references.json"
    return f"capeval score {metric.name} {files}"


def read_metrics(
    command: str, names: Sequence[str], arguments: Sequence[str]
) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics of these names for the medium of `--media`, and the arguments without it."""
    for name in names:
        metric_class(name)  # first of all, else a misspelt metric would look like an unknown medium
    # The flags of a command depend on its metrics, whose classes depend on the medium: so it is read before.
    parser = Parser(f"{command} {','.join(names)}", add_help=False)
    flag(parser, "--media NAME", "")
    flags, arguments_left = parser.parse_known_args(arguments)
    metrics = []
    for name in names:
        # Among several, a metric on texts alone fits captions of any medium; alone, it has to refuse one.
        has_medium = len(names) == 1 or bool(media_of(name))
        metrics.append(metric_class(name, flags.media if has_medium else None))
    return metrics, arguments_left


def check_one_medium(metrics: Mapping[str, type[CaptionMetric]], advice: str) -> None:
    """Refuse metrics, by the names that a message gives them, that are about different media."""
    name_of_argument: dict[str, str] = {}
    for name, metric in metrics.items():
        argument = argument_of(metric.media)
        if argument is not None:
            name_of_argument[argument] = name
    if len(name_of_argument) > 1:
        abouts = [f"{name} is about {argument}" for argument, name in name_of_argument.items()]
        raise ValueError(f"{' and '.join(abouts)}: score them {advice}")


def media_words(metrics: Sequence[type[CaptionMetric]]) -> dict[str, str]:
    """The choices and the help of `--media`; no help where none of the metrics is about several."""
    for metric in metrics:
        media = media_of(metric.name)
        if len(media) > 1:
            text = f"what captions are about (default: {media[0]})"
            return {"kinds": f"{{{','.join(media)}}}", "media": text}
    return {"kinds": "{}", "media": ""}


def command_of(metric: type[CaptionMetric]) -> str:
    """The metric as a command line names it."""
    return metric.name if metric.variant is None else f"{metric.name} --media {metric.variant}"


# names of rows


def naming_rows(ids: Sequence[str], systems: Sequence[str] = ()) -> AbstractContextManager[None]:
    """Call rows of files by the id of their image, and by their system where there are several."""
    if not systems:
        systems = [""] * len(ids)
    counts: Counter[tuple[str, str]] = Counter()
    numbers = []  # of each caption among those of its image, from 1
    for image_of_system in zip(systems, ids, strict=True):
        counts[image_of_system] += 1
        numbers.append(counts[image_of_system])

    def row(argument: str, path: Sequence[int | str]) -> str:
        position, *inner = path
        # A place within the argument as a whole, such as a key of statistics, belongs to no caption.
        if not isinstance(position, int) or position >= len(ids):
            return place(argument, path)
        system = systems[position]
        image_id = ids[position]
        if argument in ARGUMENTS:
            visual = f"{medium_of(argument)} of {image_id!r}"
            # Of boxes with one of the arrays of features.
            return f"{visual}: {place(str(inner[0]), inner[1:])}" if inner else visual
        # Counted from 1: these are lines of the user's file, not indices of a list of Python.
        number = ""
        if inner:
            number = f" {int(inner[0]) + 1}"
        elif argument == "captions" and counts[system, image_id] > 1:
            number = f" {numbers[position]}"
        text = f"{medium_of(argument)}{number} of {image_id!r}"
        return f"{text} in {system!r}" if system else text

    return naming(row=row)


# files


def read_files(flags: argparse.Namespace, images: Any, candidates: Any, **more: Any) -> Joined:
    """The collection of a file of candidates, and of --references, where there is such a flag."""
    options = FileOptions(**chosen(flags, FileOptions))
    references = getattr(flags, "references", None)
    objects = getattr(flags, "objects", None) or ()
    return read_collection(candidates, images, references, objects, options=options, **more)


def check_objects(metrics: Sequence[type[CaptionMetric]], flags: argparse.Namespace) -> None:
    """Refuse a file of objects for metrics that would compare captions with their names."""
    # Names of objects join the references of an image, and only CHAIR tells them from captions.
    caption_metrics = [metric.name for metric in metrics if not metric.reads_objects]
    if flags.objects and caption_metrics:
        fix = "score chair in a command of its own, and leave --objects out here"
        problem = f"{' and '.join(caption_metrics)} would take names of objects for captions"
        raise ValueError(f"--objects: {problem}: {fix}")


def tell_notes(collections: Iterable[Joined]) -> None:
    """Say how files were read and what is odd about them, each once."""
    # Several systems share a file of references, and its notes.
    messages: dict[str, None] = {}
    for collection in collections:
        messages.update(dict.fromkeys(collection.notes))
    for message in messages:
        note(message)


def read_named(
    flags: argparse.Namespace, metric: type[CaptionMetric], options: dict[str, Any]
) -> tuple[Joined, dict[str, Any]]:
    """The files that a metric needs, as flags name them, and the options that flags set."""
    options_of_flags = {}
    for name in ("weights", "regions", "synonyms"):
        value = getattr(flags, name, None)
        if value is not None:
            options_of_flags[name] = value
    checked = metric.Options.of(metric.name, {**options, **options_of_flags})
    medium = (metric.media or ("image",))[0]
    # Precomputed box features are found by the ids of images, which then need not be here.
    needs_visuals = metric.media and not checked.images_are_ids
    if needs_visuals and flags.visuals is None:
        raise ValueError(f"{metric.name} looks at {medium}s: name their folder by --images or --videos")
    check_objects([metric], flags)
    if metric.needs_references and not flags.references and not flags.objects:
        raise ValueError(f"{metric.name} needs references: name their file by --references")
    visuals = flags.visuals if needs_visuals else None
    file = read_files(flags, visuals, flags.candidates, medium=medium)
    tell_notes([file])
    return file, options_of_flags


def check_folder(out: Path, ours: Collection[str] = (), what: str = "", *, flag: str = "--out") -> set[str]:
    """The names in the folder of a flag; a file is refused, and one that holds more than `what`, if given."""
    if out.exists() and not out.is_dir():
        raise file_error(out, f"is a file: choose a folder for {flag}")
    # Tried, since permissions do not show that a disk is full or mounted read-only.
    try:
        try_writing(out)
    except OSError as error:
        raise OSError(f"{flag} {out} cannot be written ({error.strerror or error})") from error
    names = {path.name for path in out.glob("[!.]*")}  # less unfinished files
    foreign = sorted(names.difference(ours))
    if what and foreign:
        raise file_error(out, f"holds more than {what} ({foreign[0]}): choose another folder for {flag}")
    return names


def check_page(folder: Path | None) -> None:
    """Refuse a folder of --report into which no page can be written, before anything is scored."""
    if folder is not None:
        check_folder(folder, flag="--report")
        check_report(folder)


def write(name: str, path: Path | None, content: Any) -> None:
    """Write a text, bytes, a picture or JSON to the file of a flag, if there is one, whole or not at all."""
    if path is None:
        return
    if isinstance(content, Image):
        file = io.BytesIO()
        content.save(file, "PNG")
        content = file.getvalue()
    elif not isinstance(content, (str, bytes)):
        content = json_text(content)
    try:
        write_whole(path, content)
    except OSError as error:
        raise OSError(f"{name} {path} cannot be written ({error.strerror or error})") from error


def in_turn(*steps: Callable[[], object]) -> None:
    """Do one thing after the other, of which one that fails costs no other; then raise the first error."""
    # Scores took hours, perhaps: a full disk under --json must not keep them from --per-caption.
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except (OSError, ValueError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def tell_without_caption(folder: Path, images: Iterable[Path], medium: str = "image") -> None:
    """Say which images of a folder no file has a caption of."""
    files = set()
    for name in names_below(folder, medium):
        # Only a name with an extension of the medium loses it: the folder may hold other files.
        if bare(name, medium) != name:
            files.add(name)
    captioned = {Path(image).relative_to(folder).as_posix() for image in images}
    without = sorted(bare(name, medium) for name in files - captioned)
    if without:
        count = f"{len(without):,} of {len(files):,} {medium}s of the folder"
        note(f"{count} have no caption ({some_of(without)})")


def tell_reasons(reasons: Sequence[str], total: int, items: str) -> None:
    """Say why so many of all items failed, the first reasons of all, each once."""
    counts = Counter(reasons)
    lines = []
    for reason, number in counts.items():
        lines.append(f"{reason} ({number:,} {items})" if number > 1 else reason)
    tell_first(f"{len(reasons):,} of {total:,} {items} failed:", lines, "more reasons")


def tell_first(title: str, lines: Sequence[str], more: str = "more") -> None:
    """Say what is wrong in a list under a title, as far as anyone reads it; without lines nothing."""
    if not lines:
        return
    listed = [title]
    for line in lines[:_MOST_LINES]:
        listed.append(line.replace("\n", "\n  "))
    if len(lines) > _MOST_LINES:
        listed.append(f"and {len(lines) - _MOST_LINES:,} {more}")
    complain("\n  ".join(listed))
