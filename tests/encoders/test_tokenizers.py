"""Token ids: known ones, markers, repairs, and open_clip's own tokenizer as the judge of ordinary text."""

from __future__ import annotations

import open_clip
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.encoders.tokenizers import ClipTokenizer

START, END = 49406, 49407
TOKENIZER = ClipTokenizer()


def ids(text: str) -> list[int]:
    (row,) = TOKENIZER.encode([text]).ids
    return list(row)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("   \n\t", []),
        ("a photo of a cat", [320, 1125, 539, 320, 2368]),  # as printed by OpenAI's code
        ("a diagram", [320, 22697]),
        ("a dog", [320, 1929]),
        ("A  DOG \n", [320, 1929]),
        ("!", [256]),
        ("<|endoftext|>", [END]),
        ("<|startoftext|>", [START]),
        ("<|ENDOFTEXT|>", [END]),
        ("a <|endoftext|> dog", [320, END, 1929]),
    ],
)
def test_known_ids(text: str, expected: list[int]) -> None:
    assert ids(text) == [START, *expected, END]
    assert (TOKENIZER.start, TOKENIZER.end) == (START, END)


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("schÃ¶n", "schön"),  # mojibake
        ("salt &amp; pepper", "salt & pepper"),
        ("salt &amp;amp; pepper", "salt & pepper"),  # escaped twice
        ("1 < 2 &amp;amp; 3", "1 < 2 & 3"),
        ("ﬁne", "fine"),
        ("“quoted”", '"quoted"'),
        ("DON'T", "don't"),
        ("a\u00a0dog", "a dog"),
        ("ｆｕｌｌ", "full"),
    ],
)
def test_texts_are_repaired(text: str, same_as: str) -> None:
    assert ids(text) == ids(same_as)


def test_open_clips_spelling_of_the_markers_is_ordinary_text() -> None:
    assert START not in ids("<start_of_text> a dog")[1:]
    assert END not in ids("a dog <end_of_text>")[:-1]


_THEIRS = open_clip.tokenizer.SimpleTokenizer()
_ANY = st.text(max_size=60)
_PRINTABLE_ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)


@given((_ANY | _PRINTABLE_ASCII).filter(lambda text: "<|" not in text and "_of_text" not in text.lower()))
def test_ordinary_text_has_open_clips_ids(text: str) -> None:
    assert ids(text)[1:-1] == _THEIRS.encode(text)


def test_what_is_too_long_keeps_its_beginning_and_the_end_token() -> None:
    long = ids("dog " * 200)
    assert long == [START, *[1929] * 75, END]
    assert ids("dog " * 75) == long
    assert TOKENIZER.encode(["dog " * 200, "dog " * 75, "dog " * 76, ""]).truncated == [125, 0, 1, 0]
    short = ClipTokenizer(context_length=4).encode(["a photo of a cat", "a dog"])
    assert short.ids == [(START, 320, 1125, END), (START, 320, 1929, END)]
    assert short.truncated == [3, 0]


def test_no_texts() -> None:
    assert TOKENIZER.encode([]).ids == []
