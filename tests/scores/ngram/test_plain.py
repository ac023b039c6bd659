"""BLEU, ROUGE-L, CIDEr and CIDEr-D beside plain ways of computing them, word by word."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import capeval_core

Words = list[str]


def grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def common_lengths(one: Words, others: list[Words]) -> list[float]:
    """The longest common subsequence of a text with each other one, by ROUGE-L's precision."""
    metric, caption = capeval_core.load("rougel"), " ".join(one)
    found = [metric.score([caption], references=[[" ".join(text)]]) for text in others]
    return [result.parts["precision"][0] * len(one) for result in found]


def test_common_subsequences_of_any_length() -> None:
    """Frequent words, words that come once, and both, against the table of the classical method."""
    rng, rare = np.random.default_rng(0), [f"w{n}" for n in range(1100)]
    texts_of = [(size, 90, list("abc")) for size in (1, 63, 64, 65, 200)]
    texts_of += [(1100, 1100, words) for words in (["a", "b"], rare, ["a"] * 900 + rare)]
    for length, width, words in texts_of:
        one, other = (
            rng.permutation(rng.choice(words, size, replace=size > len(words))).tolist()
            for size in (length, width)
        )
        row, ids = np.zeros(len(other) + 1, dtype=int), np.array(other)
        for word in one:
            row[1:] = np.maximum.accumulate(np.maximum(row[1:], np.where(ids == word, row[:-1] + 1, 0)))
        expected = [row[-1], length, 0]
        assert common_lengths(one, [other, one, ["none"]]) == pytest.approx(expected, abs=1e-6)


def test_long_texts_take_no_square_of_their_length() -> None:
    caption = [f"w{n}" for n in range(20_000)]
    tracemalloc.start()
    found = common_lengths(caption, [caption[::-1], caption[5_000:], ["x", "w7"]])
    assert found == pytest.approx([1, 15_000, 1], abs=1e-3)
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()


def test_document_frequencies_are_counts_of_documents() -> None:
    rng = np.random.default_rng(1)
    words = ["b", "a", "dog", "é", "cat", "z" * 30]
    documents = [
        [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(rng.integers(1, 4))]
        for _ in range(12)
    ]
    expected: Counter[str] = Counter()
    for document in documents:
        expected.update({" ".join(g) for t in document for n in range(1, 5) for g in grams(t.split(), n)})
    metric = capeval_core.load("cider")
    table = metric.prepare(documents)
    assert table.counts() == expected and table.documents == 12 and len(table) == len(expected)
    again = type(table).of_counts({gram: float(n) for gram, n in expected.items()}, 12)
    assert again.fingerprint == table.fingerprint == metric.prepare(documents[::-1]).fingerprint
    fewer = type(table).of_counts(dict(list(expected.items())[1:]), 12)
    for other in (metric.prepare([*documents, ["a"]]), fewer):
        assert other.fingerprint != table.fingerprint
