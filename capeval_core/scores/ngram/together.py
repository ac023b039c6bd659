"""Several metrics of n-grams on the same captions, whose words, n-grams and weights are made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.options import CorpusOptions
from capeval_core.phrases.ngrams import Tokens
from capeval_core.phrases.ptb import shared_words
from capeval_core.result import Result
from capeval_core.scores.ngram.cider import document_frequencies
from capeval_core.scores.ngram.compared import Compared, words_of
from capeval_core.scores.ngram.metric import NgramMetric, common_of


def score_together(
    metrics: Sequence[NgramMetric], samples: Samples, tokens: Callable[[str], Tokens] = shared_words
) -> list[Result]:
    """The result of each metric, as its `score` gives it.

    Args:
        metrics: opened metrics of n-grams; those that need document frequencies and have none share a table.
        samples: checked captions and references.
        tokens: the words of a text.
    """
    words = words_of(samples, tokens)
    opened = list(metrics)
    lacking = [i for i, m in enumerate(metrics) if isinstance(m.options, CorpusOptions)]
    lacking = [i for i in lacking if getattr(metrics[i].options, "statistics", None) is None]
    if lacking:
        table = document_frequencies([row[1:] for row in words])
        for i in lacking:
            opened[i] = metrics[i].with_statistics(table)
    tables: list[list[pa.Table]] = [[metric.ROW.empty_table()] for metric in metrics]
    start = 0
    for window in windows(samples, LIMITS.texts):
        compared, common = Compared(words[start : start + len(window)]), common_of(window)
        for metric, rows in zip(opened, tables, strict=True):
            rows.append(metric.table(common, compared))
        start += len(window)
    return [
        m.combine(pa.concat_tables(rows), samples=samples) for m, rows in zip(opened, tables, strict=True)
    ]
