"""The texts in a value: a caption, captions, a caption as words, or the answer of a chat model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from capeval_core.errors import described
from capeval_core.inputs import names

_ANSWERS = tuple(names.listed("answer"))
_SPEAKERS = frozenset(names.listed("answer", "speakers"))
_LONGEST_WORD = 30


def texts_in(value: object) -> list[str]:
    """The texts of a value: itself, those of a list, the last answer of a conversation, the text of an
    object.

    Raises ValueError, with what it is, for what is not a text.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if _is_conversation(value):
            return texts_in(_last_answer(value))
        if _are_parts(value):
            return [_text_of_parts(value)]
        if value and all(map(_are_words, value)):
            return [" ".join(words) for words in value]
        return [text for part in value for text in texts_in(part)]
    if isinstance(value, dict):
        return _texts_of_object(value)
    raise ValueError(described(value, none="null"))


def _texts_of_object(value: Mapping[str, Any]) -> list[str]:
    """The texts under the first name that answers have; ValueError where there is none."""
    for name in _ANSWERS:
        answer = value.get(name)
        if answer is None:
            continue
        if name == "parts" and isinstance(answer, list):
            return [_text_of_parts(answer)]
        if name in ("tokens", "words") and _are_words(answer):
            return [" ".join(answer)]
        return texts_in(answer)
    raise ValueError(described(value, none="null"))


def is_one_text(value: list[Any]) -> bool:
    """Whether a list is one text: a conversation, or the parts of a message."""
    return _is_conversation(value) or _are_parts(value)


def _is_conversation(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(turn, dict) and not _SPEAKERS.isdisjoint(turn) for turn in value)


def _last_answer(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last turn of a conversation; ValueError where it is not the assistant's."""
    turn = turns[-1]
    speaker = next(turn[name] for name in turn if name in _SPEAKERS)
    if str(speaker).lower() not in names.listed("answer", "assistants"):
        raise ValueError(f"a conversation whose last turn is of {speaker!r}, not an answer")
    return {name: value for name, value in turn.items() if name not in _SPEAKERS}


def _are_parts(value: list[Any]) -> bool:
    """Whether a list holds the parts of one message, `{"type": "text", "text": ...}`."""
    return bool(value) and all(isinstance(part, dict) and "type" in part for part in value)


def _text_of_parts(parts: Sequence[object]) -> str:
    """The text of a message in parts, without its thoughts; ValueError where no part holds a text."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and not part.get("thought") and part.get("type") != "reasoning":
            text = part.get("text") if part.get("text") is not None else part.get("content")
            if text is not None:
                texts += texts_in(text)
    if not texts:
        raise ValueError("a message without a text")
    return "".join(texts)


def _are_words(value: object) -> bool:
    """Whether a value is a caption as a list of words."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(word, str) and is_single_word(word) for word in value)


def is_single_word(text: str) -> bool:
    """Whether a text is a single word. Scripts without blanks have short ones."""
    if not text or len(text) > _LONGEST_WORD or re.search(r"\s", text):
        return False
    return len(text) <= 4 or not re.search(r"[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0eff]", text)
