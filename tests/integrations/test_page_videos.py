"""Videos on a page: their limits, what is shown of them, and the page in a real browser."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import capeval_core
from capeval_core.demo import demo_clips, demo_set
from tests.inputs.video_writing import video

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

from capeval_core.integrations import page as pages
from capeval_core.integrations.page import media, views
from capeval_core.integrations.page.media import MEDIA, media_on_page
from capeval_core.integrations.page.scorer import Scorer
from tests.support.seams import LIMITS

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("form", ["mp4", "gif", "mkv", "avi"])
@pytest.mark.parametrize(("limit", "least"), [("page_frames", 12), ("page_pixels", 12 * 48 * 32)])
def test_a_video_beyond_the_pages_limits_is_refused(
    form: str, limit: str, least: int, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = uploads / f"a.{form}"
    path.write_bytes(video(form))
    monkeypatch.setattr(LIMITS, limit, least)
    assert MEDIA["video"].of({"path": str(path)}) == str(path)
    monkeypatch.setattr(LIMITS, limit, least - 1)
    (uploads / f"b.{form}").write_bytes(video(form))  # what was read once is known
    with pytest.raises(ValueError, match=r"the video has more than "):
        MEDIA["video"].of({"path": str(uploads / f"b.{form}")})
    with pytest.raises(ValueError, match="the video is not among the uploads of this page"):
        MEDIA["video"].of({"path": "/proc/self/environ"})


def test_frames_of_a_long_video_are_sampled_and_a_note_says_so(
    uploads: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uploads / "a.mp4").write_bytes(video("mp4"))
    scorer = Scorer("pacs", weights, "video")
    whole = scorer.score(str(uploads / "a.mp4"), "a red field", [])
    assert "max_frames" not in whole.result.signature and len(whole.evidence["frame_cosines"]) == 12
    assert [note for note in whole.notes if "idf" in note] and "statistics" not in "".join(whole.notes)
    monkeypatch.setattr(LIMITS, "page_frames_encoded", 4)
    few = scorer.score(str(uploads / "a.mp4"), "a red field", [])
    assert "|max_frames:4|" in few.result.signature and len(few.evidence["frame_cosines"]) == 4
    assert "The metric sees 4 frames, spread evenly over the video." in few.notes
    expected = capeval_core.load("pacs", media="video", weights=weights, max_frames=4, idf=False)
    assert few.score == pytest.approx(
        expected.score(["a red field"], videos=[uploads / "a.mp4"]).mean, abs=1e-6
    )
    assert scorer.score(str(uploads / "a.mp4"), "a red field", []).result == few.result


def test_what_is_shown_of_a_video(uploads: Path, weights: str) -> None:
    (uploads / "a.mp4").write_bytes(video("mp4"))
    scorer = Scorer("refpacs", weights, "video")
    shown = views.score(
        scorer.score(str(uploads / "a.mp4"), "a <b>red</b> field", ["red", "a <i>field"]), weights
    )
    assert "Each word of the caption, and the frame that it fits best" in shown
    assert 1 <= shown.count("data:image/jpeg;base64,") <= 4 and "<small>frame " in shown
    assert "1. red" in shown and "2. a &lt;i&gt;field" in shown
    assert "<b>red" not in shown and "<i>" not in shown and "<|" not in shown

    (uploads / "cut.gif").write_bytes(video("gif")[:4000])
    shown = views.score(scorer.score(str(uploads / "cut.gif"), "red", ["red"]), weights)
    assert re.search('<p class="warning">frames end after [0-9]: the file has no end of a GIF</p>', shown)


def test_a_page_offers_the_media_of_its_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [medium.name for medium in media_on_page("pacs")] == ["image", "video"]
    assert [medium.name for medium in media_on_page("umic")] == ["image"]
    assert media_on_page("bleu") == []
    monkeypatch.setattr(media, "find_spec", lambda _: None)  # the extra `video` is not installed
    assert [medium.name for medium in media_on_page("pacs")] == ["image"]


def test_programs_may_leave_out_what_a_caption_is_about(weights: str) -> None:
    page = pages.build("pacs", weights)
    (event,) = (fn for fn in page.fns.values() if fn.api_visibility == "public")
    image = {"path": str(demo_set()[0].image)}
    assert list(inspect.signature(event.fn).parameters) == ["image", "caption", "weights", "about", "video"]
    whole = event.fn(image, "a star", weights, "image", None)
    assert event.fn(image, "a star", weights) == event.fn(image, "a star") == whole


def test_a_video_is_scored_in_a_browser(visit: Callable[..., Page], tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(video("mp4"))
    demo = pages.build("pacs", "tiny")
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        page = visit(demo.local_url, (1280, 900))
        page.locator("#about").get_by_text("Video", exact=True).click()
        page.locator("h1", has_text="PAC-S for videos").wait_for()
        assert not page.locator("#image").is_visible() and page.locator(".examples").count() == 1
        assert "Give a video and a caption, or take an example" in page.locator("#result").inner_text()
        page.locator("#score").click()
        page.locator(".problem", has_text="The video is missing").wait_for()
        page.locator("#video input[type=file]").set_input_files(tmp_path / "a.mp4")
        # Its text is split ("a .mp4"); whole it stands there only while the file is on its way.
        page.locator("#video a[download='a.mp4']").wait_for()
        page.locator("#caption textarea").fill("a red field")
        page.locator("#score").click()
        page.locator("#result .score").wait_for()
        assert page.locator("#result .curve polyline").is_visible()
        assert (
            page.locator("#result .frames img").count() == page.locator("#result .frames figure").count() > 0
        )
        assert "media:video" in page.locator("#signature textarea").input_value()
        clip = demo_clips()[1]
        page.locator(".example").nth(1).click()
        page.locator("#result blockquote", has_text=clip.good).wait_for()
        page.locator(f"#video a[download='{clip.image.name}']").wait_for()
        page.locator("#result .scale", has_text="subtly wrong").wait_for()
        page.locator("#about").get_by_text("Image", exact=True).click()
        page.locator(".example").first.click()
        page.locator("#result blockquote", has_text="pink hearts").wait_for()
        assert page.locator("#image img").is_visible() and not page.locator("#video").is_visible()
        assert "media:video" not in page.locator("#signature textarea").input_value()
        page.close()  # before the server, or the browser complains of the lost connection
    finally:
        demo.close(verbose=False)
