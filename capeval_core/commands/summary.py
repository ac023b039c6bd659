"""A result in a few lines."""

from __future__ import annotations

from capeval_core.commands.tables import WHOLE_LINES, table
from capeval_core.result import Result


def summary(title: str, result: Result) -> str:
    """Mean, interval, counts and signature in four lines."""
    counts = result.counts
    special = f"{counts.failed:,} failed, {counts.truncated:,} truncated, {counts.empty:,} empty"
    rows = [
        [title, f"{result.mean:.4f}" if counts.failed < counts.captions else "n/a"],
        ["interval", interval_text(result)],
        ["captions", f"{counts.captions:,} ({special})"],
        ["signature", result.signature],
    ]
    return table(rows, width=WHOLE_LINES)


def interval_text(result: Result, digits: int = 4) -> str:
    """The interval of a result's mean, `n/a` where there is too little for one."""
    try:
        interval = result.interval()
    except ValueError:
        return "n/a (it needs scores of two pictures)"
    bounds = f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
    return f"{bounds} ({interval.level:.0%}, {interval.pictures:,} pictures)"
