"""FACTUAL's parser on a tiny T5 that has learnt a few graphs by heart, and sentences that it reads."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.seams import open_phrases


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences went through a model, batch by batch."""
    from transformers import T5ForConditionalGeneration

    counts: list[int] = []
    generate: Any = T5ForConditionalGeneration.generate

    def counted(model: Any, inputs: Any = None, **settings: Any) -> Any:
        counts.append(len(settings.get("input_ids", inputs)))
        return generate(model, inputs, **settings)

    monkeypatch.setattr(T5ForConditionalGeneration, "generate", counted)
    return counts


def opened(folder: Path | str, **settings: Any) -> Any:
    # Greedily: a model that is sure of every token lets beams end in what it would never say.
    return open_phrases(str(folder), **{"device": "cpu", "beams": 1, **settings})


def test_captions_become_phrases_of_their_facts(parser_folder: Path) -> None:
    parser = opened(parser_folder)
    captions = [
        "a brown dog runs in the park",
        "many birds of two different species",
        " ... ",
        "two men\na red ball\n\nnonsense",
    ]
    dog, birds, empty, long = ((own.phrases, own.fallback) for own in parser.phrases(captions))
    assert dog == (("dog is brown", "dog run in park"), 0)
    assert birds == (("many birds of two different species",), 1)  # a graph without a fact
    assert empty == ((" ... ",), 1)
    assert long == (("men is 2", "ball is red", "nonsense"), 1)  # each sentence on its own
    assert opened(parser_folder, style="soft-spice").phrases(["two men"])[0].phrases == ("2 men", "men")
    assert parser.phrases([]) == []


def test_sentences_longer_than_the_parser_reads_are_counted(parser_folder: Path) -> None:
    parser = opened(parser_folder)
    fits, over = "dog " * 60, "dog " * 61  # 3 tokens of the prompt and the end token: 64 and 65
    assert [own.truncated for own in parser.phrases([fits, over])] == [0, 1]
    assert parser.phrases(["two men. " + "dog " * 400 + ". " + "men " * 100])[0].truncated == 2


def test_a_sentence_is_parsed_once_by_all_parsers_of_a_model(
    parser_folder: Path, tmp_path: Path, generated: list[int]
) -> None:
    parser = opened(parser_folder, beams=3)
    first = parser.phrases(["two men", "two men\na red ball", "two men"])
    assert sum(generated) == 2
    assert parser.phrases(["a red ball", "two men"])[1] == first[0]
    assert opened(parser_folder, beams=3, style="soft-spice").phrases(["two men"])
    assert sum(generated) == 2
    copy = Path(shutil.copytree(parser_folder, tmp_path / "copy"))
    for apart in (opened(parser_folder, beams=2), opened(copy, beams=3)):
        apart.phrases(["two men"])
    assert sum(generated) == 4
    (copy / "tokenizer_config.json").write_text((copy / "tokenizer_config.json").read_text() + "\n")
    assert opened(copy).fingerprint != opened(parser_folder).fingerprint  # which reads other tokens


@pytest.mark.parametrize("setting", [{"beams": 2}, {"style": "soft-spice"}, {"dtype": "bfloat16"}])
def test_each_setting_is_in_the_fingerprint(setting: dict[str, Any], parser_folder: Path) -> None:
    """By it kept rows of other phrases are refused."""
    usual = opened(parser_folder, later=True)
    assert opened(parser_folder, later=True, batch_size=1).fingerprint == usual.fingerprint
    assert opened(parser_folder, later=True, **setting).fingerprint != usual.fingerprint


# ---- sentences end where a reader would say so, and no word is lost


@pytest.fixture(scope="module")
def silent(parser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A parser that writes nothing, so that every sentence is its own phrase."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("silent") / "parser"
    shutil.copytree(parser_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: torch.zeros_like(x) for name, x in tensors.items()}, folder / "model.safetensors")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 0}))
    return opened(folder)


SENTENCES = [
    ["A dog runs.", "A cat sleeps!"],
    ["a dog runs.", "a cat sleeps."],
    ["A 2.5 m tall statue of Dr. J. Smith."],
    ["St. Peter's, e.g. at noon.", "It rains."],
    ["Shops, stalls, etc.", "The street is full."],
    ["The coat he is in.", "A hat."],
    ["Bus No. 5 stops.", "No. 6 waits."],
    ['"Stop!" says the sign.', 'He said "go."', "Then left."],
    ["Dark clouds... then rain…", "Then sun."],
    ["What is it?!", "(A cat.)", "Yes."],
    ["one - two"],
    ["a man on the U.S. flag at 5 p.m.", "Crowds cheer."],
    ["no full stop"],
    [f"There is object number {i} on the table." for i in range(50)],
]


def test_texts_are_split_into_sentences(silent: Any) -> None:
    found = silent.phrases([" ".join(own) for own in SENTENCES])
    assert [list(own.phrases) for own in found] == SENTENCES
    listed = "Seen:\n1. a red car\n2) two dogs\r\n\n• a tree\n(b) sky"
    assert silent.phrases([listed])[0].phrases == ("Seen:", "a red car", "two dogs", "a tree", "sky")
    assert silent.phrases(["猫がいる。犬もいる。"])[0].phrases == ("猫がいる。", "犬もいる。")


def test_phrases_hold_every_word(silent: Any) -> None:
    rng = np.random.default_rng(0)
    parts = ["a", "Dog", "3.5", "Mr.", "...", ".", "!", '"', ")", "(", "\n", " ", "é", ","]
    texts = [f"xx{i}" + "".join(rng.choice(parts, rng.integers(12))) for i in range(100)]
    texts = [re.sub(r"\n[\s\d.)(-]*", f"\nxx{i}", text) for i, text in enumerate(texts)]  # no marks of lists
    for text, own in zip(texts, silent.phrases(texts), strict=True):
        kept = set(re.findall(r"\w+", " ".join(own.phrases)))
        assert kept == set(re.findall(r"\w+", text)), text
