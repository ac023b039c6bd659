"""A result in a few lines."""

from __future__ import annotations

from capeval_core.commands.tables import WHOLE_LINES, table
from capeval_core.result import Result
from capeval_core.statistics import Interval


def summary(title: str, result: Result, interval: Interval | None) -> str:
    """Mean, interval, counts and signature in four lines."""
    counts = result.counts
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    extent = f" ({interval.level:.0%}, {interval.pictures:,} pictures)" if interval else ""
    rows = [
        [title, f"{result.mean:.4f}" if counts.failed < counts.captions else "n/a"],
        ["interval", bounds(interval) + extent],
        ["captions", f"{counts.captions:,} ({special})"],
        ["signature", result.signature],
    ]
    return table(rows, width=WHOLE_LINES)


def interval_of(result: Result) -> Interval | None:
    """The interval of a result's mean, None where fewer than two pictures have a score."""
    try:
        return result.interval()
    except ValueError:
        return None


def bounds(interval: Interval | None, digits: int = 4) -> str:
    """Its two ends, or `n/a`."""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}" if interval else "n/a"
