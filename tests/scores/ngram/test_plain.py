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
from tests.support.seams import consensus

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
        expected = consensus(tokens, kind, "doc_leave_one_out_all_pools")
        assert result.scores == pytest.approx(np.concatenate(expected), abs=1e-12)


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
    assert again == table == metric.prepare(documents[::-1]) and hash(again) == hash(table)
    assert again.fingerprint == table.fingerprint
    assert metric.prepare([*documents, ["a"]]) != table
    assert type(table).of_counts(dict(list(expected.items())[1:]), 12) != table
