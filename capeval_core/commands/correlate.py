"""`capeval correlate`: how well scores agree with ratings of one's own."""

from __future__ import annotations

from capeval_core.commands.common import chosen, write
from capeval_core.commands.terminal import note, parser_of
from capeval_core.judgements.external_scores import join_ratings
from capeval_core.judgements.protocols import STATISTICS
from capeval_core.judgements.ratings import RatingOptions
from capeval_core.judgements.tables import Judged, judged_table, long_table


def run(arguments: list[str]) -> int:
    words = {"of": "of ", "known": ",".join(STATISTICS), "default": " (default: all)"}
    parser = parser_of("correlate", "correlate", "statistics", options=[RatingOptions], **words)
    flags = parser.read(arguments)
    options = RatingOptions(**chosen(flags, RatingOptions))
    judged, scores = join_ratings(flags.scores, flags.human, options)
    for message in judged.notes:
        note(message)
    if flags.statistics:
        judged = judged.with_statistics(flags.statistics)
    result = Judged(judged, scores, draws=flags.resamples, level=flags.level, seed=flags.seed)
    print(judged_table(result).text(), flush=True)
    write("--csv", flags.csv, long_table(result))
    return 1 if all(entry.undefined for entry in result.entries) else 0
