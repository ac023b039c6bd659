"""What metrics of n-grams share: captions and references as words and n-grams, without images or weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric, Model, with_statistics
from capeval_core.options import CorpusOptions, option
from capeval_core.options import Options as CommonOptions
from capeval_core.phrases.ngrams import (
    LONGEST,
    Floats,
    Integers,
    Ngrams,
    TextBlock,
    Tokens,
    reciprocal,
    sums_by,
)
from capeval_core.phrases.ptb import REVISION, shared_words
from capeval_core.result import Result
from capeval_core.rows import common_columns
from capeval_core.scores.ngram.frequencies import DocumentFrequencies


class WeightedNgrams(NamedTuple):
    """The n-grams of one length, the TF-IDF weight of each of each text, and (texts,) 1 / norm of these."""

    grams: Ngrams
    weight: Floats
    inverse: Floats


def words_of(samples: Samples, tokens: Callable[[str], Tokens] = shared_words) -> list[list[Tokens]]:
    """Per row the words of its caption, then those of each of its references; equal texts are read once."""
    rows = [[c, *r] for c, r in zip(samples.captions, samples.references or [], strict=True)]
    words = {text: tokens(text) for text in {text for row in rows for text in row}}
    return [[words[text] for text in row] for row in rows]


class Compared:
    """Captions with their references; what several metrics need of them is made once.

    rows: what `words_of` gives. block: all texts; a row is a pool whose first text is the caption. captions:
    (rows,) which texts are captions. is_reference: (texts,) the others.
    """

    def __init__(self, rows: Sequence[Sequence[Tokens]]) -> None:
        self.rows, self.block = rows, TextBlock(rows)
        self.captions: Integers = np.cumsum(self.block.sizes) - self.block.sizes
        self.is_reference = np.ones(len(self.block.pool), dtype=bool)
        self.is_reference[self.captions] = False
        self._weighted: dict[DocumentFrequencies, list[WeightedNgrams]] = {}

    @cached_property
    def grams(self) -> list[Ngrams]:
        """The n-grams of 1 to 4 words."""
        return list(self.block.grams(LONGEST))

    def weighted(self, frequencies: DocumentFrequencies) -> list[WeightedNgrams]:
        """N-grams, weighted by count times ln(documents / documents that hold them); kept for each table."""
        if frequencies not in self._weighted:
            levels = []
            for grams, held in zip(self.grams, frequencies.of_block(self.block), strict=True):
                idf = np.log(frequencies.documents) - np.log(np.maximum(held[grams.start], 1.0))
                weight = grams.count * idf[grams.gram]
                norm = np.sqrt(sums_by(grams.caption, weight**2, len(self.block.pool)))
                levels.append(WeightedNgrams(grams, weight, reciprocal(norm)))
            self._weighted[frequencies] = levels
        return self._weighted[frequencies]


@dataclass(frozen=True, kw_only=True)
class NgramOptions(CommonOptions):
    """Options of metrics of n-grams: the common ones but for those of networks."""

    without = ("weights", "dtype", "batch_size", "compat")
    empty: Literal["error", "score"] = option(
        "error", "how to treat an empty caption: as an `error`, or `score` it 0 (and count it)"
    )


@dataclass(frozen=True, kw_only=True)
class NgramCorpusOptions(NgramOptions, CorpusOptions):
    """Options of metrics that weight n-grams by the documents that hold them."""

    def check(self, metric: Any) -> None:
        super().check(metric)
        fix = "make them by prepare(references), or DocumentFrequencies.of_counts"
        DocumentFrequencies.check_option(self, fix)


class NgramMetric(CaptionMetric):
    """A metric of the words that a caption shares with its references.

    Words are those of the Penn Treebank tokenizer in lower case, without punctuation, as in COCO's evaluation
    (`capeval_core.phrases.ptb`). Images are not needed; rows of one image are those with equal references.
    """

    needs_references = True
    media = ()
    crops = False
    Options: ClassVar[type[CommonOptions]] = NgramOptions

    def open_models(self) -> dict[str, Model]:
        return {"tokenizer": Model(f"ptb@{REVISION}", f"ptb@{REVISION}")}

    @abstractmethod
    def columns(self, compared: Compared) -> dict[str, Any]:
        """The metric's own columns of captions beside their references."""

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        if len(batch):
            yield self.table(batch, Compared(words_of(batch)))

    def table(self, batch: Samples, compared: Compared) -> pa.Table:
        """Rows of the common columns, in which no text fails and none is truncated, and the metric's own."""
        groups, n = [visual.key for visual in batch.images], len(batch)
        none: dict[str, Any] = {"errors": [None] * n, "truncated": np.zeros(n, dtype=np.int32)}
        common = common_columns(batch, slice(None), groups=groups, **none)
        return pa.table({**common, **self.columns(compared)}, schema=self.ROW)


def score_together(
    metrics: Sequence[NgramMetric], samples: Samples, tokens: Callable[[str], Tokens] = shared_words
) -> list[Result]:
    """The result of each metric, as its `score` gives it, of checked captions and references.

    metrics: opened; those that need document frequencies and have none share a table. tokens: the words of a
    text.
    """
    words, opened = words_of(samples, tokens), list(metrics)
    if lacking := [i for i, metric in enumerate(metrics) if metric.options.lacks_statistics]:
        table = DocumentFrequencies.of_documents([row[1:] for row in words])
        for i in lacking:
            opened[i] = with_statistics(metrics[i], table)
    tables: list[list[pa.Table]] = [[metric.ROW.empty_table()] for metric in metrics]
    start = 0
    for window in windows(samples, LIMITS.texts):
        compared = Compared(words[start : start + len(window)])
        for metric, rows in zip(opened, tables, strict=True):
            rows.append(metric.table(window, compared))
        start += len(window)
    of_metrics = zip(opened, map(pa.concat_tables, tables), strict=True)
    return [metric.combine(rows, samples=samples) for metric, rows in of_metrics]
