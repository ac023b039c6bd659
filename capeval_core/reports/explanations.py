"""Explanations as HTML, for pages and reports: a panel for each kind of evidence that metrics keep.

A metric adds its own here. Evidence is what `Result.explain` gives, also as it comes back from a file of
JSON: then there is nothing to draw, and the numbers are shown.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capeval_core.phrases.spans import Span, wrong_words
from capeval_core.regions.selection import THRESHOLD
from capeval_core.reports.explained import best_frames, confident
from capeval_core.reports.overlay import region_colour
from capeval_core.values import minus

if TYPE_CHECKING:
    from PIL.Image import Image

STYLE = Path(__file__).with_name("explanations.css")
"""Of signs and marks; the page that holds explanations defines the colours."""
DIGITS = 3
"""As papers report these metrics."""
TINY_KNOWS = (
    "tiny knows nothing but drawn scenes of coloured shapes: its score of anything else means nothing."
)
Evidence = Mapping[str, Any]
Draw = Callable[[Callable[[int], "Image"] | None, str], str]
"""An `<img>` of a picture of at most so many pixels across, with its description; "" without a picture."""
Panel = Callable[[Evidence, Draw], str]
"""Of the evidence of a score some HTML; every text of a user or a model in it is escaped."""


def number(value: float, digits: int = DIGITS) -> str:
    """
    >>> number(0.81849), number(-0.5, 1), number(-0.0001), number(float("nan"))
    ('0.818', '\u22120.5', '0.000', 'no score')
    """
    if not math.isfinite(value):
        return "no score"
    return minus(f"{round(value, digits) + 0.0:.{digits}f}")  # + 0.0: no sign where 0 is shown


def parts(values: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The components of a score that the paper names; `titles` are what readers know some of them by."""
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
_FRAME = 320
"""Pixels of a frame's width."""
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
    picture = draw(getattr(evidence, "overlay", None), description)
    shown = f'{picture}<figcaption dir="auto">{_marked(evidence)}</figcaption>'
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


def drawing(
    picture: Callable[[int], Image] | None, text: str, width: int = _OVERLAY, quality: int = 90
) -> str:
    """A picture as a JPEG of so many pixels; "" without one, as for evidence that came from a file."""
    if picture is None:
        return ""
    written = BytesIO()
    picture(width).save(written, "JPEG", quality=quality, subsampling=0)
    data = base64.b64encode(written.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(text)}">'


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
    return f" {_numbered(region, evidence['regions'][region]['unmentioned'])} "


def _numbered(index: int, unmentioned: bool = False) -> str:
    """The number of a region, on its colour."""
    style = _colour(index, unmentioned)
    return f'<b class="badge" style="{style}" aria-label="region {index + 1}">{index + 1}</b>'


def _colour(index: int, unmentioned: bool) -> str:
    red, green, blue = region_colour(index, unmentioned)
    return f"--region:rgb({red} {green} {blue})"


def compared(evidence: Evidence, draw: Draw) -> str:
    """What the caption and its phrases have of each reference."""
    rows = {
        escape(note["reference"]) + (_CHOSEN if note["chosen"] else ""): (
            note["gttc"],
            note["lttc"],
        )
        for note in evidence["compared"]
    }
    title = "How the caption fits each reference: as a whole (gTTC), and phrase by phrase (lTTC)"
    return table(title, rows, [TERMS["gttc"], TERMS["lttc"]])


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
    """The image with the boxes that the network looked at, numbered, and how sure the detector is of each."""
    notes = evidence["boxes"]
    shown = confident(notes)
    text = f"The {len(shown)} boxes with the objects that the score depends on, best first."
    if rest := len(notes) - len(shown):
        text += (
            f" {rest} more count too, which the detector is not sure of (confidence of at most {THRESHOLD}): "
            "they are not outlined."
        )
    figure = draw(getattr(evidence, "picture", None), text)
    if figure:
        width, height = evidence.size  # type: ignore[attr-defined]  # what has a picture has its size
        drawn = "".join(_box(index, notes[index]["box"], width, height) for index in reversed(shown))
        figure = f'<figure><div class="outlined">{figure}{drawn}</div></figure>'
    sure = {f"{_numbered(index)}": notes[index]["confidence"] for index in shown}
    listed = "" if None in sure.values() else table("Confidence of the detector", sure)
    folded = f"<details><summary>Confidence of each</summary>{listed}</details>" if listed else ""
    return f'{figure}<p class="note">{text}</p>{folded}'


def _box(index: int, box: Sequence[float], width: int, height: int) -> str:
    x0, y0, x1, y1 = box
    sides = (x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height)
    names = ("left", "top", "width", "height")
    place = ";".join(f"{name}:{100 * side:.2f}%" for name, side in zip(names, sides, strict=True))
    return f'<i class="box" style="{place};{_colour(index, False)}">{_numbered(index)}</i>'


def matches(evidence: Evidence, draw: Draw) -> str:
    """How the caption fits each reference, and which word met which word of the best one, both ways."""
    notes, best = evidence["matches"], evidence["best"]
    columns = ("precision", "recall", "F")
    rows = {
        f"{number + 1}. {escape(note['reference'])}{_BEST if number == best else ''}": (
            note["precision"],
            note["recall"],
            note["f"],
        )
        for number, note in enumerate(notes)
    }
    if len(notes) > 1 and "f" in evidence:
        rows["<b>Mean of the references</b>: F is the score"] = tuple(
            evidence[name] for name in ("precision", "recall", "f")
        )
    shown = table("How the caption fits each reference, words with words", rows, columns)
    note = notes[best]
    if not note["words"] or not note["reference_words"]:
        return shown
    of_reference = "reference" if len(notes) == 1 else "best reference"
    return (
        shown
        + _met(
            f"Precision: each word of the caption, and the nearest of the {of_reference}",
            note["caption_matches"],
        )
        + _met(
            f"Recall: each word of the {of_reference}, and the nearest of the caption",
            note["reference_matches"],
        )
        + _MARKS
    )


def _met(title: str, found: Sequence[Mapping[str, Any]]) -> str:
    """A table of words, the word that each met, and their cosine, which shades its cell."""
    body = "".join(
        f'<tr><th scope="row">{escape(match["word"])}</th><td>{escape(match["match"])}</td>'
        f'<td class="shaded" style="--share:{100 * min(max(match["cosine"], 0.0), 1.0):.0f}%">'
        f"{_data(match['cosine'])}</td></tr>"
        for match in found
        if is_word(match["word"])
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("word", "nearest", "cosine"))
    head = f"<thead><tr>{head}</tr></thead>"
    return f'<table class="words"><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>'


_MARKS = '<p class="note">Punctuation and the marks around a text count too; they are not listed.</p>'


def is_word(text: str) -> bool:
    """Whether a token is a word, or a part of one, for readers: no punctuation, no marker.

    >>> [text for text in ("star", ",", "<|endoftext|>", "[SEP]", "3", "\ufffd") if is_word(text)]
    ['star', '3']
    """
    return any(map(str.isalnum, text)) and not text.startswith(("<|", "["))


def frames(evidence: Evidence, draw: Draw) -> str:
    """The caption's cosine with each frame as a curve, the best frames, and the frame that each word fits."""
    words = [match for match in evidence["words"] if is_word(match["word"])]
    best = best_frames(words)
    shown = f"<figure>{_curve(evidence['frame_cosines'], list(best))}</figure>"
    read = cache(partial(evidence.frames, tuple(best))) if hasattr(evidence, "frames") else None
    pictures = ""
    for frame, own in best.items():
        image = draw(read and (lambda _, frame=frame: read(_FRAME)[frame]), f"Frame {frame}")
        texts = ", ".join(f"{escape(match['word'])} {number(match['cosine'], 2)}" for match in own)
        pictures += f"<figure>{image}<figcaption><b>frame {frame}</b> {texts}</figcaption></figure>"
    shown += f'<div class="frames">{pictures}</div>' if pictures else ""
    if evidence["incomplete"]:
        shown += f'<p class="warning">{escape(evidence["incomplete"])}</p>'
    rows = {
        f"{place}. {escape(match['word'])} <small>frame {match['frame']}</small>": match["cosine"]
        for place, match in enumerate(words, 1)
    }
    listed = table("Each word of the caption, and the frame that it fits best", rows)
    return f"{shown}<details><summary>All {len(rows)} words</summary>{listed}</details>{_MARKS}"


def _curve(cosines: Sequence[float], marked: Sequence[int]) -> str:
    """Cosines over frames as SVG; a point for each of the marked frames."""
    low, high = min(0.0, *cosines), max(0.0, *cosines)
    span, last = (high - low) or 1.0, max(len(cosines) - 1, 1)
    places = [(100 * frame / last, 100 * (high - cosine) / span) for frame, cosine in enumerate(cosines)]
    line = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
    points = "".join(
        f'<circle cx="{places[frame][0]:.2f}%" cy="{places[frame][1]:.2f}%" r="4"/>'
        for frame in (marked if len(cosines) > 1 else [0])
    )
    levels = "".join(
        f'<span style="top:{100 * part / 3:.2f}%">{number(high - span * part / 3, 2)}</span>'
        for part in range(4)
    )
    step = math.ceil(last / 5)
    numbers = "".join(
        f'<span style="left:{100 * frame / last:.2f}%">{frame}</span>'
        for frame in range(0, len(cosines), step)
    )
    label = f"Cosines of the caption with {len(cosines)} frames, from {number(min(cosines))} to "
    return (
        '<p class="note">Cosine of the whole caption with each frame</p>'
        f'<div class="curve" role="img" aria-label="{label}{number(max(cosines))}">'
        f'<div class="levels">{levels}</div><div class="plotted">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none"><polyline points="{line}"/></svg>'
        f'<svg>{points}</svg><div class="numbers">{numbers}</div></div></div>'
    )


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
    title = f' data-title="{escape(column)}"' if column else ""  # where a narrow screen has no head
    return f"<td{title}>{_data(value)}</td>"


def _data(value: float) -> str:
    """A number for readers, with all its digits for programs."""
    shown = value if isinstance(value, int) else number(value)
    return f'<data value="{value!r}">{shown}</data>'
