"""BLEU: n-grams of a caption that its references have, with a penalty for captions that are too short.

Papineni, Roukos, Ward, Zhu: BLEU: a Method for Automatic Evaluation of Machine Translation, ACL 2002,
https://aclanthology.org/P02-1040
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.phrases.ngrams import LONGEST, Floats
from capeval_core.result import Values
from capeval_core.rows import column, fixed_lists, of_fixed_lists, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.ngram.metric import Compared, NgramMetric
from capeval_core.statistics import CorpusFormula

SUMS = (
    *(f"{name}_{n}" for name in ("matches", "totals") for n in range(1, LONGEST + 1)),
    "length",
    "reference_length",
)
NEEDS = {"matches_4": "no caption has four words in a row of a reference"}
FOUR = pa.list_(pa.int32(), LONGEST)
TINY, SMALL = 1e-15, 1e-9
"""What COCO's evaluation adds to counts and to what they are divided by, so that nothing is divided by 0."""


def bleu(matches: Floats, totals: Floats, length: Floats, reference_length: Floats) -> Floats:
    """(..., 4) BLEU-1 to BLEU-4 of counts: of one caption, or summed over a set.

    The geometric mean of the precisions of 1 to n words, times exp(1 - r / c) where the length c is below the
    reference length r.

    matches: (..., 4) n-grams that a reference has, each at most as often as one reference has it. totals:
    (..., 4) n-grams of the captions. length: (...) words of the captions. reference_length: (...) words of
    the reference closest in length, the shorter of two equally close.

    >>> bleu(np.array([3.0, 2, 1, 0]), np.array([4.0, 3, 2, 1]), np.array(4.0), np.array(4.0)).round(3)
    array([0.75 , 0.707, 0.63 , 0.   ])
    """
    precision = np.cumprod((matches + TINY) / (totals + SMALL), axis=-1)
    mean = precision ** (1 / np.arange(1, LONGEST + 1))
    ratio = (length + TINY) / (reference_length + SMALL)
    with np.errstate(under="ignore"):
        brevity = np.exp(np.minimum(1 - 1 / ratio, 0.0))
    scores: Floats = mean * np.asarray(brevity)[..., None]
    return scores


def bleu_of_sums(sums: Floats) -> Floats:
    """(..., 4) BLEU-4, BLEU-1, BLEU-2 and BLEU-3 of (..., 10) sums: matches, totals and the two lengths."""
    scores = bleu(sums[..., :LONGEST], sums[..., LONGEST : 2 * LONGEST], sums[..., -2], sums[..., -1])
    return np.roll(scores, 1, axis=-1)


@facts("bleu")
class Bleu(NgramMetric):
    """BLEU-4 as in COCO's evaluation: of the counts summed over all captions, not a mean of scores.

    A caption's own score is BLEU-4 of its own counts. Interval and comparison resample what each image adds
    to the counts.
    """

    formula = CorpusFormula(("bleu_4", "bleu_1", "bleu_2", "bleu_3"), SUMS, bleu_of_sums, NEEDS)
    ROW = row_schema(
        column("matches", FOUR, "for 1 to 4 words, its n-grams that a reference has, clipped"),
        column("totals", FOUR, "for 1 to 4 words, its n-grams"),
        column("length", pa.int32(), "words of the caption"),
        column("reference_length", pa.int32(), "words of the reference that is closest in length"),
    )

    def columns(self, compared: Compared) -> dict[str, Any]:
        block, captions = compared.block, compared.captions
        matches = []
        for grams in compared.grams:
            of_reference = compared.is_reference[grams.caption]
            own, most = np.zeros((2, grams.kinds), dtype=np.int64)
            own[grams.gram[~of_reference]] = grams.count[~of_reference]
            np.maximum.at(most, grams.gram[of_reference], grams.count[of_reference])
            clipped = np.bincount(grams.pool_of_gram(block), np.minimum(own, most), len(captions))
            matches.append(clipped.astype(np.int32))
        length = block.lengths[captions]
        totals = np.maximum(length[:, None] - np.arange(LONGEST), 0)
        row, of_references = block.pool[compared.is_reference], block.lengths[compared.is_reference]
        # The least difference in length wins, then the shorter reference.
        order = np.lexsort((of_references, np.abs(of_references - length[row]), row))
        first = np.unique(row[order], return_index=True)[1]
        return {
            "matches": fixed_lists(np.stack(matches, axis=-1)),
            "totals": fixed_lists(totals.astype(np.int32)),
            "length": length.astype(np.int32),
            "reference_length": of_references[order][first].astype(np.int32),
        }

    def aggregate(self, rows: pa.Table) -> Values:
        four = [of_fixed_lists(rows[name]) for name in ("matches", "totals")]
        lengths = [rows[name].to_numpy()[:, None] for name in ("length", "reference_length")]
        summands = np.concatenate([*four, *lengths], axis=-1).astype(np.float64)
        scores = bleu_of_sums(summands)
        parts = {name: scores[:, i] for i, name in enumerate(self.formula.names)}
        return Values(parts.pop(self.key), parts, summands=summands)
