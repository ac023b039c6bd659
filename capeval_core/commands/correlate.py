"""`capeval correlate`: how well scores agree with ratings of one's own."""

from __future__ import annotations

from pathlib import Path

from capeval_core.commands.common import check_output, names_of, write
from capeval_core.commands.judge import add_interval_flags, check_intervals, check_statistics
from capeval_core.commands.terminal import Parser, flag
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.own import join_ratings, read_score_file
from capeval_core.judgements.protocols import STATISTICS
from capeval_core.judgements.report import judged_table, long_table


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
    text = f"of {','.join(STATISTICS)} (default: all)"
    flag(parser, "--statistics NAMES", text, type=names_of, default=[*STATISTICS])
    flag(parser, "--csv OUT", "write every number to this file")
    add_interval_flags(parser)
    flags = parser.read(arguments)
    check_intervals(flags)
    check_output("--csv", flags.csv, [("the scores", flags.scores), ("the ratings", flags.human)])
    check_statistics(flags.statistics)
    scores = read_score_file(flags.scores)
    judged, scored = join_ratings(scores, flags.human)
    judged = judged.with_statistics(flags.statistics)
    result = Judged(
        judged, {scores.label: [scored]}, draws=flags.resamples, level=flags.level, seed=flags.seed
    )
    print(judged_table(result).text(), flush=True)
    if flags.csv is not None:
        write("--csv", flags.csv, long_table(result, {}).csv())
    cells = result.cells[scores.label].values()
    return 0 if any(cell.undefined is None for cell in cells) else 1
