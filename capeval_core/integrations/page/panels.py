"""The panels below the score. A metric adds its own here, by the evidence that it keeps."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from capeval_core.integrations.page.scorer import Scored
from capeval_core.registry import metric_classes
from capeval_core.reports.canvas import region_colour
from capeval_core.reports.frames import shown_word
from capeval_core.scores.hice.card import outside_text, threshold_text

if TYPE_CHECKING:
    from capeval_core.reports.boxes import BoxExplanation
    from capeval_core.reports.matches import MatchExplanation
    from capeval_core.scores.hice.card import PhraseNote
    from capeval_core.scores.hice.explanation import HiceExplanation
    from capeval_core.scores.video_explanation import VideoExplanation

DIGITS = 3
"""As papers report these metrics."""
Panel = Callable[[Scored], str]
"""Of a scored caption some HTML; every text of a user or a model in it is escaped."""


def number(value: float) -> str:
    """
    >>> number(0.81849), number(float("nan"))
    ('0.818', 'no score')
    """
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "no score"


def parts(scored: Scored) -> str:
    """The components that the paper names."""
    titles = {metric.key: metric.title for metric in metric_classes().values()} | _NAMES
    rows = {
        titles.get(name, name.replace("_", " ")): int(value) if name in _COUNTS else value
        for name, (value, *_) in scored.result.parts.items()
        if isinstance(value, float) and (value or name not in _COUNTS)
    }
    return table("Parts", {escape(name): value for name, value in rows.items()})


def references(scored: Scored) -> str:
    """The cosine of the caption with each reference, nearest first."""
    found = scored.evidence["references"]
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
_NAMES = {"gitc": "gITC", "litc": "lITC", "gttc": "gTTC", "lttc": "lTTC"}
"""What papers call parts."""
_COUNTS = {"region_count", "phrase_count", "regions_dropped", "without_phrases"}


def regions(scored: Scored) -> str:
    """The image with its regions, the caption with its wrong words, and what fits what."""
    explanation = cast("HiceExplanation", scored.evidence)
    missed = sum(note["unmentioned"] for note in explanation.regions)
    outside = outside_text(explanation)
    description = (
        f"The image with {len(explanation.regions)} regions outlined, {missed} of which no phrase mentions."
    )
    description += f" {outside}." if outside else ""
    shown = f'<img src="{_data_address(explanation)}" alt="{description}">'
    shown += f"<figcaption>{_marked(explanation)}</figcaption>"
    legend = f'<p class="note">{_sign("right")}{threshold_text(explanation)}</p>'
    if outside:
        legend += f'<p class="note">{_sign("unknown")}{outside}; phrases may be about them</p>'
    phrases = {
        _sign("unknown" if not note["judged"] else "wrong" if note["mistake"] else "right")
        + escape(note["phrase"])
        + _badge(explanation, note["region"]): note["precision"]
        for note in explanation.phrases
    }
    nearest = "<small>not mentioned; nearest:</small> "
    best = {
        f"{_badge(explanation, index)}{nearest if note['unmentioned'] else ''}{escape(note['phrase'])}": note[
            "recall"
        ]
        for index, note in enumerate(explanation.regions)
    }
    if explanation["whole"] is not None:
        best["the whole image: " + escape(explanation["whole"]["phrase"])] = explanation["whole"]["recall"]
    return (
        f"<figure>{shown}</figure>{legend}"
        + table("Phrases, the region that fits each best, and how well (precision)", phrases)
        + table("Regions, the phrase that fits each best, and how well (recall)", best)
    )


def _data_address(
    explanation: HiceExplanation | BoxExplanation | MatchExplanation | VideoExplanation,
) -> str:
    written = BytesIO()
    explanation.overlay(_OVERLAY).save(written, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode()


def _marked(explanation: HiceExplanation) -> str:
    """The caption with its wrong words marked."""
    text, pieces, end = explanation["caption"], [], 0
    for span in explanation.wrong_words():
        pieces += [escape(text[end : span.start]), f"<mark>{escape(text[span.start : span.end])}</mark>"]
        end = span.end
    return "".join([*pieces, escape(text[end:])])


def _kind(note: PhraseNote) -> str:
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


def _badge(explanation: HiceExplanation, region: int | None) -> str:
    if region is None:
        return " <small>the whole image</small>"
    red, green, blue = region_colour(region, explanation.regions[region]["unmentioned"])
    style = f"--region:rgb({red} {green} {blue})"
    return f' <b class="badge" style="{style}" aria-label="region {region + 1}">{region + 1}</b> '


def compared(scored: Scored) -> str:
    """What the caption and its phrases have of each reference."""
    rows = {
        escape(note["reference"]) + (_CHOSEN if note["chosen"] else ""): (
            note["gttc"],
            note["lttc"],
        )
        for note in cast("HiceExplanation", scored.evidence).compared
    }
    return table("How the caption fits each reference", rows, ["as a whole", "by phrases"])


def candidates(scored: Scored) -> str:
    """The captions that could be chosen, best first, and why the others could not."""
    notes, choice = scored.evidence["candidates"], scored.evidence["choice"]
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
    headings = ("total", "ensemble", "consensus", "match")
    shown = table("Captions, best first, and the parts of their totals", ranked, headings)
    return shown + (table("Captions that filters left out", dropped, headings[1::2]) if dropped else "")


def boxes(scored: Scored) -> str:
    """The image with the boxes that the network looked at."""
    explanation = cast("BoxExplanation", scored.evidence)
    text = (
        f"The image with the {len(explanation['boxes'])} boxes outlined whose features the score depends on."
    )
    shown = f'<img src="{_data_address(explanation)}" alt="{text}">'
    return f'<figure>{shown}</figure><p class="note">{text}</p>'


def matches(scored: Scored) -> str:
    """Which word met which word of the best reference, and how each reference fits."""
    explanation = cast("MatchExplanation", scored.evidence)
    notes, best = explanation["matches"], explanation["best"]
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
    figure = f'<figure><img src="{_data_address(explanation)}" alt="{text}"></figure>'
    met = {
        f"{number + 1}. {escape(match['word'])} <small>{escape(match['match'])}</small>": match["cosine"]
        for number, match in enumerate(note["caption_matches"])
    }
    words = table("Each word of the caption, and the word of the best reference that it met", met)
    return f'{figure}<p class="note">{text}</p>{shown}{words}'


def frames(scored: Scored) -> str:
    """The caption's cosine with each frame, and the frame that each word fits best."""
    explanation = cast("VideoExplanation", scored.evidence)
    text = (
        "Cosines of the whole caption with the frames of the video, and the frames that its words fit best."
    )
    figure = f'<figure><img src="{_data_address(explanation)}" alt="{text}"></figure>'
    if explanation["incomplete"]:
        figure += f'<p class="warning">{escape(explanation["incomplete"])}</p>'
    words = {
        f"{number + 1}. {escape(shown_word(match))} <small>frame {match['frame']}</small>": match["cosine"]
        for number, match in enumerate(explanation["words"])
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


def panels(scored: Scored) -> str:
    """Everything below the score: the parts, then a panel for each kind of evidence that the metric keeps."""
    shown = [parts, *(panel for name, panel in OF_EVIDENCE.items() if name in scored.evidence)]
    return "".join(panel(scored) for panel in shown)


def table(title: str, rows: Mapping[str, Any], columns: Sequence[str] = ()) -> str:
    """A table of names (HTML) and numbers: one number each, or under `columns` a tuple of them."""
    headings = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    head = f"<thead><tr><td></td>{headings}</tr></thead>" if columns else ""
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(map(_cell, values if columns else [values]))}</tr>'
        for name, values in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _cell(value: float) -> str:
    shown = value if isinstance(value, int) else number(value)
    return f'<td><data value="{value!r}">{shown}</data></td>'
