"""The tokenizer beside what the Java tool of COCO's evaluation made of the same texts."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.seams import ptb_tokens

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "data"


def words(text: str) -> list[str]:
    """Tokens, of which those that hold no-break spaces are several words."""
    return " ".join(ptb_tokens(text)).split()


def test_tokens_equal_the_recorded_tokens_of_the_java_tool() -> None:
    cases = json.loads((HERE / "ptb_cases.json").read_text(encoding="utf-8"))
    assert {text: " ".join(words(text)) for text in cases} == cases


def test_words_of_hard_texts_equal_those_of_the_java_tool() -> None:
    """Made by `benchmarks/ptb.py` of commit 9fa2905; rows are (kind, text, tokens by pycocoevalcap)."""
    rows = json.loads(gzip.decompress((HERE / "ptb_hard.json.gz").read_bytes()))
    assert len(rows) >= 2500 and len({kind for kind, _, _ in rows}) >= 30
    different = [(kind, text) for kind, text, tokens in rows if words(text) != tokens.split()]
    assert len(different) <= 0.001 * len(rows), different
    assert set(Counter(kind for kind, _ in different)) <= {"characters"}, different


def test_tokens_of_numbers_equal_those_of_the_java_tool() -> None:
    """Numbers, dates, fractions, prices, units and what stands between them; tokens by pycocoevalcap 1.2."""
    rows = json.loads(gzip.decompress((HERE / "ptb_numbers.json.gz").read_bytes()))
    assert len(rows) >= 2500 and sum("\xa0" in tokens for _, tokens in rows) >= 100
    different = [text for text, tokens in rows if ptb_tokens(text) != tokens.split(" ")]
    assert not different


def test_a_text_without_blanks_takes_time_by_its_length() -> None:
    """A reader that begins again at each token takes 90 s here; the limit only ends such a process."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
import capeval_core
text = "n't" * 60_000
print(capeval_core.load("rougel").score([text], references=[[text]]).mean)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1.0\n"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # What the tool cannot read is not there, and parts words.
        ("a 😀 dog ₹5 a\u200bb a\x00b\ufeff 👨‍👩‍👧", "a dog 5 a b a b"),
        ("a 🐶's 🇺🇸 don\u200b't", "a 's don t"),
        # An accent of its own is part of the word, but not of a number.
        ("cafe\u0301 Zu\u0308rich 1\u0301", "cafe\u0301 zu\u0308rich 1 \u0301"),
        ("pre-U.S. anti-U.S.-led non-U.K.'s", "pre-u.s. anti-u.s.-led non-u.k. 's"),
        ("call (555) 123-4567 or (020) 7946 0958", "call -lrb-555-rrb- 123-4567 or -lrb-020-rrb- 7946 0958"),
        ("WE`LL O`Brien can‘t", "we`ll o`brien ca n`t"),
        ("#día #dog2 @b.com", "#día #dog 2 @b com"),
        ("1⁄2 10⁻³ a\\/b", "1⁄2 10 ⁻³ a\\/b"),
        ("caf&eacute; &amp;lt; R&amp;B &mdash; &LT;", "caf&eacute; & lt r&b <"),
        ("soft\u00adware it\x92s \x8050", "software it 's $ 50"),
    ],
)
def test_tokens_of_hard_texts(text: str, tokens: str) -> None:
    assert " ".join(words(text)) == tokens


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\v", "\f", "\u2028", "\u2029"])
def test_line_breaks_are_spaces(line_break: str) -> None:
    assert ptb_tokens(f"A dog.{line_break}Two cats{line_break}") == ["a", "dog", "two", "cats"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the judgement sets")
def test_tokens_of_flickr8k_expert_equal_those_of_the_java_tool() -> None:
    rows = [
        json.loads(line) for line in (SHARED / "flickr8k_expert" / "ptb_tokens.jsonl").open(encoding="utf-8")
    ]
    assert len(rows) == 4993
    assert all(" ".join(ptb_tokens(row["text"])) == row["tokens"] for row in rows)


@given(st.text(alphabet="aAbLnst19' .,-’‘`/<>;:?!@#_😀\u200b\u00a0\n", max_size=30))
def test_letters_and_digits_are_kept_in_their_order(text: str) -> None:
    kept = re.findall("[a-z0-9]", "".join(ptb_tokens(text)))
    assert kept == re.findall("[a-z0-9]", text.lower())


@given(st.one_of(st.text(max_size=30), st.text(alphabet="aAbst' .,-’/<>&;:()1½…\n", max_size=30)))
def test_any_text_can_be_tokenized(text: str) -> None:
    tokens = ptb_tokens(text)
    assert all(re.fullmatch(r"\S+(\xa0\S+)*", token) and token == token.lower() for token in tokens)
    assert ptb_tokens(f" {text}\n") == tokens


WORDS = ["cannot", "Gonna", "lemme", "a", "B", "x", "5", "1st", "1234", "2x", "fig", "no", "nos", "art", "ph"]
WORDS += [
    "mr",
    "st",
    "St",
    "wash",
    "Wash",
    "etc",
    "p",
    "dog",
    "won",
    "us",
    "The",
    "www",
    "com",
    "til",
    "cans",
]


@given(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", "  ", ", ", " , ", ",  "])), max_size=4),
    st.sampled_from(WORDS),
    st.sampled_from(["", ".", " .", " ", ". ", " . "]),
)
def test_words_of_plain_captions_follow_the_rules(before: list[tuple[str, str]], last: str, end: str) -> None:
    """They are read at once, by a way of its own."""
    text = "".join(word + gap for word, gap in before) + last + end
    assert ptb_tokens(text) == ptb_tokens(f"\u201c {text}")  # a quote goes, and hinders that way
