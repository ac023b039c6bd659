"""The tokenizer beside what the Java tool of COCO's evaluation made of the same texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.phrases.ptb import PUNCTUATION, ptb_text, ptb_tokens

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "data"


def test_texts_that_the_tool_was_asked_about() -> None:
    cases = json.loads((HERE / "ptb_cases.json").read_text(encoding="utf-8"))
    assert {text: " ".join(ptb_tokens(text)) for text in cases} == cases


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the judgement sets")
def test_every_caption_of_flickr8k_expert() -> None:
    rows = [
        json.loads(line) for line in (SHARED / "flickr8k_expert" / "ptb_tokens.jsonl").open(encoding="utf-8")
    ]
    assert len(rows) == 4993
    assert ptb_text(row["text"] for row in rows) == [row["tokens"] for row in rows]


@given(st.text(alphabet="aAbnst' .,-’/<>&;:()1½…\n", max_size=30))
def test_any_text_can_be_read(text: str) -> None:
    tokens = ptb_tokens(text)
    assert not set(tokens) & PUNCTUATION
    assert all(token and token == token.lower() and len(token.split()) == 1 for token in tokens)
    assert ptb_tokens(f" {text}\n") == tokens or text[-1:] in " \n." or "." in text
