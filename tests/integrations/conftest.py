"""Pages in a real browser, and metrics of the scenes that a test trains a captioner on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from capeval_core.integrations import CaptionMetrics
    from tests.integrations.captioner import Scenes

PATIENCE = 600_000  # milliseconds, for the first score on a busy machine


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a window of some size; at the end nothing may have gone wrong or outside.

    Complaints of the browser, and the page as it was left, are printed: pytest shows them with a failure.
    """
    opened: list[Page] = []
    outside: list[str] = []
    complaints: list[str] = []
    failed: list[str] = []

    def open_page(address: str, size: tuple[int, int], **settings: Any) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **settings)
        page = context.new_page()
        opened.append(page)
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: outside.append(request.url))
        page.on("requestfailed", lambda request: failed.append(f"{request.failure}: {request.url}"))
        page.on(
            "response", lambda found: failed.append(f"{found.status} {found.url}") if not found.ok else None
        )
        page.on("websocket", lambda socket: outside.append(socket.url))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.locator("#score").wait_for()
        return page

    yield open_page
    for page in opened:
        if not page.is_closed():
            print(
                page.url,
                re.sub(r"(data:.{40})[^\"]*", r"\1...", page.locator("#bench").inner_html()),
                sep="\n",
            )
        page.context.close()
    print("complaints:", *complaints, "failed requests:", *failed, sep="\n")
    assert not [url for url in outside if not re.match(r"(http://127\.0\.0\.1:\d+/|data:|blob:)", url)]
    assert not complaints


@pytest.fixture
def make(scenes: Scenes, weights: str) -> Callable[..., CaptionMetrics]:
    """`CaptionMetrics` of the test's scenes, with other keywords where it gives some."""
    from capeval_core.integrations import CaptionMetrics

    def make(**keywords: Any) -> CaptionMetrics:
        arguments = {"images": scenes.images, "references": scenes.references, "weights": weights, **keywords}
        return CaptionMetrics(scenes.tokenizer, **arguments)

    return make
