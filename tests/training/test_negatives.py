"""Groups of a training set: negatives and foils, their order, their laws, and what no negative may be.

Laws of single negatives are golden (`umic-negatives`).
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.seams import negative_groups, tagger
from tools.captions import describe
from tools.scenes import sample_scene

KINDS = ("hard", "substitution", "word_order", "repetition_removal")


def assert_law(
    draw: Callable[[], Hashable], law: Mapping[Hashable, float], draws: int = 6000, sigmas: float = 4.5
) -> None:
    """Each case's share is within a few standard errors of its probability; no other case occurs."""
    found = Counter(draw() for _ in range(draws))
    assert found.keys() <= law.keys()
    for case, probability in law.items():
        error = (probability * (1 - probability) / draws) ** 0.5
        share = found[case] / draws
        assert abs(share - probability) <= sigmas * error, (case, share, probability)


def sampler(captions: Mapping[str, Sequence[str]], **options: Any) -> Any:
    """Of scenes' captions by image."""
    images = [image for image, texts in captions.items() for _ in texts]
    texts = [text for each in captions.values() for text in each]
    return negative_groups(images, texts, tagger("scenes").tags(texts), **options)


def drawn_scenes(count: int, seed: int = 5) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    scenes = [sample_scene(rng) for _ in range(count)]
    return {f"{number}": [describe(scene, rng) for _ in range(3)] for number, scene in enumerate(scenes)}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_group_holds_the_positive_and_every_kind_of_negative(count: int) -> None:
    scenes = drawn_scenes(40)
    groups = sampler(scenes, random_negatives=count, seed=2)
    images = [image for image, texts in scenes.items() for _ in texts]
    texts = [text for each in scenes.values() for text in each]
    assert len(groups) == len(texts)
    for index in range(len(groups)):
        group = groups.group(0, index)
        assert group.image == images[index] and group.captions[0] == texts[index]
        assert group.kinds == ("positive", *["random"] * count, *KINDS)
        assert len(group.captions) == 5 + count
        own = {text.lower() for text in scenes[group.image]}
        for text in group.captions[1:]:
            assert text.lower() not in own and text == " ".join(text.split()) != ""
            assert " ," not in text
        assert {*group.captions[1 : 2 + count]} <= {*texts}


def test_a_group_depends_on_seed_epoch_and_index_alone() -> None:
    scenes = drawn_scenes(20)
    groups = sampler(scenes, seed=7)
    everything = {(epoch, index): groups.group(epoch, index) for epoch in (0, 1) for index in range(60)}
    worker = pickle.loads(pickle.dumps(groups))
    for epoch, index in sorted(everything, reverse=True)[::7]:
        assert worker.group(epoch, index) == everything[epoch, index]
    assert sum(everything[0, index] != everything[1, index] for index in range(60)) >= 59
    other = sampler(scenes, seed=8)
    assert sum(other.group(0, index) != everything[0, index] for index in range(60)) >= 59
    # Equal captions at different places draw different negatives.
    twins = sampler(
        {"a": ["a red star"] * 20, "b": ["two blue stars"], "c": ["a green heart above a red star"]}
    )
    assert len({twins.group(0, index).captions for index in range(20)}) > 10


@pytest.mark.parametrize(
    ("own", "orders"),
    [
        (["star red", "red star"], {"red", "star"}),
        (["star red", "Red  Star", "red"], {"star"}),
        (
            ["star red", "red star", "red", "star"],
            {"blue hearts"},
        ),  # none is left: a caption of another image
    ],
)
def test_no_negative_equals_a_caption_of_its_image(own: list[str], orders: set[str]) -> None:
    texts = [*own, "blue hearts"]
    tagged = [[(word, "XX") for word in text.split()] for text in texts]
    groups = negative_groups([*("a" * len(own)), "b"], texts, tagged)
    assert {groups.group(epoch, 0).captions[4] for epoch in range(100)} == orders


@pytest.mark.parametrize(
    ("caption", "tokens", "allowed"),
    [
        ("a sink, a toilet.", ["a", "sink", ",", "a", "toilet", "."], "a sink toilet , ."),
        ("a sink , a toilet .", ["a", "sink", ",", "a", "toilet", "."], "a sink toilet , ."),
        ("A man's (Red) hat", ["A", "man", "'s", "(", "Red", ")", "hat"], "A man 's ( Red ) hat"),
        ("a black-and-white cat", ["a", "black", "-", "and", "-", "white", "cat"], "a black - and white cat"),
        ("  two \t dogs\n", ["two", "dogs"], "two dogs"),
        ('a "red hat" on', ["a", '"', "red", "hat", '"', "on"], 'a " red hat on'),
    ],
)
def test_words_are_spelt_as_in_the_caption(caption: str, tokens: list[str], allowed: str) -> None:
    """No negative shows by its white space that it was made from tokens, and no word touches another."""
    tagged = [
        [(token, "NN" if token in ("sink", "man", "dogs") else "XX") for token in tokens],
        [("x", "NN")],
    ]
    groups = negative_groups("ab", [caption, "x"], tagged)
    texts = {text for epoch in range(60) for text in groups.group(epoch, 0).captions}
    assert " ".join(caption.split()) in texts and len(texts) > 4
    for text in texts - {"x"}:
        assert text == " ".join(text.split())
        words = text
        for mark in (",", ".", "(", ")", "-", '"'):
            words = words.replace(mark, f" {mark} ")
        words = words.replace("'s", " 's")
        assert {*words.split()} <= {*allowed.split(), "x"}
        if '"' in caption:
            assert 'a"' not in text and '"on' not in text and '" red' not in text and 'hat "' not in text
        if " ," not in caption:
            assert " ," not in text and " ." not in text and " '" not in text and "( " not in text


def test_hard_negatives_are_of_the_three_most_similar_images_alone() -> None:
    """Also where one of these three is not in the set: the fourth does not take its place."""
    captions = {"a": ["a red circle"], "b": ["a blue star"], "c": ["two green hearts"], "d": ["a square"]}
    similar = [{image: ["gone", "b", "c", "d"] for image in captions}]
    groups = sampler(captions, similar=similar)
    drawn = set()
    for epoch in range(60):
        group = groups.group(epoch, 0)
        drawn.add(group.captions[group.kinds.index("hard")])
    assert drawn == {"a blue star", "two green hearts"}


def test_a_set_without_negatives_is_refused() -> None:
    with pytest.raises(ValueError):
        negative_groups(["a", "b"], ["a star", "A  star"], [[("a", "DT"), ("star", "NN")]] * 2)


def test_a_foil_replaces_one_word_by_one_from_the_same_context() -> None:
    rng = np.random.default_rng(3)
    captions = [describe(sample_scene(rng), rng) for _ in range(400)]
    tagged = tagger("scenes").tags(captions)
    places = set()
    for caption in tagged:
        padded = ["", "", *(word for word, _ in caption), ""]
        places |= {(tag, *padded[i : i + 2], padded[i + 3], word) for i, (word, tag) in enumerate(caption)}
    images = [str(number // 2) for number in range(400)]
    plain, with_foils = (negative_groups(images, captions, tagged, foils=foils) for foils in (0, 3))
    changed: Counter[str] = Counter()
    for index, caption in enumerate(tagged):
        group = with_foils.group(1, index)
        assert group.captions[:6] == plain.group(1, index).captions and len(group.captions) == 9
        assert set(group.kinds[6:]) <= {"foil", "random"}
        words = [word for word, _ in caption]
        for kind, foil in zip(group.kinds[6:], group.captions[6:], strict=True):
            other = foil.replace(",", " ,").split()
            if kind == "foil":
                (i,) = (k for k, pair in enumerate(zip(words, other, strict=True)) if pair[0] != pair[1])
                padded = ["", "", *words, ""]
                assert (caption[i][1], *padded[i : i + 2], padded[i + 3], other[i]) in places
                changed[caption[i][1]] += 1
    assert {"JJ", "NN", "NNS", "CD", "IN"} <= changed.keys() and not changed.keys() & {"DT", "CC", "TO"}
    assert sum(changed.values()) > 900


def test_foils_draw_frequent_words_more_often() -> None:
    captions = ["a red star"] + ["a blue star"] * 3 + ["a pink star"]
    groups = negative_groups("abcde", captions, tagger("scenes").tags(captions), foils=1)
    law = {"a blue star": 0.75, "a pink star": 0.25}
    epochs = iter(range(10**6))
    assert_law(lambda: groups.group(next(epochs), 0).captions[-1], law, draws=600)
