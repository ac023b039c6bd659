"""Document frequencies of n-grams: in how many images' references each one stands."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from capeval_core.errors import warn, wrong_option
from capeval_core.options import CorpusStatistics
from capeval_core.phrases.ngrams import LONGEST, Floats, Integers, TextBlock, Tokens


@dataclass(frozen=True, eq=False)
class DocumentFrequencies(CorpusStatistics):
    """In how many documents each n-gram of 1 to 4 words stands; a document is the references of an image.

    An n-gram is the number of its first n - 1 words among the n-grams of that length, then its last word.

    documents: how many there are. words: in order of the alphabet. keys: per n the n-grams, as
    `prefix * len(words) + word`, ascending. frequencies: per n the documents that hold each.

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
            raise wrong_option("references", [], "there is no text to count n-grams in", verb="")
        if len(documents) == 1:
            warn(
                "document frequencies of one image's references give every n-gram the weight log(1) = 0, so "
                "that CIDEr is 0: score more images together, or pass statistics=..."
            )
        block = TextBlock(documents)
        order = np.argsort(np.array(block.vocabulary, dtype=object), kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        words, document = rank[block.words], block.pool[block.caption]
        prefix = np.zeros_like(words)
        keys, frequencies = [], []
        for n in range(1, LONGEST + 1):
            begins = block.begins(n)
            key = prefix[begins] * len(order) + words[begins + n - 1]
            kinds, gram = np.unique(key, return_inverse=True)
            prefix[begins] = gram
            # Each once per document; sorted by hand, which is faster than `np.unique` of this alone.
            pairs = np.sort(gram * len(documents) + document[begins])
            held = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))] // len(documents)
            keys.append(kinds)
            frequencies.append(np.bincount(held, minlength=len(kinds)).astype(np.int64))
        vocabulary = tuple(block.vocabulary[index] for index in order)
        return cls(len(documents), vocabulary, tuple(keys), tuple(frequencies))

    @classmethod
    def of_counts(cls, counts: Mapping[str | tuple[str, ...], float], documents: int) -> DocumentFrequencies:
        """From counts made elsewhere: {n-gram, as "a dog" or ("a", "dog"): documents that hold it}.

        >>> DocumentFrequencies.of_counts({"a": 2.0, ("a", "dog"): 1.0, "dog": 1.0}, 2).counts()
        {'a': 2, 'dog': 1, 'a dog': 1}
        """
        grams: dict[tuple[str, ...], int] = {}
        _check_count("documents", documents, math.inf)
        for gram, count in counts.items():
            tokens = tuple(gram.split(" ")) if isinstance(gram, str) else gram
            fix = "the n-gram comes twice" if tokens in grams else ""
            if not (isinstance(tokens, tuple) and 1 <= len(tokens) <= LONGEST and all(map(_is_word, tokens))):
                fix = "expected an n-gram of 1 to 4 words"
            if fix:
                raise wrong_option(f"counts[{gram!r}]", count, "", fix, verb="")
            _check_count(f"counts[{gram!r}]", count, documents)
            grams[tokens] = int(count)
        # A prefix that is not counted itself stands in no document, so far as is known.
        held = dict.fromkeys([gram[:n] for gram in grams for n in range(1, len(gram) + 1)], 0) | grams
        words = tuple(sorted({word for gram in held for word in gram}))
        rank = {word: index for index, word in enumerate(words)}
        numbers: dict[tuple[str, ...], int] = {(): 0}
        keys, frequencies = [], []
        for n in range(1, LONGEST + 1):
            of_length = sorted(
                (numbers[gram[:-1]] * len(words) + rank[gram[-1]], gram) for gram in held if len(gram) == n
            )
            numbers |= {gram: number for number, (_, gram) in enumerate(of_length)}
            keys.append(np.array([key for key, _ in of_length], dtype=np.int64))
            frequencies.append(np.array([held[gram] for _, gram in of_length], dtype=np.int64))
        return cls(int(documents), words, tuple(keys), tuple(frequencies))

    def counts(self) -> dict[str, int]:
        """{n-gram, its words joined by spaces: number of documents}, shorter ones first."""
        found: dict[str, int] = {}
        prefixes = [""]
        for keys, frequencies in zip(self.keys, self.frequencies, strict=True):
            prefix, word = np.divmod(keys, max(len(self.words), 1))
            texts = zip(prefix.tolist(), word.tolist(), strict=True)
            prefixes = [f"{prefixes[p]} {self.words[w]}".lstrip(" ") for p, w in texts]
            counted = zip(prefixes, frequencies.tolist(), strict=True)
            found |= {gram: count for gram, count in counted if count}
        return found

    def of_block(self, block: TextBlock) -> Iterator[Floats]:
        """Per n from 1 to 4 the documents that hold the n-gram beginning at each word of texts, 0 if none."""
        number = np.array([self._number.get(word, -1) for word in block.vocabulary], dtype=np.int64)
        words = number[block.words]
        prefix = np.zeros_like(words)
        for n, (keys, frequencies) in enumerate(zip(self.keys, self.frequencies, strict=True), start=1):
            begins = block.begins(n)
            last = words[begins + n - 1]
            known = (prefix[begins] >= 0) & (last >= 0)
            key = np.where(known, prefix[begins] * len(self.words) + last, -1)
            # Each kind once and in order, which reads the table from one end to the other.
            kinds, inverse = np.unique(key, return_inverse=True)
            at = np.minimum(np.searchsorted(keys, kinds), max(len(keys) - 1, 0))[inverse]
            known = known & (keys[at] == key) if len(keys) else np.zeros_like(known)
            prefix = np.full_like(prefix, -1)
            prefix[begins] = np.where(known, at, -1)
            found = np.zeros(len(words))
            found[begins] = np.where(known, frequencies[at], 0) if len(keys) else 0
            yield found

    def __getstate__(self) -> dict[str, Any]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}  # without what is derived

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.documents}\0{chr(0).join(self.words)}".encode())
        for array in (*self.keys, *self.frequencies):
            digest.update(np.int64(len(array)).tobytes() + array.tobytes())
        return digest.hexdigest()[:12]

    def __len__(self) -> int:
        """The number of distinct n-grams."""
        return sum(int(np.count_nonzero(frequencies)) for frequencies in self.frequencies)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value != "" and " " not in value


def _check_count(name: str, value: Any, most: float) -> None:
    """Refuse what is no whole number from 1 to `most`; a float such as 3.0 is one."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not float(value).is_integer() or not 1 <= value <= most:
        fix = f"expected a whole number from 1 to {'the number of documents' if most < math.inf else 'any'}"
        raise wrong_option(name, value, "", fix, verb="", kind=ValueError if number else TypeError)
