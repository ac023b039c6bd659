"""What commands share: flags made of options, the metrics that are named, names of rows, files."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from PIL.Image import Image

from capeval_core.commands.terminal import TYPES, Parser, complain, flag
from capeval_core.errors import did_you_mean, file_error, naming, place
from capeval_core.inputs import text_files
from capeval_core.inputs.files import bare, names_in, some_of
from capeval_core.inputs.samples import ARGUMENTS, medium_of
from capeval_core.inputs.text_files import FileOptions
from capeval_core.kept import try_writing, write_whole
from capeval_core.metric import CaptionMetric
from capeval_core.options import OptionDescription, Settings
from capeval_core.registry import media_of, metric_class

_SHOWN = 20  # lines of a list
_LONGEST = 48  # characters of the choices of an option that stand in place of its value

# flags


def add_flags(
    parser: Parser,
    options: type[Settings] | Mapping[str, type[Settings]],
    title: str = "options of the metric",
    *,
    leave_out: Collection[str] = (),
) -> None:
    """A flag for every option; of several metrics by name, each is for all that have it.

    The options class, not the flag, checks values and knows the defaults.
    """
    classes = options if isinstance(options, Mapping) else {"": options}
    flags: dict[str, list[tuple[str, OptionDescription]]] = {}
    for metric, class_ in classes.items():
        for option in class_.describe().values():
            if option.flag and option.name not in leave_out:
                flags.setdefault(option.name, []).append((metric, option))
    for own in flags.values():
        texts: dict[str, list[str]] = {}
        for metric, option in own:
            texts.setdefault(_help_of(option), []).append(metric)
        parts = [
            text if len(metrics) == len(classes) else f"{', '.join(metrics)}: {text}"
            for text, metrics in texts.items()
        ]
        _add_option(parser.group(title), own[0][1], "; ".join(parts))


def _help_of(option: OptionDescription) -> str:
    """The help of an option's flag."""
    # A help text names what None means; here None is a flag that is not given.
    text = option.help.replace("None: ", "default: ").replace("%", "%%")
    if option.type != "bool" and option.default not in (None, ""):
        text += f" (default: {option.default})"
    listed = ", ".join(map(str, option.choices))
    return text if len(listed) <= _LONGEST else f"{text}; one of {listed}"


def _add_option(group: argparse._ActionsContainer, option: OptionDescription, text: str) -> None:
    """The flag of an option; the options class refuses other values than its choices."""
    shape: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
    if option.type == "bool":
        shape["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
    if listed := ",".join(map(str, option.choices)):
        shape["metavar"] = f"{{{listed}}}" if len(listed) <= _LONGEST else "NAME"
    for name, letter in (("int", "N"), ("float", "X")):
        if name in option.type.split(" | "):
            shape |= {"type": TYPES[letter], "metavar": letter}
    group.add_argument(f"--{option.name.replace('_', '-')}", help=text, **shape)


def options_of(
    metric: type[CaptionMetric],
    keywords: Mapping[str, Any],
    given: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Any:
    """The checked options of one of several metrics, by keywords and the values `given` to `--set`."""
    if metrics.count(metric.name) > 1:
        raise ValueError(f"{metric.name} comes twice: name each metric once")
    own: dict[str, Any] = {}
    for text in given:
        target, equals, value = text.partition("=")
        owner, dot, option = target.partition(".")
        if not equals or not dot:
            raise ValueError(f"--set {text}: expected METRIC.OPTION=VALUE, e.g. {metrics[0]}.device=cuda")
        if owner not in metrics:
            hint = did_you_mean(owner, metrics)
            raise ValueError(f"--set {text}: {owner!r} is not among the metrics{hint}")
        if owner == metric.name:
            try:
                own[option.replace("-", "_")] = json.loads(value)
            except json.JSONDecodeError:
                own[option.replace("-", "_")] = value
    with naming({name: f"--set {metric.name}.{name}=" for name in own}):
        options = metric.Options.of(metric.name, {**keywords, **own})
        options.check(metric)
    return options


def chosen(arguments: argparse.Namespace, options: type[Settings]) -> dict[str, Any]:
    """The options that are among the arguments."""
    values = vars(arguments)
    return {name: values[name] for name in options.describe() if name in values}


# the metrics that a command line names


def read_metrics(
    command: str, names: Sequence[str], rest: Sequence[str]
) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics of these names for the medium of `--media`, and the other arguments."""
    for name in names:
        metric_class(name)
    parser = Parser(f"{command} {','.join(names)}", add_help=False)
    flag(parser, "--media NAME", "")
    flags, others = parser.parse_known_args(rest)
    # A metric on texts alone fits captions of any medium.
    media = [flags.media if len(names) == 1 or media_of(name) else None for name in names]
    return list(map(metric_class, names, media)), others


def media_words(metrics: Sequence[type[CaptionMetric]]) -> dict[str, str]:
    """The choices and the help of `--media`; no help where none of the metrics is about several."""
    media = next((media for metric in metrics if len(media := media_of(metric.name)) > 1), ())
    text = f"what captions are about (default: {media[0]})" if media else ""
    return {"kinds": f"{{{','.join(media)}}}", "media": text}


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
        if argument == "captions" and not inner and counts[system, image_id] > 1:
            number = numbers[position]
        text = f"{medium_of(argument)}{f' {number}' if number else ''} of {image_id!r}"
        return f"{text} in {system!r}" if system else text

    return naming(row=row)


def visual_of(image_id: str, argument: str) -> str:
    return f"{medium_of(argument)} of {image_id!r}"


# files


def read_files(
    flags: argparse.Namespace, images: str | os.PathLike[str] | None, candidates: Any, **more: Any
) -> text_files.Joined:
    """The collection of a file of candidates, and of --references, where there is such a flag."""
    options = FileOptions(**chosen(flags, FileOptions))
    references = getattr(flags, "references", None)
    return text_files.read_collection(candidates, images, references, options=options, **more)


def read_named(flags: Any, metric: Any, options: dict[str, Any]) -> tuple[text_files.Joined, dict[str, Any]]:
    """The files that a metric needs, as flags name them, and the options that flags set."""
    given = {name: getattr(flags, name, None) for name in ("weights", "regions")}
    chosen = {name: value for name, value in given.items() if value is not None}
    checked = metric.Options.of(metric.name, {**options, **chosen})
    if metric.media and flags.visuals is None and not checked.images_are_ids:
        raise ValueError(
            f"{metric.name} looks at {metric.media[0]}s: name their folder by --images or --videos"
        )
    if metric.needs_references and flags.references is None:
        raise ValueError(f"{metric.name} needs references: name their file by --references")
    folder: Path | None = flags.visuals if metric.media and not checked.images_are_ids else None
    return read_files(flags, folder, flags.candidates, medium=(metric.media or ("image",))[0]), chosen


def check_output(name: str, out: Path | None, read: Sequence[tuple[str, object]] = ()) -> None:
    """Refuse a file that could not be written, or that is one of those that are read, beside their names."""
    if out is None:
        return
    if str(out) == "-":
        raise ValueError(f"{name} - : name a file, standard output shows the summary")
    if out.is_dir() or not out.parent.is_dir():
        found = "is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise ValueError(f"{name} {out}: {found}, name a file to write")
    for whose, source in read:
        if source is not None and out.resolve() == Path(str(source)).resolve():
            raise ValueError(f"{name} {out} is the file of {whose}, which it would overwrite: name another")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise PermissionError(f"{name} {out} cannot be written (permission denied)")


def check_folder(
    out: Path | None, ours: Collection[str] = (), what: str = "", *, flag: str = "--out"
) -> set[str]:
    """The names in the folder of a flag; a file is refused, and one that holds more than `what`, if given."""
    if out is None:
        return set()
    if out.exists() and not out.is_dir():
        raise file_error(out, f"is a file: choose a folder for {flag}")
    try:
        try_writing(out)
    except OSError as error:
        raise OSError(f"{flag} {out} cannot be written ({error.strerror or error})") from error
    names = {path.name for path in out.glob("[!.]*")}  # less unfinished files
    if what and (others := sorted(names.difference(ours))):
        raise file_error(out, f"holds more than {what} ({others[0]}): choose another folder for {flag}")
    return names


def write(name: str, path: Path | None, content: str | bytes | Image) -> None:
    """Write what a flag asks for, if it does, as a whole or not at all; an OSError names the flag."""
    if isinstance(content, Image):
        file = io.BytesIO()
        content.save(file, "PNG")
        content = file.getvalue()
    try:
        if path is not None:
            write_whole(path, content)
    except OSError as error:
        raise OSError(f"{name} {path} cannot be written ({error.strerror or error})") from error


def in_turn(*steps: Callable[[], object]) -> None:
    """Do one thing after the other, of which one that fails costs no other; then raise the first error."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except (OSError, ValueError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def tell_without_caption(folder: Path, images: Iterable[Path], medium: str = "image") -> None:
    """Say how many images of a folder no file has a caption of, and which, unless they are most of it."""
    captioned = {Path(image).name for image in images}
    there = {name for name in names_in(folder, medium) if bare(name, medium) != name}
    if without := sorted(bare(name, medium) for name in there - captioned):
        listed = f" ({some_of(without)})" if len(without) < len(captioned) else ""
        complain(f"note: {len(without):,} of {len(there):,} {medium}s of the folder have no caption{listed}")


def tell_reasons(reasons: Sequence[str], total: int, items: str) -> None:
    """Say why so many of all items failed, the first reasons of all, each once."""
    counts = Counter(reasons)
    lines = [f"{reason}{f' ({n:,} {items})' if n > 1 else ''}" for reason, n in counts.items()]
    tell_first(f"{len(reasons):,} of {total:,} {items} failed:", lines, "more reasons")


def tell_first(title: str, lines: Sequence[str], more: str = "more") -> None:
    """Say what is wrong in a list under a title, as far as anyone reads it; without lines nothing."""
    if lines:
        rest = [f"and {len(lines) - _SHOWN:,} {more}"] * (len(lines) > _SHOWN)
        shown = [line.replace("\n", "\n  ") for line in lines[:_SHOWN]]
        complain("\n  ".join([title, *shown, *rest]))
