"""ROUGE-L: the longest common subsequence of a caption and its references.

Lin: ROUGE: A Package for Automatic Evaluation of Summaries, Text Summarization Branches Out (ACL 2004
workshop), https://aclanthology.org/W04-1013
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
    masks: defaultdict[str, int] = defaultdict(int)  # the places of each word as bits
    for place, word in enumerate(caption):
        masks[word] |= 1 << place
    lengths, every = [], (1 << len(caption)) - 1
    for reference in references:
        row = every
        for word in reference:
            if same := row & masks[word]:
                row = ((row + same) | (row - same)) & every
        lengths.append(len(caption) - row.bit_count())
    return lengths


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
        counts = np.array([len(row) - 1 for row in texts])
        common = [length for row in texts for length in common_lengths(row[0], row[1:])]
        lengths = [len(words) for row in texts for words in row[1:]]
        return {
            "common": lists(np.array(common, dtype=np.int32), counts),
            "length": np.array([len(row[0]) for row in texts], dtype=np.int32),
            "reference_lengths": lists(np.array(lengths, dtype=np.int32), counts),
        }

    def aggregate(self, rows: pa.Table) -> Values:
        common = Ragged.of(rows["common"])
        lengths = Ragged.of(rows["reference_lengths"])
        precision = common.max() / rows["length"].to_numpy()
        recall = Ragged(common.values / lengths.values, common.lengths).max()
        return Values(rouge_l(precision, recall), {"precision": precision, "recall": recall})
