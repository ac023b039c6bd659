"""Columns about captions themselves, by which collections are filtered beside scores."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

FIELDS = (pa.field("words", pa.int32()), pa.field("non_latin", pa.float32()))
"""Words between blanks, and the share of letters that are of no Latin alphabet; null without a text."""


def caption_columns(captions: Sequence[Any]) -> dict[str, list[Any]]:
    """The values of `FIELDS` for captions, which may be missing.

    >>> caption_columns(["a red dog", "собака bit", None])
    {'words': [3, 2, None], 'non_latin': [0.0, 0.6666666666666666, None]}
    """
    words: list[int | None] = []
    shares: list[float | None] = []
    for caption in captions:
        # A row that cannot be scored, for want of its picture perhaps, still has a caption to filter by.
        is_text = isinstance(caption, str)
        words.append(len(caption.split()) if is_text else None)
        shares.append(non_latin_share(caption) if is_text else None)
    return {"words": words, "non_latin": shares}


def non_latin_share(text: str) -> float:
    """The share of letters that are of no Latin alphabet; 0 without a letter."""
    # Most captions are, and looking at each of their letters would take longer than all else here.
    if text.isascii():
        return 0.0
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return 0.0
    return sum(map(_is_non_latin, letters)) / len(letters)


@lru_cache(65_536)
def _is_non_latin(letter: str) -> bool:
    # Python knows no scripts: names of Latin letters begin with it, those of full width hold it.
    return "LATIN" not in unicodedata.name(letter, "")
