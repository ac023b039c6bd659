"""`CocoScores`: COCO's evaluation by pycocoevalcap's keys and shapes; what is wrong with its input."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.integrations import CocoScores, coco_java

GTS = {7: ["A dog runs.", "A brown dog's running!"], 9: ["Two cats."], "x": ["a red bus", "the bus is red"]}
RES = {"x": ["a red bus"], 7: ["A dog is running."], 9: ["two dogs"]}
KEYS = ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"]


def test_keys_and_shapes_are_those_of_pycocoevalcap() -> None:
    scores = CocoScores(GTS, RES)
    assert scores.ids == [7, 9, "x"] and list(scores.eval) == list(scores.arrays) == KEYS
    assert scores.evaluate() == scores.eval and all(isinstance(v, float) for v in scores.eval.values())
    assert list(scores.imgToEval) == scores.ids and scores.evalImgs == list(scores.imgToEval.values())
    for i, key in enumerate(scores.ids):
        own = scores.imgToEval[key]
        assert own == {"image_id": key} | {name: scores.arrays[name][i] for name in KEYS}
    for name in ("ROUGE_L", "CIDEr"):
        assert scores.arrays[name].shape == (3,) and scores.eval[name] == np.mean(scores.arrays[name])
    assert scores.arrays["ROUGE_L"][2] == 1.0 and scores.results["CIDEr"].metric == "ciderd"
    references, captions = list(GTS.values()), [RES[key][0] for key in GTS]
    result = capeval_core.load("bleu").score(captions, references=references)
    assert (
        scores.eval["Bleu_2"] == result.numbers["bleu_2"]
        and scores.arrays["Bleu_4"].tolist() == result.scores
    )


def test_some_metrics_alone_in_the_usual_order() -> None:
    scores = CocoScores(GTS, RES, metrics=["CIDEr", "ROUGE_L"])
    assert list(scores.eval) == ["ROUGE_L", "CIDEr"]
    assert scores.eval == {name: CocoScores(GTS, RES).eval[name] for name in scores.eval}


def test_annotations_of_every_form_are_the_same() -> None:
    def annotated(texts: dict[Any, list[str]]) -> dict[Any, list[dict[str, str]]]:
        return {key: [{"image_id": key, "caption": text} for text in row] for key, row in texts.items()}

    def coco(texts: dict[Any, list[str]]) -> SimpleNamespace:
        return SimpleNamespace(imgToAnns=annotated(texts), getImgIds=lambda: list(texts))

    expected = CocoScores(GTS, RES).eval
    assert CocoScores(annotated(GTS), annotated(RES)).eval == expected
    assert CocoScores(coco(GTS), coco(RES)).eval == expected


def test_tokens_are_taken_as_they_are_on_request() -> None:
    tokens = {key: ["a dog runs ." for _ in row] for key, row in GTS.items()}
    captions = {key: ["a dog runs"] for key in GTS}
    assert CocoScores(tokens, captions).eval["Bleu_1"] == pytest.approx(1.0)
    split = CocoScores(tokens, captions, tokenize=False)
    assert split.eval["Bleu_1"] == pytest.approx(np.exp(1 - 4 / 3))


def test_an_empty_caption_scores_zero_as_there() -> None:
    scores = CocoScores(GTS, RES | {9: [""]})
    assert {name: scores.imgToEval[9][name] for name in KEYS} == dict.fromkeys(KEYS, 0.0)


@pytest.mark.parametrize(
    ("gts", "res", "found"),
    [
        (
            GTS,
            {7: ["a"], 9: ["b"], 8: ["c"]},
            ["res[8] is an image that is not in gts", 'gts["x"] is an image'],
        ),
        (GTS, RES | {7: ["a", "b"]}, ["res[7] has 2 captions: pass a list of one"]),
        (GTS, RES | {7: []}, ["res[7] has 0 captions"]),
        (GTS, RES | {7: "a dog"}, ["res[7] is a str", "expected a list of texts"]),
        (GTS | {9: []}, RES, ["gts[9] is empty: every caption needs at least one reference"]),
        (GTS | {"x": ["a", None]}, RES | {9: [5]}, ['gts["x"][1] is None', "res[9][0] is the number 5"]),
        ({}, RES, ["gts is empty: expected {image id: [texts]}"]),
        ([["a"]], RES, ["gts is a list of length 1"]),
    ],
)
def test_wrong_input_is_named_by_image(gts: Any, res: Any, found: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        CocoScores(gts, res)
    assert all(part in str(caught.value) for part in found), caught.value


def test_what_cannot_run_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\[1\] is 'Meteor'.*METEOR, SPICE"):
        CocoScores(GTS, RES, metrics=["BLEU", "Meteor"])
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(coco_java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r'METEOR and SPICE need pycocoevalcap.*pip install "capeval\[ngram\]"'
    ):
        CocoScores(GTS, RES, metrics=["METEOR", "SPICE"])
    monkeypatch.setattr(coco_java.importlib.util, "find_spec", lambda name: package)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="METEOR needs Java, and there is no `java`: apt install"):
        CocoScores(GTS, RES, metrics=["METEOR"])
    java = tmp_path / "java"
    java.write_text("")
    java.chmod(0o755)
    assert shutil.which("java") == str(java)
    with pytest.raises(ValueError, match=r"SPICE needs Stanford CoreNLP.*is not there"):
        CocoScores(GTS, RES, metrics=["SPICE"])
    models = tmp_path / coco_java.SPICE_MODELS
    models.parent.mkdir(parents=True)
    models.write_text("")
    coco_java.check_java(["SPICE", "METEOR"])


def test_scorers_in_java_get_tokens_in_the_order_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside scorers that count words, since the real ones take minutes: `benchmarks/ngram.py --meteor`."""

    class Lengths:
        def compute_score(self, gts: dict[int, list[str]], res: dict[int, list[str]]) -> Any:
            assert next(iter(gts.values())) == ["a dog runs", "a brown dog 's running"]
            lengths = [len(row[0].split()) for row in res.values()]
            details = [{"All": {"f": value}} for value in lengths]
            return 0.5, details if self.name == "spice" else lengths

        name = "meteor"

    class Details(Lengths):
        name = "spice"

    for package, class_, scorer in (("meteor", "Meteor", Lengths), ("spice", "Spice", Details)):
        module = ModuleType(f"pycocoevalcap.{package}.{package}")
        setattr(module, class_, scorer)
        monkeypatch.setitem(__import__("sys").modules, "pycocoevalcap", ModuleType("pycocoevalcap"))
        monkeypatch.setitem(__import__("sys").modules, f"pycocoevalcap.{package}", ModuleType(package))
        monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    monkeypatch.setattr("capeval_core.integrations.coco_java.check_java", lambda names: None)
    scores = CocoScores(GTS, RES, metrics=["SPICE", "METEOR", "BLEU"])
    assert list(scores.eval) == [*KEYS[:4], "METEOR", "SPICE"]
    assert scores.eval["METEOR"] == 0.5 and scores.arrays["METEOR"].tolist() == [4, 2, 3]
    assert scores.arrays["SPICE"].tolist() == [4, 2, 3] and scores.imgToEval["x"]["SPICE"] == 3
