"""The notes of an explanation of HICE-S, and the card that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from capeval_core.phrases.spans import Span
from capeval_core.reports.canvas import COMPARED, FAINT, INK, RIGHT, UNMENTIONED, WRONG
from capeval_core.reports.card import Bar, Caption, Card, FramedImage, Heading, LegendEntry, Row, Table
from capeval_core.reports.explanations import TERMS, outside_text, threshold_text
from capeval_core.reports.marks import RIGHT_MARK, UNKNOWN_MARK, WRONG_MARK, Dot, Mark, RegionMark, Word
from capeval_core.reports.overlay import OutlinedImage

_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_TERMS = ("gitc", "litc", "precision", "recall", "gttc", "lttc")
_OUTLINES = {False: "region that a phrase mentions", True: "region that none mentions"}
_WHOLE = Word("all")  # the mark of the whole image


class PhraseNote(TypedDict):
    """A phrase of the caption.

    precision: w max(cos, 0) with the best region. region: index of that region, None for the whole image.
    mistake: whether the precision is below the threshold. judged: False where the precision is below the
    threshold but the phrase may be about a region outside of the square that the image tower sees; such a
    phrase is not a mistake.
    """

    phrase: str
    precision: float
    region: int | None
    mistake: bool
    judged: bool


class RegionNote(TypedDict):
    """A region of the image.

    box: x0, y0, x1, y1 in pixels. area: share of the image. recall: w max(cos, 0) with the best phrase.
    phrase: that phrase. unmentioned: whether the recall is below the threshold.
    """

    box: list[float]
    area: float
    recall: float
    phrase: str
    unmentioned: bool


class ReferenceNote(TypedDict):
    """A reference: compatibility with the caption as a whole (eq. 3) and by phrases (eq. 9).

    chosen: whether the score uses either.
    """

    reference: str
    gttc: float
    lttc: float
    chosen: bool


def card_of(explanation: Mapping[str, Any], image: OutlinedImage, wrong: Sequence[Span]) -> Card:
    """The card of an explanation with a score.

    Args:
        explanation: with the keys of a `HiceExplanation`.
        image: its image, with `region_marks` of its regions.
        wrong: the spans of its caption to mark.
    """
    key = next(name for name in _TITLES if name in explanation)
    terms = [(TERMS.get(name, name), explanation[name]) for name in _TERMS if name in explanation]
    phrases, regions, threshold = (explanation[name] for name in ("phrases", "regions", "threshold"))
    phrase_rows = [_phrase_row(note, image.marks) for note in phrases]
    region_rows = [_region_row(note, mark) for note, mark in zip(regions, image.marks, strict=True)]
    if explanation["whole"] is not None:
        phrase, recall = explanation["whole"]["phrase"], explanation["whole"]["recall"]
        region_rows.append(Row(_WHOLE, phrase, [Bar(recall, FAINT)]))
    reference_rows = [_reference_row(note) for note in explanation.get("compared", [])]
    return Card(
        heading=Heading(_TITLES[key], explanation[key], terms),
        caption=Caption(explanation["caption"], wrong, _truncation(explanation)),
        image=FramedImage(image, _legend(explanation)),
        tables=[
            Table("Phrases", ["precision, best region"], phrase_rows, threshold),
            Table("References", [TERMS["gttc"], TERMS["lttc"]], reference_rows),
        ],
        last=Table("Regions", ["recall"], region_rows, threshold),
    )


def region_marks(notes: Sequence[RegionNote]) -> list[RegionMark]:
    """The marks of an explanation's regions, for the image and the tables."""
    return [RegionMark.of(index, note["unmentioned"]) for index, note in enumerate(notes)]


def _truncation(explanation: Mapping[str, Any]) -> str:
    if not explanation["truncated"]:
        return ""
    texts = "The caption or a reference" if "compared" in explanation else "The caption"
    return f"{texts} is longer than the text encoder reads: its end was cut off."


def _legend(explanation: Mapping[str, Any]) -> list[LegendEntry]:
    notes: Sequence[RegionNote] = explanation["regions"]
    kinds = {note["unmentioned"] for note in notes}
    entries = [LegendEntry(text, RegionMark.of(0, kind)) for kind, text in _OUTLINES.items() if kind in kinds]
    if not notes:
        where = "inside the square" if explanation["outside"] else "found"
        entries.append(LegendEntry(f"No region was {where}: the whole image stands for them."))
    entries.append(LegendEntry(threshold_text(explanation), RIGHT_MARK))
    if outside := outside_text(explanation):
        entries.append(LegendEntry(f"{outside}; phrases may be about them", UNKNOWN_MARK))
    return entries


def _phrase_row(note: PhraseNote, marks: Sequence[RegionMark]) -> Row:
    wrong, region = note["mistake"], note["region"]
    lead: Mark = WRONG_MARK if wrong else RIGHT_MARK
    bar, colour = (WRONG, WRONG) if wrong else (RIGHT, INK)
    if not note["judged"]:
        lead, bar, colour = UNKNOWN_MARK, FAINT, FAINT
    return Row(
        lead=lead,
        text=note["phrase"],
        bars=[Bar(note["precision"], bar)],
        tail=_WHOLE if region is None else marks[region],
        colour=colour,
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
