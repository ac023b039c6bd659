"""What strangers can ask of a page at most, and what it tells them before it opens weights."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from capeval_core.demo import demo_set

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

import gradio as gr
import httpx

from capeval_core.integrations import page as pages
from capeval_core.integrations.page.media import MEDIA, media_on_page
from capeval_core.integrations.page.scorer import Scorer
from capeval_core.registry import METRICS, metric_class
from tests.inputs.photographs import encoded, photograph
from tests.integrations.conftest import PATIENCE
from tests.support.seams import LIMITS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")


@pytest.fixture(autouse=True)
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "uploads"
    folder.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder))
    return folder


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "MPO"])
def test_usual_formats_are_taken(uploads: Path, form: str) -> None:
    (uploads / "a").write_bytes(encoded(photograph(), form))
    assert MEDIA["image"].of({"path": str(uploads / "a")}) == str(uploads / "a")


def test_only_what_lies_in_the_folder_of_uploads_is_taken(uploads: Path) -> None:
    beside = uploads.with_name(f"{uploads.name}-of-others")
    beside.mkdir()
    for folder in (uploads, beside):
        Image.new("L", (2, 2)).save(folder / "x.png")
    assert MEDIA["image"].of({"path": str(uploads / "x.png")}) == str(uploads / "x.png")
    assert MEDIA["image"].of(None) is MEDIA["image"].of({"path": None}) is None
    for given in (
        {"path": str(beside / "x.png")},
        {"path": f"{uploads}/../{beside.name}/x.png"},
        {"url": "http://localhost/x.png"},
        {"path": None, "url": (uploads / "x.png").as_uri()},
        str(beside / "x.png"),
    ):
        with pytest.raises(ValueError, match="not among the uploads of this page"):
            MEDIA["image"].of(given)


@pytest.mark.parametrize("name", [name for name in METRICS if metric_class(name).media])
def test_wrong_input_is_told_before_weights_are_opened(name: str, tmp_path: Path, uploads: Path) -> None:
    """The weights are a folder that is none: to open them would be another complaint."""
    page = pages.build(name, tmp_path)
    (event,) = (fn for fn in page.fns.values() if fn.api_visibility == "public")
    shown = next(fn for fn in page.fns.values() if fn.name == "show")
    good = {"path": str(demo_set()[0].image)}
    compared = metric_class(name).needs_references
    about = ["image", None] if len(media_on_page(name)) > 1 else []
    wrong: list[tuple[Any, str, str, str]] = [
        (None, "a star", "a star", "The image is missing"),
        (good, "", "a star", "is empty"),
        ({"path": str(tmp_path)}, "a star", "a star", "not among the uploads"),
        (good, "x" * 20_001, "a star", "this page takes 20,000"),
    ]
    for image, caption, references, complaint in wrong:
        given = [image, caption, *[references][:compared], str(tmp_path), *about]
        with pytest.raises(gr.Error) as refused:
            event.fn(*given)
        assert complaint in refused.value.message and "weights" not in refused.value.message
        answers = [answer[0] for answer in shown.fn(*given)]
        assert len(answers) == 1 and complaint in answers[0]  # and never: one moment, weights are opened
    with pytest.raises(gr.Error, match=r"config\.json"):
        event.fn(good, "a star", *["a star"][:compared], str(tmp_path), *about)


def chosen(client: httpx.Client) -> str:
    """Where the server keeps the image of the first example, once its button is pressed."""
    events = client.get("config").json()["dependencies"]
    number = next(event["id"] for event in events if event["backend_fn"] and len(event["inputs"]) == 2)
    body = {"data": ["image", "good"], "fn_index": number, "session_hash": "example"}
    return str(client.post("gradio_api/run/any", json=body).json()["data"][0]["path"])


def test_uploads_are_deleted_after_their_time_and_examples_stay(
    uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LIMITS.page_seconds_kept == 3600
    monkeypatch.setattr(LIMITS, "page_seconds_kept", 1)
    monkeypatch.setattr(LIMITS, "page_seconds_between", 1)
    page = pages.build("pacs", "tiny")
    pages.launch(page, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        with httpx.Client(base_url=page.local_url) as client:
            (path,) = client.post("gradio_api/upload", files={"files": ("a.png", b"some bytes")}).json()
            while Path(path).exists():
                time.sleep(0.1)
            for _ in range(2):
                copy = chosen(client)
                while (answer := client.get(f"gradio_api/file={copy}")).status_code == 404:
                    copy = chosen(client)  # a busy machine asked after its second
                assert answer.content == demo_set()[0].image.read_bytes()
                while Path(copy).exists():
                    time.sleep(0.1)
    finally:
        page.close(verbose=False)
    assert all(item.image.is_file() for item in demo_set())


def test_a_browser_shows_the_examples(browser: Browser) -> None:
    page = pages.build("pacs", "tiny")
    pages.launch(page, prevent_thread_lock=True, quiet=True, inline=False)
    shown = browser.new_page()
    shown.set_default_timeout(PATIENCE)
    try:
        shown.goto(page.local_url)
        icons = shown.locator(".example img")
        icons.first.wait_for()
        assert icons.evaluate_all("all => all.map(icon => icon.naturalWidth)") == [192] * len(demo_set())
        shown.locator(".example").nth(1).click()
        shown.wait_for_function("document.querySelector('#image img')?.naturalWidth == 192")
    finally:
        shown.close()
        page.close(verbose=False)


def test_a_full_queue_says_so_in_words(monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    monkeypatch.setattr(LIMITS, "page_waiting", 1)
    held, asked = threading.Event(), threading.Event()

    def score(*_: Any) -> Any:
        asked.set()
        held.wait(600)
        raise ValueError("an answer")

    monkeypatch.setattr(Scorer, "score", score)
    page = pages.build("pacs", "tiny")
    pages.launch(page, prevent_thread_lock=True, quiet=True, inline=False)
    shown = browser.new_page()
    shown.set_default_timeout(PATIENCE)
    try:
        with httpx.Client(base_url=page.local_url) as client:
            events = client.get("config").json()["dependencies"]
            number = next(e["id"] for e in events if e["backend_fn"] and len(e["inputs"]) == 5)
            data = [{"path": str(demo_set()[0].image)}, "a star", "tiny", "image", None]
            for session in ("served", "waiting"):
                body = {"data": data, "fn_index": number, "session_hash": session}
                assert client.post("gradio_api/queue/join", json=body).status_code == 200
                assert asked.wait(600)
        shown.goto(page.local_url)
        shown.locator("#score").click()
        shown.locator("#answer.busy").wait_for()
        words = shown.locator("#answer").evaluate("found => getComputedStyle(found, '::before').content")
        assert "The page is busy: too many visitors are waiting" in words
        held.set()
        for _ in range(1200):  # until the two others are answered
            shown.locator("#score").click()
            shown.wait_for_timeout(500)
            if shown.locator("#result .problem").count():
                break
        assert "The image is missing" in shown.locator("#result .problem").inner_text()
        assert not shown.locator("#answer.busy").count()
    finally:
        held.set()
        shown.close()
        page.close(verbose=False)
