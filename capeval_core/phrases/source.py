"""Where phrases come from, behind one interface: a scene-graph parser, rules, or the user."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from capeval_core.errors import FileError, Problems, did_you_mean, wrong_option
from capeval_core.inputs.json_files import load_json
from capeval_core.phrases.chunks import chunks
from capeval_core.phrases.graph import Style
from capeval_core.phrases.phrases import Phrases


@runtime_checkable
class PhraseSource(Protocol):
    """Anything that finds the phrases of captions.

    name: how signatures and messages call it.
    fingerprint: changes with everything that its phrases depend on.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text, in order; equal texts are parsed once."""


PhraseSpec = str | os.PathLike[str] | Mapping[str, Sequence[str]] | PhraseSource


def open_phrases(
    spec: PhraseSpec = "factual",
    *,
    style: Style = "triplet",
    device: str | None = None,
    dtype: str = "float32",
    batch_size: int | None = None,
) -> PhraseSource:
    """The source of phrases that a user means.

    Args:
        spec: `"factual"`, the parser of the paper; a Hub id (`@revision` pins it) or folder of another parser
            of its kind; `"chunks"`, rules without a model; a JSON file or mapping `{caption: [phrases]}`;
            or a source of one's own.
        style: how a parser's facts become phrases (`capeval_core.phrases.graph.phrases_of`).
        device, dtype, batch_size: where and how a parser runs.

    Raises:
        ParserError: a parser that cannot be loaded.
        ValueError, TypeError: anything else that `spec` cannot mean, phrases that are not lists of texts.

    >>> open_phrases("chunks").phrases(["a red star above a blue heart"])[0].phrases
    ('red star', 'blue heart', 'red star above blue heart')
    >>> open_phrases({"Two dogs run.": ["two dogs"]}).phrases(["Two dogs run."])
    [Phrases(phrases=('two dogs',), truncated=0, fallback=0)]
    """
    opener = phrase_opener(spec)
    return opener(style=style, device=device, dtype=dtype, batch_size=batch_size)


def phrase_opener(spec: PhraseSpec) -> Callable[..., PhraseSource]:
    """What opens the source of phrases that a user means, by `open_phrases`' keywords; it opens no model yet.

    Raises:
        ValueError, TypeError: as `open_phrases`, for what `spec` cannot mean.
    """
    if isinstance(spec, str | os.PathLike):
        return _opener_named(os.fspath(spec))
    if isinstance(spec, Mapping):
        given: PhraseSource = GivenPhrases(spec)
        return lambda **run: given
    if isinstance(spec, PhraseSource):
        return lambda **run: spec
    fix = (
        "expected 'factual', 'chunks', a Hub id or folder of a parser, a JSON file, "
        "or a mapping {caption: [phrases]}"
    )
    raise wrong_option("phrases", spec, "", fix, verb="", kind=TypeError)


def _opener_named(name: str) -> Callable[..., PhraseSource]:
    if name == "chunks":
        return lambda **run: ChunkPhrases()
    if Path(name).suffix == ".json":
        given = GivenPhrases(_read(Path(name)))
        return lambda **run: given
    known = name == "factual" or "/" in name or Path(name).expanduser().is_dir()
    if not known:
        fix = (
            "expected 'factual', 'chunks', a Hub id (org/name[@revision]) or folder of a "
            f"parser, or a JSON file{did_you_mean(name, ['factual', 'chunks'])}"
        )
        raise wrong_option("phrases", name, "", fix, verb="")
    from capeval_core.phrases.graph_writer import FACTUAL
    from capeval_core.phrases.scene_graph import FactualParser

    return partial(FactualParser, FACTUAL if name == "factual" else name)


def _read(path: Path) -> Mapping[str, Sequence[str]]:
    try:
        given = load_json(path.expanduser(), once="give all phrases of a caption in one list")
    except FileError as error:
        raise wrong_option("phrases", str(path), str(error), verb="") from error
    if not isinstance(given, dict):
        fix = "expected {caption: [phrases]}"
        raise wrong_option("phrases", str(path), f"a {type(given).__name__}", fix, verb="holds")
    return given


class ChunkPhrases:
    """Phrases by rules, without a model; see `capeval_core.phrases.chunks`."""

    name = "chunks"
    fingerprint = "chunks-1"  # raise it with any rule that changes a phrase

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text; a text in which the rules find nothing is its own phrase."""
        found = {text: [chunk.text for chunk in chunks(text)] for text in dict.fromkeys(texts)}
        made = {
            text: Phrases(tuple(phrases)) if phrases else Phrases((text,), fallback=1)
            for text, phrases in found.items()
        }
        return [made[text] for text in texts]


class GivenPhrases:
    """Phrases that the user hands in, by caption.

    Args:
        given: `{caption: [phrases]}`, for references too where they are scored; a caption with an empty list
            is its own phrase.

    Raises:
        ValueError, TypeError: phrases that are not lists of texts, or empty texts; all at once.
    """

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        problems = Problems()
        for caption, phrases in given.items():
            _check(problems, f"phrases[{_short(caption)}]", phrases)
        problems.raise_if_any()
        self._given = {
            caption: Phrases(tuple(dict.fromkeys(phrases))) if phrases else Phrases((caption,), fallback=1)
            for caption, phrases in given.items()
        }

    @classmethod
    def of(cls, captions: Sequence[str], phrases: Sequence[Sequence[str]]) -> GivenPhrases:
        """Phrases in a list that is parallel to the captions.

        Raises:
            ValueError, TypeError: lists of different lengths, phrases that are not lists of texts, or equal
                captions with different phrases, named by index.

        >>> GivenPhrases.of(["Two dogs run."], [["two dogs"]]).phrases(["Two dogs run."])[0].phrases
        ('two dogs',)
        """
        if len(captions) != len(phrases):
            raise ValueError(
                f"len(phrases)={len(phrases)} but len(captions)={len(captions)}: "
                "pass one list of phrases for each caption"
            )
        problems = Problems()
        first: dict[str, int] = {}
        for index, (caption, listed) in enumerate(zip(captions, phrases, strict=True)):
            _check(problems, f"phrases[{index}]", listed)
            before = first.setdefault(caption, index)
            if phrases[before] != listed:
                problems.add(
                    f"phrases[{index}] differ from phrases[{before}], but captions[{index}] and "
                    f"captions[{before}] are the same text: give equal captions equal phrases"
                )
        problems.raise_if_any()
        return cls(dict(zip(captions, phrases, strict=True)))

    @property
    def name(self) -> str:
        return "given"

    @property
    def fingerprint(self) -> str:
        content = json.dumps(sorted((text, given.phrases) for text, given in self._given.items()))
        return f"given-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def phrases(self, texts: Sequence[str]) -> list[Phrases]:
        """The phrases of each text.

        Raises:
            ValueError: texts that have none, each told once.
        """
        problems = Problems()
        for text in dict.fromkeys(texts):
            if text not in self._given:
                problems.add(
                    f"phrases have no entry for {_short(text)}: hand in its phrases, or let "
                    "phrases='factual' or 'chunks' find them all"
                )
        problems.raise_if_any()
        return [self._given[text] for text in texts]


def _check(problems: Problems, name: str, phrases: Any) -> None:
    if isinstance(phrases, str) or not isinstance(phrases, Sequence):
        found = repr(phrases) if isinstance(phrases, str) else f"a {type(phrases).__name__}"
        problems.add(f"{name} is {found}: pass a list of phrases", kind=TypeError)
        return
    for at, phrase in enumerate(phrases):
        if not isinstance(phrase, str):
            kind = type(phrase).__name__
            problems.add(f"{name}[{at}] is a {kind}: phrases are strings", kind=TypeError)
        elif not phrase.strip():
            problems.add(f"{name}[{at}] is empty: leave it out")


def _short(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:56]}...{shown[0]}"
