"""`--report`: a page of HTML that shows every number, runs nothing and names no folder."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from capeval_core.cli import main
from capeval_core.demo import demo_clips, demo_set

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "https://example.org/x.png",
    "</style><b>bold</b><!--",
    "{{ 7 * 7 }} {% raw %} ${1 + 1}",
    "a \u202egninthgir\u2066 circle \x07",
    "مثلث أخضر فوق مربع أزرق 左边有一个红色的圆圈",
    "w" * 900,
]
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"
VOID = ("meta", "img", "input", "circle", "line", "rect", "use", "image", "path", "polyline", "br")


class Parsed(HTMLParser):
    """A page as a strict reader of tags meets it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] if tag not in VOID else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += [data] if self.open[-1:] != ["style"] else []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def write_set(folder: Path, texts: dict[str, list[str]], references: list[str] | None = None) -> list[str]:
    """Drawings, files of captions by system, references; the flags that name them."""
    (folder / "images").mkdir()
    count = len(next(iter(texts.values())))
    for i in range(count):
        shutil.copy(demo_set()[i % 12].image, folder / "images" / f"{i}.png")
    for name, captions in texts.items():
        (folder / f"{name}.json").write_text(json.dumps({str(i): text for i, text in enumerate(captions)}))
    of_drawings = [list(demo_set()[i % 12].references) for i in range(count)]
    given = {str(i): references or of_drawings[i] for i in range(count)}
    (folder / "references.json").write_text(json.dumps(given))
    files = [str(folder / f"{name}.json") for name in texts]
    flags = ["--candidates", *files, "--images", str(folder / "images"), "--report", str(folder / "report")]
    return [*flags, "--references", str(folder / "references.json"), "--weights", "tiny", "--device", "cpu"]


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two systems by two metrics, with a broken image, and the numbers as JSON."""
    folder = tmp_path_factory.mktemp("systems")
    items = demo_set()
    texts = {"good": [i.good for i in items], "wrong": [i.subtly_wrong for i in items]}
    flags = write_set(folder, texts)
    (folder / "images" / "5.png").write_bytes(b"no image")
    line = ["score", "pacs,rougel", *flags, "--on-error", "nan", "--json", str(folder / "scores.json")]
    assert main(line) == 0
    return folder


def test_it_has_every_number_and_says_what_failed(systems: Path) -> None:
    page = Parsed((systems / "report" / "index.html").read_text(encoding="utf-8"))
    saved = json.loads((systems / "scores.json").read_text())
    jsonschema.validate(saved, json.loads(SCHEMA.read_text()))
    for system in saved["systems"]:
        jsonschema.validate(system["results"][0], json.loads(SCHEMA.read_text()))
    assert {"script", "link", "iframe", "object", "form"}.isdisjoint(tag for tag, _ in page.tags)
    for system in saved["systems"]:
        for result in system["results"]:
            assert f"{result['mean']:.3f}" in page.text and system["system"] in page.text
            assert result["signature"] in page.text
    kinds = [(tag, attributes.get("scope")) for tag, attributes in page.tags]
    table = kinds[kinds.index(("table", None)) : kinds.index(("section", None), kinds.index(("table", None)))]
    columns = table.count(("th", "col")) - 1
    assert columns == 2 and table.count(("td", None)) == columns * table.count(("th", "row")) == 4
    assert "5: " in page.text and "no image" not in page.text
    assert "tiny knows nothing but drawn scenes" in page.text
    assert str(systems) not in page.text and "/images" not in page.text


def test_texts_run_nothing_fetch_nothing_and_break_no_tag(tmp_path: Path) -> None:
    flags = write_set(tmp_path, {"<b>a": HOSTILE, "b&amp;": HOSTILE[::-1]}, references=HOSTILE)
    assert main(["score", "refpacs", *flags]) == 0
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    page = Parsed(html)
    for tag, attributes in page.tags:
        assert tag not in ("script", "b\\") and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "action", "style"):
            value = attributes.get(name) or ""
            assert name == "style" or re.match(r"(#|data:image/jpeg;base64,|https://\S+$|$)", value), value
            assert "url(" not in value and "example.org" not in value and "javascript" not in value
    assert "default-src 'none'" in html and "\x07" not in html and "49" not in page.text.split()
    assert HOSTILE[0] in page.text


def test_where_lower_is_better_more_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = ["dog", "cat", "bird", "horse", "star", "heart"]
    fair = {str(i): f"a {name} and a {name}" for i, name in enumerate(objects)}
    wrong = {i: f"{text} and a circle" for i, text in fair.items()} | {"2": "a cross, a square, a triangle"}
    contents = {"fair": fair, "wrong": wrong, "objects": {str(i): [name] for i, name in enumerate(objects)}}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    paths = [str(tmp_path / f"{name}.json") for name in contents]
    flags = ["--synonyms", "tiny", "--report", str(tmp_path / "report"), "--references", paths[2]]
    assert main(["score", "chair", "--candidates", *paths[:2], *flags]) == 0
    text = Parsed((tmp_path / "report" / "index.html").read_text()).text
    assert "wrong against fair : worse by CHAIR-i" in text
    worst, best = text.partition(" wrong Worst ")[2].split(" Best ", 1)
    assert worst.startswith("1.000 a cross") and best.startswith("0.333 a dog")
    capsys.readouterr()
    line = ["score", "chair", "--candidates", *paths[:2], "--synonyms", "tiny", "--references", paths[2]]
    assert main([*line, "--format", "latex"]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if "textbf" in row]
    assert [row.partition(" ")[0] for row in rows] == ["fair"]


def test_tables_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is significant, best and worse is so in the terminal, for programs, papers and on the page."""
    items = demo_set()
    flags = write_set(tmp_path, {"good|a_": [i.good for i in items], "bad": [i.unrelated for i in items]})
    places = [flags.index(name) for name in ("--images", "--weights")]
    texts = [flag for i, flag in enumerate(flags) if i not in (*places, *(place + 1 for place in places))]

    def written(form: str) -> str:
        assert main(["score", "rougel,bleu", *texts, "--format", form]) == 0
        return capsys.readouterr().out

    rows = {(row["system"], row["metric"]): row for row in csv.DictReader(io.StringIO(written("csv")))}
    good, bad = rows["good|a_", "rougel"], rows["bad", "rougel"]
    assert float(bad["low"]) < float(bad["mean"]) < float(bad["high"]) < float(good["mean"])
    difference = float(bad["mean"]) - float(good["mean"])
    assert float(bad["difference"]) == pytest.approx(difference) and float(bad["p"]) <= float(bad["p_holm"])
    assert float(bad["difference_low"]) < difference < float(bad["difference_high"]) < 0
    assert (bad["significant"], good["difference"]) == ("true", "")
    mean = f"{float(good['mean']):.4f}"
    assert rf"\textbf{{{mean}}}" in written(
        "latex"
    ) and rf"\textbf{{{float(bad['mean']):.4f}}}" not in written("latex")
    assert f"{float(bad['mean']):.4f}*" in written("text") and f"{mean}*" not in written("text")
    assert r"good\|a\_" in written("markdown")
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert 'class="test worse"' in html and 'class="test better"' not in html


CASES = ["pacs", "refpacs", "hices", "refhices", "umic", "vilbertscore", "bleu", "ciderd", "video"]
DRAWN = {"hices": 1, "refhices": 1, "umic": 1, "video": 1}
"""Pictures at least that explain a score."""


@pytest.mark.parametrize("metric", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_metric_says_where_its_scores_come_from(metric: str, tmp_path: Path) -> None:
    items = demo_clips()[:2] if metric == "video" else demo_set()[:2]
    for item in items:
        shutil.copy(item.image, tmp_path)
    texts = {item.image.stem: item.subtly_wrong for item in items}
    (tmp_path / "c.json").write_text(json.dumps(texts))
    (tmp_path / "r.json").write_text(json.dumps({item.image.stem: list(item.references) for item in items}))
    line = ["score", "pacs" if metric == "video" else metric, "--candidates", tmp_path / "c.json"]
    if metric not in ("bleu", "ciderd"):
        line += ["--videos" if metric == "video" else "--images", tmp_path, "--weights", "tiny"]
    line += ["--media", "video"] if metric == "video" else []
    line += ["--references", tmp_path / "r.json"] if metric not in ("pacs", "hices", "umic", "video") else []
    assert main([*map(str, line), "--report", str(tmp_path / "report")]) == 0
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    page = Parsed(html)
    assert all(text in page.text for text in texts.values())
    assert page.text.count("Parts") >= len(texts) or metric in ("umic", "ciderd")
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) >= DRAWN.get(metric, 0) and all(one["alt"] for one in pictures)
    if metric in ("hices", "refhices"):
        assert "<mark>" in html and 'class="badge"' in html


@pytest.mark.system
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_fetches_nothing_and_shows_all_of_it(
    width: int, browser: Browser, systems: Path, tmp_path: Path
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, events = context.new_page(), []
    page.on("request", lambda request: events.append(request.url))
    page.on("console", lambda line: events.append(f"console: {line.text}"))
    page.goto((systems / "report" / "index.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.locator(".why-press").first.click()
    assert page.locator(".why:visible").count() == 1
    assert not [url for url in events if not url.startswith(("file:", "data:image/jpeg"))]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    context.close()
