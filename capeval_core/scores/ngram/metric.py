"""What metrics of n-grams share: captions and references as words, without images or weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import CorpusOptions, option
from capeval_core.options import Options as CommonOptions
from capeval_core.phrases.ptb import REVISION
from capeval_core.rows import common_columns
from capeval_core.scores.ngram.compared import Compared, words_of
from capeval_core.scores.ngram.frequencies import DocumentFrequencies


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
