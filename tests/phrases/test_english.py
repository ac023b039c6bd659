"""Sentences end where a reader would say so, and no word is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.phrases.english import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog runs. A cat sleeps!", ["A dog runs.", "A cat sleeps!"]),
        ("a dog runs. a cat sleeps.", ["a dog runs.", "a cat sleeps."]),
        ("A 2.5 m tall statue of Dr. J. Smith.", ["A 2.5 m tall statue of Dr. J. Smith."]),
        ("St. Peter's, e.g. at noon. It rains.", ["St. Peter's, e.g. at noon.", "It rains."]),
        ("Shops, stalls, etc. The street is full.", ["Shops, stalls, etc.", "The street is full."]),
        ("The coat he is in. A hat.", ["The coat he is in.", "A hat."]),
        ("Bus No. 5 stops. No. 6 waits.", ["Bus No. 5 stops.", "No. 6 waits."]),
        ('"Stop!" says the sign. He said "go." Then left.',
         ['"Stop!" says the sign.', 'He said "go."', "Then left."]),
        ("Dark clouds... then rain… Then sun.", ["Dark clouds... then rain…", "Then sun."]),
        ("What is it?! (A cat.) Yes.", ["What is it?!", "(A cat.)", "Yes."]),
        ("Seen:\n1. a red car\n2) two dogs\r\n\n• a tree\n(b) sky",
         ["Seen:", "a red car", "two dogs", "a tree", "sky"]),
        ("- one - two", ["one - two"]),
        ("猫がいる。犬もいる。", ["猫がいる。", "犬もいる。"]),
        ("a man on the U.S. flag at 5 p.m. Crowds cheer.",
         ["a man on the U.S. flag at 5 p.m.", "Crowds cheer."]),
        ("no full stop", ["no full stop"]),
        (" . ... \n !", []),
        ("", []),
    ],
)  # fmt: skip
def test_where_sentences_end(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(
    st.lists(st.sampled_from(["a", "Dog", "3.5", "Mr.", "...", ".", "!", '"', ")", "(", "\n", " ", "é", ","]))
)
def test_no_word_is_lost(parts: list[str]) -> None:
    text = "xx" + "".join(parts)  # so that no mark of a list is left out at the start
    text = re.sub(r"\n[\s\d.)(-]*", "\nxx", text)
    split = sentences(text)
    assert re.findall(r"\w", "".join(split)) == re.findall(r"\w", text)
    assert all(sentence == sentence.strip() and sentence for sentence in split)


def test_a_caption_of_many_words_is_parted() -> None:
    caption = " ".join(f"There is object number {i} on the table." for i in range(50))
    assert len(caption.split()) == 400
    assert [len(s.split()) for s in sentences(caption)] == [8] * 50
