"""Laws of negative captions against lists of all cases, and what no negative may be."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from capeval_core.training import negatives
from capeval_core.training.negatives import (
    WordTable,
    random_subset,
    repetition_removal,
    substitution,
    word_order,
)
from tests.training.laws import assert_law, given

COUNTS = {
    "NN": {"cat": 6, "dog": 3, "Cat": 2, "hat": 1},
    "JJ": {"old": 5, "red": 4, "new": 1},
    "VBZ": {"is": 9},
    "IN": {"on": 9, "at": 9},
}
TABLE = WordTable(COUNTS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20210614)


def subsets(count: int, probability: float, most: int) -> Iterator[tuple[tuple[int, ...], float]]:
    for number in range(1, most + 1):
        for subset in combinations(range(count), number):
            yield subset, probability**number * (1 - probability) ** (count - number)


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 1), (4, 4), (4, 3)])
def test_subsets_are_bernoulli_draws_given_the_bounds(
    count: int, most: int, rng: np.random.Generator
) -> None:
    law = given(subsets(count, 0.3, most))
    assert_law(lambda: tuple(random_subset(range(count), 0.3, rng, most=most)), law)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_law_of_how_many_is_exact(count: int) -> None:
    law = negatives._count_law(count, 0.29, count)
    expected = given((len(subset), weight) for subset, weight in subsets(count, 0.29, count))
    assert np.allclose(law, np.cumsum([expected[n] for n in range(1, count)]), atol=1e-13)


def test_a_caption_may_be_long(rng: np.random.Generator) -> None:
    items = random_subset(range(20000), 0.3, rng)
    assert items == sorted(set(items)) and 5500 < len(items) < 6500


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, float("nan")])
def test_a_probability_is_between_0_and_1(probability: float, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="expected more than 0 and less than 1"):
        substitution(["a", "cat"], ["DT", "NN"], TABLE, rng, probability=probability)


def test_words_are_drawn_by_frequency_and_never_the_original_in_any_case(rng: np.random.Generator) -> None:
    for word in ("cat", "Cat", "CAT"):
        assert_law(lambda word=word: TABLE.draw("NN", word, rng), {"dog": 3 / 4, "hat": 1 / 4})
    law = {"cat": 6 / 12, "dog": 3 / 12, "Cat": 2 / 12, "hat": 1 / 12}
    assert_law(lambda: TABLE.draw("NN", "zeppelin", rng), law)
    assert_law(
        lambda: TABLE.draw("NN", "hat", rng), given((w, n) for w, n in COUNTS["NN"].items() if w != "hat")
    )


def test_a_word_without_another_of_its_tag_has_no_substitute(rng: np.random.Generator) -> None:
    assert not TABLE.has_other("VBZ", "IS") and not TABLE.has_other("NNS", "cats")
    assert TABLE.has_other("VBZ", "runs") and TABLE.has_other("NN", "cat")
    for tag, word in (("VBZ", "is"), ("NNS", "cats")):
        with pytest.raises(ValueError, match=f"no word of tag '{tag}' is there but '{word}'"):
            TABLE.draw(tag, word, rng)
    assert substitution(["is", "on"], ["VBZ", "IN"], TABLE, rng) is None


def test_three_words_in_ten_are_substituted(rng: np.random.Generator) -> None:
    """How many of ten words, which depends on the probability more than where they are."""
    tokens, tags = ["hat"] * 10, ["NN"] * 10
    law = given((len(subset), weight) for subset, weight in subsets(10, 0.30, 10))

    def changed() -> int:
        negative = substitution(tokens, tags, TABLE, rng)
        return sum(token != "hat" for token in negative or ())

    assert_law(changed, law)


@pytest.mark.parametrize("probability", [0.30, 0.29, 0.8])
def test_substitution_follows_its_law(probability: float, rng: np.random.Generator) -> None:
    """Two words have substitutes; `is` has none, and `on` is of a tag that is never touched."""
    tokens, tags = ["old", "cat", "is", "on"], ["JJ", "NN", "VBZ", "IN"]

    def cases() -> Iterator[tuple[Hashable, float]]:
        others = [{"red": 4 / 5, "new": 1 / 5}, {"dog": 3 / 4, "hat": 1 / 4}]
        for old, cat in product({**others[0], "old": 0}, {**others[1], "cat": 0}):
            weights = [
                1 - probability if word == token else probability * share[word]
                for word, token, share in zip((old, cat), tokens, others, strict=False)
            ]
            if (old, cat) != ("old", "cat"):
                yield (old, cat, "is", "on"), prod(weights)

    law = given(cases())
    assert_law(lambda: tuple(substitution(tokens, tags, TABLE, rng, probability=probability) or ()), law)


@pytest.mark.parametrize(
    ("tokens", "tags"),
    [
        (["a", "dog", "runs"], ["DT", "NN", "VBZ"]),
        (["dog"], ["NN"]),  # removed, nothing would be left
        (["dog", "Dog"], ["NN", "NN"]),  # one removed and one doubled are the same caption again
        (["red", "on", "red"], ["JJ", "IN", "JJ"]),
    ],
)
def test_repetition_and_removal_follow_their_law(
    tokens: list[str], tags: list[str], rng: np.random.Generator
) -> None:
    touched = [tag[0] in "VNJ" for tag in tags]
    weights = [{0: 0.15, 1: 0.7, 2: 0.15} if on else {1: 1.0} for on in touched]

    def cases() -> Iterator[tuple[Hashable, float]]:
        for copies in product(*weights):
            negative = tuple(
                token for token, number in zip(tokens, copies, strict=True) for _ in range(number)
            )
            same = [token.lower() for token in negative] == [token.lower() for token in tokens]
            if negative and not same:
                yield negative, prod(weight[n] for weight, n in zip(weights, copies, strict=True))

    assert_law(lambda: tuple(repetition_removal(tokens, tags, rng) or ()), given(cases()))


@pytest.mark.parametrize("tokens", [["a", "dog"], ["a", "b", "A"], ["x", "x", "x"], ["a", "dog", "runs"]])
def test_word_order_follows_its_law(tokens: list[str], rng: np.random.Generator) -> None:
    def law() -> Iterator[tuple[Hashable, float]]:
        lower = [token.lower() for token in tokens]
        shuffled = given((p, 1.0) for p in permutations(tokens) if [t.lower() for t in p] != lower)
        shorter = given(
            (tuple(token for index, token in enumerate(tokens) if index not in lost), weight)
            for lost, weight in subsets(len(tokens), 0.3, len(tokens) - 1)
        )
        for cases in filter(None, (shuffled, shorter)):
            yield from ((case, weight / 2) for case, weight in cases.items())

    assert_law(lambda: tuple(word_order(tokens, rng) or ()), given(law()))


def test_what_cannot_be_made_is_none(rng: np.random.Generator) -> None:
    tokens, tags = ["up", "and", "over", "there"], ["RB", "CC", "IN", "RB"]
    assert substitution(tokens, tags, TABLE, rng) is None
    assert repetition_removal(tokens, tags, rng) is None
    assert word_order(["up"], rng) is None and word_order([], rng) is None
    assert substitution([], [], TABLE, rng) is None and repetition_removal([], [], rng) is None


def test_tokens_and_tags_are_equally_many(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="shorter"):
        substitution(["a", "cat"], ["DT"], TABLE, rng)


def check(original: Sequence[str], negative: Sequence[str] | None) -> None:
    """A negative has a word and is not the original, in any case; words are not changed in themselves."""
    if negative is not None:
        assert negative
        assert [token.casefold() for token in negative] != [token.casefold() for token in original]
        assert all(token and not any(map(str.isspace, token)) for token in negative)


CAPTIONS = st.lists(
    st.tuples(
        st.sampled_from(["a", "A", "cat", "Cat", "dog", "red", ",", "is"]),
        st.sampled_from(["NN", "JJ", "VBZ", "DT", "", "RB", "-LRB-"]),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@for_all(caption=CAPTIONS, seed=st.integers(0, 2**32), tries=st.sampled_from([1, 2, 64]))
def test_no_negative_equals_its_original_or_is_empty(
    caption: list[tuple[str, str]], seed: int, tries: int
) -> None:
    """Also where the draws run out, which `TRIES` draws never do in a lifetime."""
    tokens, tags = [token for token, _ in caption], [tag for _, tag in caption]
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negatives, "TRIES", tries)
        for _ in range(5):
            changed = substitution(tokens, tags, TABLE, rng)
            touched = repetition_removal(tokens, tags, rng)
            ordered = word_order(tokens, rng)
            for negative in (changed, touched, ordered):
                check(tokens, negative)
    content = [tag[:1] in ("V", "N", "J") for tag in tags]
    assert (touched is None) == (not any(content))
    assert (ordered is None) == (len(tokens) < 2)
    if changed is not None:
        assert len(changed) == len(tokens)
        for old, new, tag, on in zip(tokens, changed, tags, content, strict=True):
            assert new == old or (on and new in COUNTS[tag])
