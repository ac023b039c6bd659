"""Flags of statistics and their bootstrap intervals, which `capeval judge` and `capeval correlate` share."""

from __future__ import annotations

import argparse

from capeval_core.errors import did_you_mean
from capeval_core.judgements.ratings import STATISTICS
from capeval_core.judgements.resampling import DRAWS


def add_interval_flags(parser: argparse._ActionsContainer) -> None:
    """`--resamples`, `--level` and `--seed`."""
    parser.add_argument(
        "--resamples",
        metavar="N",
        type=int,
        default=DRAWS,
        help=f"number of bootstrap resamples (default: {DRAWS:,}); 0: no intervals",
    )
    parser.add_argument(
        "--level",
        metavar="X",
        type=float,
        default=0.95,
        help="confidence level of the intervals (default: 0.95)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the resamples (default: 0)")


def check_intervals(flags: argparse.Namespace) -> None:
    """Refuse values that no interval can have, before anything is read or scored."""
    if flags.resamples < 0:
        raise ValueError(f"--resamples {flags.resamples}: expected 0 (no intervals) or more")
    if not 0 < flags.level < 1:
        raise ValueError(f"--level {flags.level:g}: expected a number between 0 and 1, e.g. 0.95")
    if flags.seed < 0:
        raise ValueError(f"--seed {flags.seed}: expected 0 or more")


def check_statistics(names: list[str]) -> None:
    """Refuse names of `--statistics` that are no statistic of ratings, and none at all."""
    known = f"(known: {', '.join(STATISTICS)})"
    if not names:
        raise ValueError(f"--statistics names no statistic {known}")
    for name in names:
        if name not in STATISTICS:
            raise ValueError(f"--statistics {name!r}: unknown{did_you_mean(name, STATISTICS)} {known}")
