"""On the synthetic scenes, with what ships: a right caption is chosen, more often than by a part alone."""

from __future__ import annotations

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from capeval_core.scores.eco.ranking import PAPER, bad_format
from tools.captions import holds
from tools.scenes import Scene, draw, sample_scene
from tools.sets import COUNTS, RIGHT, TERSE, UNRELATED, WORDY, describe_pool

POOLS = 120


@pytest.fixture(scope="module")
def chosen() -> tuple[list[tuple[Scene, list[str], list[str]]], Result]:
    """Scenes with their pools and kinds, and what ECO makes of them."""
    rng = np.random.default_rng(20240613)
    drawn = []
    while len(drawn) < POOLS:
        scene, other = sample_scene(rng), sample_scene(rng)
        pool = describe_pool(scene, other, rng)
        if pool is not None:
            drawn.append((scene, pool.captions, pool.kinds))
    metric = capeval_core.load("eco", weights="tiny", device="cpu", cache=FeatureCache())
    return drawn, metric.score([captions for _, captions, _ in drawn], [draw(scene) for scene, _, _ in drawn])


def share_right(drawn: list[tuple[Scene, list[str], list[str]]], places: list[int]) -> float:
    return float(np.mean([kinds[at] == RIGHT for (_, _, kinds), at in zip(drawn, places, strict=True)]))


def test_pools_are_what_they_say(chosen: tuple[list[tuple[Scene, list[str], list[str]]], Result]) -> None:
    for scene, captions, kinds in chosen[0]:
        assert {kind: kinds.count(kind) for kind in COUNTS} == COUNTS
        captions_of = {
            kind: [c for c, k in zip(captions, kinds, strict=True) if k == kind] for kind in COUNTS
        }
        assert len(set(captions_of[RIGHT])) == 3 and all(
            holds(scene, caption) for caption in captions_of[RIGHT]
        )
        assert not any(holds(scene, caption, margin=0.0) for caption in captions_of["foiled"])
        assert all(bad_format(caption, PAPER) for caption in captions_of[TERSE])
        assert not holds(scene, captions_of[UNRELATED][0])
        assert min(len(c.split()) for c in captions_of[WORDY]) > 10


def test_a_right_caption_is_chosen_more_often_than_by_either_part(
    chosen: tuple[list[tuple[Scene, list[str], list[str]]], Result],
) -> None:
    drawn, result = chosen
    tables = result.parts["candidates"]
    by_ensemble = [int(np.argmax([candidate["ensemble"] for candidate in pool])) for pool in tables]
    by_consensus = [
        int(np.argmax([-1 if candidate["dropped"] else candidate["cider"] for candidate in pool]))
        for pool in tables
    ]
    eco = share_right(drawn, result.parts["choice"])
    assert eco >= 0.85
    assert eco > share_right(drawn, by_ensemble)
    assert eco > share_right(drawn, by_consensus)
