"""Rules that no door shows alone, each on a case that tells it from its neighbour."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.seams import graph_phrases, negative_caption, wrong_words


@pytest.mark.parametrize("tokens", [["a", "dog"], ["a", "a", "dog"]])
def test_a_caption_in_another_order_is_another_caption(tokens: list[str]) -> None:
    rng = np.random.default_rng(0)
    assert tokens not in [negative_caption("word_order", tokens, None, rng) for _ in range(200)]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("( dog ) , ( dog , run in , park )", ["dog run in park"]),
        ("( boy ) , ( dog , run in , park )", ["boy", "dog run in park"]),
    ],
)
def test_an_entity_is_a_phrase_unless_a_fact_names_it(graph: str, expected: list[str]) -> None:
    assert graph_phrases(graph) == expected


def test_forms_of_a_word_share_more_than_a_letter() -> None:
    assert not wrong_words("a red cup", ["ring"], [])
    (span,) = wrong_words("two dogs", ["dog"], [])
    assert (span.start, span.end) == (4, 8)
    assert wrong_words("two dogs", ["dog"], ["two dogs"]) == [span]  # which has no other word
