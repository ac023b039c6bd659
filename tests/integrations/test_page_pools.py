"""The page of a metric that chooses: captions line by line, the ranked table, and no scale."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape

import pytest

from capeval_core.demo import demo_set
from capeval_core.integrations.page import build, views
from capeval_core.integrations.page.scorer import Scorer
from capeval_core.integrations.page.words import PoolWords

SCENE = demo_set()[0]
POOL = [SCENE.subtly_wrong, SCENE.good, *SCENE.references, SCENE.unrelated, "<b>shapes</b>"]


@pytest.fixture(scope="module")
def shown() -> Iterator[str]:
    scored = Scorer("eco", "tiny").score(str(SCENE.image), POOL, [])
    assert scored.caption in (SCENE.good, *SCENE.references)
    yield views.score(scored, "tiny")


def test_all_candidates_are_told_and_the_choice_is_marked(shown: str) -> None:
    ranked, _, dropped = shown.partition("Captions that filters left out")
    assert "ECO chooses" in ranked and ranked.count(" <small>chosen</small>") == 1
    for caption in (SCENE.good, *SCENE.references):
        assert f". {caption}" in unescape(ranked)
    for caption in (SCENE.subtly_wrong, SCENE.unrelated, "<b>shapes</b>"):
        assert caption in unescape(dropped)
    assert "line 6: 1 words, expected 5 or more" in dropped and "not in the better half" in dropped
    assert "<b>shapes" not in shown  # texts of users are escaped


def test_it_draws_no_scale_and_says_why(shown: str) -> None:
    assert 'class="scale"' not in shown and "z-scores within one set" in shown
    metric = Scorer("eco", "tiny").metric
    assert 'class="scale"' not in views.empty(metric, Scorer("eco", "tiny").score(
        str(SCENE.image), POOL, []).marks)  # fmt: skip


def test_wrong_lines_are_told_by_their_number() -> None:
    scorer = Scorer("eco", "tiny")
    for pool, message in (([], "The list of captions is empty"), (["a star", " "], "Line 2 is empty")):
        with pytest.raises(ValueError) as caught:
            scorer.score(str(SCENE.image), pool, [])
        assert PoolWords().of(caught.value).startswith(message)


def test_the_page_builds_and_an_example_fills_all_lines() -> None:
    page = build("eco", "tiny")
    assert "one per line" in str(page.config)
    filled = PoolWords().example(SCENE, "good")
    assert filled.splitlines() == [*SCENE.references, SCENE.good, SCENE.subtly_wrong, SCENE.unrelated]
