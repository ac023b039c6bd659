"""The report in a real browser: nothing is fetched, nothing runs, and it fits a phone, the dark and paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from capeval_core.reports.html import write_report
from capeval_core.reports.systems import Systems
from tests.integrations.conftest import PATIENCE
from tests.reports.pages import X, Y, cell, system, two_systems
from tests.reports.test_html import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Any:
    """Open a report; the requests and complaints of the browser come with it."""
    contexts = []

    def open_report(systems: Systems, width: int = 1200, **settings: Any) -> tuple[Page, list[str]]:
        path = write_report(tmp_path / "report", systems)
        context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page, events = context.new_page(), []
        page.on("request", lambda request: events.append(request.url))
        page.on("console", lambda line: events.append(f"console: {line.text}"))
        page.on("dialog", lambda dialog: events.append("dialog"))
        page.goto(path.as_uri())
        return page, [url for url in events if not url.startswith(("file:", "data:image/jpeg"))]

    yield open_report
    for context in contexts:
        context.close()


def many() -> Systems:
    """Long names and words without a space, several metrics, pictures."""
    texts = [*HOSTILE[:-1], "w" * 300, "مثلث أخضر فوق مربع أزرق", "左边有一个红色的圆圈" * 10]
    scores = [i / len(texts) for i in range(len(texts))]
    columns = [replace(X, name=f"m{i}", title=f"Metric-S number {i}") for i in range(8)]
    images = [Image.new("RGB", (60, 40), "red")] * len(texts)
    cells = {column.name: cell(scores, interval=(0.1, 0.9)) for column in columns}
    systems = [
        system(name, texts, cells, ids=texts, images=images)
        for name in ("s" * 80, "a long name of words " * 5)
    ]
    return Systems(systems, columns, systems[0].name)


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_fetched_or_run_and_nothing_is_wider_than_the_window(opened: Any, width: int) -> None:
    page, events = opened(many(), width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert events == []
    wide = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, .symbols')"
    wide += " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className || e.tagName)"
    assert page.evaluate(wide) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    inner = page.evaluate("[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)")
    assert page.evaluate("getComputedStyle(document.querySelector('.systems tbody th')).position") == (
        "static" if width == 390 else "sticky"
    )
    assert inner == [0] or width > 390  # a phone shows every number without scrolling in the table, either


def test_the_policy_stops_what_escaping_would_miss(opened: Any, tmp_path: Path, browser: Browser) -> None:
    path = write_report(tmp_path / "report", two_systems())
    tags = '<script>document.title = "run"</script><img src="http://127.0.0.1:9/x">'
    path.write_text(path.read_text(encoding="utf-8").replace("</main>", f"{tags}</main>"), encoding="utf-8")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    failures: list[str | None] = []
    page.on("requestfailed", lambda request: failures.append(request.failure))
    page.goto(path.as_uri())
    assert page.title() == "2 systems by 2 metrics"
    assert failures == ["csp"]  # no connection was tried
    page.close()


def test_where_a_score_comes_from_opens_below_its_row(opened: Any) -> None:
    page, _ = opened(two_systems())
    places = "[...document.querySelectorAll('.cards:has(.why-press)')][0].querySelectorAll('.card')"
    places = f"[...{places}].map(e => [e.offsetLeft, e.offsetTop, e.offsetWidth, e.offsetHeight])"
    before = page.evaluate(places)
    assert len(before) == 2 and before[0][1] == before[1][1]
    page.locator(".why-press").first.click()
    assert page.evaluate(places) == before
    panel, cards = page.locator(".why:visible"), page.locator(".cards").first
    assert panel.count() == 1 and "Parts" in panel.inner_text()
    below, row = panel.bounding_box(), cards.bounding_box()
    assert below["width"] == row["width"]
    assert below["y"] > page.locator(".card").nth(1).bounding_box()["y"] + before[1][3]
    page.locator(".why-press input").first.press(" ")  # by the keyboard, too
    assert panel.count() == 0


def test_a_link_to_a_folded_metric_unfolds_it(opened: Any) -> None:
    page, _ = opened(two_systems())
    heading = page.locator(".metric", has_text="Y-S").get_by_text("Worst and best captions")
    assert not heading.is_visible()
    page.locator("nav a", has_text="Y-S").click()
    assert heading.is_visible() and page.locator("h2", has_text="Y-S").is_visible()


def test_distributions_of_systems_do_not_touch(opened: Any) -> None:
    page, _ = opened(two_systems())
    lanes = page.locator(".metric[open] .counts .lane")
    first, second = (lanes.nth(place).bounding_box() for place in range(2))
    assert second["y"] - first["y"] - first["height"] >= 8


def test_on_a_phone_each_number_stands_with_the_name_of_its_metric(opened: Any) -> None:
    page, _ = opened(two_systems(), 390)
    names = "[...document.querySelectorAll('.systems td')].map(e => getComputedStyle(e, '::before').content)"
    assert page.evaluate(names) == ['"X-S"', '"Y-S"'] * 2
    assert page.evaluate("document.querySelector('.systems td .test.better').offsetHeight") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(opened: Any, scheme: str) -> None:
    """4.5 : 1 at least, of every text on what is behind it."""
    page, _ = opened(two_systems(), color_scheme=scheme)
    colours = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(
            n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility()).map(e => {
                let ground = e;
                const clear = 'rgba(0, 0, 0, 0)';
                while (getComputedStyle(ground).backgroundColor === clear && ground.parentElement)
                    ground = ground.parentElement;
                const [own, behind] = [getComputedStyle(e), getComputedStyle(ground)];
                return [e.className || e.tagName, own.color, behind.backgroundColor];
            })"""
    )
    assert len(colours) > 30
    for name, text, ground in colours:
        assert contrast(text, ground) >= 4.5, (name, text, ground)
    assert (luminance(colours[0][2]) < 0.1) is (scheme == "dark")


def contrast(text: str, ground: str) -> float:
    """The ratio of WCAG 2."""
    low, high = sorted([luminance(text), luminance(ground)])
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_on_paper_every_system_is_unfolded(opened: Any) -> None:
    page, _ = opened(two_systems())
    folded = page.locator("details.system:not([open]) .card").first
    assert not folded.is_visible()
    page.emulate_media(media="print")
    assert folded.bounding_box()["height"] > 20 and folded.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert Y.title in page.inner_text("main")
