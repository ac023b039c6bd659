"""How an explanation of HICE-S is drawn: its notes as the blocks of a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capeval_core.drawing.caption import Caption
from capeval_core.drawing.card import Card
from capeval_core.drawing.colours import COMPARED, FAINT, INK, RIGHT, UNMENTIONED, WRONG
from capeval_core.drawing.heading import Heading
from capeval_core.drawing.marks import Cross, Dot, RegionMark, Tick, Word
from capeval_core.drawing.overlay import OutlinedPicture
from capeval_core.drawing.picture import FramedPicture, LegendEntry
from capeval_core.drawing.table import Bar, Row, Table
from capeval_core.phrases.places import Span
from capeval_core.scores.hice_notes import PhraseNote, ReferenceNote, RegionNote

_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_TERMS = {
    "gitc": "global",
    "litc": "local",
    "precision": "precision",
    "recall": "recall",
    "gttc": "global text",
    "lttc": "local text",
}
_WHOLE = Word("all")  # stands for the whole picture


def card_of(explanation: Mapping[str, Any], picture: OutlinedPicture, wrong: Sequence[Span]) -> Card:
    """The card of an explanation with a score.

    Args:
        explanation: with the keys of a `HiceExplanation`.
        picture: what it is about, with `region_marks` of its regions.
        wrong: where its caption is wrong.
    """
    key = next(name for name in _TITLES if name in explanation)
    terms = [(told, explanation[name]) for name, told in _TERMS.items() if name in explanation]
    phrases, regions, threshold = (explanation[name] for name in ("phrases", "regions", "threshold"))
    phrase_rows = [_phrase_row(note, picture.marks) for note in phrases]
    region_rows = [_region_row(note, mark) for note, mark in zip(regions, picture.marks, strict=True)]
    if explanation["whole"] is not None:
        phrase, recall = explanation["whole"]["phrase"], explanation["whole"]["recall"]
        region_rows.append(Row(_WHOLE, phrase, [Bar(recall, FAINT)]))
    reference_rows = [_reference_row(note) for note in explanation.get("compared", [])]
    return Card(
        heading=Heading(_TITLES[key], explanation[key], terms),
        caption=Caption(explanation["caption"], wrong),
        picture=FramedPicture(picture, _legend(regions)),
        tables=[
            Table("Phrases", ["precision, best region"], phrase_rows, threshold),
            Table("References", ["global", "local"], reference_rows),
        ],
        last=Table("Regions", ["recall"], region_rows, threshold),
    )


def region_marks(notes: Sequence[RegionNote]) -> list[RegionMark]:
    """The marks of an explanation's regions, on the picture and in the tables."""
    return [RegionMark.of(index, note["unmentioned"]) for index, note in enumerate(notes)]


def _legend(notes: Sequence[RegionNote]) -> list[LegendEntry]:
    if not notes:
        return [LegendEntry("No region was found: the whole picture stands for them.")]
    told = {False: "region that a phrase mentions", True: "region that none mentions"}
    found = {note["unmentioned"] for note in notes}
    return [LegendEntry(text, RegionMark.of(0, kind)) for kind, text in told.items() if kind in found]


def _phrase_row(note: PhraseNote, marks: Sequence[RegionMark]) -> Row:
    wrong, region = note["mistake"], note["region"]
    return Row(
        lead=Cross() if wrong else Tick(),
        text=note["phrase"],
        bars=[Bar(note["precision"], WRONG if wrong else RIGHT)],
        tail=_WHOLE if region is None else marks[region],
        colour=WRONG if wrong else INK,
    )


def _region_row(note: RegionNote, mark: RegionMark) -> Row:
    missed = note["unmentioned"]
    return Row(
        lead=mark,
        text=f"not mentioned; nearest: {note['phrase']}" if missed else note["phrase"],
        bars=[Bar(note["recall"], mark.colour)],
        colour=UNMENTIONED if missed else INK,
    )


def _reference_row(note: ReferenceNote) -> Row:
    chosen = note["chosen"]
    colour = COMPARED if chosen else FAINT
    return Row(
        lead=Dot(colour, hollow=not chosen),
        text=note["reference"],
        bars=[Bar(note["gttc"], colour), Bar(note["lttc"], colour)],
        colour=INK if chosen else FAINT,
    )
