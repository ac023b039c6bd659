"""What metrics of n-grams share: captions and references as words and n-grams, without images or weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
from capeval_core.scores.ngram.frequencies import DocumentFrequencies, document_frequencies


@dataclass(frozen=True)
class WeightedNgrams:
    """The n-grams of one length with their TF-IDF weights.

    weight: of each n-gram of each text, as in `grams`. inverse: (texts,) 1 / norm of each text's weights.
    """

    grams: Ngrams
    weight: Floats
    inverse: Floats


def words_of(samples: Samples, tokens: Callable[[str], Tokens] = shared_words) -> list[list[Tokens]]:
    """Per row the words of its caption, then those of each of its references; equal texts are read once."""
    rows = [[c, *r] for c, r in zip(samples.captions, samples.references or [], strict=True)]
    words = {text: tokens(text) for text in {text for row in rows for text in row}}
    return [[words[text] for text in row] for row in rows]


@dataclass(frozen=True, eq=False)
class Compared:
    """Captions with their references; what several metrics need of them is made once.

    rows: what `words_of` gives.
    """

    rows: Sequence[Sequence[Tokens]]
    _weighted: dict[int, tuple[DocumentFrequencies, list[WeightedNgrams]]] = field(default_factory=dict)

    @cached_property
    def block(self) -> TextBlock:
        """All texts; a row is a pool whose first text is the caption."""
        return TextBlock(self.rows)

    @cached_property
    def captions(self) -> Integers:
        """(rows,) which texts of the block are captions; the others are references."""
        return np.cumsum(self.block.sizes) - self.block.sizes

    @cached_property
    def is_reference(self) -> NDArray[np.bool_]:
        """(texts,) whether a text of the block is a reference."""
        mask = np.ones(len(self.block.pool), dtype=bool)
        mask[self.captions] = False
        return mask

    @cached_property
    def grams(self) -> list[Ngrams]:
        """The n-grams of 1 to 4 words."""
        return list(self.block.grams(LONGEST))

    def weighted(self, frequencies: DocumentFrequencies) -> list[WeightedNgrams]:
        """N-grams, weighted by count times ln(documents / documents that hold them); kept for each table."""
        if id(frequencies) not in self._weighted:
            levels = []
            for grams, held in zip(self.grams, frequencies.of_block(self.block), strict=True):
                idf = np.log(frequencies.documents) - np.log(np.maximum(held[grams.start], 1.0))
                weight = grams.count * idf[grams.gram]
                norm = np.sqrt(sums_by(grams.caption, weight**2, len(self.block.pool)))
                levels.append(WeightedNgrams(grams, weight, reciprocal(norm)))
            self._weighted[id(frequencies)] = frequencies, levels
        return self._weighted[id(frequencies)][1]


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
            yield self.table(common_of(batch), Compared(words_of(batch)))

    def table(self, common: dict[str, Any], compared: Compared) -> pa.Table:
        """Rows of common columns and the metric's own; several metrics may share what they are made of."""
        return pa.table({**common, **self.columns(compared)}, schema=self.ROW)


def common_of(batch: Samples) -> dict[str, Any]:
    """The common columns of rows: no text fails, and none is truncated."""
    return common_columns(
        batch,
        slice(None),
        groups=[visual.key for visual in batch.images],
        errors=[None] * len(batch),
        truncated=np.zeros(len(batch), dtype=np.int32),
    )


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
            opened[i] = with_statistics(metrics[i], table)
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
