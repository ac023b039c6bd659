"""The notes of an explanation of HICE-S, and the card that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from capeval_core.phrases.spans import Span
from capeval_core.reports.explanations import TERMS, outside_text, threshold_text
from capeval_core.reports.overlay import FAINT, INK, UNMENTIONED, region_colour

if TYPE_CHECKING:
    from PIL.Image import Image

_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_TERMS = ("gitc", "litc", "precision", "recall", "gttc", "lttc")


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


def card_of(explanation: Mapping[str, Any], image: Image, wrong: Sequence[Span], width: int) -> Image:
    """The card of an explanation with a score, `width` pixels wide.

    Args:
        explanation: with the keys of a `HiceExplanation`.
        image: with its regions outlined.
        wrong: the spans of its caption to mark.
    """
    from capeval_core.reports.figures import COMPARED, RIGHT, WRONG, Line, Lines, draw_card

    phrases, regions, threshold = (explanation[name] for name in ("phrases", "regions", "threshold"))

    def sign(region: int | None) -> tuple[str, tuple[int, int, int]]:
        if region is None:
            return "all", FAINT
        return str(region + 1), region_colour(region, regions[region]["unmentioned"])

    def of_phrase(note: PhraseNote) -> Line:
        mark, bar, ink = ("✗", WRONG, WRONG) if note["mistake"] else ("✓", RIGHT, INK)
        if not note["judged"]:
            mark, bar, ink = "–", FAINT, FAINT
        return Line((mark, bar), note["phrase"], [note["precision"]], bar, sign(note["region"]), ink)

    def of_region(index: int, note: RegionNote) -> Line:
        missed = note["unmentioned"]
        text = f"not mentioned; nearest: {note['phrase']}" if missed else note["phrase"]
        mark = sign(index)
        return Line(mark, text, [note["recall"]], mark[1], ink=UNMENTIONED if missed else INK)

    def of_reference(note: ReferenceNote) -> Line:
        chosen = note["chosen"]
        bar = COMPARED if chosen else FAINT
        return Line(("●" if chosen else "○", bar), note["reference"], [note["gttc"], note["lttc"]], bar)

    recalls = [of_region(index, note) for index, note in enumerate(regions)]
    if whole := explanation["whole"]:
        recalls.append(Line(("all", FAINT), whole["phrase"], [whole["recall"]], FAINT))
    key = next(name for name in _TITLES if name in explanation)
    terms = [(TERMS.get(name, name), explanation[name]) for name in _TERMS if name in explanation]
    compared = [of_reference(note) for note in explanation.get("compared", [])]
    tables = [
        Lines("Phrases", ["precision, best region"], list(map(of_phrase, phrases)), threshold),
        Lines("References", [TERMS["gttc"], TERMS["lttc"]], compared),
        Lines("Regions", ["recall"], recalls, threshold),
    ]
    heading = (_TITLES[key], explanation[key], terms)
    return draw_card(image, heading, explanation["caption"], wrong, _legend(explanation), tables, width)


def _legend(explanation: Mapping[str, Any]) -> str:
    regions: Sequence[RegionNote] = explanation["regions"]
    texts = [f"✓ {threshold_text(explanation)}"]
    if any(note["unmentioned"] for note in regions):
        texts.insert(0, "dashed: region that no phrase mentions")
    if not regions:
        where = "inside the square" if explanation["outside"] else "found"
        texts.insert(0, f"No region was {where}: the whole image stands for them.")
    if outside := outside_text(explanation):
        texts.append(f"– {outside}; phrases may be about them")
    if explanation["truncated"]:
        text = "The caption or a reference" if "compared" in explanation else "The caption"
        texts.append(f"{text} is longer than the text encoder reads: its end was cut off.")
    return "; ".join(texts)
