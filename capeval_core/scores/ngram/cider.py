"""CIDEr and CIDEr-D: cosines of n-grams of a caption and its references, weighted by how rare they are.

Vedantam, Zitnick, Parikh: CIDEr: Consensus-based Image Description Evaluation, CVPR 2015,
https://arxiv.org/abs/1411.5726
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from capeval_core.errors import Problems
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.texts import check_references
from capeval_core.options import Options as CommonOptions
from capeval_core.phrases.ngrams import LONGEST, Floats, length_penalty, sums_by
from capeval_core.phrases.ptb import shared_words
from capeval_core.ragged import Ragged, inner
from capeval_core.result import Values
from capeval_core.rows import column, fixed_lists, lists, of_fixed_lists, row_schema
from capeval_core.scores.facts import facts
from capeval_core.scores.ngram.frequencies import DocumentFrequencies
from capeval_core.scores.ngram.metric import Compared, NgramCorpusOptions, NgramMetric


def cosines(compared: Compared, frequencies: DocumentFrequencies, *, clipped: bool) -> Floats:
    """(all references, 4) cosine of each reference with its caption, per n from 1 to 4: eq. 2 of the paper.

    The weight of an n-gram is its count times ln(documents / documents that hold it), eq. 1. `clipped` is
    CIDEr-D, section 7: the caption's weights are at most the reference's, and the cosine is multiplied by the
    Gaussian of the difference in length.
    """
    block, of_row = compared.block, compared.captions[compared.block.pool]
    products = []
    for level in compared.weighted(frequencies):
        grams, weight = level.grams, level.weight
        own = np.zeros(grams.kinds)
        of_caption = ~compared.is_reference[grams.caption]
        own[grams.gram[of_caption]] = weight[of_caption]
        other = own[grams.gram]
        shared = (np.minimum(other, weight) if clipped else other) * weight
        product = sums_by(grams.caption, shared, len(block.pool)) * level.inverse * level.inverse[of_row]
        products.append(product)
    found: Floats = np.stack(products, axis=-1)
    if clipped:
        found *= length_penalty(block.lengths[of_row], block.lengths)[:, None]
    return found[compared.is_reference]


@facts("cider")
class Cider(NgramMetric):
    """CIDEr, eq. 3: ten times the mean cosine of n-grams, over n from 1 to 4 and the references.

    It is the paper's first form, without clipping and without a penalty for length, which a caption can raise
    by repeating a rare word. What most tools and papers call CIDEr is CIDEr-D: `load("ciderd")`.

    A document is the list of references of one row, as in COCO's evaluation, which has one row per image.
    Document frequencies come from the references that are scored, unless `statistics` holds others; their
    fingerprint is in the signature.
    """

    corpus_texts = "references"
    clipped: ClassVar[bool] = False
    Options: ClassVar[type[CommonOptions]] = NgramCorpusOptions
    ROW = row_schema(
        column(
            "cosines",
            pa.list_(pa.list_(pa.float64(), LONGEST)),
            "per reference, the cosines of n-grams of 1 to 4 words",
        ),
    )

    options: NgramCorpusOptions

    def prepare(self, texts: Sequence[Sequence[str] | str]) -> DocumentFrequencies:
        """Document frequencies of references, a list of texts (or one text) per image.

        >>> import capeval_core
        >>> table = capeval_core.load("ciderd").prepare([["a dog runs", "a brown dog"], ["a cat"]])
        >>> table.documents, table.counts()["dog"], table.counts()["a"]
        (2, 1, 2)
        """
        problems = Problems()
        documents = check_references(texts, None, self.options.empty, problems)
        problems.raise_if_any()
        return DocumentFrequencies.of_documents([[*map(shared_words, row)] for row in documents or []])

    def corpus(self, samples: Samples) -> list[Any]:
        return samples.references or []

    def columns(self, compared: Compared) -> dict[str, Any]:
        statistics = self.options.statistics
        assert isinstance(statistics, DocumentFrequencies)
        found = cosines(compared, statistics, clipped=self.clipped)
        return {"cosines": lists(fixed_lists(found), compared.block.sizes - 1)}

    def aggregate(self, rows: pa.Table) -> Values:
        references, counts = inner(rows["cosines"])
        of_n = 10 * np.clip(of_fixed_lists(references), 0.0, 1.0)  # rounding may leave more than 1
        means = [Ragged(of_n[:, n], counts).mean() for n in range(LONGEST)]
        parts: dict[str, Any] = {f"{self.key}_{n}": mean for n, mean in enumerate(means, start=1)}
        parts[f"reference_{self.key}"] = lists(of_n.mean(axis=1), counts).to_pylist()
        return Values(np.mean(means, axis=0), parts)


@facts("ciderd")
class CiderD(Cider):
    """CIDEr-D: what COCO's evaluation and most papers call CIDEr.

    As CIDEr, but the weights of a caption's n-grams are at most the reference's, and each cosine is
    multiplied by exp(-d^2 / 72), where d is the difference in length in bigrams. It ranges from 0 to 10;
    papers print it as it is or times 100.
    """

    clipped = True
