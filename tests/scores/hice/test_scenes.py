"""HICE-S with `tiny` on scenes outside its training set: the trends of the paper's tables 3 and 5."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from tools.captions import KINDS, describe, foil
from tools.scenes import Scene, SceneObject, draw, sample_scene

NUMBERS = ("one", "two", "three", "four")


def opened() -> Any:
    return capeval_core.load("hices", weights="tiny", device="cpu", cache=FeatureCache())


def named(group: tuple[SceneObject, ...]) -> str:
    """E.g. "two small red stars"."""
    thing = group[0]
    ending = "" if len(group) == 1 else "es" if thing.shape == "cross" else "s"
    return f"{NUMBERS[len(group) - 1]} {thing.size} {thing.colour} {thing.shape}{ending}"


def together(phrases: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(phrases[:-1]), phrases[-1]]))


def scored(captions: list[list[str]], images: list[Image.Image]) -> Result:
    """Several captions for each image."""
    shown = [image for image, own in zip(images, captions, strict=True) for _ in own]
    result: Result = opened().score([caption for own in captions for caption in own], shown)
    return result


def table(result: Result, part: str, columns: int) -> np.ndarray[Any, Any]:
    """(images, captions of each)."""
    return np.array(result.parts[part]).reshape(-1, columns)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = np.random.default_rng(55)
    return [sample_scene(rng, 3) for _ in range(60)]


def test_recall_rises_with_each_object_that_is_mentioned(scenes: list[Scene]) -> None:
    captions = [[together([named(g) for g in scene.groups()][:k]) for k in (1, 2, 3)] for scene in scenes]
    result = scored(captions, [draw(scene) for scene in scenes])
    recall, precision = table(result, "recall", 3), table(result, "precision", 3)
    assert (np.diff(recall, axis=1) > 0).mean() >= 0.98
    assert (np.diff(recall.mean(axis=0)) > 0.3).all()
    assert np.ptp(precision.mean(axis=0)) < 0.1  # every caption is true


def test_precision_falls_with_each_wrong_phrase(scenes: list[Scene]) -> None:
    captions = []
    for i, scene in enumerate(scenes):
        there = {(thing.shape, thing.colour) for thing in scene.objects}
        others = [group for k in (1, 2) for group in scenes[(i + k) % len(scenes)].groups()]
        wrong = [named(g) for g in others if (g[0].shape, g[0].colour) not in there][:3]
        own = [named(group) for group in scene.groups()]
        captions.append([together([*own, *wrong[:k]]) for k in range(4)])
    result = scored(captions, [draw(scene) for scene in scenes])
    recall, precision = table(result, "recall", 4), table(result, "precision", 4)
    assert (np.diff(precision, axis=1) < 0).mean() >= 0.98
    assert (np.diff(precision.mean(axis=0)) < -0.1).all()
    assert np.ptp(recall.mean(axis=0)) < 0.05  # every object is mentioned
    scores = np.array(result.scores).reshape(-1, 4)
    assert (np.diff(scores.mean(axis=0)) < 0).all()


@pytest.mark.system
def test_it_finds_one_word_foils_more_often_than_its_global_term_alone() -> None:
    """The paper's table 5: 93.1 against 90.7 on FOIL. Here it is 97.3 against 96.2 in 1,979 pairs."""
    rng = np.random.default_rng(101)
    captions, images = [], []
    for _ in range(500):
        scene = sample_scene(rng)
        own = [describe(scene, rng)]
        for kind in KINDS:
            with contextlib.suppress(ValueError):  # the caption says nothing of this kind
                own.append(foil(scene, own[0], kind, rng))
        captions.append(own)
        images.append(draw(scene))
    result = scored(captions, images)

    def accuracy(values: list[float]) -> float:
        wins, place = [], 0
        for own in captions:
            wins += [values[place] > value for value in values[place + 1 : place + len(own)]]
            place += len(own)
        return float(np.mean(wins))

    alone = accuracy(result.parts["gitc"])
    assert accuracy(result.scores) > alone + 0.004
    assert alone > 0.9
