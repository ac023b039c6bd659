"""FACTUAL's parser on a tiny T5 that has learnt a few graphs by heart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capeval_core.phrases.factual import FACTUAL, FactualParser, GraphWriter, ParserError
from capeval_core.phrases.opening import phrase_opener
from capeval_core.phrases.source import Phrases
from tests.hub import Repository, ask, commit, serving
from tests.phrases.tiny_parser import GRAPHS
from tests.support.seams import LIMITS


@pytest.fixture(scope="module")
def parser(parser_folder: Path) -> FactualParser:
    # Greedily: a model that is sure of every token lets beams end in what it would never say.
    return FactualParser(parser_folder, device="cpu", beams=1)


def squeezed(graph: str) -> str:
    return graph.replace(" ", "")


def test_phrases_of_captions(parser: FactualParser) -> None:
    dog, birds, empty, long = parser.phrases(
        [
            "a brown dog runs in the park",
            "many birds of two different species",
            " ... ",
            "two men\na red ball\n\nnonsense",
        ]
    )
    assert dog == Phrases(("dog is brown", "dog run in park"))
    assert birds == Phrases(("many birds of two different species",), fallback=1)  # a graph without a fact
    assert empty == Phrases((" ... ",), fallback=1)
    assert long == Phrases(("men is 2", "ball is red", "nonsense"), fallback=1)  # each sentence on its own


def test_graphs_do_not_depend_on_their_batch(parser_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "graphs", 0)  # every graph is written anew
    texts = [*GRAPHS, "a red dog", "a boy near a dog", "park", "a ball in the park near two men " * 3]
    for beams in (5, 1):
        together = FactualParser(parser_folder, device="cpu", beams=beams).parse(texts)
        single = FactualParser(parser_folder, device="cpu", beams=beams, batch_size=1)
        assert [single.parse([text])[0] for text in texts] == together
        again = FactualParser(parser_folder, device="cpu", beams=beams, batch_size=3)
        assert again.parse(texts[::-1]) == together[::-1]
    assert [squeezed(parsed.graph) for parsed in together][: len(GRAPHS)] == list(
        map(squeezed, GRAPHS.values())
    )


def test_sentences_that_the_parser_cannot_read_to_their_end(parser: FactualParser) -> None:
    fits, over = "dog " * 60, "dog " * 61  # 3 tokens of the prompt and the end token: 64 and 65
    assert [parsed.truncated for parsed in parser.parse([fits, over])] == [False, True]
    assert parser.phrases(["two men. " + "dog " * 400 + ". " + "men " * 100])[0].truncated == 2
    # What lies beyond is not read, and the end token stays.
    assert parser.parse([over])[0].graph == parser.parse([over + "park"])[0].graph


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences went through the model, batch by batch."""
    counts: list[int] = []
    generate = GraphWriter._generate

    def count(writer: GraphWriter, inputs: list[list[int]]) -> list[str]:
        counts.append(len(inputs))
        return generate(writer, inputs)

    monkeypatch.setattr(GraphWriter, "_generate", count)
    return counts


def test_equal_sentences_are_parsed_once(parser_folder: Path, generated: list[int]) -> None:
    parser = FactualParser(parser_folder, device="cpu", beams=3)
    first = parser.phrases(["two men", "two men\na red ball", "two men"])
    assert sum(generated) == 2
    assert parser.phrases(["a red ball", "two men"])[1] == first[0]
    assert sum(generated) == 2
    assert parser.phrases([]) == []


def test_parsers_of_one_model_share_it_and_what_it_wrote(
    parser_folder: Path, tmp_path: Path, generated: list[int]
) -> None:
    parser = FactualParser(parser_folder, device="cpu", beams=3)
    parser.phrases(["two men"])
    other = FactualParser(parser_folder, device="cpu", beams=3, style="soft-spice")
    assert other.phrases(["two men"]) == [Phrases(("2 men", "men"))]
    assert sum(generated) == 1
    copy = Path(shutil.copytree(parser_folder, tmp_path / "copy"))
    for apart in (FactualParser(parser_folder, device="cpu"), FactualParser(copy, device="cpu", beams=3)):
        apart.phrases(["two men"])
    assert sum(generated) == 3


def test_fingerprints_follow_what_phrases_depend_on(parser_folder: Path, tmp_path: Path) -> None:
    base = FactualParser(parser_folder, device="cpu")
    copy = Path(shutil.copytree(parser_folder, tmp_path / "copy"))
    assert FactualParser(copy, device="cpu").fingerprint == base.fingerprint
    assert FactualParser(copy, device="cpu").name == f"copy@{base.name.split('@')[1]}"
    others = [
        FactualParser(parser_folder, device="cpu", style="soft-spice"),
        FactualParser(parser_folder, device="cpu", dtype="bfloat16"),
        FactualParser(parser_folder, device="cpu", beams=2),
    ]
    assert len({parser.fingerprint for parser in [base, *others]}) == 4
    (copy / "generation_config.json").write_text('{"no_repeat_ngram_size": 2}')
    assert FactualParser(copy, device="cpu").fingerprint != base.fingerprint


def test_soft_spice(parser_folder: Path) -> None:
    source = phrase_opener(str(parser_folder))(style="soft-spice", device="cpu", dtype="float32")
    assert source.phrases(["two men"]) == [Phrases(("2 men", "men"))]


def refused(model: object, **options: object) -> str:
    with pytest.raises(ParserError) as caught:
        phrase_opener(model)(device="cpu", **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert 'phrases="chunks"' in message and "{caption: [phrases]}" in message
    return message


def test_parsers_that_cannot_be_loaded(
    parser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no model.safetensors" in refused(tmp_path)
    damaged = Path(shutil.copytree(parser_folder, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"not tensors")
    assert "could not be loaded" in refused(damaged)
    untokenized = Path(shutil.copytree(parser_folder, tmp_path / "untokenized"))
    for file in untokenized.glob("token*"):
        file.unlink()
    assert "has no tokenizer.json or *.model" in refused(untokenized)
    foreign = Path(shutil.copytree(parser_folder, tmp_path / "foreign"))
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["elephant"] = len(tokenizer["model"]["vocab"])
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "a tokenizer that is not its own" in refused(foreign)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("factual", "someone/nowhere@v1"):
        message = refused(name)
        assert FACTUAL in message and "could not be loaded" in message
        assert "HF_HUB_OFFLINE is set" in message
    for name in ("not a/valid id", "./nothing/here", "a/b/c"):
        assert "is neither a folder nor a Hub id" in refused(name)


@pytest.mark.system
def test_a_parser_from_the_hub(parser_folder: Path, tmp_path: Path) -> None:
    code = f"""
import json, warnings
from capeval_core.phrases.factual import FactualParser
from tests.support.seams import LIMITS
answers = []
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for name in ("org/parser", "org/parser@v1", "org/parser@{commit("v1")[:9]}", "org/none", "org/parser@v9"):
        try:
            parser = FactualParser(name, device="cpu", beams=1)
            answers.append([parser.name, parser.phrases(["two men"])[0].phrases, len(warned)])
        except ValueError as error:
            answers.append(str(error))
print(json.dumps(answers))
"""
    repositories = {"org/parser": Repository.of({"main": parser_folder, "v1": parser_folder})}
    with serving(repositories) as hub:
        newest, tagged, pinned, missing, unknown = ask(code, hub.address, tmp_path)
    assert newest == [f"parser@{commit('main')[:8]}", ["men is 2"], 0]
    assert tagged == pinned == [f"parser@{commit('v1')[:8]}", ["men is 2"], 0]
    assert "'org/none' could not be loaded" in missing and "'org/parser@v9' could not be loaded" in unknown


def test_settings_that_are_wrong(parser_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"style='triplets'.*did you mean 'triplet'"):
        FactualParser(parser_folder, style="triplets")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype='int8'"):
        FactualParser(parser_folder, dtype="int8")
