"""What a page shows of HICE-S beside the score, where the image is wider than what the image tower sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from capeval_core.demo import demo_clips, demo_set

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

from capeval_core.integrations.page import views
from capeval_core.integrations.page.scorer import Scorer
from capeval_core.reports import explanations
from capeval_core.reports.matches import MatchExplanation, word_matches

ITEMS = demo_set()[:4]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer("hices", "tiny")


@pytest.fixture(scope="module")
def strip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes beside each other: 4 : 1."""
    image = Image.new("RGB", (4 * 192, 192))
    for place, item in enumerate(ITEMS):
        image.paste(Image.open(item.image).convert("RGB"), (192 * place, 0))
    path = tmp_path_factory.mktemp("wide") / "strip.png"
    image.save(path)
    return path


def test_true_phrases_of_what_lies_outside_are_not_marked_as_wrong(scorer: Scorer, strip: Path) -> None:
    shown = views.score(scorer.score(str(strip), f"{ITEMS[0].good} and {ITEMS[2].good}", []), "tiny")
    assert "sign wrong" not in shown and "<mark>" not in shown
    assert shown.count("11 regions outside the square were not judged") == 2  # in the legend and read aloud
    phrases = shown.partition("Phrases, the region")[2].partition("</table>")[0]
    assert len(re.findall('sign unknown" role="img" aria-label="not judged"', phrases)) == 4
    assert phrases.count("sign right") == 1


def test_of_a_square_image_everything_is_judged(scorer: Scorer) -> None:
    shown = views.score(scorer.score(str(ITEMS[1].image), ITEMS[1].subtly_wrong, []), "tiny")
    assert "sign wrong" in shown and "<mark>" in shown
    assert "not judged" not in shown


def test_the_threshold_of_a_tick_and_a_cut_caption_are_told(scorer: Scorer) -> None:
    scored = scorer.score(str(ITEMS[1].image), ITEMS[1].good + " and many other things" * 60, [])
    shown = views.score(scored, "tiny")
    assert f"fits a region: precision of at least {scored.evidence['threshold']:.4g}" in shown
    assert "The caption is longer than the text encoder reads: its end was cut off" in shown


def test_matches_of_words_are_shown_with_the_best_reference() -> None:
    notes = [
        word_matches(text, ["a", "<b>"], text.split(), [[0.25, 0.5], [0.75, 0.1]], 0.6, 0.6, 0.6)
        for text in ("red dog", "<i> cat")
    ]
    explanation = MatchExplanation({"caption": "a <b>", "matches": notes, "best": 1})
    shown = explanations.panels(explanation)
    assert "<i>" not in shown and "<b>" not in shown and "1. red dog<" in shown
    assert shown.count("<small>best</small>") == 1 and "2. &lt;i&gt; cat <small>best</small>" in shown
    met = re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td><td class="shaded"', shown)
    assert met == [("a", "cat"), ("&lt;b&gt;", "&lt;i&gt;"), ("&lt;i&gt;", "&lt;b&gt;"), ("cat", "a")]
    assert "<img" not in shown  # a heat map could not be read on a phone
    assert "<b>Mean of the references</b>" not in shown  # of an explanation without its parts
    empty = word_matches("red dog", [], ["red", "dog"], [], 0.0, 0.0, 0.0)
    explanation = MatchExplanation({"caption": "", "matches": [empty], "best": 0})
    assert "<img" not in explanations.panels(explanation)


def test_the_mean_of_the_references_is_the_score_of_vilbertscore() -> None:
    item = ITEMS[1]
    scored = Scorer("vilbertscore", "tiny").score(str(item.image), item.good, list(item.references))
    shown = views.score(scored, "tiny")
    row = re.search("<b>Mean of the references</b>.*?</tr>", shown)
    assert row is not None
    f = [float(value) for value in re.findall('<data value="(.*?)"', row[0])][2]
    assert f == scored.score != pytest.approx(max(scored.evidence["reference_f"]), abs=1e-3)
    assert "rare" not in "".join(scored.notes)  # its words weigh alike, unless idf is asked for


def test_boxes_of_umic_are_numbered_and_fillers_are_not_outlined() -> None:
    item = ITEMS[1]
    scored = Scorer("umic", "tiny").score(str(item.image), item.good, [])
    confident = [note["confidence"] > 0.2 for note in scored.evidence["boxes"]]
    assert confident.count(True) == 6 and len(confident) == 10  # six objects, and cells of a grid
    drawn = re.findall(
        '<i class="box" style="(.*?)"><b class="badge".*?>([0-9]+)</b>', views.score(scored, "tiny")
    )
    assert sorted(int(label) for _, label in drawn) == [1, 2, 3, 4, 5, 6]
    sides = [float(side) for style, _ in drawn for side in re.findall("(?:width|height):([0-9.]+)%", style)]
    assert len(sides) == 12 and all(15 < side < 60 for side in sides)


def test_a_video_shows_words_alone_and_its_bar_starts_at_0() -> None:
    clip = demo_clips()[1]
    scored = Scorer("pacs", "tiny", "video").score(str(clip.image), f"{clip.good} {'! ' * 9}", [])
    shown = views.score(scored, "tiny")
    words = re.findall(r'<th scope="row">[0-9]+\. (\S+) <small>frame', shown)
    assert words == re.findall("[a-z]+", clip.good)
    assert len(scored.evidence["words"]) > len(words) + 2  # evidence has all of them
    place = re.search('class="row bars">.*?--from:([0-9.]+)%;--at:([0-9.]+)%', shown)
    assert place is not None and float(place[1]) == pytest.approx(100 / 3, abs=0.01)  # of -0.5 to 1
    assert float(place[2]) == pytest.approx(100 * (scored.score + 0.5) / 1.5, abs=0.01)
    assert shown.count("<img") == len({match["frame"] for match in scored.evidence["words"]})
    assert "<polyline" in shown and "<span>−0.5 to 1</span>" in views.heading(scored.metric)


def test_a_number_that_reads_as_zero_has_no_sign() -> None:
    assert [explanations.number(value) for value in (-0.0004, -0.0, -0.0006)] == ["0.000", "0.000", "−0.001"]
    note = {"caption": "a", "rank": 1, "dropped": None, "total": -1e-9, "ensemble": -1e-9, "consensus": 0.0}
    shown = explanations.panels({"candidates": [{**note, "itm": -0.0}], "choice": 0})
    assert shown.count(">0.000<") == 4 and "-0.000<" not in shown and "−0.000" not in shown
