"""What a page shows of HICE-S beside the score, where the image is wider than what the image tower sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from capeval_core.demo import demo_set

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
    assert 'src="data:image/jpeg;base64,' in shown
    assert "1. a <small>cat</small>" in shown and "2. &lt;b&gt; <small>&lt;i&gt;</small>" in shown
    empty = word_matches("red dog", [], ["red", "dog"], [], 0.0, 0.0, 0.0)
    explanation = MatchExplanation({"caption": "", "matches": [empty], "best": 0})
    assert "<img" not in explanations.panels(explanation)
