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
        ("( dog , run ) , ( dog )", ["dog run"]),  # two fields have no object
        ("( , run ) , ( dog , is , red )", ["run", "dog is red"]),
        ("( dog , sit , on , mat )", ["dog sit on mat"]),
        ("( dog , is , ) , ( cat , is , red )", ["dog", "cat is red"]),
        ("( , in , park ) , ( cat , is , red )", ["park", "cat is red"]),
        ("( dog , is , red ) , ( dog , is , red ) , ( cat , is", ["dog is red"]),  # the last has no end
        ("( dog ) , ( cat )", []),  # entities alone
        ("( v:dog , pv:run , park:1 )", ["dog run park"]),
    ],
)
def test_an_entity_is_a_phrase_unless_a_fact_names_it(graph: str, expected: list[str]) -> None:
    assert graph_phrases(graph) == expected


def test_forms_of_a_word_share_more_than_a_letter() -> None:
    assert not wrong_words("a red cup", ["ring"], [])
    (span,) = wrong_words("two dogs", ["dog"], [])
    assert (span.start, span.end) == (4, 8)
    assert wrong_words("two dogs", ["dog"], ["two dogs"]) == [span]  # which has no other word


@pytest.mark.parametrize(
    ("caption", "wrong", "right", "marked"),
    [
        # Of words that a right phrase shares only the other ones are marked.
        ("a red dog and a blue cat", ["red dog"], ["dog"], ["red"]),
        ("a red dog and a blue cat", ["red dog", "blue cat"], ["dog", "cat"], ["red", "blue"]),
        ("a red dog and a blue cat", ["dog"], ["red dog"], ["dog"]),  # which has no other word
        # Articles are looked for only where a phrase has nothing else.
        ("the man of the sea", ["the sea"], [], ["sea"]),
        ("the man of the sea", ["of"], [], ["of"]),
        ("a man is there", ["the woman is"], [], ["is"]),
        # The shortest stretch that has all words in order, else the first of each.
        ("dog on a mat near a dog in snow", ["dog in snow"], [], ["dog in snow"]),
        ("dog on a mat near a dog in snow", ["snow mat"], [], ["mat", "snow"]),
        ("big cat, big dog", ["big dog"], [], ["big dog"]),
        ("dog dog cat", ["dog cat"], [], ["dog cat"]),
        # Spans with only small words between them are one.
        ("bowl of soup, and bread", ["bowl soup bread"], [], ["bowl of soup", "bread"]),
        ("two dogs riding bikes", ["dog ride bike"], [], ["dogs riding bikes"]),
        ("it's a T-shirt", ["t-shirt"], [], ["T-shirt"]),
        ("a red cup", ["zebra"], [], []),
        ("a red cup", [], ["cup"], []),
    ],
)
def test_the_words_of_a_wrong_phrase_are_marked(
    caption: str, wrong: list[str], right: list[str], marked: list[str]
) -> None:
    spans = wrong_words(caption, wrong, right)
    assert [caption[span.start : span.end] for span in spans] == marked


@pytest.mark.parametrize(
    ("word", "target", "is_form"),
    [
        ("dogs", "dog", True), ("rides", "riding", True), ("running", "run", True), ("cities", "city", True),
        ("boxes", "box", True), ("ski", "skiing", True), ("is", "ing", False), ("ten", "tens", True),
        ("at", "ate", False), ("cat", "cattle", False), ("sings", "sinks", False), ("dog", "dogma", False),
    ],
)  # fmt: skip
def test_forms_of_a_word_share_a_stem_of_three_letters(word: str, target: str, is_form: bool) -> None:
    assert bool(wrong_words(f"x {word}", [target], [])) is is_form
