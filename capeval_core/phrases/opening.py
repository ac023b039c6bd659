"""Opens sources of phrases by name, from a file, or from a mapping."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from capeval_core.errors import FileError, did_you_mean, wrong_option
from capeval_core.inputs.text_files import load_json
from capeval_core.phrases.source import ChunkPhrases, PhraseSource, PrecomputedPhrases
from capeval_core.values import expanded_path

PhraseSpec = str | os.PathLike[str] | Mapping[str, Sequence[str]] | PhraseSource


def phrase_opener(spec: PhraseSpec) -> Callable[..., PhraseSource]:
    """Check a source of phrases before any model is opened; the result opens it.

    It takes the keywords `style`, how a parser's facts become phrases, and `device`, `dtype` and
    `batch_size`, where and how a parser runs.

    Args:
        spec: `"factual"`, the parser of the paper; a Hub id (`@revision` pins it) or folder of another parser
            of its kind; `"chunks"`, rules without a model; a JSON file or mapping `{caption: [phrases]}`;
            or a `PhraseSource`.

    Raises:
        ValueError, TypeError: any other `spec`, or phrases that are not lists of texts. When it is opened,
            ParserError: a parser that cannot be loaded.

    >>> phrase_opener("chunks")().phrases(["a red star above a blue heart"])[0].phrases
    ('red star', 'blue heart', 'red star above blue heart')
    >>> phrase_opener({"Two dogs run.": ["two dogs"]})().phrases(["Two dogs run."])
    [Phrases(phrases=('two dogs',), truncated=0, fallback=0)]
    """
    if isinstance(spec, PhraseSource):
        return lambda **settings: spec
    name = os.fspath(spec) if isinstance(spec, str | os.PathLike) else ""
    if name == "chunks":
        return lambda **settings: ChunkPhrases()
    if isinstance(spec, Mapping) or Path(name).suffix == ".json":
        source = PrecomputedPhrases(spec if isinstance(spec, Mapping) else _read(Path(name)))
        return lambda **settings: source
    if not (name == "factual" or "/" in name or (name and expanded_path(name).is_dir())):
        fix = (
            "expected 'factual', 'chunks', a Hub id (org/name[@revision]) or folder of a parser, a JSON "
            f"file, or a mapping {{caption: [phrases]}}{did_you_mean(name, ['factual', 'chunks'])}"
        )
        if isinstance(spec, str | os.PathLike):
            raise wrong_option("phrases", name, "", fix, verb="")
        raise wrong_option("phrases", spec, "", fix, verb="", kind=TypeError)
    from capeval_core.phrases.factual import FACTUAL, FactualParser

    return partial(FactualParser, FACTUAL if name == "factual" else name)


def _read(path: Path) -> Mapping[str, Sequence[str]]:
    try:
        phrases = load_json(expanded_path(path), once="give all phrases of a caption in one list")
    except FileError as error:
        raise wrong_option("phrases", str(path), str(error), verb="") from error
    if not isinstance(phrases, dict):
        fix = "expected {caption: [phrases]}"
        raise wrong_option("phrases", str(path), f"a {type(phrases).__name__}", fix, verb="holds")
    return phrases
