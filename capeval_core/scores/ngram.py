"""Metrics of n-grams that a caption shares with its references, which need no image: BLEU, ROUGE-L and CIDEr.

Papineni, Roukos, Ward, Zhu: BLEU: a Method for Automatic Evaluation of Machine Translation, ACL 2002,
https://aclanthology.org/P02-1040
Lin: ROUGE: A Package for Automatic Evaluation of Summaries, Text Summarization Branches Out (ACL 2004
workshop), https://aclanthology.org/W04-1013
Vedantam, Zitnick, Parikh: CIDEr: Consensus-based Image Description Evaluation, CVPR 2015,
https://arxiv.org/abs/1411.5726
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.errors import Problems
from capeval_core.inputs.samples import Samples, check_references, windows
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric, CommonOptions, CorpusOptions, Model, with_options
from capeval_core.options import option
from capeval_core.phrases.ngrams import (
    LONGEST,
    Ngrams,
    TextBlock,
    Tokens,
    length_penalty,
    reciprocal,
    sums_by,
)
from capeval_core.phrases.ptb import REVISION, shared_words
from capeval_core.ragged import Doubles, Integers, Ragged, inner
from capeval_core.registry import facts
from capeval_core.result import Result, Values
from capeval_core.rows import column, common_columns, lists, row_schema
from capeval_core.scores.corpus import DocumentFrequencies
from capeval_core.statistics import CorpusFormula


class WeightedNgrams(NamedTuple):
    """The n-grams of one length, the TF-IDF weight of each of each text, and (texts,) 1 / norm of these."""

    grams: Ngrams
    weight: Doubles
    inverse: Doubles


def words_of(samples: Samples, tokens: Callable[[str], Tokens] = shared_words) -> list[list[Tokens]]:
    """Per row the words of its caption, then those of each of its references; equal texts are read once."""
    words: dict[str, Tokens] = {}  # systems share their references, and captions repeat
    rows = []
    for caption, references in zip(samples.captions, samples.references or [], strict=True):
        row = []
        for text in (caption, *references):
            if text not in words:
                words[text] = tokens(text)
            row.append(words[text])
        rows.append(row)
    return rows


class CaptionPools:
    """Captions with their references, as `words_of` gives them: pools whose first text is the caption. Their
    n-grams are made once for all metrics. captions: (rows,) the indices of captions among all texts."""

    def __init__(self, rows: Sequence[Sequence[Tokens]]) -> None:
        self.rows = rows
        self.block = TextBlock(rows)
        self.captions: Integers = np.cumsum(self.block.sizes) - self.block.sizes
        self.is_reference = np.ones(len(self.block.pool), dtype=bool)  # (texts,)
        self.is_reference[self.captions] = False
        self._weighted: dict[DocumentFrequencies, list[WeightedNgrams]] = {}

    @cached_property
    def grams(self) -> list[Ngrams]:
        """The n-grams of 1 to 4 words."""
        return list(self.block.grams(LONGEST))

    def weighted(self, frequencies: DocumentFrequencies) -> list[WeightedNgrams]:
        """N-grams, weighted by count times ln(documents / documents that hold them); kept for each table."""
        # CIDEr and CIDEr-D of one set have the same weights.
        if frequencies not in self._weighted:
            levels = []
            for grams, documents in zip(self.grams, frequencies.of_block(self.block), strict=True):
                # An n-gram of no document counts as one of one document, as in COCO's evaluation.
                idf = np.log(frequencies.documents) - np.log(np.maximum(documents[grams.start], 1.0))
                weight = grams.count * idf[grams.gram]
                # Norms are inverted once, here: each is a factor of many cosines.
                norm = np.sqrt(sums_by(grams.caption, weight**2, len(self.block.pool)))
                levels.append(WeightedNgrams(grams, weight, reciprocal(norm)))
            self._weighted[frequencies] = levels
        return self._weighted[frequencies]


@dataclass(frozen=True, kw_only=True)
class NgramOptions(CommonOptions):
    """Options of metrics of n-grams: the common ones but for those of networks."""

    without = ("weights", "dtype", "batch_size", "compat", "exif")
    empty: Literal["error", "score"] = option(
        "error", "how to treat an empty caption: as an `error`, or `score` it 0 (and count it)"
    )


@dataclass(frozen=True, kw_only=True)
class NgramCorpusOptions(NgramOptions, CorpusOptions):
    """Options of metrics that weight n-grams by the documents that hold them."""


class NgramMetric(CaptionMetric):
    """A metric of the words that a caption shares with its references.

    Words are those of the Penn Treebank tokenizer in lower case, without punctuation, as in COCO's evaluation
    (`capeval_core.phrases.ptb`). Images are not needed; rows of one image are those with equal references.
    """

    needs_references = True
    media = ()
    counts_words = True
    crops = False
    Options: ClassVar[type[CommonOptions]] = NgramOptions

    def open_models(self) -> dict[str, Model]:
        return {"tokenizer": Model(f"ptb@{REVISION}", f"ptb@{REVISION}")}

    @abstractmethod
    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        """The metric's own columns of captions with their references."""

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        if len(batch):
            yield self.table(batch, CaptionPools(words_of(batch)))

    def table(self, batch: Samples, pools: CaptionPools) -> pa.Table:
        """Rows of the common columns, in which no text fails or is truncated, and the metric's own."""
        common = common_columns(
            batch,
            slice(None),
            groups=[visual.key for visual in batch.images],
            errors=[None] * len(batch),
            truncated=np.zeros(len(batch), dtype=np.int32),
        )
        return pa.table({**common, **self.columns(pools)}, schema=self.ROW)


def fixed_lists(values: NDArray[Any]) -> pa.FixedSizeListArray:
    """A column of lists of one length: a row of the array in each."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def of_fixed_lists(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The array (n, length) of a column of lists of one length, none of them null."""
    return np.asarray(pc.list_flatten(column)).reshape(-1, column.type.list_size)


COUNTS_BY_LENGTH = pa.list_(pa.int32(), LONGEST)
"""The type of a column of counts of n-grams of 1 to 4 words."""
COUNT_EPSILON = 1e-15
DIVISOR_EPSILON = 1e-9
"""COCO's evaluation adds these to counts and to their divisors, so that nothing is divided by 0."""


def bleu(matches: Doubles, totals: Doubles, length: Doubles, reference_length: Doubles) -> Doubles:
    """(..., 4) BLEU-1 to BLEU-4 of counts: of one caption, or summed over a set.

    The geometric mean of the precisions of 1 to n words, times exp(1 - r / c) where the length c is below the
    reference length r.

    matches: (..., 4) n-grams that a reference has, each at most as often as one reference has it. totals:
    (..., 4) n-grams of the captions. length: (...) words of the captions. reference_length: (...) words of
    the reference closest in length, the shorter of two equally close.

    >>> bleu(np.array([3.0, 2, 1, 0]), np.array([4.0, 3, 2, 1]), np.array(4.0), np.array(4.0)).round(3)
    array([0.75 , 0.707, 0.63 , 0.   ])
    """
    # The product for n is that for n - 1, times one more precision.
    precision = np.cumprod((matches + COUNT_EPSILON) / (totals + DIVISOR_EPSILON), axis=-1)
    mean = precision ** (1 / np.arange(1, LONGEST + 1))
    ratio = (length + COUNT_EPSILON) / (reference_length + DIVISOR_EPSILON)
    with np.errstate(under="ignore"):  # of an empty caption, whose penalty is less than any number
        brevity = np.exp(np.minimum(1 - 1 / ratio, 0.0))
    scores: Doubles = mean * np.asarray(brevity)[..., None]
    return scores


def bleu_of_sums(sums: Doubles) -> Doubles:
    """(..., 4) BLEU-4, BLEU-1, BLEU-2 and BLEU-3 of (..., 10) sums: matches, totals and the two lengths."""
    scores = bleu(sums[..., :LONGEST], sums[..., LONGEST : 2 * LONGEST], sums[..., -2], sums[..., -1])
    return np.roll(scores, 1, axis=-1)  # BLEU-4 first: it is the score


@facts("bleu")
class Bleu(NgramMetric):
    """BLEU-4 as in COCO's evaluation: of the counts summed over all captions, not a mean of scores.

    A caption's own score is BLEU-4 of its own counts. Interval and comparison resample what each image adds
    to the counts.
    """

    formula = CorpusFormula(
        ("bleu_4", "bleu_1", "bleu_2", "bleu_3"),
        (
            *("matches_1", "matches_2", "matches_3", "matches_4"),
            *("totals_1", "totals_2", "totals_3", "totals_4"),
            *("length", "reference_length"),
        ),
        bleu_of_sums,
        {"matches_4": "no caption has four words in a row of a reference"},
    )
    ROW = row_schema(
        column("matches", COUNTS_BY_LENGTH, "for 1 to 4 words, its n-grams that a reference has, clipped"),
        column("totals", COUNTS_BY_LENGTH, "for 1 to 4 words, its n-grams"),
        column("length", pa.int32(), "words of the caption"),
        column("reference_length", pa.int32(), "words of the reference that is closest in length"),
    )

    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        block = pools.block
        captions = pools.captions
        matches = []
        for grams in pools.grams:
            # An entry is an n-gram of a text: `gram` is its number among those of its pool, `count` how often
            # the text has it.
            of_reference = pools.is_reference[grams.caption]
            count = np.zeros(grams.kinds, dtype=np.int64)  # of each n-gram of a pool in the caption
            count[grams.gram[~of_reference]] = grams.count[~of_reference]
            most = np.zeros(grams.kinds, dtype=np.int64)  # in any one reference
            np.maximum.at(most, grams.gram[of_reference], grams.count[of_reference])
            clipped = np.bincount(grams.pool_of_gram(block), np.minimum(count, most), len(captions))
            matches.append(clipped.astype(np.int32))
        length = block.lengths[captions]  # (rows,)
        # A caption of m words has m - n + 1 n-grams, and none where it is shorter than n.
        totals = np.maximum(length[:, None] - np.arange(LONGEST), 0)
        row = block.pool[pools.is_reference]  # (references,)
        of_references = block.lengths[pools.is_reference]
        # The least difference in length wins, then the shorter reference.
        order = np.lexsort((of_references, np.abs(of_references - length[row]), row))
        first = np.unique(row[order], return_index=True)[1]  # of each row in that order
        return {
            "matches": fixed_lists(np.stack(matches, axis=-1)),
            "totals": fixed_lists(totals.astype(np.int32)),
            "length": length.astype(np.int32),
            "reference_length": of_references[order][first].astype(np.int32),
        }

    def aggregate(self, rows: pa.Table) -> Values:
        matches = of_fixed_lists(rows["matches"])
        totals = of_fixed_lists(rows["totals"])
        length = rows["length"].to_numpy()[:, None]
        reference_length = rows["reference_length"].to_numpy()[:, None]
        summands = np.concatenate([matches, totals, length, reference_length], axis=-1).astype(np.float64)
        scores = bleu_of_sums(summands)
        parts = dict(zip(self.formula.names, scores.T, strict=True))
        return Values(parts.pop(self.key), parts, summands=summands)


BETA = 1.2
"""Weight of recall against precision, as in COCO's evaluation."""


def rouge_l(precision: Doubles, recall: Doubles) -> Doubles:
    """(1 + b^2) P R / (R + b^2 P) with b = 1.2; 0 where one of them is 0.

    >>> rouge_l(np.array([0.5, 0.0]), np.array([1.0, 0.0])).round(4)
    array([0.7093, 0.    ])
    """
    # Divided only where there is something: 0 / 0 is no score of 0 in numpy.
    above = (1 + BETA**2) * precision * recall
    below = recall + BETA**2 * precision
    return np.divide(above, below, out=np.zeros_like(above), where=above > 0)


def common_lengths(caption: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """The length of the longest common subsequence of a caption with each reference, in words.

    A row of the classical method's table is held in the bits of one integer (Hyyrö, "Bit-parallel LCS-length
    computation revisited", AWOCA 2004).
    """
    masks: defaultdict[str, int] = defaultdict(int)  # the places of each word as bits
    for place, word in enumerate(caption):
        masks[word] |= 1 << place
    all_bits = (1 << len(caption)) - 1
    lengths = []
    for reference in references:
        row = all_bits  # a bit is cleared where the subsequence gets longer
        for word in reference:
            same = row & masks[word]
            if same:
                row = ((row + same) | (row - same)) & all_bits
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

    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        length = []
        common: list[int] = []
        reference_lengths: list[int] = []
        for row in pools.rows:
            # COCO's script splits an empty text at spaces, which leaves one empty word.
            caption, *references = [words or [""] for words in row]
            length.append(len(caption))
            common += common_lengths(caption, references)
            reference_lengths += [len(words) for words in references]
        counts = pools.block.sizes - 1
        return {
            "common": lists(np.array(common, dtype=np.int32), counts),
            "length": np.array(length, dtype=np.int32),
            "reference_lengths": lists(np.array(reference_lengths, dtype=np.int32), counts),
        }

    def aggregate(self, rows: pa.Table) -> Values:
        common = Ragged.of(rows["common"])
        lengths = Ragged.of(rows["reference_lengths"])
        # The two maxima may be of different references: a quirk of COCO's script that all tables have.
        precision = common.max() / rows["length"].to_numpy()
        recall = Ragged(common.values / lengths.values, common.lengths).max()
        return Values(rouge_l(precision, recall), {"precision": precision, "recall": recall})


def cosines(pools: CaptionPools, frequencies: DocumentFrequencies, *, clipped: bool) -> Doubles:
    """(all references, 4) cosine of each reference with its caption, per n from 1 to 4: eq. 2 of the paper.

    The weight of an n-gram is its count times ln(documents / documents that hold it), eq. 1. `clipped` is
    CIDEr-D, section 7: the caption's weights are at most the reference's, and the cosine is multiplied by the
    Gaussian of the difference in length.
    """
    block = pools.block
    caption_of_text = pools.captions[block.pool]  # (texts,) the caption of each text's pool
    cosines_by_length = []
    for level in pools.weighted(frequencies):
        grams = level.grams
        in_caption = ~pools.is_reference[grams.caption]
        caption_weight = np.zeros(grams.kinds)  # of each n-gram of a pool in its caption
        caption_weight[grams.gram[in_caption]] = level.weight[in_caption]
        facing = caption_weight[grams.gram]  # for each n-gram of each text
        # CIDEr-D: a caption comes no nearer to a reference by repeating a word more often than it does.
        if clipped:
            facing = np.minimum(facing, level.weight)
        product = sums_by(grams.caption, facing * level.weight, len(block.pool))  # (texts,)
        cosines_by_length.append(product * level.inverse * level.inverse[caption_of_text])
    cosine: Doubles = np.stack(cosines_by_length, axis=-1)
    if clipped:
        cosine *= length_penalty(block.lengths[caption_of_text], block.lengths)[:, None]
    return cosine[pools.is_reference]


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
    statistics = DocumentFrequencies
    clipped: ClassVar[bool] = False
    Options: ClassVar[type[CommonOptions]] = NgramCorpusOptions
    ROW = row_schema(
        column(
            "cosines",
            pa.list_(pa.list_(pa.float64(), LONGEST)),
            "per reference, the cosines of n-grams of 1 to 4 words",
        )
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
        words = []
        for row in documents or []:
            words.append([shared_words(text) for text in row])
        return DocumentFrequencies.of_documents(words)

    def corpus(self, samples: Samples) -> list[Any]:
        return samples.references or []

    def columns(self, pools: CaptionPools) -> dict[str, Any]:
        statistics = self.options.statistics
        assert isinstance(statistics, DocumentFrequencies)  # `prepared` has made them
        values = cosines(pools, statistics, clipped=self.clipped)
        return {"cosines": lists(fixed_lists(values), pools.block.sizes - 1)}

    def aggregate(self, rows: pa.Table) -> Values:
        references, counts = inner(rows["cosines"])
        of_n = 10 * np.clip(of_fixed_lists(references), 0.0, 1.0)  # rounding may leave more than 1
        means = []
        parts: dict[str, Any] = {}
        for n in range(1, LONGEST + 1):
            mean = Ragged(of_n[:, n - 1], counts).mean()
            means.append(mean)
            parts[f"{self.key}_{n}"] = mean
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


def score_together(
    metrics: Sequence[NgramMetric], samples: Samples, tokens: Callable[[str], Tokens] = shared_words
) -> list[Result]:
    """The result of each open metric, as its `score` gives it, of checked captions and references; those that
    need document frequencies and have none share a table."""
    words = words_of(samples, tokens)
    opened = list(metrics)
    frequencies = None
    tables: list[list[pa.Table]] = []
    for index, metric in enumerate(metrics):
        if metric.options.lacks_statistics:
            if frequencies is None:
                frequencies = DocumentFrequencies.of_documents([row[1:] for row in words])
            opened[index] = with_options(metric, statistics=frequencies)
        tables.append([metric.ROW.empty_table()])  # which has the schema where there is no caption
    start = 0
    for window in windows(samples, LIMITS.texts):
        pools = CaptionPools(words[start : start + len(window)])  # shared by all metrics
        for metric, rows in zip(opened, tables, strict=True):
            rows.append(metric.table(window, pools))
        start += len(window)
    results = []
    for metric, rows in zip(opened, tables, strict=True):
        results.append(metric.combine(pa.concat_tables(rows), samples=samples))
    return results
