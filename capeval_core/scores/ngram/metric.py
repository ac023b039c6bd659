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
from capeval_core.phrases.ngrams import Integers, TextBlock
from capeval_core.phrases.ptb import REVISION, ptb_tokens
from capeval_core.rows import common_columns

Words = list[str]


@dataclass(frozen=True, kw_only=True)
class NgramOptions(CommonOptions):
    """Options of metrics of n-grams: the common ones, of which those about networks have no effect."""

    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "no effect: words are counted exactly, and the rest is float64"
    )
    empty: Literal["error", "score"] = option(
        "error", "what an empty caption is: an `error`, or scored 0 (and counted)"
    )


@dataclass(frozen=True, kw_only=True)
class NgramCorpusOptions(NgramOptions, CorpusOptions):
    """Options of metrics that weight n-grams by the documents that hold them."""


def words_of(samples: Samples) -> list[list[Words]]:
    """Per row the words of its caption, then those of each of its references; equal texts are read once."""
    rows = [[c, *r] for c, r in zip(samples.captions, samples.references or [], strict=True)]
    words = {text: ptb_tokens(text) for row in rows for text in row}
    return [[words[text] for text in row] for row in rows]


@dataclass(frozen=True)
class Compared:
    """Captions with their references as a block, each row a pool whose first text is the caption."""

    block: TextBlock

    @classmethod
    def of(cls, rows: list[list[Words]]) -> Compared:
        """Of what `words_of` gives."""
        return cls(TextBlock(rows))

    @property
    def captions(self) -> Integers:
        """(rows,) which texts of the block are captions; the others are references."""
        return np.cumsum(self.block.sizes) - self.block.sizes

    @property
    def references(self) -> Integers:
        """(all references,) which texts of the block are references."""
        mask = np.ones(len(self.block.pool), dtype=bool)
        mask[self.captions] = False
        return np.flatnonzero(mask)


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
    def columns(self, rows: list[list[Words]]) -> dict[str, Any]:
        """The metric's own columns of rows as `words_of` gives them."""

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        if not len(batch):
            return
        common = common_columns(
            batch,
            slice(None),
            groups=[visual.key for visual in batch.images],
            errors=[None] * len(batch),
            truncated=np.zeros(len(batch), dtype=np.int32),
        )
        yield pa.table({**common, **self.columns(words_of(batch))}, schema=self.ROW)
