"""Rows of several systems by several metrics: the numbers of each alone, and every picture encoded once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.inputs.texts import united
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class
from capeval_core.result import Result
from capeval_core.scores.pac import PacS
from capeval_core.several import Task, encode_tasks
from tests.support.counting import counted
from tests.support.seams import LIMITS

Pictures = list[NDArray[np.uint8]]
CAPTIONS = {
    "A": ["a red circle", "a blue wall", "a dog", "two dogs"],
    "B": ["a red circle", "grey", "a cat on a mat", "rain"],
}
IMAGE_OF = {"A": [0, 1, 2, 1], "B": [2, 0, 1, 0]}
"""Which of three pictures each caption is about, in another order for each system."""
REFERENCES = [["a circle", "something red"], ["a wall"], ["an animal", "a dog", "a brown dog"]]


@pytest.fixture
def pictures() -> Pictures:
    return [np.full((32, 40, 3), 90 * i, dtype=np.uint8) for i in range(3)]


def opened(name: str, **options: Any) -> CaptionMetric:
    weights = {"weights": "tiny"} if metric_class(name).tiny else {}
    return capeval_core.load(name, **{"cache": FeatureCache(), "device": "cpu"} | weights | options)


def task_of(metric: CaptionMetric, pictures: Pictures, systems: str = "AB", rows: Path | None = None) -> Task:
    """The task of a metric; samples are checked together, so that equal pictures share a source."""
    places = [place for name in systems for place in IMAGE_OF[name]]
    captions = [text for name in systems for text in CAPTIONS[name]]
    images = [pictures[place] for place in places] if metric.media else None
    whole = metric.check(captions, images, [REFERENCES[place] for place in places])
    samples = [replace(whole[i * 4 : i * 4 + 4], indices=range(4)) for i in range(len(systems))]
    folders = [None if rows is None else rows / metric.name / name for name in systems]
    return Task(metric.prepared(*samples), samples, folders)


def outcome(task: Task) -> list[Result]:
    return [task.metric.combine(rows, samples=own) for rows, own in zip(task.rows, task.systems, strict=True)]


def alone(name: str, pictures: Pictures, system: str) -> Result:
    metric = opened(name)
    images = [pictures[place] for place in IMAGE_OF[system]]
    references = [REFERENCES[place] for place in IMAGE_OF[system]] if metric.needs_references else None
    return metric.score(CAPTIONS[system], images if metric.media else None, references)


@pytest.mark.parametrize("together", [8192, 3, 1])
def test_each_system_gets_the_numbers_that_it_gets_alone(
    together: int, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "texts_together", together)
    names = ["pacs", "refpacs", "hices", "umic", "rougel"]
    tasks = [task_of(opened(name), pictures) for name in names]
    encode_tasks(tasks)
    for name, task in zip(names, tasks, strict=True):
        for system, result in zip("AB", outcome(task), strict=True):
            if name == "rougel":
                expected = capeval_core.load(name).score(
                    CAPTIONS[system], references=[REFERENCES[place] for place in IMAGE_OF[system]]
                )
            else:
                expected = alone(name, pictures, system)
            assert result.scores == pytest.approx(expected.scores, abs=1e-5)
            assert (result.groups, result.signature) == (expected.groups, expected.signature)


def test_a_picture_is_encoded_once_for_all_systems_and_metrics(pictures: Pictures) -> None:
    cache = FeatureCache()
    pacs, refpacs = (opened(name, cache=cache) for name in ("pacs", "refpacs"))
    with counted(pacs.encoder) as through:  # type: ignore[attr-defined]
        tasks = [task_of(pacs, pictures), task_of(refpacs, pictures)]
        encode_tasks(tasks)
    assert through.images == 3
    texts = {text for own in CAPTIONS.values() for text in own} | {text for own in REFERENCES for text in own}
    assert through.texts == len(texts)


def test_without_room_for_features_systems_still_share_their_pictures(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_kept = FeatureCache(max_bytes=0)
    for together, expected in ((8192, 3), (4, 4)):  # of 8 captions, and then 4 about two pictures twice
        monkeypatch.setattr(LIMITS, "texts", together)
        pacs = opened("pacs", cache=nothing_kept)
        with counted(pacs.encoder) as through:  # type: ignore[attr-defined]
            encode_tasks([task_of(pacs, pictures)])
        assert through.images == expected


def test_a_stopped_run_goes_on_and_a_further_system_costs_itself_alone(
    pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "texts_together", 2)
    calls, encode = 0, PacS.encode

    def stopped(self: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return encode(self, batch)

    metrics = [opened("pacs"), opened("refpacs")]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PacS, "encode", stopped)
        encode_tasks([task_of(metric, pictures, "AB", tmp_path) for metric in metrics])
    tasks = [task_of(opened(name), pictures, "AB", tmp_path) for name in ("pacs", "refpacs")]
    encode_tasks(tasks)
    assert 0 < sum(task.reused for task in tasks) < 16
    first, second = outcome(tasks[0])  # which writes what is left
    again = task_of(opened("pacs"), pictures, "BA", tmp_path)
    encode_tasks([again])
    assert again.reused == 8
    assert [result.scores for result in outcome(again)] == [second.scores, first.scores]


def test_a_corpus_is_united_whatever_the_order_and_however_often() -> None:
    first, second = ["a", "a", ["x", "y"]], [["x", "y"], "a", "b"]
    assert united([first]) is first
    assert united([first, first]) == first
    both = sorted(map(str, united([first, second])))
    assert both == sorted(map(str, united([second, first]))) == ["['x', 'y']", "a", "a", "b"]


def test_a_copy_of_a_system_leaves_the_statistics_as_they_are(pictures: Pictures) -> None:
    metric = capeval_core.load("cider")
    one, two, copy = (task_of(metric, pictures, systems).metric.signature() for systems in ("A", "AB", "AA"))
    assert one == copy != two
