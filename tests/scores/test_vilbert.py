"""ViLBERTScore: a second way of computing, idf weights, texts and boxes at the edges, explanations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from tests.support.seeded import made_up_boxes, vilbert

CAPTIONS = ["a red dog", "dog", "a cat sat on a red mat"]
REFERENCES = [["a dog", "red dogs run", "a red dog"], ["a dog"], ["a cat on a mat", "mat"]]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("vilbert") / "weights"
    vilbert().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def without_task(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("vilbert") / "without-task"
    vilbert(None).save_pretrained(folder)
    return str(folder)


def opened(weights: str, **options: Any) -> Any:
    settings = {"weights": weights, "device": "cpu", "cache": FeatureCache(), **options}
    return capeval_core.load("vilbertscore", **settings)


def boxes(*seeds: int) -> list[dict[str, Any]]:
    return [made_up_boxes(7 + seed, seed=seed) for seed in seeds]


def test_texts_without_words_score_nothing_on_request(weights: str) -> None:
    with pytest.raises(ValueError, match=r"captions\[0\] is empty"):
        opened(weights).score([""], boxes(0), [["a dog"]])
    for compat in (None, "released"):
        metric = opened(weights, empty="score", compat=compat)
        found = metric.score(["", "a dog", ""], boxes(0, 1, 2), [["a dog"], ["", "a dog"], [""]])
        assert np.isfinite(found.scores).all() and found.counts.empty == 2
        if compat is None:
            assert found.scores[0] == found.scores[2] == found.parts["reference_f"][1][0] == 0
        else:  # the task token is matched with that of the reference
            assert found.scores[2] == pytest.approx(1, abs=1e-6) and found.scores[0] > 0
    weighted = opened(weights, empty="score", compat="released", idf="corpus")
    assert weighted.score([""], boxes(0), [["a dog", "dog"]]).scores == [0]  # the original has NaN


def test_idf_is_of_references_alone_or_of_statistics(weights: str) -> None:
    images = boxes(0, 1, 2)
    metric = opened(weights, idf="corpus")
    own = metric.score(CAPTIONS, images, REFERENCES)
    table = metric.prepare([text for texts in REFERENCES for text in texts])
    tokenizer = metric.encoder.tokenizer
    documents = [set(ids) for ids in tokenizer.whole([text for texts in REFERENCES for text in texts])]
    for index in {*tokenizer.whole(CAPTIONS)[2], 55}:
        count = sum(index in document for document in documents)
        assert table.of([index]) == [pytest.approx(math.log(7 / (count + 1)))]
    for options in ({"statistics": table}, {"statistics": table, "idf": "corpus"}):
        found = opened(weights, **options).score(CAPTIONS, images, REFERENCES)
        assert found.scores == own.scores
        assert f"|statistics:{table.fingerprint}" in found.signature
    assert f"|statistics:{table.fingerprint}" in own.signature
    with pytest.raises(ValueError, match=r"vilbertscore needs statistics.*prepare\(references\)"):
        metric.encode_all(metric.check(CAPTIONS, images, REFERENCES))
    plain = opened(weights)
    assert len(plain.encode_all(plain.check(CAPTIONS, images, REFERENCES))) == 3  # none are needed


def test_the_released_script_needs_a_task_token(without_task: str) -> None:
    with pytest.raises(ValueError, match=r"compat='released': .* has no task token"):
        opened(without_task, compat="released")
    found = opened(without_task).score(["a dog"], boxes(0), [["a dog", "mat"]])
    assert found.parts["reference_f"][0][0] == pytest.approx(1, abs=1e-6)
