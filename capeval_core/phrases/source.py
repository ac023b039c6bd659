"""Sources of phrases: the interface, rules, phrases by caption; opened by name, from a file or a mapping."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from capeval_core.errors import FileError, Problems, did_you_mean, expanded_path, wrong_option
from capeval_core.inputs.files import load_json
from capeval_core.phrases.chunks import chunks
from capeval_core.phrases.spans import Phrases


@runtime_checkable
class PhraseSource(Protocol):
    """Captions -> phrases. Its fingerprint changes with everything that these depend on."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, in order; equal texts are parsed once."""


class _ChunkPhrases:
    """Phrases by rules (`capeval_core.phrases.chunks`), without a model; else a text is its own phrase."""

    name = "chunks"
    fingerprint = "chunks-1"  # raise it with any rule that changes a phrase

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        phrases = {text: _phrases_or_text(chunks(text), text) for text in dict.fromkeys(texts)}
        return [phrases[text] for text in texts]


class _PrecomputedPhrases:
    """Phrases by caption, from a file or from Python; a caption with an empty list is its own phrase."""

    name = "given"

    def __init__(self, phrases: Mapping[str, Sequence[str]]) -> None:
        problems = Problems()
        for caption, listed in phrases.items():
            name = f"phrases[{_short(caption)}]"
            if isinstance(listed, str) or not isinstance(listed, Sequence):
                value = repr(listed) if isinstance(listed, str) else f"a {type(listed).__name__}"
                problems.add(f"{name} is {value}: pass a list of phrases", kind=TypeError)
                continue
            for index, phrase in enumerate(listed):
                if not isinstance(phrase, str):
                    kind = type(phrase).__name__
                    problems.add(f"{name}[{index}] is a {kind}: phrases are strings", kind=TypeError)
                elif not phrase.strip():
                    problems.add(f"{name}[{index}] is empty: leave it out")
        problems.raise_if_any()
        self._phrases: dict[str, Phrases] = {}
        content: list[tuple[str, tuple[str, ...]]] = []
        for caption, listed in phrases.items():
            self._phrases[caption] = _phrases_or_text(listed, caption)
            content.append((caption, self._phrases[caption].phrases))
        # Sorted: the same phrases in another order of captions are the same source.
        digest = hashlib.sha256(json.dumps(sorted(content)).encode()).hexdigest()
        self.fingerprint = f"given-{digest[:16]}"

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        # An error and not the text itself: a caption that is spelt otherwise would score without a word.
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


def _short(text: object) -> str:
    """A caption in quotes, cut to 60 characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:56]}...{quoted[0]}"


def phrase_opener(spec: object) -> Callable[..., PhraseSource]:
    """Check what the option `phrases` of HICE-S names before any model is opened.

    Returns a function that opens the source, with the keywords `style`, `device`, `dtype`, `batch_size` and
    `later`: whether its model is opened at the first text.
    """
    if isinstance(spec, PhraseSource):
        return lambda **settings: spec
    name = os.fspath(spec) if isinstance(spec, str | os.PathLike) else ""
    if name == "chunks":
        return lambda **settings: _ChunkPhrases()
    if isinstance(spec, Mapping) or Path(name).suffix == ".json":
        source = _PrecomputedPhrases(spec if isinstance(spec, Mapping) else _read(Path(name)))
        return lambda **settings: source
    if not (name == "factual" or "/" in name or (name and expanded_path(name).is_dir())):
        fix = (
            "expected 'factual', 'chunks', a Hub id (org/name[@revision]) or folder of a parser, a JSON "
            f"file, or a mapping {{caption: [phrases]}}{did_you_mean(name, ['factual', 'chunks'])}"
        )
        if not isinstance(spec, str | os.PathLike):
            raise wrong_option("phrases", spec, "", fix, kind=TypeError)
        raise wrong_option("phrases", name, "", fix)
    from capeval_core.phrases.factual import FACTUAL, FactualParser

    return partial(FactualParser, FACTUAL if name == "factual" else name)


def phrase_models(spec: object) -> list[str]:
    """The Hub repositories that a source of phrases opens."""
    from capeval_core.phrases.factual import FACTUAL

    if spec == "factual":
        return [FACTUAL]
    if isinstance(spec, str) and "/" in spec:
        return [spec]
    return []


def _read(path: Path) -> Mapping[str, Sequence[str]]:
    """The content of a JSON file of phrases by caption."""
    try:
        phrases = load_json(expanded_path(path))
    except FileError as error:
        raise wrong_option("phrases", str(path), str(error), sentence=True) from error
    if not isinstance(phrases, dict):
        fix = "expected {caption: [phrases]}"
        raise wrong_option("phrases", str(path), f"holds a {type(phrases).__name__}", fix)
    return phrases
