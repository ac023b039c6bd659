"""Phrases by rules or precomputed, and specs that are not sources of phrases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from capeval_core.phrases.opening import phrase_opener
from capeval_core.phrases.source import ChunkPhrases, Phrases, PhraseSource, PrecomputedPhrases


def test_chunks() -> None:
    source = phrase_opener("chunks")()
    assert isinstance(source, PhraseSource)
    assert source.phrases(["a red star", "", "and", "a red star"]) == [
        Phrases(("red star",)),
        Phrases(("",), fallback=1),
        Phrases(("and",), fallback=1),
        Phrases(("red star",)),
    ]
    assert (source.name, source.fingerprint) == ("chunks", ChunkPhrases().fingerprint)


def test_precomputed_phrases(tmp_path: Path) -> None:
    phrases = {"Two dogs run.": ["two dogs", "dogs run", "two dogs"], "Night": []}
    source = phrase_opener(phrases)()
    expected = [Phrases(("Night",), fallback=1), Phrases(("two dogs", "dogs run"))]
    assert source.phrases(["Night", "Two dogs run."]) == expected
    file = tmp_path / "phrases.json"
    file.write_text(json.dumps(phrases))
    assert phrase_opener(file)().phrases(["Night", "Two dogs run."]) == expected
    assert phrase_opener(str(file))().fingerprint == source.fingerprint
    assert phrase_opener({"Night": ["dark"]})().fingerprint != source.fingerprint
    with pytest.raises(ValueError, match=r"no entry for 'One cat\.'") as caught:
        source.phrases(["One cat.", "Night", "One cat.", "x" * 100])
    assert "2 problems" in str(caught.value) and "xxx...'" in str(caught.value)


def test_phrases_that_are_wrong_are_named_all_at_once() -> None:
    wrong: list[Sequence[str]] = ["red dog", ["x", 5, " "], None]  # type: ignore[list-item]
    with pytest.raises(ValueError) as caught:
        PrecomputedPhrases(dict(zip("abc", wrong, strict=True)))
    assert str(caught.value).splitlines() == [
        "4 problems with the input:",
        "  phrases['a'] is 'red dog': pass a list of phrases",
        "  phrases['b'][1] is a int: phrases are strings",
        "  phrases['b'][2] is empty: leave it out",
        "  phrases['c'] is a NoneType: pass a list of phrases",
    ]
    with pytest.raises(TypeError, match=r"phrases\['a'\] is 'red'"):
        phrase_opener({"a": "red"})()


def test_specs_that_are_not_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"phrases='chunk'.*did you mean 'chunks'"):
        phrase_opener("chunk")()
    with pytest.raises(TypeError, match="phrases=5"):
        phrase_opener(5)()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no such file"):
        phrase_opener(tmp_path / "none.json")()
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        phrase_opener(tmp_path / "list.json")()
    (tmp_path / "twice.json").write_text('{"a dog": [], "a dog": ["dog"]}')
    with pytest.raises(ValueError, match="'a dog' comes twice; give all phrases of a caption in one list"):
        phrase_opener(tmp_path / "twice.json")()
    own = ChunkPhrases()
    assert phrase_opener(own)() is own
