"""`capeval shards merge|check|histogram`: what becomes of the outputs of shards."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Sequence
from pathlib import Path

from capeval_core.commands.outputs import check_output, write
from capeval_core.commands.terminal import WHOLE_LINES, Parser, complain, paragraph, table, terminal_width
from capeval_core.integrations.shards import (
    ScoreHistogram,
    ShardCheck,
    check_shards,
    merge_shards,
    score_histogram,
)
from capeval_core.reports.charts import draw_histogram

_SHOWN = 20  # of uids or shards that something is wrong with


def run_merge(arguments: list[str]) -> int:
    """`capeval shards merge`: one table of all scores."""
    parser = _parser(
        "merge", "--output TABLE.parquet", "Join the scores of all shards into one Parquet table."
    )
    parser.add_argument("--output", metavar="TABLE.parquet", required=True, help="the table to write")
    flags = parser.read(arguments)
    rows = merge_shards(flags.folder, flags.output)
    print(table([["rows", f"{rows:,}"], ["table", flags.output]], width=WHOLE_LINES))
    return 0


def run_check(arguments: list[str]) -> int:
    """`capeval shards check`: whether every uid is there once, all signatures are equal, all shards whole.

    Returns 1 where something is wrong.
    """
    parser = _parser("check", "", "Check the scores of all shards: every uid once, one signature, no damage.")
    flags = parser.read(arguments)
    found = check_shards(flags.folder)
    uids = "all unique" if not found.repeated else f"{found.repeated:,} rows repeat one"
    whole = "all whole" if not found.damaged else f"{len(found.damaged):,} damaged"
    rows = [
        ["shards", f"{found.shards:,} ({whole})"],
        ["rows", f"{found.rows:,} ({sum(found.failed.values()):,} failed)"],
        ["uids", uids],
        *(["signature", f"{text} ({_shards(names)})"] for text, names in found.signatures.items()),
    ]
    print(table(rows, width=WHOLE_LINES))
    for lines in _complaints(found):
        complain("\n  ".join(lines))
    return 0 if found.ok else 1


def _complaints(found: ShardCheck) -> list[list[str]]:
    """What is wrong, the first of each kind."""
    complaints = []
    if found.damaged:
        title = f"{_shards(found.damaged)} damaged or no scores; delete them and score their shards again:"
        complaints.append([title, *_first([f"{name} {why}" for name, why in found.damaged.items()])])
    if found.failed:
        title = f"{_shards(list(found.failed))} with rows that failed; `score --retry-failed` redoes them:"
        named = [
            f"{name}: {rows:,}{', all of its rows' if name in found.without_scores else ''}"
            for name, rows in found.failed.items()
        ]
        complaints.append([title, *_first(named)])
    if found.repeated:
        title = f"{_counted(found.repeated, 'row')} with a uid that another row has:"
        named = [
            f"{uid!r}: {', '.join(f'{times} in {name}' for name, times in counts.items())}"
            for uid, counts in found.duplicates.items()
        ]
        complaints.append([title, *_first(named)])
    if len(found.signatures) > 1:
        title = "scores of different signatures cannot be compared; score these shards again with one:"
        few = sorted(found.signatures.values(), key=len)[:-1]
        complaints.append([title, *_first([name for names in few for name in names])])
    if found.unfinished:
        title = "unfinished files, which can be deleted while no run is on:"
        complaints.append([title, *_first(found.unfinished)])
    return complaints


def run_histogram(arguments: list[str]) -> int:
    """`capeval shards histogram`: the distribution of all scores. Returns 1 where there is no score."""
    parser = _parser(
        "histogram", "[--keep SHARE] [--png OUT]", "The distribution of the scores of all shards."
    )
    parser.add_argument(
        "--keep", metavar="SHARE", type=float, help="the threshold that keeps the best share, e.g. 0.3"
    )
    parser.add_argument("--png", metavar="OUT", type=Path, help="draw the histogram to this file")
    flags = parser.read(arguments)
    check_output("--png", flags.png, flags, ())
    if flags.keep is not None and not 0 < flags.keep <= 1:
        raise ValueError(f"--keep {flags.keep:g}: expected a share above 0, at most 1, such as 0.3")
    found = score_histogram(flags.folder, keep=flags.keep)
    if flags.png is not None:
        write("--png", flags.png, _picture(found, flags))
    if found.scored:
        print(_bars(found) + "\n")
    print(table(_numbers(found), width=WHOLE_LINES))
    return 0 if found.scored else 1


def _numbers(found: ScoreHistogram) -> list[list[str]]:
    rows = [["rows", f"{found.scored + found.failed:,} ({found.failed:,} without a score)"]]
    if found.scored:
        rows += [["mean", f"{found.mean:.4f}"], ["range", f"{found.least:.4f} to {found.most:.4f}"]]
        rows += [[f"{share:.0%}", f"{value:.4f}"] for share, value in found.quantiles.items()]
    if found.keep is not None and found.scored:
        share = found.kept / found.scored
        kept = f"keeps {_counted(found.kept, 'row')}, {share:.2%} of those with a score"
        rows.append(
            [f"best {100 * found.keep:g}%", f"score >= {math.floor(found.threshold * 1e6) / 1e6:.6f} {kept}"]
        )
    return rows


def _bars(found: ScoreHistogram) -> str:
    """The histogram as lines of text, three bins in each."""
    edges, counts = found.edges[::3], found.counts.reshape(-1, 3).sum(axis=1)
    labels = [f"{edge:.4f}" for edge in edges[:-1]]
    wide = max(map(len, labels))
    room = terminal_width() - wide - max(len(f"{count:,}") for count in counts) - 4
    most = counts.max()
    lines = []
    for label, count in zip(labels, counts, strict=True):
        bar = "#" * math.ceil(room * count / most)
        lines.append(f"{label.rjust(wide)}  {bar} {count:,}".rstrip())
    return "\n".join(lines)


def _picture(found: ScoreHistogram, flags: argparse.Namespace) -> bytes:
    marks = {f"{share:.0%}": value for share, value in found.quantiles.items() if math.isfinite(value)}
    note = f"{found.scored:,} scores, mean {found.mean:.4f}; {found.failed:,} rows without a score"
    threshold = None
    if found.keep is not None and found.scored:
        threshold = found.threshold
        note += f"; the best {100 * found.keep:g}% from {threshold:.4f} on: {found.kept:,} rows"
    image = draw_histogram(
        f"Scores in {flags.folder}",
        found.edges.tolist(),
        found.counts.tolist(),
        marks,
        kept_from=threshold,
        note=note,
    )
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _parser(name: str, usage: str, description: str) -> Parser:
    parser = Parser(
        prog=f"capeval shards {name}",
        usage=f"capeval shards {name} FOLDER {usage}".rstrip(),
        description=description,
        epilog=paragraph(
            "FOLDER is where `capeval shards score` wrote, a path or an address such as s3://..."
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="the scores of shards")
    return parser


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _shards(names: Sequence[str] | dict[str, str]) -> str:
    return _counted(len(names), "shard")
