"""Sources of phrases: the interface, rules, and phrases by caption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from capeval_core.errors import Problems
from capeval_core.phrases.chunks import chunks


@dataclass(frozen=True)
class Phrases:
    """The phrases of one caption.

    phrases: in the caption's order, at least one, without duplicates.
    truncated: number of sentences that are longer than the parser reads.
    fallback: number of sentences without a phrase, which are their own phrase.
    """

    phrases: tuple[str, ...]
    truncated: int = 0
    fallback: int = 0


@runtime_checkable
class PhraseSource(Protocol):
    """Captions -> phrases.

    name: its name in signatures and messages.
    fingerprint: changes with everything that its phrases depend on.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, in order; equal texts are parsed once."""


class ChunkPhrases:
    """Phrases by rules (`capeval_core.phrases.chunks`), without a model."""

    name = "chunks"
    fingerprint = "chunks-1"  # raise it with any rule that changes a phrase

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text; a text in which the rules find nothing is its own phrase."""
        phrases = {
            text: _phrases_or_text([chunk.text for chunk in chunks(text)], text)
            for text in dict.fromkeys(texts)
        }
        return [phrases[text] for text in texts]


class PrecomputedPhrases:
    """Phrases from a file or from Python, by caption.

    Args:
        phrases: `{caption: [phrases]}`, with the references where they are scored; a caption with an empty
            list is its own phrase.

    Raises:
        ValueError, TypeError: phrases that are not lists of texts, or empty texts; all at once.
    """

    name = "given"

    def __init__(self, phrases: Mapping[str, Sequence[str]]) -> None:
        problems = Problems()
        for caption, listed in phrases.items():
            _check(problems, f"phrases[{_short(caption)}]", listed)
        problems.raise_if_any()
        self._phrases = {caption: _phrases_or_text(listed, caption) for caption, listed in phrases.items()}
        content = json.dumps(sorted((text, own.phrases) for text, own in self._phrases.items()))
        self.fingerprint = f"given-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text.

        Raises:
            ValueError: texts without an entry, each named once.
        """
        problems = Problems()
        for text in dict.fromkeys(texts):
            if text not in self._phrases:
                problems.add(
                    f"phrases have no entry for {_short(text)}: add its phrases, or let "
                    "phrases='factual' or 'chunks' find them all"
                )
        problems.raise_if_any()
        return [self._phrases[text] for text in texts]


def _phrases_or_text(phrases: Sequence[str], text: str) -> Phrases:
    return Phrases(tuple(dict.fromkeys(phrases))) if phrases else Phrases((text,), fallback=1)


def _check(problems: Problems, name: str, phrases: Any) -> None:
    if isinstance(phrases, str) or not isinstance(phrases, Sequence):
        shown = repr(phrases) if isinstance(phrases, str) else f"a {type(phrases).__name__}"
        problems.add(f"{name} is {shown}: pass a list of phrases", kind=TypeError)
        return
    for index, phrase in enumerate(phrases):
        if not isinstance(phrase, str):
            kind = type(phrase).__name__
            problems.add(f"{name}[{index}] is a {kind}: phrases are strings", kind=TypeError)
        elif not phrase.strip():
            problems.add(f"{name}[{index}] is empty: leave it out")


def _short(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:56]}...{shown[0]}"
