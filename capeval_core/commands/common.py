"""What commands share: flags made of options, the metrics that are named, names of rows, files."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from capeval_core.commands.terminal import TYPES, Parser, complain, flag
from capeval_core.description import describe_metric
from capeval_core.errors import did_you_mean, naming, place
from capeval_core.inputs import text_files
from capeval_core.inputs.images import Texts
from capeval_core.inputs.samples import ARGUMENTS, Samples, argument_of, medium_of
from capeval_core.inputs.text_files import FileOptions
from capeval_core.kept import write_whole
from capeval_core.metric import CaptionMetric
from capeval_core.options import OptionDescription, Settings, describe_options
from capeval_core.registry import media_of, metric_class, variant_classes

if TYPE_CHECKING:
    from PIL.Image import Image

FILES = (
    "Files are JSON ({image id: caption}, {image id: [captions or references]}, COCO results, COCO "
    "annotations, Karpathy's), JSON lines, CSV, TSV, Flickr's lists or Parquet, told apart by their "
    "extension or else their content, also compressed with gzip; - is standard input. An image's id is its "
    "file name without the extension, or its path from the folder of images; for COCO also its number."
)
_FAILURES_SHOWN = 20
Metrics = Sequence[type[CaptionMetric]]
_Checked = TypeVar("_Checked", bound=Samples)

# flags


def add_flags(
    parser: argparse.ArgumentParser,
    options: type[Settings],
    title: str = "options of the metric",
    *,
    leave_out: Collection[str] = (),
) -> None:
    """A flag for every option. The options class, not the flag, checks values and knows the defaults."""
    group = parser.add_argument_group(title)
    for option in describe_options(options):
        if option.flag and option.name not in leave_out:
            name = flag_of(option.name)
            group.add_argument(name, dest=option.name, default=argparse.SUPPRESS, **_kind(option))


def add_file_flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the columns and splits of files."""
    add_flags(parser, FileOptions, title="columns and splits of the files")


def add_flags_of_several(
    parser: argparse.ArgumentParser,
    options: Mapping[str, type[Settings]],
    without: Mapping[str, Sequence[str]],
) -> None:
    """A flag for every option of several metrics, by their names, each for all metrics that have it.

    `--set` is for one of them. `without`: by option, the metrics that it has no meaning for.
    """
    group = parser.add_argument_group("options of the metrics", "Each but --set is for all that have it.")
    add_set_flag(group, next(iter(options)))
    owners: dict[str, dict[str, list[str]]] = {}  # by option and help text, its metrics
    kinds: dict[str, dict[str, Any]] = {}
    for metric, class_ in options.items():
        for option in describe_options(class_):
            if option.flag and metric not in without.get(option.name, ()):
                kinds.setdefault(option.name, _kind(option))
                owners.setdefault(option.name, {}).setdefault(_kind(option)["help"], []).append(metric)
    for name, texts in owners.items():
        parts = [
            text if len(metrics) == len(options) else f"{', '.join(metrics)}: {text}"
            for text, metrics in texts.items()
        ]
        shape = {**kinds[name], "help": "; ".join(parts)}
        group.add_argument(flag_of(name), dest=name, default=argparse.SUPPRESS, **shape)


def add_set_flag(group: argparse._ActionsContainer, example: str) -> None:
    text = f"any option of one metric, e.g. {example}.device=cuda"
    flag(group, "--set METRIC.OPTION=VALUE", text, action="append", default=[])


def options_set(given: Sequence[str], metric: str, metrics: Sequence[str]) -> dict[str, Any]:
    """The options of one metric among the values of `--set`, of which JSON's are read as such."""
    found: dict[str, Any] = {}
    for text in given:
        target, equals, value = text.partition("=")
        owner, dot, option = target.partition(".")
        if not equals or not dot:
            raise ValueError(f"--set {text}: expected METRIC.OPTION=VALUE, e.g. {metrics[0]}.device=cuda")
        if owner not in metrics:
            hint = did_you_mean(owner, metrics)
            raise ValueError(f"--set {text}: {owner!r} is not among the metrics{hint}")
        if owner == metric:
            try:
                found[option.replace("-", "_")] = json.loads(value)
            except json.JSONDecodeError:
                found[option.replace("-", "_")] = value
    return found


def chosen(arguments: argparse.Namespace, options: type[Settings]) -> dict[str, Any]:
    """The options that are among the arguments."""
    values = vars(arguments)
    return {option.name: values[option.name] for option in describe_options(options) if option.name in values}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def names_of(text: str) -> list[str]:
    """The names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _kind(option: OptionDescription) -> dict[str, Any]:
    types = option.type.split(" | ")
    # A help text names what None means; here None is a flag that is not given.
    text = option.help.replace("None: ", "default: ").replace("%", "%%")
    if types == ["bool"]:
        action = argparse.BooleanOptionalAction if option.default else "store_true"
        return {"action": action, "help": text}
    if option.default not in (None, ""):
        text += f" (default: {option.default})"
    shape: dict[str, Any] = {"help": text}
    if option.choices:
        # For the eye only: the options class refuses other values, and says which was meant.
        shape["metavar"] = "{" + ",".join(map(str, option.choices)) + "}"
        if len(shape["metavar"]) > 50:
            shape |= {"metavar": "NAME", "help": f"{text}; one of {', '.join(map(str, option.choices))}"}
    for name, letter in (("int", "N"), ("float", "X")):
        if name in types:
            shape |= {"type": TYPES[letter], "metavar": letter}
    return shape


# the metrics that a command line names, and what their captions are about


def read_metrics(arguments: Sequence[str]) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics that the first argument and `--media` choose, and the other arguments."""
    given, *rest = arguments
    names = names_of(given) or [given]
    refuse_twice(given, names)
    for name in names:
        if describe_metric(metric_class(name)).command != "score":
            fix = f"; leave {name} out of the list" if len(names) > 1 else ""
            raise ValueError(
                f"{name} chooses among several captions of each image: use `capeval rerank`, which "
                f"writes the chosen ones{fix}"
            )
    metrics, others = _with_medium("score", names, rest)
    by_argument = {argument_of(metric.media): command_of(metric) for metric in metrics if metric.media}
    if len(by_argument) > 1:
        about = " and ".join(f"{name} is about {argument}" for argument, name in by_argument.items())
        raise ValueError(f"{about}: score them in two commands")
    return metrics, others


def refuse_twice(given: str, names: Sequence[str]) -> None:
    """Refuse a metric that is among the names twice."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{given}: {twice} comes twice, name each metric once")


def read_metric(command: str, arguments: Sequence[str]) -> tuple[type[CaptionMetric], list[str]]:
    """The one metric that the first argument and `--media` choose, and the other arguments."""
    name, *rest = arguments
    metric_class(name)
    (metric,), others = _with_medium(command, [name], rest)
    return metric, others


def _with_medium(
    command: str, names: Sequence[str], rest: Sequence[str]
) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics of these names for the medium of `--media`, and the other arguments."""
    parser = Parser(f"{command} {','.join(names)}", add_help=False)
    flag(parser, "--media NAME", "")
    flags, others = parser.parse_known_args(rest)
    # A metric on texts alone fits captions of any medium.
    media = {name: flags.media if len(names) == 1 or media_of(name) else None for name in names}
    return [metric_class(name, medium) for name, medium in media.items()], others


def command_of(metric: type[CaptionMetric]) -> str:
    """The metric as a command line names it."""
    return metric.name if metric.variant is None else f"{metric.name} --media {metric.variant}"


def title_of(metrics: Metrics) -> str:
    """The names of metrics as the first argument has them."""
    return ",".join(metric.name for metric in metrics)


def about(metrics: Metrics) -> type[CaptionMetric]:
    """The first metric that looks at images or videos, else the first."""
    return next((metric for metric in metrics if metric.media), metrics[0])


def add_media_choice(group: Any, metrics: Metrics) -> None:
    """`--media` where one of the metrics is about several."""
    variants = {name for name, _ in variant_classes()}
    with_choice = next((metric.name for metric in metrics if metric.name in variants), None)
    if with_choice is not None:
        media = media_of(with_choice)
        flag(group, f"--media {{{','.join(media)}}}", f"what captions are about (default: {media[0]})")


def add_media(group: Any, metrics: Metrics) -> None:
    """`--media` where there is a choice, and a flag for the folder of what captions are about.

    The flags of other media are not shown: `folder_of` refuses them.
    """
    add_media_choice(group, metrics)
    optional = all("boxes" in metric.media for metric in metrics if metric.media)
    for argument in ARGUMENTS:
        own = argument == argument_of(about(metrics).media)
        text = f"the {argument} that they describe" if own else argparse.SUPPRESS
        if own and optional:
            text += "; none where --regions names features"
        if own and "video" in about(metrics).media:
            text += ": files, or folders of frames"
        flag(group, f"{flag_of(argument)} FOLDER", text, type=str)


def folder_of(metrics: Metrics, flags: argparse.Namespace) -> str | None:
    """The folder of what captions are about; None where metrics compare texts alone, or none is given.

    Raises:
        ValueError: a folder of another medium is given.
    """
    metric = about(metrics)
    own = argument_of(metric.media)
    for argument in ARGUMENTS:
        if argument == own or getattr(flags, argument) is None:
            continue
        if own is None:
            verb = "compare" if len(metrics) > 1 else "compares"
            complain(f"warning: {title_of(metrics)} {verb} texts alone: {flag_of(argument)} is ignored")
            continue
        medium = medium_of(argument)
        chosen = [f"--media {medium}"] if medium in media_of(metric.name) else []
        fix = " or ".join([f"pass {flag_of(own)} FOLDER", *chosen])
        raise ValueError(f"{flag_of(argument)}: {command_of(metric)} is about {own}, {fix}")
    folder: str | None = None if own is None else getattr(flags, own)
    return folder


# names of rows


def naming_rows(ids: Sequence[str], systems: Sequence[str] = ()) -> AbstractContextManager[None]:
    """Call rows of files by the id of their image, and by their system where there are several."""
    pairs = list(zip(systems or [""] * len(ids), ids, strict=True))
    counts: Counter[tuple[str, str]] = Counter()
    numbers = [counts.update([pair]) or counts[pair] for pair in pairs]

    def row(argument: str, path: Sequence[int | str]) -> str:
        position, *inner = path
        if not isinstance(position, int) or position >= len(ids):
            return place(argument, path)
        system, image_id = pairs[position]
        if argument in ARGUMENTS:
            visual = visual_of(image_id, argument)  # of boxes, with one of the arrays of features
            return f"{visual}: {place(str(inner[0]), inner[1:])}" if inner else visual
        number = int(inner[0]) + 1 if inner else 0
        if argument == "references":
            return f"reference {number} of {image_id!r}" if inner else f"references of {image_id!r}"
        number = number or (numbers[position] if counts[system, image_id] > 1 else 0)
        caption = f"caption {number} of {image_id!r}" if number else f"caption of {image_id!r}"
        return f"{caption} in {system!r}" if system else caption

    return naming(row=row)


def in_set(metric: str, given: Iterable[str]) -> dict[str, str]:
    """What options of a metric are called that `--set` gave."""
    return {name: f"--set {metric}.{name}=" for name in given}


def visual_of(image_id: str, argument: str) -> str:
    return f"{medium_of(argument)} of {image_id!r}"


def with_ids(
    samples: _Checked,
    ids: Sequence[str],
    media: Sequence[str] = ("image",),
    entries: Sequence[str] | None = None,
) -> _Checked:
    """Samples whose visuals are named by their ids in errors that come later; one id per caption or pool.

    `entries`: ids in the file of references, by which a metric on texts alone groups captions: equal
    references of two images are no reason to take them for one.
    """
    argument = argument_of(media) or "references"
    images = [
        image.at(visual_of(ids[position], argument))
        for image, position in zip(samples.images, samples.places, strict=True)
    ]
    if not media and entries is not None:
        pairs = zip(entries, samples.references or [], strict=True)
        sources = {entry: Texts(texts, entry) for entry, texts in pairs}
        images = [
            type(image)(image.where, sources[entry]) for image, entry in zip(images, entries, strict=True)
        ]
    return replace(samples, images=images)


# files


def read_files(
    flags: argparse.Namespace,
    images: str | os.PathLike[str] | None,
    *,
    candidates: str | os.PathLike[str] | None = None,
    **more: Any,
) -> text_files.Joined:
    """The collection of --candidates, or of this file, and --references, where there is such a flag."""
    file = flags.candidates if candidates is None else candidates
    references = getattr(flags, "references", None)
    options = FileOptions(**chosen(flags, FileOptions))
    return text_files.read_collection(file, images, references, options=options, **more)


def check_output(name: str, out: Path | None, read: Sequence[tuple[str, object]] = ()) -> None:
    """Refuse a file that could not be written, or that is one of those that are read, beside their names."""
    if out is None:
        return
    if str(out) == "-":
        raise ValueError(f"{name} - : name a file, standard output shows the summary")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{name} {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise IsADirectoryError(f"{name} {out} is a folder: name a file")
    for whose, source in read:
        if source is not None and out.resolve() == Path(str(source)).resolve():
            raise ValueError(f"{name} {out} is the file of {whose}, which it would overwrite: name another")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise PermissionError(f"{name} {out} cannot be written (permission denied)")


def write(name: str, path: Path, content: str | bytes) -> None:
    """Write what a flag asks for, as a whole or not at all; an OSError names the flag."""
    try:
        write_whole(path, content, into_pipes=True)
    except OSError as error:
        raise OSError(f"{name} {path} cannot be written ({error.strerror or error})") from error


def png_bytes(image: Image) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class Outputs:
    """Files written one after the other, of which a failing one costs neither the others nor the summary."""

    def __init__(self) -> None:
        self._failure: Exception | None = None

    @contextmanager
    def next(self) -> Iterator[None]:
        """Keep the block's error for `finish`."""
        try:
            yield
        except (OSError, ValueError) as error:
            self._failure = self._failure or error

    def finish(self) -> None:
        """Raise the first error."""
        if self._failure is not None:
            raise self._failure


def tell_reasons(reasons: Sequence[str], total: int, items: str) -> None:
    """Say why so many of all items failed, the first reasons of all, each once."""
    if not reasons:
        return
    counts = Counter(reasons)
    more = len(counts) - _FAILURES_SHOWN
    lines = [f"{len(reasons):,} of {total:,} {items} failed:"]
    for reason, count in list(counts.items())[:_FAILURES_SHOWN]:
        lines += f"{reason}{f' ({count:,} {items})' if count > 1 else ''}".split("\n")
    complain("\n  ".join([*lines, *([f"and {more:,} more reasons"] if more > 0 else [])]))
