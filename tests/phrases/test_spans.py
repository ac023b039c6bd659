"""Which words of a caption a wrong phrase marks."""

from __future__ import annotations

import pytest

from capeval_core.phrases.spans import wrong_words

CASES = {
    "the phrase itself": ("a red circle and a blue star", ["red circle"], ["blue star"], ["red circle"]),
    "articles between": (
        "a dog next to the old tree",
        ["dog next to old tree"],
        [],
        ["dog next to the old tree"],
    ),
    "only what no right phrase says": (
        "a red circle above two blue stars",
        ["red circle above two blue stars"],
        ["red circle", "two blue stars"],
        ["above"],
    ),
    "all of it, where nothing would be left": ("a tall man", ["man is tall"], ["tall man"], ["tall man"]),
    "other forms": ("Two dogs are running.", ["dog run"], [], ["dogs are running"]),
    "the nearest words": ("a red car and a red bus", ["red bus"], ["red car"], ["red bus"]),
    "words in another order": ("a cup full of tea", ["tea in cup"], [], ["cup", "tea"]),
    "nothing of it": ("a cup", ["tower"], [], []),
    "no wrong phrase": ("a cup", [], ["cup"], []),
    "other scripts": ("der süße Hund schläft", ["süße Hund"], [], ["süße Hund"]),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_words(case: str) -> None:
    caption, wrong, right, expected = CASES[case]
    assert [caption[span.start : span.end] for span in wrong_words(caption, wrong, right)] == expected
