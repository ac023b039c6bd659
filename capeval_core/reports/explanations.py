"""Explanations as HTML, for pages and reports: a panel for each kind of evidence that metrics keep.

A metric adds its own here. Evidence is what `Result.explain` gives, also as it comes back from a file of
JSON: then there is nothing to draw, and the numbers are shown.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from capeval_core.phrases.spans import Span, wrong_words
from capeval_core.reports.canvas import region_colour
from capeval_core.reports.frames import shown_word

STYLE = Path(__file__).with_name("explanations.css")
"""Of signs and marks; the page that holds explanations defines the colours."""
DIGITS = 3
"""As papers report these metrics."""
Evidence = Mapping[str, Any]
Draw = Callable[[Evidence, str], str]
"""An `<img>` of what an explanation draws, with its description; "" where there is nothing to draw."""
Panel = Callable[[Evidence, Draw], str]
"""Of the evidence of a score some HTML; every text of a user or a model in it is escaped."""


def number(value: float) -> str:
    """
    >>> number(0.81849), number(float("nan"))
    ('0.818', 'no score')
    """
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "no score"


def parts(values: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The components of a score that the paper names, by their names; `titles` of some of these."""
    titles = {**titles, **TERMS}
    rows = {
        titles.get(name, name.replace("_", " ")): int(value) if name in _COUNTS else value
        for name, value in values.items()
        if isinstance(value, float) and (value or name not in _COUNTS)
    }
    return table("Parts", {escape(name): value for name, value in rows.items()})


def references(evidence: Evidence, draw: Draw) -> str:
    """The cosine of the caption with each reference, nearest first."""
    found = evidence["references"]
    if isinstance(found, list):
        rows = {f"{number + 1}. {escape(one['reference'])}": one["score"] for number, one in enumerate(found)}
        return table("How the caption fits each reference", rows)
    cosines: Mapping[str, float] = found
    nearest = sorted(cosines.items(), key=lambda item: item[1], reverse=True)
    marked = {escape(text): value for text, value in nearest[:_NEAREST]}
    further = {escape(text): value for text, value in nearest[_NEAREST:]}
    folded = (
        f"<details><summary>{len(further)} more</summary>{table('Further references', further)}</details>"
    )
    shown = table("Cosine with each reference, nearest first", marked)
    return shown + folded if further else shown


_NEAREST = 5
"""References that are shown at once."""
_CHOSEN = " <small>chosen</small>"
_OVERLAY = 1040
"""Pixels of the outlined image's width: twice what it has on a desk, for dense screens."""
TERMS = {"gitc": "gITC", "litc": "lITC", "gttc": "gTTC", "lttc": "lTTC", "itm": "ITM"}
"""The papers' names of parts that have others here."""
_COUNTS = {"region_count", "phrase_count", "regions_dropped", "without_phrases"}


def regions(evidence: Evidence, draw: Draw) -> str:
    """The image with its regions, the caption with its wrong words, and what fits what."""
    missed = sum(note["unmentioned"] for note in evidence["regions"])
    outside = outside_text(evidence)
    description = (
        f"The image with {len(evidence['regions'])} regions outlined, {missed} of which no phrase mentions."
    )
    description += f" {outside}." if outside else ""
    shown = f'{draw(evidence, description)}<figcaption dir="auto">{_marked(evidence)}</figcaption>'
    legend = f'<p class="note">{_sign("right")}{threshold_text(evidence)}</p>'
    if outside:
        legend += f'<p class="note">{_sign("unknown")}{outside}; phrases may be about them</p>'
    phrases = {
        _sign(_kind(note)) + escape(note["phrase"]) + _badge(evidence, note["region"]): note["precision"]
        for note in evidence["phrases"]
    }
    nearest = "<small>not mentioned; nearest:</small> "
    best = {
        f"{_badge(evidence, index)}{nearest if note['unmentioned'] else ''}{escape(note['phrase'])}": note[
            "recall"
        ]
        for index, note in enumerate(evidence["regions"])
    }
    if evidence["whole"] is not None:
        best["the whole image: " + escape(evidence["whole"]["phrase"])] = evidence["whole"]["recall"]
    return (
        f"<figure>{shown}</figure>{legend}"
        + table("Phrases, the region that fits each best, and how well (precision)", phrases)
        + table("Regions, the phrase that fits each best, and how well (recall)", best)
    )


def drawing(evidence: Evidence, text: str, width: int = _OVERLAY, quality: int = 90) -> str:
    """What an explanation draws as a JPEG of so many pixels; "" for evidence that came from a file."""
    if not hasattr(evidence, "overlay"):
        return ""
    written = BytesIO()
    evidence.overlay(width).save(written, "JPEG", quality=quality, subsampling=0)
    data = base64.b64encode(written.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(text)}">'


def _figure(image: str, note: str = "") -> str:
    """An image with a note below it; "" without one."""
    shown = f'<p class="note">{note}</p>' if note else ""
    return f"<figure>{image}</figure>{shown}" if image else ""


def threshold_text(evidence: Evidence) -> str:
    """The least precision of a right phrase, in words for a legend.

    >>> threshold_text({"threshold": 0.5})
    'fits a region: precision of at least 0.5'
    """
    return f"fits a region: precision of at least {evidence['threshold']:.4g}"


def outside_text(evidence: Evidence) -> str:
    """The number of regions that the image tower does not see, in words; "" where it sees all.

    >>> outside_text({"outside": 11}), outside_text({"outside": 1})
    ('11 regions outside the square were not judged', '1 region outside the square was not judged')
    """
    count = evidence["outside"]
    if not count:
        return ""
    return f"{count} region{'s' * (count > 1)} outside the square {'were' if count > 1 else 'was'} not judged"


def wrong_spans(evidence: Evidence) -> list[Span]:
    """The words of a caption to mark: those of its mistakes that no right phrase contains."""
    judged = [note for note in evidence["phrases"] if note["judged"]]
    wrong = [note["phrase"] for note in judged if note["mistake"]]
    right = [note["phrase"] for note in judged if not note["mistake"]]
    return wrong_words(evidence["caption"], wrong, right)


def _marked(evidence: Evidence) -> str:
    """The caption with its wrong words marked."""
    text, pieces, end = evidence["caption"], [], 0
    for span in wrong_spans(evidence):
        pieces += [escape(text[end : span.start]), f"<mark>{escape(text[span.start : span.end])}</mark>"]
        end = span.end
    return "".join([*pieces, escape(text[end:])])


def _kind(note: Mapping[str, Any]) -> str:
    return "unknown" if not note["judged"] else "wrong" if note["mistake"] else "right"


_SIGNS = {
    "right": ("right", "M2 8l3 3 7-8"),
    "wrong": ("mistake", "M3 3l8 8m0-8l-8 8"),
    "unknown": ("not judged", "M2 7h10"),
}
"""How phrases are judged: what is read aloud, and what is drawn."""


def _sign(kind: str) -> str:
    label, path = _SIGNS[kind]
    attributes = f'class="sign {kind}" role="img" aria-label="{label}"'
    return f'<svg {attributes} viewBox="0 0 14 14"><path d="{path}"/></svg>'


def _badge(evidence: Evidence, region: int | None) -> str:
    if region is None:
        return " <small>the whole image</small>"
    red, green, blue = region_colour(region, evidence["regions"][region]["unmentioned"])
    style = f"--region:rgb({red} {green} {blue})"
    return f' <b class="badge" style="{style}" aria-label="region {region + 1}">{region + 1}</b> '


def compared(evidence: Evidence, draw: Draw) -> str:
    """What the caption and its phrases have of each reference."""
    rows = {
        escape(note["reference"]) + (_CHOSEN if note["chosen"] else ""): (
            note["gttc"],
            note["lttc"],
        )
        for note in evidence["compared"]
    }
    return table("How the caption fits each reference", rows, [TERMS["gttc"], TERMS["lttc"]])


def candidates(evidence: Evidence, draw: Draw) -> str:
    """The captions that could be chosen, best first, and why the others could not."""
    notes, choice = evidence["candidates"], evidence["choice"]
    kept = sorted((note["rank"], row) for row, note in enumerate(notes) if note["dropped"] is None)
    columns = ("total", "ensemble", "consensus", "itm")
    ranked = {
        f"{rank}. {escape(notes[row]['caption'])}{_CHOSEN if row == choice else ''}": tuple(
            notes[row][column] for column in columns
        )
        for rank, row in kept
    }
    dropped = {
        f"{escape(note['caption'])} <small>line {row + 1}: {escape(note['dropped'])}</small>": (
            note["ensemble"],
            note["itm"],
        )
        for row, note in enumerate(notes)
        if note["dropped"] is not None
    }
    headings = [TERMS.get(column, column) for column in columns]
    shown = table("Captions, best first, and the parts of their totals", ranked, headings)
    return shown + (table("Captions that filters left out", dropped, headings[1::2]) if dropped else "")


def boxes(evidence: Evidence, draw: Draw) -> str:
    """The image with the boxes that the network looked at."""
    text = f"The image with the {len(evidence['boxes'])} boxes outlined whose features the score depends on."
    return _figure(draw(evidence, text), text) or f'<p class="note">{len(evidence["boxes"])} boxes</p>'


def matches(evidence: Evidence, draw: Draw) -> str:
    """Which word met which word of the best reference, and how each reference fits."""
    notes, best = evidence["matches"], evidence["best"]
    columns = ("precision", "recall", "F")
    references = {
        f"{number + 1}. {escape(note['reference'])}{_BEST if number == best else ''}": (
            note["precision"],
            note["recall"],
            note["f"],
        )
        for number, note in enumerate(notes)
    }
    shown = table("How the caption fits each reference, words with words", references, columns)
    note = notes[best]
    if not note["words"] or not note["reference_words"]:
        return shown
    text = "Cosines of the caption's words (down) with those of the best reference (across)."
    figure = _figure(draw(evidence, text), text)
    met = {
        f"{number + 1}. {escape(match['word'])} <small>{escape(match['match'])}</small>": match["cosine"]
        for number, match in enumerate(note["caption_matches"])
    }
    words = table("Each word of the caption, and the word of the best reference that it met", met)
    return f"{figure}{shown}{words}"


def frames(evidence: Evidence, draw: Draw) -> str:
    """The caption's cosine with each frame, and the frame that each word fits best."""
    text = (
        "Cosines of the whole caption with the frames of the video, and the frames that its words fit best."
    )
    figure = _figure(draw(evidence, text))
    if evidence["incomplete"]:
        figure += f'<p class="warning">{escape(evidence["incomplete"])}</p>'
    words = {
        f"{number + 1}. {escape(shown_word(match))} <small>frame {match['frame']}</small>": match["cosine"]
        for number, match in enumerate(evidence["words"])
    }
    return f"{figure}{table('Each word of the caption, and the frame that it fits best', words)}"


_BEST = " <small>best</small>"

OF_EVIDENCE: dict[str, Panel] = {
    "references": references,
    "regions": regions,
    "boxes": boxes,
    "matches": matches,
    "frame_cosines": frames,
    "compared": compared,
    "candidates": candidates,
}
"""The panel of each kind of evidence, by its name in `result.explain(i)`."""


def panels(evidence: Evidence, draw: Draw = drawing) -> str:
    """A panel for each kind of evidence that the metric keeps; none where there is no score to explain."""
    if "error" in evidence:
        return ""
    return "".join(panel(evidence, draw) for name, panel in OF_EVIDENCE.items() if name in evidence)


def table(title: str, rows: Mapping[str, Any], columns: Sequence[str] = ()) -> str:
    """A table of names (HTML) and numbers: one number each, or under `columns` a tuple of them."""
    headings = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    head = f"<thead><tr><td></td>{headings}</tr></thead>" if columns else ""
    cells = {
        name: "".join(map(_cell, values, columns)) if columns else _cell(values)
        for name, values in rows.items()
    }
    body = "".join(f'<tr><th scope="row">{name}</th>{cell}</tr>' for name, cell in cells.items())
    attributes = ' class="columns"' if columns else ""
    return f"<table{attributes}><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _cell(value: float, column: str = "") -> str:
    shown = value if isinstance(value, int) else number(value)
    title = f' data-title="{escape(column)}"' if column else ""  # where a narrow screen has no head
    return f'<td{title}><data value="{value!r}">{shown}</data></td>'
