"""Inverse document frequencies of token ids, as weights of words."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.options import CorpusStatistics
from capeval_core.ragged import Ragged, inner


@dataclass(frozen=True, eq=False)
class TokenIdf(CorpusStatistics):
    """How rare each token id is.

    weights: idf of token ids, finite numbers of at least 0. unseen: that of every other id.

    >>> TokenIdf({7: 0.5, 8: 2.0}, unseen=3.0).of((7, 7, 9))
    [0.5, 0.5, 3.0]
    """

    weights: Mapping[int, float] = field(repr=False)
    unseen: float

    def __post_init__(self) -> None:
        expected = "expected {token id: weight}, and a weight for unseen ids: finite numbers of at least 0"
        try:
            plain = {operator.index(index): float(weight) for index, weight in self.weights.items()}
            object.__setattr__(self, "unseen", float(self.unseen))
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(f"weights of words: {expected} ({error})") from None
        object.__setattr__(self, "weights", plain)
        if not plain or not all(0 <= weight < math.inf for weight in (*plain.values(), self.unseen)):
            raise ValueError(f"weights of words: {expected}")

    @classmethod
    def of_documents(cls, documents: Iterable[Sequence[int]]) -> TokenIdf:
        """idf = log((N + 1) / (c + 1)) of ids that c of N documents hold, log(N + 1) of any other.

        As BERTScore's (Zhang et al., ICLR 2020, https://arxiv.org/abs/1904.09675), whose documents are the
        references.
        """
        counts, total = Counter[int](), 0
        for ids in documents:
            counts.update(set(ids))
            total += 1
        if not total:
            raise wrong_option("texts", [], "there is no text to count words in", verb="")
        weights = {index: math.log((total + 1) / (count + 1)) for index, count in counts.items()}
        return cls(weights, math.log(total + 1))

    @classmethod
    def of_padded_documents(
        cls, documents: Iterable[Sequence[int]], *, length: int, end: int, padding: int = 0
    ) -> TokenIdf:
        """The idf of `of_documents` as EMScore has it: of padded documents, with a weight of their end.

        EMScore (Shi et al., CVPR 2022, https://arxiv.org/abs/2111.08919) counts in CLIP's ids, padded by that
        of `padding` to `length`: so the start, which all documents hold, weighs 0, and so does the id of
        padding, unless a document fills all positions. (In CLIP's vocabulary that id, 0, is also an
        exclamation mark inside a word.) The `end`, whose weight would be 0, too, gets the mean of all
        weights, those zeros included: its feature is that of the whole text.
        """
        padded = (ids if len(ids) >= length else (*ids, padding) for ids in documents)
        table = cls.of_documents(padded)
        mean = math.fsum(table.weights.values()) / len(table.weights)  # whatever the documents' order
        return cls({**table.weights, end: mean}, table.unseen)

    def of(self, ids: Sequence[int]) -> list[float]:
        """The weights of ids, in order."""
        return [self.weights.get(index, self.unseen) for index in ids]

    @property
    def fingerprint(self) -> str:
        content = json.dumps([sorted(self.weights.items()), self.unseen])
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def token_weights(
    ids: pa.ListArray | pa.ChunkedArray, table: TokenIdf | None
) -> tuple[Ragged, NDArray[np.bool_]]:
    """Weights of the token ids of texts, alike where all are 0 or there is no table; (texts,) which are 0."""
    flat, lengths = inner(ids)
    numbers = flat.to_numpy(zero_copy_only=False)
    if table is None:
        return Ragged(np.ones(len(numbers)), lengths), np.zeros(len(lengths), dtype=np.bool_)
    distinct, position = np.unique(numbers, return_inverse=True)
    weights = Ragged(np.array(table.of(distinct.tolist()), dtype=np.float64)[position], lengths)
    without = (weights.sum() == 0) & (lengths > 0)
    return Ragged(np.where(without[weights.owner], 1.0, weights.values), lengths), without
