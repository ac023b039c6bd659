"""Counts of forward passes, which tests and users open within each other."""

from __future__ import annotations

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.testing import count_forwards
from tests.inputs.photographs import photograph


def test_a_count_within_another_one_ends_alone() -> None:
    metric = capeval_core.load("clips", weights="tiny", device="cpu", cache=FeatureCache(0))
    with count_forwards() as outer:
        with count_forwards() as inner:
            metric.score(["a dog"], [photograph(seed=1)])
        first = (inner.items, inner.batches)
        assert first == (2, 2) == (outer.items, outer.batches)  # an image and a text
        metric.score(["a cat", "two cats"], [photograph(seed=2), photograph(seed=3)])
    assert (inner.items, inner.batches) == first
    assert (outer.items, outer.batches) == (6, 4)
    metric.score(["a cow"], [photograph(seed=4)])
    assert outer.items == 6
