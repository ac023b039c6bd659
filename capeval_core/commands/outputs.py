"""The results of a command: a summary on the terminal, and files that are there as a whole or not at all."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from capeval_core.commands.terminal import WHOLE_LINES, complain, table
from capeval_core.result import Result
from capeval_core.statistics import Interval
from capeval_core.writing import write_whole

_FAILURES_SHOWN = 20


def summary(title: str, result: Result, interval: Interval | str, number: Callable[[float], str]) -> str:
    """Mean, interval (or why there is none), counts and signature in four lines; `number` writes a score."""
    counts = result.counts
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    bounds = f"none: {interval}"
    if isinstance(interval, Interval):
        extent = f"({interval.level:.0%}, {interval.images:,} images)"
        bounds = f"{number(interval.low)} to {number(interval.high)} {extent}"
    rows = [
        [title, number(result.mean)],
        ["interval", bounds],
        ["captions", f"{counts.captions:,} ({special})"],
        ["signature", result.signature],
    ]
    return table(rows, width=WHOLE_LINES)


def interval_of(result: Result) -> Interval | str:
    """The interval of a result's mean, or the reason why it has none, e.g. too few images."""
    try:
        return result.interval()
    except ValueError as error:
        return str(error)


def check_output(
    flag: str, out: Path | None, flags: argparse.Namespace, read: Sequence[str] | Mapping[str, str]
) -> None:
    """Refuse a file that could not be written, or that is one of those that the flags `read` name.

    Arguments that are no flags come with what messages call them.
    """
    if out is None:
        return
    if str(out) == "-":
        raise ValueError(f"{flag} - : name a file, standard output shows the summary")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{flag} {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise IsADirectoryError(f"{flag} {out} is a folder: name a file")
    for name in read:
        source = getattr(flags, name)
        if source is not None and out.resolve() == Path(source).resolve():
            whose = read[name] if isinstance(read, Mapping) else f"--{name}"
            raise ValueError(f"{flag} {out} is the file of {whose}, which it would overwrite: name another")
    if out.exists() and not os.access(out, os.W_OK):
        raise PermissionError(f"{flag} {out} cannot be written (permission denied)")
    beside = Path(os.path.realpath(out)).parent
    if (out.is_file() or not out.exists()) and not os.access(beside, os.W_OK):
        raise PermissionError(f"{flag} {out}: nothing can be written in its folder (permission denied)")


def write(flag: str, path: Path, content: str | bytes) -> None:
    """Write what a flag asks for, as a whole or not at all; an OSError names the flag."""
    try:
        write_whole(path, content, into_pipes=True)
    except OSError as error:
        raise OSError(f"{flag} {path} cannot be written ({error.strerror or error})") from error


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


def tell_equal_images(ids: Sequence[str], groups: Sequence[str], noun: str = "images") -> None:
    """Say how many images are counted once in intervals and tests because their content is equal.

    groups: of each caption, the key of its image. noun: what has these keys.
    """
    first: dict[str, str] = {}
    equal: dict[str, str] = {}
    for image_id, group in zip(ids, groups, strict=True):
        if group and first.setdefault(group, image_id) != image_id:  # no group: it could not be read
            equal[image_id] = first[group]
    if equal:
        image_id, other = next(iter(equal.items()))
        are = "is equal to another" if len(equal) == 1 else "are equal to others"
        complain(
            f"warning: {len(equal):,} of {len(set(ids)):,} {noun} {are}, e.g. {image_id!r} to {other!r}: "
            "equal ones count as one image in intervals and tests"
        )


def tell_failures(result: Result) -> None:
    """Say which captions failed and why, the first of them."""
    tell_reasons(list(result.errors.values()), result.counts.captions, "captions")


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
