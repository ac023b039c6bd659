"""`capeval correlate`: how well scores agree with ratings of one's own."""

from __future__ import annotations

from pathlib import Path

from capeval_core.commands.common import check_output, write
from capeval_core.commands.judge import add_statistics, check_statistics, status_of
from capeval_core.commands.terminal import Parser, flag
from capeval_core.judgements.protocols import STATISTICS
from capeval_core.judgements.stored import join_ratings
from capeval_core.judgements.tables import Judged, judged_table, long_table


def run(arguments: list[str]) -> int:
    parser = Parser(
        "correlate",
        "SCORES.json HUMAN.csv [options]",
        "Agreement of scores with ratings of your own, with the statistics of the papers.",
        "SCORES.json is a file of `capeval score --json`, or {image id: score}, or a list. HUMAN is CSV, "
        "JSON or JSON lines, a rating per row: image_id and rating, and caption where an image has "
        "several; without ids in SCORES, rows are in its order. Several ratings of a caption are several "
        "rows. Intervals resample images, each with all its rows.",
    )
    flag(parser, "scores SCORES.json", "the scores of a metric", type=Path)
    flag(parser, "human HUMAN.csv", "the ratings", type=Path)
    add_statistics(parser, f"of {','.join(STATISTICS)} (default: all)")
    flag(parser, "--csv OUT", "write every number to this file")
    flags = parser.read(arguments)
    check_statistics(flags)
    check_output("--csv", flags.csv, [("the scores", flags.scores), ("the ratings", flags.human)])
    label, judged, scored = join_ratings(flags.scores, flags.human)
    if flags.statistics is not None:
        judged = judged.with_statistics(flags.statistics)
    result = Judged(judged, {label: [scored]}, draws=flags.resamples, level=flags.level, seed=flags.seed)
    print(judged_table(result).text(), flush=True)
    if flags.csv is not None:
        write("--csv", flags.csv, long_table(result, {}).csv())
    return status_of(result)
