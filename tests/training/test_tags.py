"""Taggers: small ones that are trained or made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.seams import tagger as open_tagger
from tools.captions import KINDS, describe, foils
from tools.scenes import COLOURS, SHAPES, sample_scene

CAPTION = "A man's cat can't see \"two dogs\", don't worry."
TOKENS = ["A", "man", "'s", "cat", "can't", "see", '"', "two", "dogs", '"', ",", "don't", "worry", "."]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("spacy:absent_pipeline", "python -m spacy download absent_pipeline"),
        ("nltk", "python -m nltk.downloader averaged_perceptron_tagger_eng"),
    ],
)
def test_data_that_a_tagger_lacks_are_named_with_their_download(
    name: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip(name.partition(":")[0])
    if name == "nltk":
        monkeypatch.setattr(package.data, "path", [])
    with pytest.raises(ValueError, match="tagger") as refusal:
        open_tagger(name)
    assert repr(name) in str(refusal.value) and fix in str(refusal.value)


@pytest.mark.parametrize("name", ["space", "spacy:", "nltk:x", "scenes:x", "", "Scenes"])
def test_an_unknown_tagger_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        open_tagger(name)


def test_every_caption_of_a_scene_is_tagged() -> None:
    """Also its foils, for every kind of change; the tokens spell the caption."""
    rng = np.random.default_rng(11)
    tagger = open_tagger("scenes")
    scenes = [sample_scene(rng) for _ in range(150)]
    captions = [describe(scene, rng) for scene in scenes]
    for scene, caption in zip(scenes[:40], captions[:40], strict=True):
        captions += [foil for kind in KINDS for foil in foils(scene, caption, kind)]
    tagged = tagger.tags(captions)
    assert [" ".join(token for token, _ in tokens).replace(" ,", ",") for tokens in tagged] == captions
    words: dict[str, set[str]] = {}
    for tokens in tagged:
        for token, tag in tokens:
            words.setdefault(tag, set()).add(token)
    assert {*COLOURS, "small", "little", "large", "big", "plain", "left"} <= words["JJ"]
    assert {*SHAPES, "left", "right", "top", "bottom", "picture", "background"} <= words["NN"]
    assert {tag for tag in words if tag[:1] in "JNV"} == {"JJ", "NN", "NNS", "VBZ", "VBP"}
    assert not words["JJ"] & {*SHAPES} and len(words["NNS"]) == len(SHAPES)


def test_side_is_tagged_as_noun_or_adjective_by_its_context() -> None:
    caption = "Two red stars in the top left corner, a blue heart on the left and a cross to the right of it"
    with pytest.raises(ValueError):
        open_tagger("scenes").tags([caption])
    (tagged,) = open_tagger("scenes").tags([caption.removesuffix(" of it")])
    assert tagged[:3] == [("Two", "CD"), ("red", "JJ"), ("stars", "NNS")]
    assert [tag for token, tag in tagged if token in ("top", "left", "right")] == ["JJ", "JJ", "NN", "NN"]
    (side,) = open_tagger("scenes").tags(["on the left side"])
    assert side == [("on", "IN"), ("the", "DT"), ("left", "JJ"), ("side", "NN")]


class TestNltk:
    """An averaged perceptron that is trained here on a few sentences."""

    SENTENCES = (
        "A/DT man/NN 's/POS cat/NN ca/MD n't/RB see/VB \"/'' two/CD dogs/NNS \"/'' ,/, "
        "do/VBP n't/RB worry/VB ./.",
        "two/CD red/JJ dogs/NNS see/VBP a/DT cat/NN ./.",
        "the/DT man/NN sees/VBZ the/DT small/JJ dog/NN ./.",
    )

    @pytest.fixture
    def data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of NLTK's data, the only one where it looks."""
        nltk = pytest.importorskip("nltk")
        monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
        return tmp_path

    @pytest.fixture
    def trained(self, data: Path) -> Path:
        from nltk.tag.perceptron import PerceptronTagger

        tagger = PerceptronTagger(load=False)
        tagger.train([[tuple(word.rsplit("/", 1)) for word in text.split()] for text in self.SENTENCES * 3])
        folder = data / "taggers" / "averaged_perceptron_tagger_eng"
        folder.mkdir(parents=True)
        for name, content in (
            ("weights", tagger.model.weights),
            ("tagdict", tagger.tagdict),
            ("classes", sorted(tagger.classes)),
        ):
            path = folder / f"averaged_perceptron_tagger_eng.{name}.json"
            path.write_text(json.dumps(content), encoding="utf-8")
        return folder

    def test_tags_come_with_tokens_that_spell_the_caption(self, trained: Path) -> None:
        tagger = open_tagger("nltk")
        tagged = tagger.tags([CAPTION, "", "the red  dogs\tworry"])
        assert [token for token, _ in tagged[0]] == TOKENS
        assert " ".join(tag for _, tag in tagged[0]) == "DT NN POS NN MD VB '' CD NNS '' , VBP VB ."
        assert tagged[1] == []
        assert [token for token, _ in tagged[2]] == ["the", "red", "dogs", "worry"]

    @pytest.mark.parametrize(
        "text", ["``quoted'' text", "''", 'he``s" x', "cannot gonna lemme", "a\u00a0b \u200b", "-- ..."]
    )
    def test_tagging_keeps_all_characters(self, trained: Path, text: str) -> None:
        (tagged,) = open_tagger("nltk").tags([text])
        assert "".join(token for token, _ in tagged) == "".join(text.split())


class TestSpacy:
    """A blank pipeline whose rules know a few words."""

    @staticmethod
    def pipeline(folder: Path, **tags: str) -> str:
        spacy = pytest.importorskip("spacy")
        pipeline = spacy.blank("en")
        ruler = pipeline.add_pipe("attribute_ruler")
        ruler.add([[{"TEXT": {"REGEX": ".*"}}]], {"TAG": "XX"})
        for word, tag in tags.items():
            ruler.add([[{"LOWER": word}]], {"TAG": tag})
        pipeline.to_disk(folder)
        return f"spacy:{folder}"

    def test_tags_come_with_tokens_that_spell_the_caption(self, tmp_path: Path) -> None:
        tagger = open_tagger(self.pipeline(tmp_path / "pipe", man="NN", ca="MD", dogs="NNS", do="VBP"))
        tagged = tagger.tags([CAPTION, "", " the man\n  ran 10km"])
        assert [token for token, _ in tagged[0]] == TOKENS
        assert {token: tag for token, tag in tagged[0] if tag != "XX"} == {
            "man": "NN", "can't": "MD", "dogs": "NNS", "don't": "VBP"
        }  # fmt: skip
        assert tagged[1] == []
        assert [token for token, _ in tagged[2]] == ["the", "man", "ran", "10km"]
