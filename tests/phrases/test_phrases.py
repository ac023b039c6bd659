"""Phrases by rules, by caption and of graphs; and which words of a caption a wrong phrase marks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.seams import graph_phrases, open_phrases
from tools.captions import describe, foils, read
from tools.scenes import SHAPES, sample_scene


def chunks(caption: str) -> list[str]:
    """The phrases of the rules, none where the caption is its own."""
    [found] = open_phrases("chunks").phrases([caption])
    return [] if found.fallback else list(found.phrases)


# ---- by rules, on captions of the synthetic scenes, whose own reader is the judge, and on plain English


def test_phrases_of_scenes_are_those_they_were_written_from() -> None:
    for seed in range(400):
        rng = np.random.default_rng(seed)
        caption = describe(sample_scene(rng), rng)
        phrases, relations = read(caption)
        nouns, linked = [], []
        for chunk in chunks(caption):
            one = sum(word.startswith(SHAPES) for word in chunk.split()) == 1
            (nouns if one else linked).append(chunk)
        numbered = [n if n.split()[0] in ("one", "two", "three", "four") else f"a {n}" for n in nouns]
        assert {read(noun)[0][0] for noun in numbered} == set(phrases), caption
        assert [name in chunk for chunk, (_, name) in zip(linked, relations, strict=True)] == [True] * len(
            linked
        )


def test_a_foil_changes_a_phrase() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scene = sample_scene(rng)
        caption = describe(scene, rng)
        for kind in ("colour", "shape", "count", "position", "relation"):
            for foil in foils(scene, caption, kind):
                assert set(chunks(foil)) - set(chunks(caption)), (caption, foil)
                assert len(chunks(foil)) == len(chunks(caption)), (caption, foil)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a man rides a horse", ["man", "horse", "man rides horse"]),
        ("the dog is brown and the cat is sleeping", ["dog", "dog is brown", "cat", "cat sleeping"]),
        ("truck on road is green and white", ["truck", "road", "truck on road", "truck is green and white"]),
        ("a pair of two black and white dogs", ["pair of two black and white dogs"]),
        ("A group of people are standing in front of a large building.",
         ["group of people", "large building", "group of people standing in front of large building"]),
        ("A woman in a red dress holds an umbrella while she walks.",
         ["woman", "red dress", "woman in red dress", "umbrella", "woman holds umbrella", "woman walks"]),
        ("In the background there are tall trees, and in the foreground a pond.",
         ["tall trees in the background", "pond in the foreground"]),
        ("a swimming pool next to a parking lot",
         ["swimming pool", "parking lot", "swimming pool next to parking lot"]),
        ("A photo of a dog. The dog is wet.", ["dog", "dog is wet"]),
        ("The dog and the Dog", ["dog"]),
        ("The image shows 3 cats", ["3 cats"]),
        ("there is a dog", ["dog"]),
        ("of the and", []),
        ("", []),
    ],
)  # fmt: skip
def test_chunks_of_plain_english(caption: str, expected: list[str]) -> None:
    assert chunks(caption) == expected


WORDS = "a the dog two red running rides is are on of the left to it and , . who each other there ' )"


@given(st.lists(st.sampled_from(WORDS.split())))
def test_any_words_can_be_chunked(words: list[str]) -> None:
    caption = " ".join(words)
    [found] = open_phrases("chunks").phrases([caption])
    assert len({phrase.casefold() for phrase in found.phrases}) == len(found.phrases)
    assert {word for phrase in found.phrases for word in phrase.split()} <= set(words)


# ---- by caption


def test_precomputed_phrases_are_read_from_a_file(tmp_path: Path) -> None:
    phrases = {"Two dogs run.": ["two dogs", "dogs run", "two dogs"], "Night": []}
    file = tmp_path / "phrases.json"
    file.write_text(json.dumps(phrases))
    sources = [open_phrases(spec) for spec in (phrases, file, str(file))]
    for source in sources:
        night, dogs = source.phrases(["Night", "Two dogs run."])
        assert (night.phrases, night.fallback) == (("Night",), 1)
        assert (dogs.phrases, dogs.fallback) == (("two dogs", "dogs run"), 0)
    assert len({source.fingerprint for source in sources}) == 1
    assert open_phrases({**phrases, "Night": ["dark"]}).fingerprint != sources[0].fingerprint
    assert open_phrases(sources[0]) is sources[0]


# ---- of graphs


@given(st.text(alphabet="ab ,()v:1", max_size=40))
def test_any_string_can_be_chunked(text: str) -> None:
    for style in ("triplet", "soft-spice"):
        phrases = graph_phrases(text, style)
        assert all(phrase.strip() == phrase and phrase and not set(phrase) & set("(,") for phrase in phrases)
        assert len(set(phrases)) == len(phrases)


# ---- wrong words
