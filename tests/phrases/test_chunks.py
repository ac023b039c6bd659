"""The chunker on captions of the synthetic scenes, whose own reader is the judge, and on plain English."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.phrases.chunks import chunks
from tools.captions import describe, foils, read
from tools.scenes import sample_scene


def texts(caption: str) -> list[str]:
    return [chunk.text for chunk in chunks(caption)]


def test_every_caption_of_the_scenes_is_read_as_it_was_written() -> None:
    for seed in range(400):
        rng = np.random.default_rng(seed)
        caption = describe(sample_scene(rng), rng)
        phrases, relations = read(caption)
        nouns = [chunk for chunk in chunks(caption) if chunk.noun]
        others = [chunk for chunk in chunks(caption) if not chunk.noun]
        assert [noun.subject for noun in nouns] == list(range(len(phrases))), caption
        for noun, phrase in zip(nouns, phrases, strict=True):
            [alone], _ = read(
                noun.text if phrase.number > 1 or noun.text.startswith("one") else f"a {noun.text}"
            )
            assert alone == phrase, caption
        assert [(r.subject, r.object) for r in others] == [(i, i + 1) for i, _ in relations]
        assert all(name in relation.text for relation, (_, name) in zip(others, relations, strict=True))


def test_a_foil_changes_a_phrase() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scene = sample_scene(rng)
        caption = describe(scene, rng)
        for kind in ("colour", "shape", "count", "position", "relation"):
            for foil in foils(scene, caption, kind):
                changed = set(texts(foil)) - set(texts(caption))
                assert changed and len(texts(foil)) == len(texts(caption)), (caption, foil)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a man rides a horse", ["man", "horse", "man rides horse"]),
        ("the dog is brown and the cat is sleeping", ["dog", "dog is brown", "cat", "cat sleeping"]),
        ("truck on road is green and white", ["truck", "road", "truck on road", "truck is green and white"]),
        ("two black and white dogs", ["two black and white dogs"]),
        ("A group of people are standing in front of a large building.",
         ["group of people", "large building", "group of people standing in front of large building"]),
        ("A woman in a red dress holds an umbrella while she walks.",
         ["woman", "red dress", "woman in red dress", "umbrella", "woman holds umbrella", "woman walks"]),
        ("In the background there are tall trees, and in the foreground a pond.",
         ["tall trees in the background", "pond in the foreground"]),
        ("a swimming pool next to a parking lot",
         ["swimming pool", "parking lot", "swimming pool next to parking lot"]),
        ("A photo of a dog. The dog is wet.", ["dog", "dog is wet"]),
        ("dogs playing with each other", ["dogs", "dogs playing with each other"]),
        ("The image shows 3 cats", ["3 cats"]),
        ("there is a dog", ["dog"]),
        ("of the and", []),
        ("", []),
    ],
)  # fmt: skip
def test_plain_english(caption: str, expected: list[str]) -> None:
    assert texts(caption) == expected


WORDS = "a the dog two red running rides is are on of the left to it and , . who each other there ' )"


@given(st.lists(st.sampled_from(WORDS.split())))
def test_any_words_can_be_read(words: list[str]) -> None:
    caption = " ".join(words)
    phrases = chunks(caption)
    assert all(chunk.text.strip() == chunk.text and chunk.text for chunk in phrases)
    assert len({chunk.text.casefold() for chunk in phrases}) == len(phrases)
    assert {word for chunk in phrases for word in chunk.text.split()} <= set(words)
