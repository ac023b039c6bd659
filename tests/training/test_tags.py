"""Taggers: small ones that are trained or made here, and the messages where data or packages are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capeval_core.training.tags import Tagger, open_tagger, tag_word_counts
from tools.captions import KINDS, describe, foils
from tools.scenes import COLOURS, SHAPES, sample_scene

CAPTION = "A man's cat can't see \"two dogs\", don't worry."
TOKENS = ["A", "man", "'s", "cat", "can't", "see", '"', "two", "dogs", '"', ",", "don't", "worry", "."]


def test_counts_hold_words_by_content_tag() -> None:
    tagged = [
        [("A", "DT"), ("red", "JJ"), ("Dog", "NN"), (",", "NN"), ("7", "NNP")],
        [("the", "DT"), ("Dog", "NN"), ("runs", "VBZ"), ("fast", "RB"), ("dog", "NN"), ("red", "NN")],
    ]
    assert tag_word_counts(tagged) == {
        "JJ": {"red": 1},
        "NN": {"Dog": 2, "dog": 1, "red": 1},
        "VBZ": {"runs": 1},
    }
    assert tag_word_counts([]) == {}


@pytest.mark.parametrize("name", ["space", "spacy:", "nltk:x", "scenes:x", "", "Scenes"])
def test_an_unknown_tagger_is_refused(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        open_tagger(name)
    expected = "expected 'spacy', 'nltk', 'scenes', or 'spacy:' with the name or folder of a pipeline"
    assert str(caught.value).startswith(f"tagger={name!r}: {expected}")
    assert name != "space" or str(caught.value).endswith(": did you mean 'spacy'?")


def test_a_tagger_is_a_name() -> None:
    with pytest.raises(TypeError, match="tagger=3: expected 'spacy'"):
        open_tagger(3)  # type: ignore[arg-type]


def test_every_caption_of_a_scene_has_its_tags() -> None:
    """Also its foils, for every kind of change; the tokens spell the caption."""
    rng = np.random.default_rng(11)
    tagger = open_tagger("scenes")
    assert isinstance(tagger, Tagger)
    scenes = [sample_scene(rng) for _ in range(150)]
    captions = [describe(scene, rng) for scene in scenes]
    for scene, caption in zip(scenes[:40], captions[:40], strict=True):
        captions += [foil for kind in KINDS for foil in foils(scene, caption, kind)]
    tagged = tagger.tags(captions)
    assert [" ".join(token for token, _ in tokens).replace(" ,", ",") for tokens in tagged] == captions
    counts = tag_word_counts(tagged)
    assert {*COLOURS, "small", "little", "large", "big", "plain", "left"} <= counts["JJ"].keys()
    assert {*SHAPES, "left", "right", "top", "bottom", "picture", "background"} <= counts["NN"].keys()
    assert {*counts} == {"JJ", "NN", "NNS", "VBZ", "VBP"}
    assert not counts["JJ"].keys() & {*SHAPES} and len(counts["NNS"]) == len(SHAPES)


def test_a_side_is_a_noun_or_an_adjective() -> None:
    caption = "Two red stars in the top left corner, a blue heart on the left and a cross to the right of it"
    with pytest.raises(ValueError, match="the word 'it', which the tagger of drawn scenes does not know"):
        open_tagger("scenes").tags([caption])
    (tagged,) = open_tagger("scenes").tags([caption.removesuffix(" of it")])
    assert tagged[:3] == [("Two", "CD"), ("red", "JJ"), ("stars", "NNS")]
    assert [tag for token, tag in tagged if token in ("top", "left", "right")] == ["JJ", "JJ", "NN", "NN"]
    (side,) = open_tagger("scenes").tags(["on the left side"])
    assert side == [("on", "IN"), ("the", "DT"), ("left", "JJ"), ("side", "NN")]


def test_words_that_no_scene_has_are_named() -> None:
    with pytest.raises(ValueError) as caught:
        open_tagger("scenes").tags(["a red star", "a red dog", "a red dog", "a Zebra runs"])
    unknown = "which the tagger of drawn scenes does not know: tag other captions by 'spacy' or 'nltk'"
    assert str(caught.value).splitlines()[1:] == [
        f"  captions[1] and captions[2] have the word 'dog', {unknown}",
        f"  captions[3] has the word 'Zebra', {unknown}",
    ]


@pytest.mark.parametrize("name", ["spacy", "nltk"])
def test_a_missing_package_is_named_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ValueError) as caught:
        open_tagger(name)
    assert str(caught.value) == f'tagger={name!r} needs the package {name}: pip install "capeval[train]"'


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
        assert isinstance(tagger, Tagger)
        tagged = tagger.tags([CAPTION, "", "the red  dogs\tworry"])
        assert [token for token, _ in tagged[0]] == TOKENS
        assert " ".join(tag for _, tag in tagged[0]) == "DT NN POS NN MD VB '' CD NNS '' , VBP VB ."
        assert tagged[1] == []
        assert [token for token, _ in tagged[2]] == ["the", "red", "dogs", "worry"]

    def test_the_fingerprint_is_that_of_the_data(self, trained: Path) -> None:
        first, second = open_tagger("nltk"), open_tagger("nltk")
        assert first.fingerprint == second.fingerprint != ""
        path = trained / "averaged_perceptron_tagger_eng.weights.json"
        weights: dict[str, Any] = json.loads(path.read_text())
        feature = next(feature for feature, row in weights.items() if row)
        weights[feature] = {tag: weight + 1 for tag, weight in weights[feature].items()}
        path.write_text(json.dumps(weights))
        assert open_tagger("nltk").fingerprint != first.fingerprint

    def test_missing_data_are_named_with_their_command(self, data: Path) -> None:
        with pytest.raises(ValueError) as caught:
            open_tagger("nltk")
        assert str(caught.value) == (
            "tagger='nltk' needs the data averaged_perceptron_tagger_eng, which is not installed: "
            "python -m nltk.downloader averaged_perceptron_tagger_eng"
        )

    @pytest.mark.parametrize(
        "text", ["``quoted'' text", "''", 'he``s" x', "cannot gonna lemme", "a\u00a0b \u200b", "-- ..."]
    )
    def test_odd_texts_keep_all_their_characters(self, trained: Path, text: str) -> None:
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
        assert isinstance(tagger, Tagger)
        tagged = tagger.tags([CAPTION, "", " the man\n  ran 10km"])
        assert [token for token, _ in tagged[0]] == TOKENS
        assert {token: tag for token, tag in tagged[0] if tag != "XX"} == {
            "man": "NN", "can't": "MD", "dogs": "NNS", "don't": "VBP"
        }  # fmt: skip
        assert tagged[1] == []
        assert [token for token, _ in tagged[2]] == ["the", "man", "ran", "10km"]

    def test_the_fingerprint_is_that_of_the_pipeline(self, tmp_path: Path) -> None:
        first = self.pipeline(tmp_path / "one", man="NN")
        other = self.pipeline(tmp_path / "other", man="NNS")
        assert open_tagger(first).fingerprint == open_tagger(first).fingerprint
        assert open_tagger(first).fingerprint != open_tagger(other).fingerprint

    def test_a_missing_pipeline_is_named_with_its_command(self) -> None:
        pytest.importorskip("spacy")
        for name, model in (("spacy:en_core_web_xyz", "en_core_web_xyz"), ("spacy", "en_core_web_sm")):
            if name == "spacy" and _installed(model):
                continue
            with pytest.raises(ValueError) as caught:
                open_tagger(name)
            assert str(caught.value) == (
                f"tagger={name!r} needs the pipeline {model}, which is not installed: python -m spacy "
                f"download {model}, or name another one in 'spacy:MODEL'"
            )

    def test_a_folder_that_is_no_pipeline_is_refused(self, tmp_path: Path) -> None:
        pytest.importorskip("spacy")
        for folder in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(ValueError) as caught:
                open_tagger(f"spacy:{folder}")
            message = str(caught.value)
            assert message.startswith(f"tagger='spacy:{folder}' needs a pipeline at {folder}: ")
            assert message.endswith(": pass the folder of a saved pipeline")

    def test_a_pipeline_without_tags_is_refused(self, tmp_path: Path) -> None:
        spacy = pytest.importorskip("spacy")
        spacy.blank("en").to_disk(tmp_path / "blank")
        with pytest.raises(ValueError, match=r"gives no tags: it has no tagger: take en_core_web_sm"):
            open_tagger(f"spacy:{tmp_path / 'blank'}")


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
