"""ViLBERTScore of texts without words, and of weights without a task token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from tests.support.seeded import made_up_boxes, vilbert


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


def test_the_released_script_needs_a_task_token(without_task: str) -> None:
    with pytest.raises(ValueError, match=r"compat='released': .* has no task token"):
        opened(without_task, compat="released")
    found = opened(without_task).score(["a dog"], boxes(0), [["a dog", "mat"]])
    assert found.parts["reference_f"][0][0] == pytest.approx(1, abs=1e-6)


def test_captions_of_one_broken_file_of_boxes_are_each_named(weights: str, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, **made_up_boxes(7))
    file.write_bytes(file.read_bytes()[:-30])
    found = opened(weights, on_error="nan").score(["a dog", "a cat"], [str(file)] * 2, [["dog"], ["cat"]])
    assert [*found.errors] == [0, 1]
    assert all(f"[{row}]" in error for row, error in found.errors.items()), found.errors
