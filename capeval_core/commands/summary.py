"""A result in a few lines."""

from __future__ import annotations

from capeval_core.commands.tables import WHOLE_LINES, table
from capeval_core.result import Result
from capeval_core.statistics import Interval


def summary(title: str, result: Result, interval: Interval | str) -> str:
    """Mean, interval (or why there is none), counts and signature in four lines."""
    counts = result.counts
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    rows = [
        [title, f"{result.mean:.4f}" if counts.failed < counts.captions else "n/a"],
        ["interval", _bounds(interval) if isinstance(interval, Interval) else f"none: {interval}"],
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


def _bounds(interval: Interval) -> str:
    extent = f"({interval.level:.0%}, {interval.images:,} images)"
    return f"{interval.low:.4f} to {interval.high:.4f} {extent}"
