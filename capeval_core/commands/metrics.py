"""The metrics that a command line names, and what their captions are about."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from capeval_core.commands.common import flag_of, names_of
from capeval_core.commands.terminal import Parser, complain, flag
from capeval_core.description import describe_metric
from capeval_core.inputs.samples import ARGUMENTS, argument_of, medium_of
from capeval_core.metric import CaptionMetric
from capeval_core.registry import media_of, metric_class, variant_classes

Metrics = Sequence[type[CaptionMetric]]


def read_metrics(arguments: Sequence[str]) -> tuple[list[type[CaptionMetric]], list[str]]:
    """The metrics that the first argument and `--media` choose, and the other arguments.

    >>> [metric.name for metric in read_metrics(["pacs,cider", "--images", "x"])[0]]
    ['pacs', 'cider']
    """
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
    """The metric as a command line names it.

    >>> command_of(metric_class("pacs"))
    'pacs'
    """
    return metric.name if metric.variant is None else f"{metric.name} --media {metric.variant}"


def title_of(metrics: Metrics) -> str:
    """The names of metrics as the first argument has them.

    >>> title_of([metric_class("pacs"), metric_class("cider")])
    'pacs,cider'
    """
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
        required = own and not optional
        flag(group, f"{flag_of(argument)} FOLDER", text, type=str, required=required)


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
    medium = medium_of(argument)
    chosen = [] if medium not in media_of(metric.name) else [f"--media {medium}"]
    fix = " or ".join([f"pass {flag_of(own)} FOLDER", *chosen])
    return f"{flag_of(argument)}: {command_of(metric)} is about {own}, {fix}"


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
        raise ValueError(_about_others(metric, own, argument))
    folder: str | None = None if own is None else getattr(flags, own)
    return folder
