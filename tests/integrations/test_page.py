"""The page of a metric, used in a real browser.

Chromium is the system's (`.ci/run` installs it), or playwright's own. Screenshots of the wide and the narrow
page are kept in the folder `CAPEVAL_SCREENSHOTS`, by default in pytest's temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.demo import demo_set
from capeval_core.errors import SHOWN
from capeval_core.registry import METRICS, metric_class
from capeval_core.reranking import Reranker
from capeval_core.scores.hice.explanation import HiceExplanation

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

from capeval_core.integrations import page as pages
from capeval_core.integrations.page import scorer as scorers
from capeval_core.integrations.page import views
from capeval_core.integrations.page.scorer import LONGEST_TEXT, Mark, Scorer, published_marks
from capeval_core.integrations.page.uploads import CUT, DEEP, TRANSPARENT, TURNED, notes_on
from capeval_core.integrations.page.views import scale, ticks
from capeval_core.integrations.page.words import PageWords, lines_of
from capeval_core.weights.folder import WeightsError, open_weights
from tests.hostile.world import png_header
from tests.inputs.photographs import encoded, photograph

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")

ROOT = Path(__file__).parents[2]
WIDE, NARROW = (1280, 900), (390, 844)
REFERENCES = ["a red cross at the top", "one red cross and a blue circle", "a picture of shapes"]


# Without a browser


@pytest.mark.system
def test_building_every_page_opens_no_weights(tmp_path: Path) -> None:
    code = (
        "import json, runpy, sys\n"
        f"demos = [runpy.run_path(path)['demo'] for path in {[str(app_of(name)) for name in METRICS]!r}]\n"
        "print(json.dumps([[type(demo).__name__ for demo in demos], 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [["Blocks"] * len(METRICS), False]


def test_the_weights_that_are_chosen_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    published = metric_class("pacs").default_weights.repository
    assert Scorer("pacs").offered == (published, "tiny")
    assert Scorer("pacs", "tiny").offered == ("tiny", published)
    monkeypatch.setenv("CAPEVAL_WEIGHTS", "of/mine")
    radio = next(block for block in pages.build("pacs").blocks.values() if block.elem_id == "weights")
    assert radio.value == "of/mine"


def test_only_offered_weights_are_opened(image: Path) -> None:
    with pytest.raises(ValueError, match=r"this page offers 'capeval/.*' and 'tiny'"):
        Scorer("pacs").score(str(image), "a caption", [], weights=str(ROOT))


def test_texts_have_a_limit(image: Path) -> None:
    with pytest.raises(ValueError, match="the texts have 20,003 characters, this page takes 20,000"):
        Scorer("refpacs").score(str(image), "x" * LONGEST_TEXT, ["yyy"])


def test_a_pasted_list_of_references_loses_its_marks() -> None:
    pasted = (
        "- a cat\n  * two 1. cats\n\n1. one\n23) two\n• three\n-\n2 cats - 3 dogs\n-5 degrees\n1.5 cats\n"
    )
    assert lines_of(pasted) == [
        "a cat",
        "two 1. cats",
        "one",
        "two",
        "three",
        "2 cats - 3 dogs",
        "-5 degrees",
        "1.5 cats",
    ]
    assert lines_of("") == []


@pytest.mark.parametrize(
    ("orientation", "turned"), [(None, False), (1, False), (6, True), (2, True), (99, False)]
)
def test_a_image_that_viewers_turn_is_told(
    orientation: int | None, turned: bool, tmp_path: Path, weights: str
) -> None:
    exif = Image.Exif()
    if orientation:
        exif[274] = orientation
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.jpg", exif=exif)
    assert (
        Scorer("pacs", weights).score(str(tmp_path / "a.jpg"), "a red ground", []).notes == [TURNED] * turned
    )


def test_visitors_at_the_same_time_open_the_weights_once(
    monkeypatch: pytest.MonkeyPatch, weights: str, image: Path
) -> None:
    opened = []

    def load(*arguments: Any, **options: Any) -> Any:
        opened.append(options["weights"])
        return capeval_core.load(*arguments, **options)

    monkeypatch.setattr(scorers, "load", load)
    scorer, found = Scorer("pacs", weights), []
    visitors = [
        threading.Thread(target=lambda: found.append(scorer.score(str(image), "a star", []).score))
        for _ in range(4)
    ]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert opened == [weights]
    assert len(found) == 4
    assert len(set(found)) == 1


def test_published_marks_belong_to_the_published_weights() -> None:
    metric = metric_class("pacs")
    repository = metric.default_weights.repository
    marks = published_marks(metric, [f"{repository}@1f3c9a2b"])
    assert [mark.value for mark in marks.values] == sorted((p.value for p in metric.published), reverse=True)
    assert "Karpathy" in marks.source
    assert published_marks(metric, [repository.rpartition("/")[2]]) == marks
    assert not published_marks(metric, ["tiny@3c0f07c3"]).values
    assert not published_marks(metric_class("clips"), ["capeval/pacs-clip-vit-b-32"]).values


def test_published_means_stand_beside_converted_weights_whatever_their_folder_is_called(
    seeded_weights: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(seeded_weights, folder)
    config = json.loads((folder / "config.json").read_text())
    assert not scorers.marks_of(capeval_core.load("pacs", weights=folder)).source.count("Karpathy")
    (folder / "config.json").write_text(
        json.dumps(config | {"source": {"file": "clip_ViT-B-32.pth"}, "checksum": {}})
    )
    marks = scorers.marks_of(capeval_core.load("pacs", weights=folder))
    assert Mark("people", 0.818) in marks.values and "Karpathy" in marks.source


def test_published_marks_of_hices_name_their_regions() -> None:
    """The paper's regions are MobileSAMv2's, which are not the default ones."""
    metric = metric_class("hices")
    marks = published_marks(metric, [metric.default_weights.repository])
    assert len(marks.values) == len(metric.published) > 0
    assert "regions by MobileSAMv2, not the default ones" in marks.source
    pacs = metric_class("pacs")
    assert "default" not in published_marks(pacs, [pacs.default_weights.repository]).source


def test_the_scale_says_in_words_what_it_draws() -> None:
    drawn = scale(metric_class("pacs"), [Mark("people & friends", 0.818)], 0.5)
    assert 'style="--here:25.00%"' in drawn
    assert '--at:40.90%"' in drawn
    assert (
        'aria-label="PAC-S of this caption: 0.500. The scale goes from 0 to 2, higher is better. '
        'What typical captions get: people &amp; friends 0.818."'
    ) in drawn
    assert "<b" not in scale(metric_class("pacs"), [Mark("<b>", 1.0)])
    assert "--here:100.00%" in scale(metric_class("pacs"), [], 7.0)


@pytest.mark.parametrize("name", [name for name in METRICS if not issubclass(metric_class(name), Reranker)])
def test_ticks_go_from_end_to_end_with_room_between(name: str) -> None:
    low, high = metric_class(name).range
    found = ticks(low, high)
    assert (found[0], found[-1]) == (low, high)
    assert len(found) <= 6
    assert min(np.diff(found)) > (high - low) / 15


def test_the_librarys_messages_lose_what_only_a_program_knows(tmp_path: Path, image: Path) -> None:
    """Every problem with one caption, as the library finds it, in the words of the page."""
    scorer = Scorer("refpacs", "tiny")
    broken, text, animated = tmp_path / "cut.png", tmp_path / "text.png", tmp_path / "frames.gif"
    broken.write_bytes(image.read_bytes()[:60])
    bomb, damaged = tmp_path / "bomb.png", tmp_path / "damaged.png"
    bomb.write_bytes(png_header(20_000, 20_000))
    data = bytearray(encoded(photograph(), "PNG"))
    at = data.index(b"IDAT") + 4
    data[at : at + 200] = bytes(200)
    damaged.write_bytes(data)
    text.write_text("no image")
    frames = [Image.new("L", (8, 8), grey) for grey in (0, 90, 200)]
    frames[0].save(animated, save_all=True, append_images=frames[1:])
    wrong: list[tuple[Any, Any, Any]] = [
        ("", image, ["x"]),
        (" ", image, ["x"]),
        ("a", None, ["x"]),
        ("a", image, []),
        ("a", image, ["x", " "]),
        ("", None, []),
        *(("a", path, ["x"]) for path in (broken, text, animated, bomb, damaged)),
    ]
    for caption, path, references in wrong:
        with pytest.raises(ValueError) as refused:
            scorer.check(None if path is None else str(path), caption, references, "tiny")
        message = PageWords().of(refused.value)
        assert not re.search(r"\[\d|pass \w+=|None|captions|images|PIL\.", message), message
        assert str(tmp_path) not in message and "damaged:" not in message
        assert not any(line.strip()[0].islower() for line in message.splitlines())
        assert str(refused.value).count("\n") == message.count("\n") < SHOWN


def test_how_to_get_weights_is_told_to_who_runs_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError) as caught:
        open_weights("capeval/pacs-clip-vit-b-32", metric="pacs", tiny="pacs")
    message = PageWords().of(caught.value)
    assert message.startswith("Weights 'capeval/pacs-clip-vit-b-32' could not be loaded (")
    assert "\n    capeval convert pacs clip_ViT-B-32.pth" in message
    assert "\nand start `capeval page` with --weights pacs-clip-vit-b-32.\n" in message
    assert "without real weights, choose tiny (trained" in message
    monkeypatch.setenv("SPACE_ID", "someone/pacs")
    message = PageWords().of(caught.value)
    assert "\nand start this page with CAPEVAL_WEIGHTS=pacs-clip-vit-b-32.\n" in message


@pytest.mark.parametrize(
    ("mode", "size", "colour", "noted"),
    [
        ("RGB", (40, 30), "red", []),
        ("RGBA", (40, 30), (255, 0, 0, 255), []),
        ("RGBA", (40, 30), (255, 0, 0, 90), [TRANSPARENT]),
        ("I;16", (40, 30), 700, [DEEP]),
        ("L", (20, 80), 90, [CUT.format(0.25)]),
    ],
)
def test_what_the_metric_sees_otherwise_is_told(
    mode: str, size: tuple[int, int], colour: Any, noted: list[str], tmp_path: Path
) -> None:
    Image.new(mode, size, colour).save(tmp_path / "a.png")
    assert notes_on(str(tmp_path / "a.png")) == noted
    assert CUT.format(0.25) not in notes_on(str(tmp_path / "a.png"), square=False)


def test_many_references_are_folded_and_a_cut_text_is_told(image: Path, weights: str) -> None:
    given = [f"reference {number}" for number in range(8)]
    scored = Scorer("refpacs", weights).score(str(image), "long " * 300, given)
    shown = views.score(scored, weights)
    nearest, _, folded = shown.partition("<details><summary>3 more</summary>")
    assert [len(re.findall(r">reference \d", half)) for half in (nearest, folded)] == [5, 3]
    assert 'class="warning">The caption or a reference is longer than the text encoder reads' in shown
    assert "its end was cut off" not in views.score(
        Scorer("refpacs", weights).score(str(image), "short", given[:1]), weights
    )


def test_lines_of_a_problem_keep_their_indent() -> None:
    shown = views.problem("2 problems:\n  one <b>\n    a command")
    assert '<p style="--indent:2ch">one &lt;b&gt;</p><p style="--indent:4ch">a command</p>' in shown


# In a browser


def test_a_visitor_scores_a_image_of_their_own(
    visit: Callable[..., Page], served: str, weights: str, image: Path, screenshots: Path
) -> None:
    page = visit(served, WIDE)
    assert page.locator("h1").inner_text() == "RefPAC-S"
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
    assert re.search(r"typical captions get: \w[\w ]* -?\d\.\d{3}, ", text)
    page.screenshot(path=screenshots / "wide-score.png", full_page=True)

    assert not is_stale(page)
    page.locator("#caption textarea").fill("")
    page.locator("#answer.stale").wait_for()
    page.screenshot(path=screenshots / "wide-stale.png", full_page=True)
    press_score(page)
    page.locator("#result .problem").wait_for()
    assert not is_stale(page)
    assert page.locator("#result").inner_text() == "The caption is empty: write a caption"
    assert not page.locator("#signature").is_visible()


def test_a_visitor_on_a_phone_takes_an_example(
    visit: Callable[..., Page], served: str, screenshots: Path
) -> None:
    page = visit(served, NARROW, color_scheme="dark")
    item = demo_set()[1]
    page.locator(".example").nth(1).click()  # it scores at once
    page.locator("#result blockquote", has_text=item.good).wait_for()
    page.locator("#kind").get_by_text("subtly wrong").click()
    page.locator("#result blockquote", has_text=item.subtly_wrong).wait_for()
    assert page.locator("#caption textarea").input_value() == item.subtly_wrong
    assert page.locator("#references textarea").input_value() == "\n".join(item.references)
    page.locator("#answer:not(.stale)").wait_for()
    page.wait_for_timeout(300)  # no change comes late that would make it stale
    assert not is_stale(page)
    page.screenshot(path=screenshots / "narrow-score.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
    for one in page.locator("#result *:visible, #bench button:visible").all():
        box = one.bounding_box()
        assert box is None or box["x"] + box["width"] <= NARROW[0] + 1, one.evaluate("e => e.outerHTML")
    assert "Parts" in page.locator("#result table caption").last.inner_text()  # the explanation stands above
    # The result comes right below the button, before the examples.
    place = {name: page.locator(name).bounding_box()["y"] for name in ("#score", "#result", ".examples")}
    assert place["#score"] < place["#result"] < place[".examples"]


@pytest.mark.parametrize(("name", "size"), [("hices", WIDE), ("refhices", NARROW)])
def test_hice_shows_the_wrong_phrase_and_the_regions(
    name: str, size: tuple[int, int], visit: Callable[..., Page], screenshots: Path
) -> None:
    item = demo_set()[1]
    caption = f"{item.subtly_wrong} <!--"
    metric = capeval_core.load(name, weights="tiny", evidence=True)
    references = [list(item.references)] if metric.needs_references else None
    found = metric.score([caption], [item.image], references).explain(0)
    assert isinstance(found, HiceExplanation)
    demo = pages.build(name, "tiny")
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        page = visit(demo.local_url, size)
        page.locator(".example").nth(1).click()
        expect_value(page, "#caption textarea", item.good)
        page.locator("#result blockquote", has_text=item.good).wait_for()
        page.locator("#caption textarea").fill(caption)
        page.locator("#caption textarea").press("Enter")
        page.locator("#result figcaption", has_text="<!--").wait_for()
        assert page.locator("#result figure img").evaluate("e => e.naturalWidth") > 2 * 300
        assert page.locator("#result figcaption").inner_text() == caption
        marked = [caption[span.start : span.end] for span in found.wrong_words()]
        assert page.locator("#result mark").all_inner_texts() == marked == ["two black crosses"]
        assert page.locator("#result .sign.wrong").count() == 1
        phrases, regions = table(page, "(precision)"), table(page, "(recall)")
        assert list(phrases.values()) == pytest.approx(
            [note["precision"] for note in found.phrases], abs=1e-6
        )
        assert list(regions.values()) == pytest.approx([note["recall"] for note in found.regions], abs=1e-6)
        assert sum("not mentioned" in text for text in regions) == 3
        if references:
            shown = [*table(page, "each reference")]
            assert [text.removesuffix(" chosen") for text in shown] == references[0]
        page.screenshot(path=screenshots / f"{name}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        place = page.locator("#caption").bounding_box()  # on a desk the inputs stay beside a long answer
        assert (0 <= place["y"] < size[1]) is (size == WIDE)
        page.close()  # before the server, or the browser complains of the lost connection
    finally:
        demo.close(verbose=False)


def test_a_file_that_is_no_image(visit: Callable[..., Page], served: str, tmp_path: Path) -> None:
    page = visit(served, WIDE)
    page.locator("#references textarea").fill("")
    page.locator("#caption textarea").fill("a caption")
    press_score(page)
    page.locator("#result .problem").wait_for()
    text = page.locator("#result").inner_text()
    assert "The image is missing: every caption needs an image" in text
    assert "The list of references is empty: write at least one under 'References'" in text

    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    page.locator("#image input[type=file]").set_input_files(broken)
    page.locator("#image img").wait_for(state="attached")
    page.locator("#references textarea").fill("a reference")
    press_score(page)
    page.get_by_text("'broken.png' is not an image that Pillow can read").wait_for()


@pytest.mark.system
def test_a_program_asks_the_page(served: str, weights: str, image: Path) -> None:
    from gradio_client import Client, handle_file
    from gradio_client.exceptions import AppError

    client = Client(served, verbose=False, analytics_enabled=False)
    references = "\n".join(REFERENCES)
    found = client.predict(handle_file(image), "a red cross", references, weights, api_name="/score")
    expected = capeval_core.load("refpacs", weights=weights).score(["a red cross"], [image], [REFERENCES])
    assert found["mean"] == pytest.approx(expected.mean, abs=1e-6)
    assert found["signature"] == expected.signature
    with pytest.raises(AppError, match="The caption is empty"):
        client.predict(handle_file(image), "", references, weights, api_name="/score")
    with pytest.raises(AppError, match="this page offers"):
        client.predict(handle_file(image), "a red cross", references, str(ROOT), api_name="/score")
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/score"]


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
        assert "capeval convert pacs clip_ViT-B-32.pth" in text
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


# What they share


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


def expect_value(page: Page, selector: str, value: str) -> None:
    page.wait_for_function(
        "([selector, value]) => document.querySelector(selector).value === value", arg=[selector, value]
    )


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
