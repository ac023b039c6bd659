"""Statistics of a corpus: document frequencies of n-grams in references, and how rare token ids are."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.errors import warn, wrong_option
from capeval_core.metric import CorpusStatistics
from capeval_core.phrases.ngrams import LONGEST, TextBlock, Tokens
from capeval_core.ragged import Doubles, Integers, Ragged, inner


@dataclass(frozen=True, eq=False)
class DocumentFrequencies(CorpusStatistics):
    """The number of documents that hold each n-gram of 1 to 4 words; a document is an image's references.

    words: in order of the alphabet. keys: per n the n-grams, ascending, as `prefix * len(words) + word`: the
    number of the first n - 1 words among the n-grams of that length. frequencies: per n the documents that
    hold each.

        words  ("a", "cat", "dog")        a is 0, cat is 1, dog is 2
        keys   [0, 1, 2]                  of one word: the word
               [1, 2]                     "a cat" is 0 * 3 + 1, "a dog" is 0 * 3 + 2

    >>> table = DocumentFrequencies.of_documents([[["a", "dog"], ["a", "cat"]], [["a", "red", "dog"]]])
    >>> table.documents, table.counts()["a"], table.counts()["a dog"], len(table)
    (2, 2, 1, 9)
    """

    documents: int
    words: tuple[str, ...] = field(repr=False)
    keys: tuple[Integers, ...] = field(repr=False)
    frequencies: tuple[Integers, ...] = field(repr=False)

    @classmethod
    def of_documents(cls, documents: Sequence[Sequence[Tokens]]) -> DocumentFrequencies:
        """Counted in documents, each the tokens of its texts, with a warning where there is one alone."""
        if not documents:
            raise wrong_option("references", [], "there is no text to count n-grams in", sentence=True)
        if len(documents) == 1:
            warn(
                "document frequencies of one image's references give every n-gram the weight log(1) = 0, so "
                "that CIDEr is 0: score more images together, or pass statistics=..."
            )
        block = TextBlock(documents)
        # Sorted, so that the same documents in another order have the same fingerprint. As objects: each of
        # numpy's texts would take the length of the longest word.
        order = np.argsort(np.array(block.vocabulary, dtype=object), kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        words = rank[block.words]  # (words of all texts,) their places in the alphabet
        document = block.pool[block.caption]
        # (words of all texts,) the number of the n-gram that begins at each, by which one word more is found:
        # 8 bytes, where an n-gram as a text of Python takes some 70.
        prefix = np.zeros_like(words)
        keys = []
        frequencies = []
        for n in range(1, LONGEST + 1):
            begins = block.begins(n)
            key = prefix[begins] * len(order) + words[begins + n - 1]
            ngrams, ngram = np.unique(key, return_inverse=True)
            prefix[begins] = ngram
            # Each once per document; sorted here, since `np.unique` of numpy 2.4 takes many times as long.
            pairs = np.sort(ngram * len(documents) + document[begins])
            once = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
            counts = np.bincount(once // len(documents), minlength=len(ngrams))
            keys.append(ngrams)
            frequencies.append(counts.astype(np.int64))
        vocabulary = tuple([block.vocabulary[index] for index in order])
        return cls(len(documents), vocabulary, tuple(keys), tuple(frequencies))

    @classmethod
    def of_counts(cls, counts: Mapping[str | tuple[str, ...], float], documents: int) -> DocumentFrequencies:
        """From counts made elsewhere: {n-gram, as "a dog" or ("a", "dog"): documents that hold it}.

        >>> DocumentFrequencies.of_counts({"a": 2.0, ("a", "dog"): 1.0, "dog": 1.0}, 2).counts()
        {'a': 2, 'dog': 1, 'a dog': 1}
        """
        counted: dict[tuple[str, ...], int] = {}
        for ngram, count in counts.items():
            tokens = tuple(ngram.split(" ")) if isinstance(ngram, str) else ngram
            fix = ""
            if not _is_ngram(tokens):
                fix = "expected an n-gram of 1 to 4 words"
            elif tokens in counted:
                fix = "the n-gram comes twice"
            elif count not in range(1, documents + 1):  # a float such as 3.0 is a whole number, too
                fix = f"expected a whole number from 1 to {documents}, the number of documents"
            if fix:
                raise wrong_option(f"counts[{ngram!r}]", count, "", fix)
            counted[tokens] = int(count)
        # Keys are built on prefixes. One that is not counted itself is in no document, as far as is known.
        frequency: dict[tuple[str, ...], int] = {}
        for tokens in counted:
            for n in range(1, len(tokens) + 1):
                frequency[tokens[:n]] = counted.get(tokens[:n], 0)
        distinct: set[str] = set()
        words = tuple(sorted(distinct.union(*frequency)))
        rank = dict(zip(words, range(len(words)), strict=True))
        number: dict[tuple[str, ...], int] = {(): 0}  # of each n-gram among those of its length
        keys = []
        frequencies = []
        for n in range(1, LONGEST + 1):
            by_key: dict[int, tuple[str, ...]] = {}  # keys as in `DocumentFrequencies.keys`
            for tokens in frequency:
                if len(tokens) == n:
                    by_key[number[tokens[:-1]] * len(words) + rank[tokens[-1]]] = tokens
            ordered = sorted(by_key)
            for index, key in enumerate(ordered):
                number[by_key[key]] = index
            keys.append(np.array(ordered, dtype=np.int64))
            counts_of_length = [frequency[by_key[key]] for key in ordered]
            frequencies.append(np.array(counts_of_length, dtype=np.int64))
        return cls(documents, words, tuple(keys), tuple(frequencies))

    def counts(self) -> dict[str, int]:
        """{n-gram, its words joined by spaces: number of documents}, shorter ones first."""
        counts: dict[str, int] = {}
        prefixes = [""]
        for keys, frequencies in zip(self.keys, self.frequencies, strict=True):
            ngrams = []
            for key in keys.tolist():
                prefix, word = divmod(key, len(self.words))
                ngrams.append(f"{prefixes[prefix]} {self.words[word]}".lstrip(" "))
            for ngram, frequency in zip(ngrams, frequencies.tolist(), strict=True):
                if frequency:  # else it is only the beginning of a longer one
                    counts[ngram] = frequency
            prefixes = ngrams
        return counts

    def of_block(self, block: TextBlock) -> Iterator[Doubles]:
        """Per n from 1 to 4 the documents that hold the n-gram beginning at each word of texts, 0 if none."""
        numbers = dict(zip(self.words, range(len(self.words)), strict=True))
        # Looked up once per word of the vocabulary, then for all words of the texts by one index.
        vocabulary = [numbers.get(word, -1) for word in block.vocabulary]
        words = np.array(vocabulary, dtype=np.int64)[block.words]
        prefix = np.zeros_like(words)
        for n, (keys, frequencies) in enumerate(zip(self.keys, self.frequencies, strict=True), start=1):
            begins = block.begins(n)
            last = words[begins + n - 1]
            in_table = (prefix[begins] >= 0) & (last >= 0)
            key = np.where(in_table, prefix[begins] * len(self.words) + last, -1)
            # Each kind once and in order, which reads the table from one end to the other.
            kinds, inverse = np.unique(key, return_inverse=True)
            place = np.minimum(np.searchsorted(keys, kinds), max(len(keys) - 1, 0))[inverse]
            in_table = in_table & (keys[place] == key) if len(keys) else np.zeros_like(in_table)
            prefix = np.full_like(prefix, -1)
            prefix[begins] = np.where(in_table, place, -1)
            documents = np.zeros(len(words))
            documents[begins] = np.where(in_table, frequencies[place], 0) if len(keys) else 0
            yield documents

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.documents}\0{chr(0).join(self.words)}".encode())
        # With the lengths: keys of two words must not read as more keys of one.
        for array in (*self.keys, *self.frequencies):
            digest.update(np.int64(len(array)).tobytes() + array.tobytes())
        return digest.hexdigest()[:12]

    def __len__(self) -> int:
        """The number of distinct n-grams."""
        count = 0
        for frequencies in self.frequencies:
            count += int(np.count_nonzero(frequencies))  # 0 is only the beginning of a longer one
        return count


def _is_ngram(tokens: object) -> bool:
    """A check for a tuple of 1 to 4 words without spaces."""
    if not isinstance(tokens, tuple) or not 1 <= len(tokens) <= LONGEST:
        return False
    # A word with a space would read as two in "a dog".
    return all(isinstance(word, str) and word and " " not in word for word in tokens)


@dataclass(frozen=True, eq=False)
class TokenIdf(CorpusStatistics):
    """Weights of token ids by rarity, finite numbers of at least 0; and `unseen`, that of every other id.

    >>> TokenIdf({7: 0.5, 8: 2.0}, unseen=3.0).of((7, 7, 9))
    [0.5, 0.5, 3.0]
    """

    weights: Mapping[int, float] = field(repr=False)
    unseen: float

    def __post_init__(self) -> None:
        expected = "expected {token id: weight}, and a weight for unseen ids: finite numbers of at least 0"
        weights: dict[int, float] = {}
        try:
            for index, weight in self.weights.items():
                weights[operator.index(index)] = float(weight)  # numpy's whole numbers are ids, 1.0 is not
            object.__setattr__(self, "unseen", float(self.unseen))
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(f"weights of words: {expected} ({error})") from None
        object.__setattr__(self, "weights", weights)
        # NaN fails both comparisons.
        if not weights or not all(0 <= weight < math.inf for weight in (*weights.values(), self.unseen)):
            raise ValueError(f"weights of words: {expected}")

    @classmethod
    def of_documents(cls, documents: Iterable[Sequence[int]]) -> TokenIdf:
        """idf = log((N + 1) / (c + 1)) of ids that c of N documents hold, log(N + 1) of any other, as
        BERTScore's (Zhang et al., ICLR 2020, https://arxiv.org/abs/1904.09675)."""
        counts: Counter[int] = Counter()
        total = 0
        for ids in documents:
            counts.update(set(ids))
            total += 1
        if not total:
            raise wrong_option("texts", [], "there is no text to count words in", sentence=True)
        weights = {}
        for index, count in counts.items():
            weights[index] = math.log((total + 1) / (count + 1))
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
        padded = []
        for ids in documents:
            # One id of padding is as good as many: a document counts an id once.
            padded.append(ids if len(ids) >= length else (*ids, padding))
        table = cls.of_documents(padded)
        mean = math.fsum(table.weights.values()) / len(table.weights)  # whatever the documents' order
        return cls({**table.weights, end: mean}, table.unseen)

    def of(self, ids: Sequence[int]) -> list[float]:
        return [self.weights.get(index, self.unseen) for index in ids]

    @property
    def fingerprint(self) -> str:
        content = json.dumps([sorted(self.weights.items()), self.unseen])  # floats with all their digits
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def token_weights(
    ids: pa.ListArray | pa.ChunkedArray, table: TokenIdf | None
) -> tuple[Ragged, NDArray[np.bool_]]:
    """Weights of the token ids of texts, alike where all are 0 or there is no table; (texts,) which are 0."""
    flat, lengths = inner(ids)
    numbers = flat.to_numpy(zero_copy_only=False)
    if table is None:
        return Ragged(np.ones(len(numbers)), lengths), np.zeros(len(lengths), dtype=np.bool_)
    # Each id is looked up once: a corpus of millions of tokens has some thousand distinct ones.
    distinct, position = np.unique(numbers, return_inverse=True)
    weights = Ragged(np.array(table.of(distinct.tolist()), dtype=np.float64)[position], lengths)
    without = (weights.sum() == 0) & (lengths > 0)  # an empty text has no weights that could be alike
    return Ragged(np.where(without[weights.owner], 1.0, weights.values), lengths), without
