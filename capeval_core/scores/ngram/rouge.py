"""ROUGE-L: the longest common subsequence of a caption and its references.

Lin: ROUGE: A Package for Automatic Evaluation of Summaries, Text Summarization Branches Out (ACL 2004
workshop), https://aclanthology.org/W04-1013
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.phrases.ngrams import Floats
from capeval_core.ragged import Ragged
from capeval_core.result import Values
from capeval_core.rows import column, lists, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.ngram.metric import Compared, NgramMetric

BETA = 1.2
"""How much more recall counts than precision, as in COCO's evaluation."""
_LONG = 1000
"""Words of a text that is long: captions have some ten."""


def rouge_l(precision: Floats, recall: Floats) -> Floats:
    """(1 + b^2) P R / (R + b^2 P) with b = 1.2; 0 where one of them is 0.

    >>> rouge_l(np.array([0.5, 0.0]), np.array([1.0, 0.0])).round(4)
    array([0.7093, 0.    ])
    """
    above, below = (1 + BETA**2) * precision * recall, recall + BETA**2 * precision
    return np.divide(above, below, out=np.zeros_like(above), where=above > 0)


def common_lengths(caption: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """The length of the longest common subsequence of a caption with each reference, in words.

    A row of the classical method's table is held in the bits of one integer (Hyyrö, "Bit-parallel LCS-length
    computation revisited", AWOCA 2004).

    >>> common_lengths("a red dog runs".split(), ["a dog runs far".split(), "the cat".split()])
    [3, 0]
    """
    if len(caption) <= _LONG:
        masks = _masks(caption)
        return [_common_length(len(caption), masks, reference) for reference in references]
    pairs = [sorted((caption, reference), key=len) for reference in references]
    return [_common_length(len(short), _masks(short), long) for short, long in pairs]


def _common_length(length: int, mask: Callable[[str], int], words: Sequence[str]) -> int:
    """Of a text of this length, whose words are at the bits of their masks, and other words."""
    row = every = (1 << length) - 1
    for word in words:
        same = row & mask(word)
        if same:
            row = ((row + same) | (row - same)) & every
    return length - row.bit_count()


def _masks(words: Sequence[str]) -> Callable[[str], int]:
    """The places of each word in a text as the bits of an integer."""
    if len(words) <= _LONG:
        masks: defaultdict[str, int] = defaultdict(int)
        for place, word in enumerate(words):
            masks[word] |= 1 << place
        return masks.__getitem__
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        places[word].append(place)

    @lru_cache(_LONG)  # all masks of a long text would take the square of its length
    def mask(word: str) -> int:
        bits = bytearray(len(words) // 8 + 1)
        for place in places.get(word, ()):
            bits[place >> 3] |= 1 << (place & 7)
        return int.from_bytes(bits, "little")

    return mask


@facts("rougel")
class RougeL(NgramMetric):
    """ROUGE-L as in COCO's evaluation: F of the best precision and the best recall of any reference.

    Precision is the share of the caption's words in the longest common subsequence with a reference, recall
    that of the reference's. A text without words counts as one empty word, as there.
    """

    reference_columns = ("common", "reference_lengths")
    ROW = row_schema(
        column(
            "common", pa.list_(pa.int32()), "per reference, words of the longest subsequence it has in common"
        ),
        column("length", pa.int32(), "words of the caption, 1 if it has none"),
        column("reference_lengths", pa.list_(pa.int32()), "per reference, its words, 1 if it has none"),
    )

    def columns(self, compared: Compared) -> dict[str, Any]:
        texts = [[words or [""] for words in row] for row in compared.rows]
        common = [common_lengths(row[0], row[1:]) for row in texts]
        counts = np.array([len(row) - 1 for row in texts])
        return {
            "common": lists(np.array([n for row in common for n in row], dtype=np.int32), counts),
            "length": np.array([len(row[0]) for row in texts], dtype=np.int32),
            "reference_lengths": lists(
                np.array([len(words) for row in texts for words in row[1:]], dtype=np.int32), counts
            ),
        }

    def aggregate(self, rows: pa.Table) -> Values:
        common = Ragged.of(rows["common"])
        lengths = Ragged.of(rows["reference_lengths"])
        precision = common.max() / rows["length"].to_numpy()
        recall = Ragged(common.values / lengths.values, common.lengths).max()
        return Values(rouge_l(precision, recall), {"precision": precision, "recall": recall})
