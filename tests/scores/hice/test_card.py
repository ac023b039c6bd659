"""How an explanation of HICE-S becomes a card: each note a row, each region one mark everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from capeval_core.phrases.spans import Span
from capeval_core.regions.regions import Regions
from capeval_core.reports.canvas import COMPARED, FAINT, INK, REGIONS, RIGHT, UNMENTIONED, WRONG
from capeval_core.reports.card import Bar, Caption, Card, LegendEntry, Row
from capeval_core.reports.marks import RIGHT_MARK, UNKNOWN_MARK, WRONG_MARK, Dot, RegionMark, Word
from capeval_core.reports.overlay import OutlinedImage
from capeval_core.scores.hice.card import card_of, region_marks
from capeval_core.scores.hice.explanation import PhraseNote, ReferenceNote, RegionNote

PHRASES: list[PhraseNote] = [
    {"phrase": "wall", "precision": 0.9, "region": 1, "mistake": False, "judged": True},
    {"phrase": "door", "precision": 0.1, "region": None, "mistake": True, "judged": True},
]
REGIONS_SEEN: list[RegionNote] = [
    {"box": [0, 0, 1, 2], "area": 0.5, "recall": 0.2, "phrase": "door", "unmentioned": True},
    {"box": [1, 0, 2, 2], "area": 0.5, "recall": 0.9, "phrase": "wall", "unmentioned": False},
]
COMPARED_WITH: list[ReferenceNote] = [
    {"reference": "a wall", "gttc": 0.8, "lttc": 0.7, "chosen": True},
    {"reference": "a dog", "gttc": 0.2, "lttc": 0.1, "chosen": False},
]
MARKS = [RegionMark("1", UNMENTIONED, unmentioned=True), RegionMark("2", REGIONS[1])]
TERMS = {"gitc": 0.7, "litc": 0.5, "precision": 0.5, "recall": 0.55}


def card(key: str = "hice_s", **changed: Any) -> Card:
    content = {"caption": "a wall and a door", key: 0.6, **TERMS, "threshold": 0.5, "whole": None}
    content |= {"outside": 0, "truncated": 0, "square": [0, 0, 2, 2]}
    content |= {"phrases": PHRASES, "regions": REGIONS_SEEN, **changed}
    halves = np.zeros((2, 2, 2), dtype=np.bool_)
    halves[0, :, 0] = halves[1, :, 1] = True
    marks = region_marks(content["regions"])
    image = OutlinedImage(Image.new("RGB", (2, 2)), Regions.of(halves[: len(marks)], size=(2, 2)), marks)
    return card_of(content, image, [Span(13, 17)])


def test_the_score_and_its_terms() -> None:
    heading = card().heading
    assert (heading.title, heading.value) == ("HICE-S", 0.6)
    assert heading.terms == [("gITC", 0.7), ("lITC", 0.5), ("precision", 0.5), ("recall", 0.55)]
    heading = card("refhice_s", gttc=0.8, lttc=0.7).heading
    assert (heading.title, heading.value) == ("RefHICE-S", 0.6)
    assert heading.terms[4:] == [("gTTC", 0.8), ("lTTC", 0.7)]


def test_the_caption_is_marked_where_it_is_wrong() -> None:
    assert card().caption == Caption("a wall and a door", [Span(13, 17)])


def test_each_phrase_has_the_mark_of_its_region() -> None:
    phrases = card().tables[0]
    assert phrases.rows == [
        Row(RIGHT_MARK, "wall", [Bar(0.9, RIGHT)], MARKS[1], INK),
        Row(WRONG_MARK, "door", [Bar(0.1, WRONG)], Word("all"), WRONG),
    ]
    assert phrases.threshold == 0.5
    assert [card(threshold=0.3).tables[0].threshold, card(threshold=0.3).last.threshold] == [0.3, 0.3]


def test_each_region_has_its_mark_on_the_image_and_in_the_table() -> None:
    made = card(whole={"recall": 0.4, "phrase": "wall"})
    assert made.image.image.marks == MARKS
    assert made.last.rows == [
        Row(MARKS[0], "not mentioned; nearest: door", [Bar(0.2, UNMENTIONED)], colour=UNMENTIONED),
        Row(MARKS[1], "wall", [Bar(0.9, REGIONS[1])]),
        Row(Word("all"), "wall", [Bar(0.4, FAINT)]),
    ]
    assert made.last.threshold == 0.5


def test_references_that_the_score_does_not_use_are_faint() -> None:
    references = card(compared=COMPARED_WITH).tables[1]
    assert references.rows == [
        Row(Dot(COMPARED), "a wall", [Bar(0.8, COMPARED), Bar(0.7, COMPARED)]),
        Row(Dot(FAINT, hollow=True), "a dog", [Bar(0.2, FAINT), Bar(0.1, FAINT)], colour=FAINT),
    ]
    assert references.threshold is None
    assert card().tables[1].rows == []


def test_the_legend_names_the_outlines_that_there_are() -> None:
    def legend(*unmentioned: bool, outside: int = 0) -> list[LegendEntry]:
        notes = [{**REGIONS_SEEN[0], "unmentioned": each} for each in unmentioned]
        phrases = [PHRASES[1]]  # of no region
        return list(card(regions=notes, phrases=phrases, outside=outside).image.legend)

    mentioned = LegendEntry("region that a phrase mentions", RegionMark.of(0))
    missed = LegendEntry("region that none mentions", RegionMark.of(0, unmentioned=True))
    tick = LegendEntry("fits a region: precision of at least 0.5", RIGHT_MARK)
    assert legend(True, False) == legend(False, True) == [mentioned, missed, tick]
    assert (legend(False), legend(True)) == ([mentioned, tick], [missed, tick])
    nothing = LegendEntry("No region was found: the whole image stands for them.")
    assert legend() == [nothing, tick]
    outside = LegendEntry(
        "11 regions outside the square were not judged; phrases may be about them", UNKNOWN_MARK
    )
    assert legend(False, outside=11) == [mentioned, tick, outside]
    assert legend(outside=1)[0].text == "No region was inside the square: the whole image stands for them."
    assert legend(outside=1)[2].text.startswith("1 region outside the square was not judged")


def test_phrases_that_are_not_judged_are_neither_right_nor_wrong() -> None:
    phrases = [PHRASES[0], {**PHRASES[1], "mistake": False, "judged": False}]
    rows = card(phrases=phrases, outside=2).tables[0].rows
    assert rows[1] == Row(UNKNOWN_MARK, "door", [Bar(0.1, FAINT)], Word("all"), FAINT)


def test_texts_that_are_truncated_have_a_remark() -> None:
    assert card().caption.remark == ""
    assert card(truncated=2).caption.remark.startswith("The caption is longer than the text encoder reads")
    compared = card(truncated=2, compared=COMPARED_WITH)
    assert compared.caption.remark.startswith("The caption or a reference is longer")
