"""Flags made from the options of a metric, and errors in the words of flags and files."""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from capeval_core.commands.terminal import Parser, complain
from capeval_core.errors import Index, InputError, ProblemsError, Setting, Words
from capeval_core.inputs.media import ARGUMENTS, argument_of
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric
from capeval_core.options import OptionDescription, Settings, describe_options
from capeval_core.registry import media_of, metric_class, variant_classes
from capeval_core.values import shown

_WIDEST = 50
"""Characters of the values of a flag that stand beside it."""
_NUMBERS: dict[str, type[int] | type[float]] = {"int": int, "float": float}
Checked = TypeVar("Checked", bound=Samples)


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
            flag = flag_of(option.name)
            group.add_argument(flag, dest=option.name, default=argparse.SUPPRESS, **_kind(option))


def chosen(arguments: argparse.Namespace, options: type[Settings]) -> dict[str, Any]:
    """The options that are among the arguments."""
    values = vars(arguments)
    return {option.name: values[option.name] for option in describe_options(options) if option.name in values}


def flag_of(name: str) -> str:
    """
    >>> flag_of("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


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
        if len(shape["metavar"]) > _WIDEST:
            shape |= {"metavar": "NAME", "help": f"{text}; one of {', '.join(map(str, option.choices))}"}
    for name, kind in _NUMBERS.items():
        if name in types:
            shape |= {"type": kind, "metavar": "N" if kind is int else "X"}
    return shape


def read_metric(command: str, arguments: Sequence[str]) -> tuple[type[CaptionMetric], list[str]]:
    """The metric that the first argument and `--media` choose, and the other arguments.

    Raises:
        ValueError: there is no such metric, or none for this medium.
    """
    name, *rest = arguments
    metric_class(name)
    parser = Parser(prog=f"{command} {name}", add_help=False)
    parser.add_argument("--media")
    flags, others = parser.parse_known_args(rest)
    with in_words_of_the_user(Settings):
        return metric_class(name, flags.media), others


def command_of(metric: type[CaptionMetric]) -> str:
    """The metric as a command line names it.

    >>> command_of(metric_class("pacs"))
    'pacs'
    """
    return metric.name if metric.variant is None else f"{metric.name} --media {metric.variant}"


def add_media(group: Any, metric: type[CaptionMetric], *, optional: bool) -> None:
    """`--media` where there is a choice, and a flag for the folder of what captions are about.

    The flags of other media are not shown: `folder_of` refuses them. `optional`: whether there may be none.
    """
    media = media_of(metric.name)
    if any(name == metric.name for name, _ in variant_classes()):
        text = f"what captions are about (default: {media[0]})"
        group.add_argument("--media", metavar="{" + ",".join(media) + "}", help=text)
    for argument in ARGUMENTS:
        own = argument == argument_of(metric.media)
        text = f"the {argument} that they describe" if own else argparse.SUPPRESS
        if own and optional:
            text += "; none where --regions names features"
        if own and "video" in metric.media:
            text += ": files, or folders of frames"
        required = own and not optional
        group.add_argument(flag_of(argument), metavar="FOLDER", required=required, help=text)


def media_hint(metric: type[CaptionMetric], rest: Sequence[str]) -> str | None:
    """What to say of arguments with a folder of another medium that the metric takes, and none of its own.

    >>> media_hint(metric_class("pacs"), ["--videos", "clips"])
    '--videos: pacs is about images, pass --images FOLDER or --media video'
    """
    given = [argument for argument in ARGUMENTS if _has(rest, argument)]
    own = argument_of(metric.media)
    if own is None or own in given or _has(rest, "help") or "-h" in rest:
        return None
    return next((text for argument in given if (text := _about_others(metric, own, argument))), None)


def _has(rest: Sequence[str], name: str) -> bool:
    return any(one.partition("=")[0] == flag_of(name) for one in rest)


def _about_others(metric: type[CaptionMetric], own: str, argument: str) -> str:
    medium = argument.removesuffix("s")
    chosen = [] if medium not in media_of(metric.name) else [f"--media {medium}"]
    fix = " or ".join([f"pass {flag_of(own)} FOLDER", *chosen])
    return f"{flag_of(argument)}: {command_of(metric)} is about {own}, {fix}"


def folder_of(metric: type[CaptionMetric], flags: argparse.Namespace) -> str | None:
    """The folder of what captions are about; None where the metric compares texts alone, or none is given.

    Raises:
        ValueError: a folder of another medium is given.
    """
    own = argument_of(metric.media)
    for argument in ARGUMENTS:
        if argument == own or getattr(flags, argument) is None:
            continue
        if own is None:
            complain(f"warning: {metric.name} compares texts alone: {flag_of(argument)} is ignored")
            continue
        raise ValueError(_about_others(metric, own, argument))
    found: str | None = None if own is None else getattr(flags, own)
    return found


class FlagWords(Words):
    """The words of the command line: options are flags, and rows of files have the id of their image.

    >>> from capeval_core.options import Options
    >>> words = FlagWords(Options, ["dog", "dog", "cat"])
    >>> words.argument("captions", 1), words.argument("captions", (2, 3)), words.argument("images", 2)
    ("caption 2 of 'dog'", "caption 4 of 'cat'", "image of 'cat'")
    >>> words.option("batch_size", 0), words.setting(Setting("empty", "score", "pass "))
    ('--batch-size 0', 'pass --empty score')
    """

    def __init__(self, options: type[Settings], ids: Sequence[str] = ()) -> None:
        self.options = {option.name for option in describe_options(options)} | {"media"}
        self.ids = ids
        counts: Counter[str] = Counter()
        self._numbers = [counts.update([image_id]) or counts[image_id] for image_id in ids]
        self._several = {image_id for image_id, count in counts.items() if count > 1}

    def argument(self, argument: str, index: Index) -> str:
        position, *inner = index if isinstance(index, tuple) else (index,)
        if argument in self.options and index is None:
            return flag_of(argument)
        if not isinstance(position, int) or position >= len(self.ids):
            return super().argument(argument, index)
        image_id, number = self.ids[position], int(inner[0]) + 1 if inner else 0
        if argument in ARGUMENTS:
            return visual_of(image_id, argument)
        if argument == "references":
            return f"{f'reference {number}' if inner else 'references'} of {image_id!r}"
        if not inner and image_id in self._several:
            number = self._numbers[position]
        return f"{f'caption {number}' if number else 'caption'} of {image_id!r}"

    def option(self, name: str, value: Any) -> str:
        if name not in self.options:
            return super().option(name, value)
        return f"{flag_of(name)} {(value if isinstance(value, str) else shown(value)) or repr('')}"

    def setting(self, setting: Setting) -> str:
        if setting.name not in self.options:
            return super().setting(setting)
        return f"{setting.before}{flag_of(setting.name)} {shlex.quote(str(setting.value))}"


def visual_of(image_id: str, argument: str) -> str:
    """
    >>> visual_of("clip1", "videos")
    "video of 'clip1'"
    """
    return f"{argument.removesuffix('s')} of {image_id!r}"


@contextmanager
def in_words_of_the_user(options: type[Settings], ids: Sequence[str] = ()) -> Iterator[None]:
    """Let errors and warnings of the block speak of flags and ids, and not of options and `captions[3]`."""
    words, show = FlagWords(options, ids), warnings.showwarning
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest: show(
                words.of(message) if isinstance(message, Warning) else message, *rest
            )
            yield
    except ProblemsError as error:
        raise InputError(words.of(error)) from error


def with_ids(samples: Checked, ids: Sequence[str], media: Sequence[str] = ("image",)) -> Checked:
    """Samples whose visuals are named by their ids in errors that come later; one id per caption or pool."""
    argument = argument_of(media) or "references"
    images = [
        image.at(visual_of(ids[position], argument))
        for image, position in zip(samples.images, samples.places, strict=True)
    ]
    return replace(samples, images=images)
