"""Matches of words: who met whom, and where the heat map is dark."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from capeval_core.reports.matches import MatchExplanation, word_matches

WORDS, OTHERS = ["a", "red", "dog"], ["red", "dogs"]
COSINES = [[0.1, 0.2], [1.0, -0.4], [0.3, 0.8]]


def explained(cosines: Any = COSINES, words: Any = WORDS, others: Any = OTHERS) -> MatchExplanation:
    note = word_matches(" ".join(others), words, others, cosines, 0.6, 0.9, 0.72)
    return MatchExplanation({"caption": " ".join(words), "image": "x.png", "matches": [note], "best": 0})


def test_each_word_meets_the_most_similar_one() -> None:
    note = explained()["matches"][0]
    assert [(m["word"], m["match"], m["cosine"]) for m in note["caption_matches"]] == [
        ("a", "dogs", 0.2),
        ("red", "red", 1.0),
        ("dog", "dogs", 0.8),
    ]
    assert [(m["word"], m["match"]) for m in note["reference_matches"]] == [("red", "red"), ("dogs", "dog")]
    equal = word_matches("b c", ["a"], ["b", "c"], [[0.5, 0.5]], 0.5, 0.5, 0.5)
    assert equal["caption_matches"][0]["match"] == "b"


def test_without_words_nobody_is_met_and_nothing_drawn() -> None:
    for words, others, cosines in (([], ["dog"], []), (["dog"], [], [[]])):
        shown = explained(cosines, words, others)
        note = shown["matches"][0]
        met = note["caption_matches"] + note["reference_matches"]
        assert met == [{"word": "dog", "match": None, "cosine": None}]
        with pytest.raises(ValueError, match="no words to draw"):
            shown.plot()


def test_the_heat_map_is_dark_where_cosines_are_high() -> None:
    image = explained().plot(720)
    pixels = np.asarray(image.convert("L"), dtype=float)
    assert image.size[0] == 720
    rows, columns = [128, 162, 196], [240, 520]  # left of and above the cells' numbers
    darkness = np.array([[255 - pixels[y - 11 : y - 5, x : x + 20].mean() for x in columns] for y in rows])
    order = np.argsort(np.maximum(np.array(COSINES), 0).ravel())
    assert (np.argsort(darkness.ravel())[-2:] == order[-2:]).all()
    assert darkness[1, 1] < 10 and darkness[1, 0] > 100  # a negative cosine is white
    wide = explained().plot(1440)
    assert wide.size == (1440, 2 * image.size[1])


def test_long_texts_fit_the_sheet_and_explanations_are_pickled() -> None:
    words = [f"word{i}" * 3 for i in range(36)]
    cosines = np.random.default_rng(0).uniform(-1, 1, (36, 36)).tolist()
    shown = explained(cosines, words, words)
    assert shown.plot(720).size == pickle.loads(pickle.dumps(shown)).plot(720).size
    assert pickle.loads(pickle.dumps(shown)) == shown
    with pytest.raises(ValueError, match="width=100"):
        shown.plot(100)
    with pytest.raises(IndexError, match="reference=1: there are 1 references"):
        shown.plot(reference=1)
    with pytest.raises(ValueError, match="no score to draw: broken"):
        MatchExplanation({"matches": [], "best": None, "error": "broken"}).plot()
