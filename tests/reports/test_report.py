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
import numpy as np
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
    assert re.search(r"Failed or left out 5: [^/]*5\.png", page.text) and "no image" not in page.text
    html = (systems / "report" / "index.html").read_text(encoding="utf-8")
    for axis in re.findall('<div class="axis".*?</div>', html):
        places = re.findall("left:([0-9.]+)%", axis)
        assert (places[0], places[-1]) == ("0.00", "100.00") and places == sorted(places, key=float)
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
    assert "wrong against fair : worse by CHAIR-i" in text and "CHAIR-i lower is better" in text
    assert "Where fair scores better: 6 of 6" in text and "Where wrong" not in text
    assert "as far as digits are shown" not in text and "tiny knows nothing" not in text
    worst, best = text.partition(" wrong Worst ")[2].split(" Best ", 1)
    assert worst.startswith("1.000 a cross") and best.startswith("0.333 a dog")
    assert main(["score", "chair", "--candidates", *paths[1::-1], *flags]) == 0
    html = (tmp_path / "report" / "index.html").read_text()
    assert "fair against wrong : better by CHAIR-i" in Parsed(html).text
    assert 'class="test better">▲ −0.' in html and 'class="test worse"' not in html
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


def test_names_of_systems_mean_nothing_to_latex_markdown_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["*best", "[old]", r"&%$#_{}\~^±", r"_a_ b_c `d` <e> |f| ~g [h](i)", 'x "y", z']
    files = []
    for name in [*names, "references"]:
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"1": "a red dog runs"}))

    def written(form: str) -> list[str]:
        line = ["score", "rougel", "--candidates", *map(str, files[:-1]), "--references", str(files[-1])]
        assert main([*line, "--no-intervals", "--format", form]) == 0
        return capsys.readouterr().out.split("\n")

    lines = [line for line in written("latex") if line.endswith(r" \\")]
    # A star or a bracket behind a line break would be the line break's own argument.
    assert [line.split(r" & ")[0] for line in lines] == [
        "system",
        "{}*best",
        "{}[old]",
        r"\&\%\$\#\_\{\}\textbackslash{}\textasciitilde{}\textasciicircum{}$\pm$",
        r"\_a\_ b\_c `d` <e> |f| \textasciitilde{}g [h](i)",
        'x "y", z',
    ]
    lines = written("markdown")
    lines = lines[lines.index("## Systems") + 2 :]
    assert [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines[: lines.index("")]] == [
        "system",
        "---",
        r"\*best",
        "[old]",
        r"\&%$#\_{}\\\~^±",
        r"\_a\_ b_c \`d\` \<e> \|f\| \~g [h]\(i)",
        'x "y", z',
    ]
    table = written("csv")
    assert not any("\r" in line for line in table)
    assert [row["system"] for row in csv.DictReader(table)] == names


def test_a_page_of_something_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("captions", "references"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"1": "a red dog"}))
    files = [
        "--candidates",
        str(tmp_path / "captions.json"),
        "--references",
        str(tmp_path / "references.json"),
    ]
    line = ["score", "rougel", *files, "--report", str(tmp_path / "report")]
    assert main(line) == main(line) == 0  # a report of ours is replaced
    page = tmp_path / "report" / "index.html"
    # As a page that quotes a report far below.
    text = "<html>" + " " * 2000 + page.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert main(line) == 2 and str(page) in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == text
    page.unlink()
    page.mkdir()
    assert main(line) == 2 and page.is_dir()


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
LENGTHS = {"first": [8, 1, 5, 3, 6, 2, 7, 4, 4], "second": [8, 1, 4, 3, 8, 2, 7, 4, 1]}
"""Words of each caption, of a reference that has all eight: more of them have a higher ROUGE-L."""


def test_a_page_shows_the_ends_the_ties_and_what_two_systems_differ_in(tmp_path: Path) -> None:
    lengths = {**LENGTHS, "copy": LENGTHS["first"]}
    texts = {name: [" ".join(WORDS[:length]) for length in of_name] for name, of_name in lengths.items()}
    for name, captions in texts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({f"p{i}": text for i, text in enumerate(captions)}))
    (tmp_path / "references.json").write_text(json.dumps({f"p{i}": [" ".join(WORDS)] for i in range(9)}))
    files = [str(tmp_path / f"{name}.json") for name in texts]
    line = ["score", "rougel", "--candidates", *files, "--references", str(tmp_path / "references.json")]
    assert main([*line, "--report", str(tmp_path / "report"), "--json", str(tmp_path / "scores.json")]) == 0
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    page = Parsed(html).text
    first, second, _ = (
        system["results"][0] for system in json.loads((tmp_path / "scores.json").read_text())["systems"]
    )
    shown = {length: f"{first['scores'][place]:.3f}" for place, length in enumerate(LENGTHS["first"])}

    assert re.findall(r'<td class="(\w*)" data-title="ROUGE-L"><b class="value">([0-9.]+)</b>', html) == [
        ("best", f"{first['mean']:.3f}"),
        ("", f"{second['mean']:.3f}"),
        ("best", f"{first['mean']:.3f}"),
    ]
    assert "ROUGE-L higher is better" in page and "tiny knows nothing" not in page
    assert f"{texts['first'][1]} References {texts['first'][0]} Parts precision 1.000 recall 0.125 " in page
    assert f"ROUGE-L: first and copy tie at {first['mean']:.3f}" in page
    assert "second against first : no difference shown by ROUGE-L" in page
    assert "copy against first : tied by ROUGE-L" in page
    # By Holm's correction for two comparisons, as the verdict is.
    corrected = second["test"]["adjusted"]
    assert corrected > second["test"]["p_value"]
    assert (
        f"−{first['mean'] - second['mean']:.3f}, p = {corrected:.3f}" in page and "+0.000, p = 1.000" in page
    )
    assert f"{first['interval']['low']:.3f} to {first['interval']['high']:.3f}" in page

    def cards(system: str, until: str) -> list[tuple[str, str, str]]:
        part = html.partition("Worst and best captions")[2].partition("Where two systems")[0]
        part = part.partition(f"<bdi>{system}</bdi>")[2].partition(until)[0]
        articles = re.findall('<article class="card">(.*?)</article>', part, re.DOTALL)
        pattern = '"score">(.*?)<.*"auto">(.*?)</blockquote>.*>image (.*?)<'
        return [re.findall(pattern, article, re.DOTALL)[0] for article in articles]

    def expected(system: str, rows: list[int]) -> list[tuple[str, str, str]]:
        return [(shown[lengths[system][row]], texts[system][row], f"p{row}") for row in rows]

    # Nine captions: four worst, and five of which the four best are shown. Of the two of four words one is
    # the last of the worst.
    assert cards("first", "<h4>Best") == expected("first", [1, 5, 3, 8])
    assert cards("first", "<bdi>second") == expected("first", [1, 5, 3, 8, 0, 6, 4, 2])
    note = f"2 captions tie at {shown[4]}; 1 of them are shown."
    assert page.partition("Worst and best captions first")[2].partition(" second ")[0].count(note) == 1
    assert cards("second", "<bdi>copy") == expected("second", [8, 1, 5, 3, 0, 4, 6, 2])
    assert page.count("captions tie at") == 3  # first, copy, and the last of second's best

    differences = page.partition("Where two systems differ most")[2].partition("Settings and sources")[0]
    pairs = []
    for row in (4, 8, 2):
        sides = [f"{name} {shown[lengths[name][row]]} {texts[name][row]}" for name in ("second", "first")]
        pairs.append(f"{' '.join(sides)} image p{row}")
    assert differences.split(" copy and first ") == [
        f" second and first Where second scores higher: 1 of 9 {pairs[0]} Where first scores higher: 2 of 9 "
        f"{pairs[1]} {pairs[2]} 6 of 9 tie: both captions have the same score.",
        "9 of 9 tie: both captions have the same score. ",
    ]

    assert main([*line, "--baseline", "second", "--report", str(tmp_path / "other")]) == 0
    other = Parsed((tmp_path / "other" / "index.html").read_text(encoding="utf-8")).text
    assert "second baseline" in other and "first and second Where first scores higher: 2 of 9" in other
    assert "copy and second Where copy scores higher: 2 of 9" in other and " and first Where" not in other

    lanes = re.findall('<svg class="lane".*?</svg>', html, re.DOTALL)
    for lane, result in zip(lanes, (first, second, first), strict=True):
        scores = np.array(result["scores"])
        below = ", ".join(f"{np.quantile(scores, share):.3f}" for share in (0.05, 0.5, 0.95))
        assert f": 9 scores; 5%, 50% and 95% lie below {below}<" in lane
        # The axis goes from 0 to 1, with eight bars; the highest has all of the height.
        assert f'x1="{100 * scores.mean():.2f}%"' in lane
        low, high = result["interval"]["low"], result["interval"]["high"]
        assert f'x1="{100 * low:.2f}%" x2="{100 * high:.2f}%"' in lane
        counts = np.bincount(np.minimum(scores * 8, 7).astype(int), minlength=8)
        bars = re.findall('<rect x="([0-9.]+)%" y="([0-9.]+)%" width="12.50%" height="([0-9.]+)%"', lane)
        heights = 100 * counts / counts.max()
        assert bars == [(f"{12.5 * i:.2f}", f"{100 - h:.1f}", f"{h:.1f}") for i, h in enumerate(heights) if h]
        assert f"SD {scores.std():.3f}" in page
    assert re.findall(r'left:([0-9.]+)%">([0-9.]+)<', html) == [
        (f"{20 * i:.2f}", f"{i / 5:.4g}") for i in range(6)
    ]


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
