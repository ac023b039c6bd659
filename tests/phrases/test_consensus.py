"""The consensus of a pool beside a plain way of computing it; the golden case `eco` pins the numbers."""

from __future__ import annotations

from collections import Counter
from math import exp, log, sqrt

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.seams import consensus

NOTIONS = [
    "doc_caption_within_pool",
    "doc_caption_all_pools",
    "doc_image_all_pools",
    "doc_leave_one_out_within_pool",
    "doc_leave_one_out_all_pools",
]
Pools = list[list[list[str]]]
Gram = tuple[str, ...]
Held = list[set[Gram]]


def grams(tokens: list[str], n: int) -> Counter[Gram]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def documents_of(pools: Pools, notion: str) -> list[list[list[list[str]]]]:
    """For each pool its documents, each a list of captions."""
    if "caption" in notion:
        own = [[[caption] for caption in pool] for pool in pools]
    elif "image" in notion:
        own = [[pool] for pool in pools]
    else:
        own = [[pool[:i] + pool[i + 1 :] for i in range(len(pool))] for pool in pools]
    if notion.endswith("within_pool"):
        return own
    return [[document for documents in own for document in documents]] * len(pools)


def plainly(pools: Pools, notion: str, kind: str) -> list[list[float]]:
    """CIDEr as its paper writes it, caption by caption and pair by pair."""
    scores = []
    for pool, documents in zip(pools, documents_of(pools, notion), strict=True):
        held = [{g for c in document for n in range(1, 5) for g in grams(c, n)} for document in documents]

        def weigh(tokens: list[str], n: int, held: Held = held) -> dict[Gram, float]:
            return {
                gram: count * (log(len(held)) - log(max(1, sum(gram in h for h in held))))
                for gram, count in grams(tokens, n).items()
            }

        row = []
        for i, one in enumerate(pool):
            total = 0.0
            for j, other in enumerate(pool):
                for n in range(1, 5):
                    left, right = weigh(one, n), weigh(other, n)
                    norms = sqrt(sum(w * w for w in left.values())) * sqrt(sum(w * w for w in right.values()))
                    if i == j or norms == 0:
                        continue
                    shared = left.keys() & right.keys()
                    if kind == "cider":
                        total += sum(left[g] * right[g] for g in shared) / norms
                    else:
                        clipped = sum(min(left[g], right[g]) * right[g] for g in shared)
                        apart = max(len(one) - 1, 0) - max(len(other) - 1, 0)
                        total += clipped / norms * exp(-(apart**2) / 72)
            row.append(total * 10 / 4 / max(len(pool) - 1, 1))
        scores.append(row)
    return scores


captions = st.lists(st.sampled_from("abcd"), max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(captions, min_size=1, max_size=5), min_size=1, max_size=3),
    st.sampled_from(NOTIONS),
    st.sampled_from(["cider", "cider_d"]),
)
def test_the_plain_way_agrees(pools: Pools, notion: str, kind: str) -> None:
    ours = consensus(pools, documents=notion, kind=kind)
    expected = plainly(pools, notion, kind)
    assert [len(scores) for scores in ours] == [len(pool) for pool in pools]
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
        assert (mine >= 0).all() and (mine <= 10 + 1e-9).all()
