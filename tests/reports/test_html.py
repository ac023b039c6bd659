"""The page of a report: its numbers, what is escaped, what is private, and what a broken disk leaves."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capeval_core.reports.html import check_report, page, without_folders, write_report
from capeval_core.reports.html_captions import SHOWN, differences, ends
from capeval_core.reports.systems import Column, Systems
from capeval_core.reports.systems import Test as PairedTest
from tests.reports.pages import NAN, Parsed, X, Y, cell, system, two_systems

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title></textarea><b>bold</b>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<!-- --><svg/onload=alert(1)>&lt;i&gt;",
    "\x00\x1b[31m\u202egnp.exe\ud800",
)


def test_the_table_has_every_number_and_marks_what_differs() -> None:
    found = Parsed(page(two_systems())).text
    assert "0.250 0.200 to 0.310" in found and "1.300" in found
    assert "▲ +0.200, p = 0.004" in found
    assert "▼ +0.300, p = 0.006" in found  # lower is better by this metric
    assert "B against A : better by X-S ; worse by Y-S ." in found
    corrected = Parsed(page(replace(two_systems(), correction="Holm's correction for 2"))).text
    assert "baseline: p, adjusted by Holm's correction, below 0.05." in corrected
    uncorrected = Parsed(page(replace(two_systems(), correction=""))).text
    assert "baseline: p below 0.05." in uncorrected and "adjusted" not in uncorrected
    unclear = two_systems()
    test = PairedTest(0.2, -0.1, 0.5, 0.02, 0.2, 4)
    cells = {**unclear.systems[1].cells, "x": replace(unclear.systems[1].cells["x"], test=test)}
    shown = Parsed(
        page(replace(unclear, systems=[unclear.systems[0], replace(unclear.systems[1], cells=cells)]))
    )
    assert "▲ +" not in shown.text and "no difference shown by X-S" in shown.text


def test_the_best_of_each_metric_is_marked_by_its_direction() -> None:
    rows = page(two_systems()).partition('<table class="systems">')[2].partition("</table>")[0].split("<tr>")
    best = [re.findall(r'<td class="(best|)" data-title="(.*?)"', row) for row in rows[2:]]
    assert best == [[("", "X-S"), ("best", "Y-S")], [("best", "X-S"), ("", "Y-S")]]


def test_systems_that_read_alike_tie() -> None:
    near = [system(name, "ab", {"x": cell(scores)}) for name, scores in zip("ABC", NEAR, strict=True)]
    compared = Systems(near, [X], "A")
    assert compared.best(X, 3) == ["A", "B"] and compared.best(X, 6) == ["B"]
    html = page(compared)
    assert html.count('<td class="best"') == 2 and "X-S: A and B tie at 0.500" in html
    captions = html.partition("Where two systems differ most")[2]
    assert "2 of 2 tie: both captions have the same score." in captions.partition("C and A")[0]
    assert "Where <bdi>A</bdi> scores higher: 1 of 2" in captions.partition("C and A")[2]
    many = page(Systems([system("A", "abcdefghij", {"x": cell([0.0] * 9 + [1.0])})], [X]))
    assert "9 captions tie at 0.000; 4 of them are shown." in many


NEAR = ([0.4, 0.6], [0.40001, 0.60001], [0.4, 0.1])


def test_numbers_for_readers_have_minus_signs_and_the_digits_that_they_want() -> None:
    lower = PairedTest(-0.2, -0.3, -0.1, 0.001, 0.004, 4)
    cells = {"x": cell([-0.25, 0.0], interval=(-0.5, 0.25), test=lower)}
    compared = Systems([system("A", "ab", {"x": cell([0.1, 0.2])}), system("B", "cd", cells)], [X], "A")
    shown = Parsed(page(compared)).text
    assert "−0.125 −0.500 to 0.250 ▼ −0.200" in shown and "-0." not in shown
    percent = Parsed(page(replace(compared, times_100=True))).text
    assert "−12.5 −50.0 to 25.0 ▼ −20.0" in percent and "From 0 to 100" in percent
    assert "−12.50 −50.00 to 25.00" in Parsed(page(replace(compared, times_100=True, digits=2))).text


def test_all_metrics_but_the_first_are_folded_and_tiny_is_warned_of() -> None:
    def is_open(html: str) -> list[bool]:
        return ["open" in one for one in Parsed(html).named("details") if one.get("class") == "metric"]

    assert is_open(page(two_systems())) == [True, False]
    assert "tiny" not in page(two_systems())
    own = {"x": cell([0.5], signature="capeval:x|weights:tiny@1234|v:1"), "y": cell([0.5])}
    (warning,) = re.findall('<p class="warning">(.*?)</p>', page(Systems([system("A", "a", own)], [X, Y])))
    assert warning.startswith("X-S: tiny knows nothing but drawn scenes")


def test_what_has_no_interval_or_test_says_why() -> None:
    few = cell([0.1, 0.2], no_interval="an interval needs 5 images", no_test="signatures differ")
    shown = Parsed(page(Systems([system("A", ["a", "b"], {"x": few})], [X]))).text
    assert "X-S: an interval needs 5 images." in shown and "X-S: signatures differ." in shown


def test_worst_and_best_are_those_of_the_scores() -> None:
    scores = [0.5, NAN, 0.1, 0.9, 0.4, 0.6, 0.3, 0.2, 0.8, 0.7, float("inf")]
    assert ends(scores) == ([2, 7, 6, 4], [3, 8, 9, 5])
    assert ends(scores, higher_is_better=False) == ([3, 8, 9, 5], [2, 7, 6, 4])
    assert ends([NAN]) == ([], []) and ends([0.5]) == ([], [0])
    shown = page(Systems([system("A", [f"text{i}" for i in range(11)], {"x": cell(scores)})], [X]))
    order = re.findall(r">(text\d+)<", re.sub('<div class="why">.*?</blockquote>', "", shown))
    assert order == [f"text{i}" for i in (2, 7, 6, 4, 3, 8, 9, 5)] and len(order) == 2 * SHOWN


def test_differences_are_of_captions_of_one_image() -> None:
    first = system("A", "abcd", {"x": cell([0.1, 0.2, 0.3, 0.4])}, ids=["1", "2", "2", "3"])
    second = system("B", "efgh", {"x": cell([0.9, 0.5, 0.8, NAN])}, ids=["2", "4", "2", "3"])
    found = list(differences(first, second, X))
    assert [(i, j) for i, j, _ in found] == [(1, 0), (2, 2)]
    assert [gain for *_, gain in found] == pytest.approx([-0.7, -0.5])
    lower = replace(X, higher_is_better=False)
    assert [gain for *_, gain in differences(first, second, lower)] == pytest.approx([0.7, 0.5])


def test_relative_scores_of_two_systems_are_not_compared() -> None:
    column = replace(X, relative="its totals are z-scores within one set")
    systems = [system(name, "ab", {"x": cell([0.1, 0.9 if name == "B" else 0.2])}) for name in "AB"]
    shown = page(Systems(systems, [column], "A"))
    assert "differ most" not in shown and "X-S: no interval, as its totals are z-scores" in shown
    assert "differ most" in page(Systems(systems, [X], "A"))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_a_tag_or_an_address(text: str) -> None:
    column = Column(text, text, text, (0, 1), True, None, text, text, text)
    evidence = {0: {"caption": text, "references": {text: 0.5}}, 1: {"references": {}}}
    own = cell(
        [0.1, 0.2, NAN],
        errors={2: text},
        signature=text,
        parts={text: [0.5, 0.5, 0.5]},
        evidence=evidence,
        no_interval=text,
        no_test=text,
    )
    captions = {"ids": [text, text + "2", "3"], "references": [[text]] * 3, "images": [text] * 3}
    systems = [system(name, [text] * 3, {text: own}, **captions) for name in (text, "B" + text)]
    shown = page(Systems(systems, [column], text, text, 0.95, text, text, [text], {text: text}, text))
    parsed = Parsed(shown)
    assert not parsed.open or parsed.open == ["svg"], "every tag is closed"
    known = {
        "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section",
        "h1", "h2", "h3", "h4", "p", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "caption",
        "data", "b", "bdi", "small", "span", "figure", "figcaption", "svg", "line", "circle", "rect",
        "details", "summary", "article", "blockquote", "ul", "li", "pre", "label", "input",
    }  # fmt: skip
    assert {tag for tag, _ in parsed.tags} <= known
    attributes = [(name, value) for _, found in parsed.tags for name, value in found.items()]
    assert not [
        name for name, _ in attributes if name.startswith("on") or name in ("src", "srcset", "srcdoc")
    ]
    assert all(value and value.startswith("#") for name, value in attributes if name == "href")
    visible = "�" if "\x00" in text else " ".join(text.split())
    assert visible in parsed.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


def test_the_page_forbids_everything_but_itself() -> None:
    shown = Parsed(page(two_systems()))
    (policy,) = [
        m["content"] for m in shown.named("meta") if m.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    assert not shown.named("script") and not shown.named("link")


def test_only_addresses_of_papers_become_links() -> None:
    def links(address: str) -> list[str | None]:
        columns = [replace(X, address=address)]
        shown = Parsed(page(Systems([system("A", ["a"], {"x": cell([0.5])})], columns)))
        return [link["href"] for link in shown.named("a") if link["href"] and link["href"][0] != "#"]

    assert links("https://arxiv.org/abs/1?a=1&b=2") == ["https://arxiv.org/abs/1?a=1&b=2"]
    assert links("javascript:alert(1)") == [] and links("http://x.org") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot decode '/home/me/my photos/x.jpg' (truncated)", "cannot decode 'x.jpg' (truncated)"),
        ("--images /home/me/photos --json=/tmp/a/b.json", "--images photos --json=b.json"),
        (r"C:\Users\me\x.jpg and \\server\share\y.jpg", "x.jpg and y.jpg"),
        ("~/runs/a.json, ./b/c.json", "a.json, ./b/c.json"),
        ("'/home/me/a...z/x.jpg' is empty", "'x.jpg' is empty"),
        ("F1/2, https://arxiv.org/abs/1, capeval/pacs@1", "F1/2, https://arxiv.org/abs/1, capeval/pacs@1"),
    ],
)
def test_no_folder_of_the_disk_is_named(text: str, expected: str) -> None:
    assert without_folders(text) == expected


def test_what_failed_is_counted_and_its_reasons_are_given() -> None:
    scores = [0.5] * 4 + [NAN] * 30
    errors = {i: f"images[{i}]: cannot decode '/home/ada/secret/{i}.jpg'" for i in range(4, 34)}
    own = cell(scores, errors=errors, truncated=3, empty=2)
    images = [f"/home/ada/secret/{i}.jpg" for i in range(34)]
    systems = [system("A", ["t"] * 34, {"x": own}, images=images)]
    shown = page(Systems(systems, [X], command="capeval score x /home/ada/c.json"))
    text = Parsed(shown).text
    assert "A , X-S 30 3 2 0" in text
    assert "id4: images[4]: cannot decode '4.jpg'" in text and "and 18 more" in text
    assert "ada" not in shown and "secret" not in shown and "capeval score x c.json" in text


def test_nothing_scored_is_still_a_page() -> None:
    shown = Parsed(page(Systems([system("A", ["a", "b"], {"x": cell([NAN, NAN])})], [X]))).text
    assert "no score" in shown and "No caption has a score." in shown


def test_a_report_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "report"
    path = write_report(folder, two_systems())
    first = path.read_bytes()
    assert [file.name for file in folder.iterdir()] == ["index.html"] and first.endswith(b"</html>\n")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(folder, two_systems(command="another"))
    assert path.read_bytes() == first and [file.name for file in folder.iterdir()] == ["index.html"]
    monkeypatch.undo()
    write_report(folder, two_systems(command="another"))
    assert b"another" in path.read_bytes()


def test_a_folder_that_holds_another_page_or_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<html>my site</html>")
    with pytest.raises(FileExistsError, match="no report of capeval: name another folder"):
        check_report(tmp_path)
    with pytest.raises(NotADirectoryError, match="is a file"):
        check_report(tmp_path / "index.html")
    with pytest.raises(FileExistsError):
        write_report(tmp_path, two_systems())
    assert (tmp_path / "index.html").read_text() == "<html>my site</html>"


def test_ten_thousand_captions_of_five_systems_stay_small(tmp_path: Path) -> None:
    scores = [i / 10_000 for i in range(10_000)]
    captions = [f"a caption of some usual length about a dog, a lawn and picture {i}" for i in range(10_000)]
    systems = [
        system(name, captions, {"x": cell(scores[i:] + scores[:i]), "y": cell(scores)})
        for i, name in enumerate("ABCDE")
    ]
    columns = [X, replace(X, name="y", title="Y-S")]
    assert (
        len(page(Systems(systems, columns, "A"))) < 500_000
    )  # without pictures, whose sum has its own limit


def test_texts_of_any_script_keep_their_own_direction() -> None:
    captions = ["مثلث أخضر فوق مربع", "左边有一个红色的圆圈", "एक लाल वृत्त"]
    shown = page(Systems([system("A", captions, {"x": cell([0.1, 0.2, 0.3])})], [X]))
    for caption in captions:
        assert f'<blockquote dir="auto">{caption}</blockquote>' in shown
    assert '<meta charset="utf-8">' in shown[:200]


def test_a_very_long_caption_is_cut() -> None:
    shown = page(Systems([system("A", ["x" * 100_000], {"x": cell([0.1])})], [X]))
    assert "(100,000 characters)" in shown and len(shown) < 60_000
