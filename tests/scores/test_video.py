"""PAC-S for videos: a second way of computing, idf as a statistic of all rows, videos that fail."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from tests.inputs import video_writing

CLOSE = 1e-6
CAPTIONS = [
    "a red dog!",
    "a cat sits",
    "",
    "a dog runs after a dog",
    "two cats and a bird in the snow",
    "a red dog!",
]
REFERENCES = [
    ["a dog", "the red dog runs"],
    ["a cat sits"],
    ["", "snow", "a bird"],
    ["dogs run", "a dog and a cat", "a red dog"],
    ["birds in snow", "a cat"],
    ["a dog", "the red dog runs"],
]
VIDEO_OF = [0, 1, 2, 3, 4, 0]
FRAMES = [1, 4, 2, 7, 3]
SEED = 5
"""Of frames; with it some means are negative, with and without idf."""


@pytest.fixture(scope="module")
def videos() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(SEED)
    return [rng.integers(0, 256, (frames, 24, 32, 3), dtype=np.uint8) for frames in FRAMES]


def opened(name: str, weights: Path, **options: Any) -> Any:
    settings = {"weights": weights, "device": "cpu", "cache": FeatureCache(), "empty": "score", **options}
    return capeval_core.load(name, media="video", **settings)


def score(metric: Any, videos: Sequence[Any], only: Sequence[int] | None = None, **more: Any) -> Result:
    chosen = range(len(CAPTIONS)) if only is None else only
    references = [REFERENCES[i] for i in chosen] if metric.needs_references else None
    own = [videos[VIDEO_OF[i]] for i in chosen]
    return metric.score([CAPTIONS[i] for i in chosen], videos=own, references=references, **more)


def test_other_frames_of_a_video_find_no_features_of_the_first(
    weights: Path, videos: list[NDArray[np.uint8]]
) -> None:
    cache = FeatureCache()
    score(opened("pacs", weights, cache=cache, max_frames=1), videos)
    again = score(opened("pacs", weights, cache=cache), videos)
    expected = score(opened("pacs", weights), videos).parts["recall"]
    assert again.parts["recall"] == pytest.approx(expected, abs=CLOSE)


NAMES = pytest.mark.parametrize("name", ["pacs", "refpacs"])


# A second way of computing: float64, one pair after another.


# What a score does not depend on.


# Inverse document frequencies.


def test_texts_without_a_weight_are_counted_captions_and_references_alike(
    weights: Path, videos: list[NDArray[np.uint8]]
) -> None:
    """Of references that all have the same words, these weigh nothing, and any other word does."""
    captions = ["a dog", "a cat", "dog", "a dog"]
    references = [["a dog"], ["a dog", "dog a"], ["a dog"], ["a dog", "a dog", "a dog"]]
    metric = opened("refpacs", weights)
    with pytest.warns(UserWarning, match="no idf for 10 texts"):
        found = metric.score(captions, videos=videos[:4], references=references)
    assert list(found.parts["unweighted_texts"]) == [2, 2, 2, 4]
    alone = opened("pacs", weights)
    with pytest.warns(UserWarning, match="no idf for 1 text,"):
        assert list(alone.score(["a dog"], videos=videos[:1]).parts["unweighted_texts"]) == [1]
    assert list(alone.score(captions[:2], videos=videos[:2]).parts["unweighted_texts"]) == [0, 0]


# Bad input.


@NAMES
def test_of_a_damaged_video_the_beginning_is_compared_and_it_is_said(name: str, seeded_weights: Path) -> None:
    pytest.importorskip("av")
    whole = video_writing.video("mkv")
    cut = whole[: len(whole) * 2 // 3]
    metric = opened(name, seeded_weights, evidence=True)
    captions, references = ["a dog", "a cat", "snow"], [["a cat"], ["a dog"], ["a bird"]]
    given: dict[str, Any] = {"references": references} if metric.needs_references else {}
    with pytest.warns(
        UserWarning, match=r"1 caption is .* damaged video; videos\[1\]: frames end after"
    ) as caught:
        found = metric.score(captions, videos=[whole, cut, whole], **given)
    assert caught[0].filename == __file__ and found.errors == {}
    frames = len(found.explain(1)["frame_cosines"])
    assert f"frames end after {frames:,}: " in found.explain(1)["incomplete"]
    assert len(found.explain(0)["frame_cosines"]) == 12 > frames and found.explain(0)["incomplete"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beginning = metric.score(captions, videos=[whole, video_writing.drawn()[:frames], whole], **given)
    assert found.scores == pytest.approx(beginning.scores, abs=CLOSE)
    with pytest.raises(ValueError, match="fps needs"):  # before a model runs
        opened(name, seeded_weights, fps=2).check(captions, [video_writing.drawn()] * 3, references)


# Explanations.
