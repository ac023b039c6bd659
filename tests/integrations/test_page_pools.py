"""The page of a metric that chooses: captions line by line, the ranked table, and no scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import unescape
from typing import TYPE_CHECKING

import pytest

from capeval_core.demo import demo_set
from capeval_core.integrations.page import build, launch, views
from capeval_core.integrations.page.scorer import Scorer
from capeval_core.integrations.page.words import PoolWords

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


def test_numbers_stand_below_their_caption_on_a_phone(visit: Callable[..., Page]) -> None:
    demo = build("eco", "tiny")
    launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        page = visit(demo.local_url, (390, 844))
        assert "or press Shift + Enter" in page.locator("#keys").inner_text()
        page.locator(".example").first.click()
        page.locator("#result table").first.wait_for()
        captions = [row.bounding_box() for row in page.locator("#result .columns tbody th").all()]
        numbers = [row.bounding_box() for row in page.locator("#result .columns tbody td:nth-child(2)").all()]
        assert len(captions) == len(numbers) == 5
        for caption, number in zip(captions, numbers, strict=True):
            assert caption and number
            assert caption["width"] > 250 and caption["height"] < 100
            assert number["y"] >= caption["y"] + caption["height"]
        heading = "found => getComputedStyle(found, '::before').content"
        assert "total" in page.locator("#result .columns td").nth(1).evaluate(heading)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.close()
    finally:
        demo.close(verbose=False)
