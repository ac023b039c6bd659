"""The texts in a value: a caption, captions, a caption as words, or the answer of a chat model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from capeval_core.errors import described
from capeval_core.inputs import names

_ANSWERS = tuple(names.listed("answer"))
_SPEAKERS = frozenset(names.listed("answer", "speakers"))
_LONGEST_WORD = 30  # characters; what is longer without a blank is a text of a script that has none


def texts_in(value: object) -> list[str]:
    """The texts of a value: itself, those of a list, the last answer of a conversation, the text of an
    object.

    Raises ValueError, with what it is, for what is not a text.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        # A conversation is tried first: its turns and the parts of a message are both lists of objects.
        if _is_conversation(value):
            return texts_in(_last_answer(value))
        if _are_parts(value):
            return [_text_of_parts(value)]
        if value and all(map(_are_words, value)):
            return [" ".join(words) for words in value]
        texts: list[str] = []
        for part in value:
            texts += texts_in(part)
        return texts
    if isinstance(value, dict):
        return _texts_of_object(value)
    raise ValueError(described(value, none="null"))


def _texts_of_object(value: Mapping[str, Any]) -> list[str]:
    """The texts under the first name that answers have; ValueError where there is none."""
    for name in _ANSWERS:
        answer = value.get(name)
        # Chat models that call a tool answer with `"content": null`: the text is under another name.
        if answer is None:
            continue
        if name == "parts" and isinstance(answer, list):  # Gemini's, whose parts have no type
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
    turn = dict(turns[-1])
    # `role` of OpenAI, `from` of ShareGPT and LLaVA: their values are never the answer.
    speaker_names = [name for name in turn if name in _SPEAKERS]
    speaker = turn[speaker_names[0]]
    # The last turn of a request is the user's: scoring the question would give a number without a word.
    if str(speaker).lower() not in names.listed("answer", "assistants"):
        raise ValueError(f"a conversation whose last turn is of {speaker!r}, not an answer")
    for name in speaker_names:
        del turn[name]
    return turn


def _are_parts(value: list[Any]) -> bool:
    """Whether a list holds the parts of one message, `{"type": "text", "text": ...}`."""
    return bool(value) and all(isinstance(part, dict) and "type" in part for part in value)


def _text_of_parts(parts: Sequence[object]) -> str:
    """The text of a message in parts, without its thoughts; ValueError where no part holds a text."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        # A model's thoughts (Gemini's `thought`, OpenAI's `reasoning`) are not its caption.
        elif isinstance(part, dict) and not part.get("thought") and part.get("type") != "reasoning":
            text = part.get("text")
            if text is None:
                text = part.get("content")
            if text is not None:
                texts += texts_in(text)
    if not texts:
        raise ValueError("a message without a text")
    return "".join(texts)  # parts are cut anywhere, also within a word


def _are_words(value: object) -> bool:
    """Whether a value is a caption as a list of words."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(word, str) and is_single_word(word) for word in value)


def is_single_word(text: str) -> bool:
    """Whether a text is a single word. Scripts without blanks have short ones."""
    if not text or len(text) > _LONGEST_WORD or re.search(r"\s", text):
        return False
    # A caption in Chinese, Korean or Thai is one run of letters: longer than a word, it is a text.
    return len(text) <= 4 or not re.search(r"[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0eff]", text)
