"""Flags made from a metric's options: one for each, with its type, its default and its sentence."""

from __future__ import annotations

import argparse
import re
from typing import Any

from capeval_core.options import OptionDescription, Settings, describe_options

_WIDEST = 50
"""Characters of the values of a flag that stand beside it."""
_NUMBERS: dict[str, type[int] | type[float]] = {"int": int, "float": float}


def add_flags(
    parser: argparse.ArgumentParser, options: type[Settings], title: str = "options of the metric"
) -> None:
    """A flag for every option. The options class, not the flag, checks values and knows the defaults."""
    group = parser.add_argument_group(title)
    for option in describe_options(options):
        if option.flag:
            flag = flag_of(option.name)
            group.add_argument(flag, dest=option.name, default=argparse.SUPPRESS, **_kind(option))


def chosen(arguments: argparse.Namespace, options: type[Settings]) -> dict[str, Any]:
    """The options that the user gave."""
    given = vars(arguments)
    return {option.name: given[option.name] for option in describe_options(options) if option.name in given}


def flag_of(name: str) -> str:
    """
    >>> flag_of("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def in_flags(message: str, options: type[Settings]) -> str:
    """A message that speaks of keywords, in the words of the command line.

    >>> from capeval_core.options import Options
    >>> in_flags('captions[0] is empty: write a caption or pass empty="score"', Options)
    'captions[0] is empty: write a caption or pass --empty score'
    """
    names = "|".join(option.name for option in describe_options(options))
    value = r"""(?:'(?P<single>[^'\n]*)'|"(?P<double>[^"\n]*)"|(?P<bare>[\w.+-]*\w))"""

    def mended(found: re.Match[str]) -> str:
        text = found["single"] or found["double"] or found["bare"] or "''"
        return f"{flag_of(found['name'])} {text}"

    return re.sub(rf"(?<![\w.\[])(?P<name>{names})={value}", mended, message)


def _kind(option: OptionDescription) -> dict[str, Any]:
    types = option.type.split(" | ")
    # A help text names what None means; here None is a flag that is not given.
    text = option.help.replace("None: ", "default: ").replace("%", "%%")
    if types == ["bool"]:
        action = argparse.BooleanOptionalAction if option.default else "store_true"
        return {"action": action, "help": text}
    if option.default is not None:
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
