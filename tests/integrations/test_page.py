"""The page of a metric, used in a real browser.

Chromium is the system's (`.ci/run` installs it), or playwright's own. Screenshots of the wide and the narrow
page are kept in the folder `CAPEVAL_SCREENSHOTS`, by default in pytest's temporary folder.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

import capeval_core
from capeval_core.demo import demo_set

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

from capeval_core.integrations import page as pages

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")

ROOT = Path(__file__).parents[2]
WIDE, NARROW = (1280, 900), (390, 844)
REFERENCES = ["a red cross at the top", "one red cross and a blue circle", "a picture of shapes"]


def test_a_visitor_scores_a_image_of_their_own(
    visit: Callable[..., Page], served: str, weights: str, image: Path, screenshots: Path
) -> None:
    page = visit(served, WIDE)
    assert page.locator("h1").inner_text() == "RefPAC-S"
    button, example = (page.locator(one).first.bounding_box() for one in ("#score", ".example"))
    assert button and example and example["y"] > button["y"]  # below the boxes, not beside them
    page.screenshot(path=screenshots / "wide-empty.png", full_page=True)
    page.locator("#image input[type=file]").set_input_files(image)
    page.locator("#image img").wait_for()
    page.locator("#references textarea").fill("\n\n".join(REFERENCES) + "\n")
    page.locator("#caption textarea").fill("<b>a red cross</b> ${1 + 1} {{value}}")
    press_score(page)
    page.locator("#result .score data").wait_for()

    expected = capeval_core.load("refpacs", weights=weights, evidence=True).score(
        ["<b>a red cross</b> ${1 + 1} {{value}}"], [image], [REFERENCES]
    )
    shown = float(page.locator("#result .score data").get_attribute("value") or "nan")
    assert shown == pytest.approx(expected.mean, abs=1e-6)
    assert page.locator("#result .score").inner_text() == f"{expected.mean:.3f}"
    assert page.locator("#signature textarea").input_value() == expected.signature
    assert page.locator("#result blockquote").inner_text() == "<b>a red cross</b> ${1 + 1} {{value}}"
    rows = table(page, "Parts")
    assert rows["cosine"] == pytest.approx(expected.parts["cosine"][0], abs=1e-6)
    assert rows["PAC-S"] == pytest.approx(expected.parts["pac_s"][0], abs=1e-6)
    nearest = sorted(expected.explain(0)["references"].items(), key=lambda item: -item[1])
    assert list(table(page, "Cosine with each reference, nearest first")) == [text for text, _ in nearest]
    assert page.get_by_text("the image is to be turned (EXIF)").is_visible()
    text = page.locator("#result .scale").get_attribute("aria-label") or ""
    assert text and "typical" not in text  # means of drawings are no yardstick for another picture
    page.screenshot(path=screenshots / "wide-score.png", full_page=True)
    page.locator(".example").first.click()
    page.locator("#result .score data[value]", has_not_text=f"{expected.mean:.3f}").wait_for()
    text = page.locator("#result .scale").get_attribute("aria-label") or ""
    assert re.search(r"typical captions get: \w[\w ]* -?\d\.\d{3}, ", text)

    page.set_viewport_size({"width": 1280, "height": 800})  # what lies below comes by scrolling the page
    assert page.locator("#left").evaluate("left => left.scrollHeight <= left.clientHeight + 1")
    page.mouse.move(300, 500)
    page.mouse.wheel(0, 2000)
    page.wait_for_function(
        "document.querySelector('#left').lastElementChild.getBoundingClientRect().bottom <= innerHeight"
    )

    assert not is_stale(page)
    page.locator("#caption textarea").fill("")
    page.locator("#answer.stale").wait_for()
    page.screenshot(path=screenshots / "wide-stale.png", full_page=True)
    press_score(page)
    page.locator("#result .problem").wait_for()
    assert not is_stale(page)
    assert page.locator("#result").inner_text() == "The caption is empty: write a caption"
    assert not page.locator("#signature").is_visible()


@pytest.mark.system
def test_a_space_starts_and_goes_on_without_its_weights(
    visit: Callable[..., Page], tmp_path: Path, image: Path
) -> None:
    """`python app.py` from elsewhere, where neither the Hub nor the published weights can be had."""
    port = free_port()
    settings = environment(GRADIO_SERVER_PORT=port, HF_HUB_OFFLINE=1, HF_HOME=tmp_path / "hub")
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, app_of("pacs")], cwd=tmp_path, env=settings, stdout=log, stderr=log
        )
    try:
        address = f"http://127.0.0.1:{port}/"
        wait_for(address, server)
        page = visit(address, WIDE)
        assert page.locator("#result .label").first.inner_text() == "VinVL"  # published, known beforehand
        page.locator("#image input[type=file]").set_input_files(image)
        page.locator("#image img").wait_for()
        page.locator("#caption textarea").fill("a red cross")
        press_score(page)
        page.locator("#result .problem").wait_for()
        text = page.locator("#result").inner_text()
        assert "capeval fetch pacs-clip-vit-b-32" in text
        assert "Traceback" not in text
        page.locator("#go-on").click()
        page.locator("#result .score data").wait_for()
        assert "weights:tiny@" in page.locator("#signature textarea").input_value()
        assert page.get_by_text("tiny knows nothing but drawn scenes").is_visible()
        assert "Traceback" not in (tmp_path / "log").read_text()
        page.close()  # before the server, or the browser complains of the lost connection
    finally:
        server.terminate()
        server.wait(600)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph's file that says it is to be turned: the published metrics do not."""
    path = tmp_path_factory.mktemp("own") / "mine.jpg"
    exif = Image.Exif()
    exif[274] = 6
    Image.open(demo_set()[2].image).convert("RGB").crop((0, 0, 192, 100)).save(path, exif=exif)
    return path


@pytest.fixture(scope="module")
def served(weights: str) -> Iterator[str]:
    """The address of the page of RefPAC-S, in this process."""
    demo = pages.build("refpacs", weights)
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    yield demo.local_url
    demo.close(verbose=False)


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("CAPEVAL_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_stale(page: Page) -> bool:
    return page.locator("#answer.stale").count() > 0


def press_score(page: Page) -> None:
    page.locator("#score").click()


def table(page: Page, title: str) -> dict[str, float]:
    """The rows of the result's table of that title, in its order."""
    rows = page.locator("#result table", has_text=title).first.locator("tbody tr").all()
    return {
        row.locator("th").inner_text(): float(row.locator("data").first.get_attribute("value") or "nan")
        for row in rows
    }


def app_of(name: str) -> Path:
    return ROOT / "metrics" / name / "app.py"


def environment(**settings: object) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    kept = {name: value for name, value in os.environ.items() if name != "CAPEVAL_WEIGHTS"}
    return {**kept, "PYTHONPATH": path, **{name: str(value) for name, value in settings.items()}}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            urllib.request.urlopen(address, timeout=10).close()
            return
        except OSError:
            assert server.poll() is None, "the page's process ended"
            time.sleep(0.2)
