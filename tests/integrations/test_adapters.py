"""`CocoScores`, the tasks for lmms-eval, and `caption_score` of Inspect against its recorded interface."""

from __future__ import annotations

import asyncio
import base64
import importlib
import math
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import capeval_core
from capeval_core.errors import ProblemsError
from capeval_core.integrations import CocoScores
from capeval_core.integrations.lmms_eval import TASKS, TEXT_NUMBERS
from capeval_core.metric import Reranker
from capeval_core.registry import METRICS, metric_class
from tests.integrations.recorded_inspect import Score, Target, modules, state
from tests.support.seams import LIMITS

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


def test_an_image_of_one_side_alone_is_named_on_that_side() -> None:
    gts, res = {7: ["a dog"], 9: ["a cat"]}, {7: ["a dog"], 9: ["a cat"]}
    with pytest.raises(ValueError, match=r"res\[11\] is an image that is not in gts"):
        CocoScores(gts, {**res, 11: ["a cow"]})
    with pytest.raises(ValueError, match=r"gts\[11\] is an image that is not in res"):
        CocoScores({**gts, 11: ["a cow"]}, res)


def test_messages_name_the_image_and_the_text_within_it() -> None:
    with pytest.raises(ProblemsError) as refused:
        CocoScores(GTS, {**RES, 9: ["two dogs", "a cat"], "x": []})
    problems = {problem.where: problem.text for problem in refused.value.problems}
    assert problems == {"res[9]": "has 2 captions", 'res["x"]': "has 0 captions"}
    for gts, where in (
        ({**GTS, "x": ["a bus", None]}, 'gts["x"][1]'),
        ({**GTS, 9: [3]}, "gts[9][0]"),
        ({}, "gts"),
        ([["a dog"]], "gts"),
    ):
        with pytest.raises(ProblemsError) as refused:
            CocoScores(gts, RES)
        assert [problem.where for problem in refused.value.problems] == [where]
    with pytest.raises(TypeError, match=r"gts\[7\]"):
        CocoScores({7: "a dog"}, {7: ["a dog"]})
    with pytest.raises(ProblemsError) as refused:
        CocoScores(GTS, {})
    assert [problem.where for problem in refused.value.problems] == ["res"]
    with pytest.raises(ProblemsError) as refused:
        CocoScores(GTS, {**RES, 7: [3]})
    assert [problem.where for problem in refused.value.problems] == ["res[7][0]"]
    with pytest.raises(ProblemsError) as refused:
        CocoScores(GTS, RES, metrics=["BLEU", "ROGUE_L", "CIDEr"])
    (problem,) = refused.value.problems
    assert (problem.where, problem.text) == ("metrics[1]", "is 'ROGUE_L'") and "ROUGE_L" in problem.fix


def test_annotations_of_every_form_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def annotated(texts: dict[Any, list[str]]) -> dict[Any, list[dict[str, str]]]:
        return {key: [{"image_id": key, "caption": text} for text in row] for key, row in texts.items()}

    def coco(texts: dict[Any, list[str]]) -> SimpleNamespace:
        return SimpleNamespace(imgToAnns=annotated(texts), getImgIds=lambda: list(texts))

    expected = CocoScores(GTS, RES).eval
    monkeypatch.setattr(LIMITS, "texts", 4)  # an image or two at a time
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


REFERENCES = [["a circle", "a red disc"], ["blue squares"], ["a star"], ["one", "two", "three"]]


NAMES = [
    name for name in METRICS if metric_class(name).media and not issubclass(metric_class(name), Reranker)
]


COLUMNS = {
    "capeval_coco2014_val": "answer",
    "capeval_coco2017_val": "answer",
    "capeval_nocaps_val": "annotations_captions",
    "capeval_flickr30k_test": "caption",
}


"""Each task, and the column of its data set that holds the references."""


class Loader(yaml.SafeLoader):
    """YAML with `!function module.name`, as lmms-eval reads it."""


def function(loader: Any, node: Any) -> Any:
    module, _, name = loader.construct_scalar(node).rpartition(".")
    return getattr(import_module(module), name)


Loader.add_constructor("!function", function)


def task_of(path: Path) -> dict[str, Any]:
    """A task with what its file includes, as lmms-eval merges them."""
    own = yaml.load(path.read_text(), Loader)
    included = yaml.load((path.parent / own.pop("include")).read_text(), Loader)
    return {**included, **own}


def test_every_number_has_its_aggregation() -> None:
    assert {path.stem for path in TASKS.glob("*.yaml")} == COLUMNS.keys()
    for path in TASKS.glob("*.yaml"):
        task = task_of(path)
        keys = [metric_class(name).key for name in NAMES]
        assert [one["metric"] for one in task["metric_list"]] == [*TEXT_NUMBERS, *keys]
        assert task["doc_to_target"] == COLUMNS[path.stem]


@pytest.mark.system
def test_the_folder_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capeval_core.integrations.lmms_eval"], capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == TASKS, done.stderr


MODULE = "capeval_core.integrations.inspect_ai"


CAPTIONS = ["a red circle", "two blue squares", "", "hearts"]


@pytest.fixture
def caption_score(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE).caption_score
    sys.modules.pop(MODULE)


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, in a thread of its own: a browser of another test keeps this one's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def scores(score: Any, images: list[str]) -> list[Score]:
    """All samples at once, as Inspect scores them."""

    async def gathered() -> list[Score]:
        outputs = [f"<think>Is it a star?</think> {caption}" for caption in CAPTIONS]
        states = [state(output, "other.png", image) for output, image in zip(outputs, images, strict=True)]
        return await asyncio.gather(
            *(score(one, Target(texts)) for one, texts in zip(states, REFERENCES, strict=True))
        )

    return finished(gathered())


def test_a_data_url_is_the_image_in_it(caption_score: Any, images: list[Path]) -> None:
    urls = [f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in images[:4]]
    score = caption_score("pacs", weights="tiny")
    assert scores(score, urls) == scores(score, [str(path) for path in images[:4]])


def test_a_sample_has_the_score_of_the_library_and_what_it_is_of(
    caption_score: Any, images: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cut.png").write_bytes(images[1].read_bytes()[:60])
    paths = [str(images[0]), str(tmp_path / "cut.png"), str(images[2]), str(images[3])]
    score = caption_score({"name": "refpacs", "w": 1.0}, weights="tiny", on_error="nan")
    assert score.registered == ("refpacs", ["mean", "stderr"])
    expected = capeval_core.load("refpacs", weights="tiny", w=1.0, on_error="nan", empty="score").score(
        CAPTIONS, paths, REFERENCES
    )
    for i, found in enumerate(scores(score, paths)):
        assert found.answer == CAPTIONS[i] and found.metadata is not None
        # Of one sample: how many references an image has is of its own.
        signature, _, _ = found.metadata.pop("signature").partition("|refs:")
        assert signature == expected.signature.partition("|refs:")[0]
        if i == 1:
            assert math.isnan(found.value) and "cut.png" in str(found.explanation)
            continue
        assert found.value == pytest.approx(expected.scores[i], abs=1e-6) and found.explanation is None
        assert found.metadata.keys() == expected.parts.keys()
        assert found.metadata["cosine"] == pytest.approx(expected.parts["cosine"][i], abs=1e-6)
    for metric, options in (("bleu", {}), ("pacs", {"media": "video", "weights": "tiny"})):
        with pytest.raises(ValueError, match=metric):
            caption_score(metric, **options)


def test_a_missing_package_is_an_error_that_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'inspect_ai is not installed: pip install "capeval\[insp'):
        importlib.import_module(MODULE)
