"""BLEU, ROUGE-L, CIDEr and CIDEr-D beside plain ways of computing them, word by word."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import exp, log, prod, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capeval_core
from capeval_core.phrases.consensus import consensus
from capeval_core.phrases.ngrams import TextBlock
from capeval_core.scores.ngram.frequencies import DocumentFrequencies
from capeval_core.scores.ngram.rouge import common_lengths

Words = list[str]
Rows = list[tuple[str, list[str]]]


def grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def plain_bleu(rows: Rows) -> float:
    """BLEU-4 of Papineni et al., of the counts of all rows."""
    matches, totals, length, reference_length = [0] * 4, [0] * 4, 0, 0
    for caption, references in rows:
        own, others = caption.split(), [text.split() for text in references]
        length += len(own)
        reference_length += min((abs(len(other) - len(own)), len(other)) for other in others)[1]
        for n in range(1, 5):
            held = [grams(other, n) for other in others]
            for gram, count in grams(own, n).items():
                matches[n - 1] += min(count, max(counts[gram] for counts in held))
            totals[n - 1] += max(len(own) - n + 1, 0)
    if not all(matches):
        return 0.0
    precision = prod(m / t for m, t in zip(matches, totals, strict=True)) ** 0.25
    return precision * (exp(1 - reference_length / length) if length < reference_length else 1.0)


def plain_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The longest common subsequence, by trying all subsequences of one text."""
    for size in range(len(one), 0, -1):
        for chosen in combinations(one, size):
            rest = iter(other)
            if all(word in rest for word in chosen):
                return size
    return 0


def plain_cider(rows: Rows, clipped: bool) -> list[float]:
    """Eqs. 1 to 3 of Vedantam et al., and CIDEr-D."""
    held = [{g for text in refs for n in range(1, 5) for g in grams(text.split(), n)} for _, refs in rows]

    def vector(words: Words, n: int) -> dict[tuple[str, ...], float]:
        return {
            gram: count * (log(len(rows)) - log(max(1, sum(gram in document for document in held))))
            for gram, count in grams(words, n).items()
        }

    scores = []
    for caption, references in rows:
        own, total = caption.split(), 0.0
        for text in references:
            other = text.split()
            for n in range(1, 5):
                left, right = vector(own, n), vector(other, n)
                norms = sqrt(sum(v * v for v in left.values())) * sqrt(sum(v * v for v in right.values()))
                if norms:
                    shared = left.keys() & right.keys()
                    dot = sum((min(left[g], right[g]) if clipped else left[g]) * right[g] for g in shared)
                    apart = max(len(own) - 1, 0) - max(len(other) - 1, 0)
                    total += dot / norms * (exp(-(apart**2) / 72) if clipped else 1.0)
        scores.append(total * 10 / 4 / len(references))
    return scores


texts = st.lists(st.sampled_from(["dog", "cat", "red", "runs"]), min_size=1, max_size=7).map(" ".join)
rows = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=2, max_size=5)


@settings(max_examples=25)
@given(rows)
def test_the_plain_ways_agree(rows: Rows) -> None:
    captions, references = [caption for caption, _ in rows], [list(refs) for _, refs in rows]
    for name, clipped in (("cider", False), ("ciderd", True)):
        result = capeval_core.load(name).score(captions, references=references)
        assert result.scores == pytest.approx(plain_cider(rows, clipped), abs=1e-12)
        parts = [result.parts[f"{result.key}_{n}"] for n in range(1, 5)]
        assert np.mean(parts, axis=0) == pytest.approx(result.scores, abs=1e-12)
        assert [np.mean(own) for own in result.parts[f"reference_{result.key}"]] == pytest.approx(
            result.scores, abs=1e-12
        )
    bleu = capeval_core.load("bleu").score(captions, references=references)
    # Without a match, what COCO's evaluation adds to counts leaves a little.
    together, alone = plain_bleu(rows), [plain_bleu([row]) for row in rows]
    assert bleu.mean == pytest.approx(together, abs=1e-8 if together else 0.04)
    for score, expected in zip(bleu.scores, alone, strict=True):
        assert score == pytest.approx(expected, abs=1e-8 if expected else 0.04)
    rouge = capeval_core.load("rougel").score(captions, references=references)
    for i, (caption, refs) in enumerate(rows):
        words = caption.split()
        common = [plain_common(words, text.split()) for text in refs]
        precision = max(common) / len(words)
        recall = max(c / len(text.split()) for c, text in zip(common, refs, strict=True))
        f = 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0
        assert rouge.scores[i] == pytest.approx(f, abs=1e-12)
        assert (rouge.parts["precision"][i], rouge.parts["recall"][i]) == (precision, recall)


@settings(max_examples=30)
@given(st.lists(st.lists(texts, min_size=2, max_size=4), min_size=1, max_size=3))
def test_cider_is_the_consensus_of_pools(pools: list[list[str]]) -> None:
    """Each caption of a pool with the others as its references, as the golden case `eco` pins it."""
    tokens = [[text.split() for text in pool] for pool in pools]
    others = [pool[:i] + pool[i + 1 :] for pool in pools for i in range(len(pool))]
    captions = [text for pool in pools for text in pool]
    for name, kind in (("cider", "cider"), ("ciderd", "cider_d")):
        result = capeval_core.load(name).score(captions, references=others)
        expected = consensus(tokens, documents="doc_leave_one_out_all_pools", kind=kind)  # type: ignore[arg-type]
        assert result.scores == pytest.approx(np.concatenate(expected), abs=1e-12)


def test_common_subsequences_of_any_length() -> None:
    rng = np.random.default_rng(0)
    for length in (0, 1, 63, 64, 65, 200):
        one, other = (rng.choice(list("abc"), size).tolist() for size in (length, 90))
        table = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
        for i, a in enumerate(one):
            for j, b in enumerate(other):
                table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
        assert common_lengths(one, [other, [], one]) == [table[-1, -1], 0, length]


def test_document_frequencies_are_counts_of_documents() -> None:
    rng = np.random.default_rng(1)
    words = ["b", "a", "dog", "é", "a'", "z" * 30]
    documents = [
        [rng.choice(words, rng.integers(0, 9)).tolist() for _ in range(rng.integers(1, 4))] for _ in range(12)
    ]
    expected: Counter[str] = Counter()
    for document in documents:
        expected.update({" ".join(g) for text in document for n in range(1, 5) for g in grams(text, n)})
    table = DocumentFrequencies.of_documents(documents)
    assert table.counts() == expected and table.documents == 12 and len(table) == len(expected)
    again = DocumentFrequencies.of_counts({gram: float(n) for gram, n in expected.items()}, 12)
    assert again == table and hash(again) == hash(table) and again.fingerprint == table.fingerprint
    assert DocumentFrequencies.of_documents(documents[::-1]) == table
    assert DocumentFrequencies.of_documents([*documents, [["a"]]]) != table
    few = dict(list(expected.items())[1:])
    assert DocumentFrequencies.of_counts(few, 12) != table  # type: ignore[arg-type]

    block = TextBlock([[["a", "dog", "b", "unknown", "a"], [], ["é"]], [["dog"]]])
    for n, held in enumerate(table.of_block(block), start=1):
        begun = [" ".join(t[i : i + n]) if i + n <= len(t) else "" for t in TEXTS for i in range(len(t))]
        assert held.tolist() == [expected.get(gram, 0) for gram in begun]


TEXTS = [["a", "dog", "b", "unknown", "a"], ["é"], ["dog"]]


def test_common_subsequences_of_long_texts() -> None:
    """Frequent words, words that come once, and both, against the table of the classical method."""
    rng = np.random.default_rng(0)
    rare = [str(n) for n in range(1100)]
    texts_of = (["a", "b"], rare, ["a"] * 900 + rare)
    for words in texts_of:
        one, other = (
            rng.permutation(rng.choice(words, size, replace=size > len(words))).tolist()
            for size in (1100, 1100)
        )
        row = np.zeros(len(other) + 1, dtype=int)
        ids = np.array(other)
        for word in one:
            row[1:] = np.maximum.accumulate(np.maximum(row[1:], np.where(ids == word, row[:-1] + 1, 0)))
        assert common_lengths(one, [other, one, ["a"]]) == [row[-1], len(one), int("a" in one)]


def test_long_texts_take_no_square_of_their_length() -> None:
    caption = [str(n) for n in range(20_000)]
    tracemalloc.start()
    assert common_lengths(caption, [caption[::-1], caption[5_000:], ["x", "7"]]) == [1, 15_000, 1]
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    assert common_lengths(["a", "b", "c"] * 100_000, [["a", "b", "x", "c"]]) == [3]
