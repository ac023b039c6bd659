"""Captions of a report: the worst and the best by a metric, and those that part two systems most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from capeval_core.reports.explanations import panels, parts
from capeval_core.reports.html_pictures import Pictures
from capeval_core.reports.systems import Cell, Column, System, Systems

SHOWN = 4
"""Captions at either end."""
DIFFERENCES = 4
"""Captions by which each of two systems is ahead."""
_REFERENCES = 5
_LONGEST = 600
"""Characters of a text that are shown."""


def worst_and_best(system: System, column: Column, systems: Systems, pictures: Pictures) -> str:
    """The captions of a system with the lowest and the highest scores, and where these come from."""
    cell = system.cells[column.name]
    worst, best = ends(cell.scores, column.higher_is_better)
    if not best:
        return '<p class="note">No caption has a score.</p>'
    shown = ""
    for title, indices in (("Worst", worst), ("Best", best)):
        cards = "".join(_card(system, column, systems, index, pictures) for index in indices)
        shown += f'<h4>{title}</h4><div class="cards">{cards}</div>' if cards else ""
        shown += _tied(cell.scores, indices, systems) if cards else ""
    return shown


def _tied(scores: Sequence[float], shown: Sequence[int], systems: Systems) -> str:
    """A note where the last of the captions that are shown is one of more with the same number."""
    numbers = [systems.for_page(score) for score in scores]
    last = numbers[shown[-1]]
    tied, here = numbers.count(last), sum(numbers[index] == last for index in shown)
    return (
        f'<p class="note">{tied:,} captions tie at {last}; {here} of them are shown.</p>'
        if tied > here
        else ""
    )


def ends(scores: Sequence[float], higher_is_better: bool = True) -> tuple[list[int], list[int]]:
    """Indices of the worst captions, worst first, and of the best, best first; none is in both.

    >>> ends([0.5, 0.1, float("nan"), 0.9])
    ([1], [3, 0])
    """
    finite = [index for index, score in enumerate(scores) if math.isfinite(score)]
    best = sorted(finite, key=lambda index: scores[index], reverse=higher_is_better)
    return best[::-1][: min(SHOWN, len(best) // 2)], best[: min(SHOWN, (len(best) + 1) // 2)]


def most_different(
    first: System, second: System, column: Column, systems: Systems, pictures: Pictures
) -> str:
    """The captions of the same visuals by which either system is furthest ahead of the other, and ties."""
    gains = sorted(differences(first, second, column), key=lambda gain: gain[2])
    ours, theirs = ([*map(systems.for_page, one.cells[column.name].scores)] for one in (first, second))
    apart = [gain for gain in gains if ours[gain[0]] != theirs[gain[1]]]  # others tie
    ahead, behind = [gain for gain in apart if gain[2] > 0][::-1], [gain for gain in apart if gain[2] < 0]
    shown = ""
    for name, chosen in ((first.name, ahead), (second.name, behind)):
        cards = "".join(
            _pair(first, second, column, gain, systems, pictures) for gain in chosen[:DIFFERENCES]
        )
        title = f"Where <bdi>{escape(name)}</bdi> scores {'higher' if column.higher_is_better else 'better'}"
        title += f": {len(chosen):,} of {len(gains):,}"
        shown += f'<h4>{title}</h4><div class="cards">{cards}</div>' if cards else ""
    ties = len(gains) - len(apart)
    verb = "tie: both captions have" if ties > 1 else "is a tie: both captions have"
    tied = f'<p class="note">{ties:,} of {len(gains):,} {verb} the same score.</p>' if ties else ""
    return shown + tied or '<p class="note">No two captions of one visual have scores.</p>'


def differences(first: System, second: System, column: Column) -> Iterator[tuple[int, int, float]]:
    """Index in either system of captions of one visual, and how much better the first one is.

    The captions of an id are paired in the order in which each system has them.
    """
    scores, others = first.cells[column.name].scores, second.cells[column.name].scores
    places = {key: index for index, key in enumerate(_numbered(second.ids))}
    sign = 1 if column.higher_is_better else -1
    for index, key in enumerate(_numbered(first.ids)):
        other = places.get(key)
        if other is not None and math.isfinite(gain := sign * (scores[index] - others[other])):
            yield index, other, gain


def _numbered(ids: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each id with the number of times it came before."""
    counts: Counter[str] = Counter()
    for name in ids:
        yield name, counts[name]
        counts[name] += 1


def _card(system: System, column: Column, systems: Systems, index: int, pictures: Pictures) -> str:
    cell = system.cells[column.name]
    picture = _picture(system, index, pictures)
    text = f'<p class="score">{systems.for_page(cell.scores[index])}</p>{quoted(system.captions[index])}'
    why = _explanation(system, cell, index, systems, pictures)
    # A box to check, as a folded block would open inside its column: what it shows has the row below.
    press = '<label class="why-press"><input type="checkbox">Breakdown</label>' if why else ""
    below = f'<div class="why">{text}<div class="evidence">{why}</div></div>' if why else ""
    return (
        f'<article class="card">{picture}<div class="text">{text}'
        f'<p class="id" dir="auto">{escape(system.ids[index])}</p></div>{press}</article>{below}'
    )


def _explanation(system: System, cell: Cell, index: int, systems: Systems, pictures: Pictures) -> str:
    """Where a score comes from: its evidence, its parts, the references; "" where nothing is known."""
    evidence: Mapping[str, Any] = {}
    with suppress(OSError, ValueError):  # an image that is no longer there costs its explanation alone
        evidence = {} if cell.evidence is None else cell.evidence.get(index, {})
    values = {name: values[index] for name, values in cell.parts.items()}
    shown = panels(evidence, pictures.drawing)
    if system.references is not None and "references" not in evidence and "compared" not in evidence:
        texts = system.references[index]
        items = "".join(f'<li dir="auto">{escape(_cut(text))}</li>' for text in texts[:_REFERENCES])
        more = f"<li>and {len(texts) - _REFERENCES:,} more</li>" if len(texts) > _REFERENCES else ""
        shown += f'<p class="note">References</p><ul>{items}{more}</ul>'
    return shown + parts(values, systems.titles)


def _pair(
    first: System,
    second: System,
    column: Column,
    gain: tuple[int, int, float],
    systems: Systems,
    pictures: Pictures,
) -> str:
    index, other, _ = gain
    rows = ""
    for system, own in ((first, index), (second, other)):
        score = systems.for_page(system.cells[column.name].scores[own])
        rows += (
            f'<div class="side"><p class="name" dir="auto">{escape(system.name)}</p>'
            f'<p class="score">{score}</p>{quoted(system.captions[own])}</div>'
        )
    picture = _picture(first, index, pictures) or _picture(second, other, pictures)
    return (
        f'<article class="card pair">{picture}<div class="text">{rows}'
        f'<p class="id" dir="auto">{escape(first.ids[index])}</p></div></article>'
    )


def _picture(system: System, index: int, pictures: Pictures) -> str:
    if system.images is None:
        return ""
    shown = pictures.of(system.images[index], f"{pictures.visual} {system.ids[index]}")
    return f'<div class="picture {escape(pictures.visual)}">{shown}</div>' if shown else ""


def quoted(caption: str) -> str:
    """A caption; in its own direction, and cut where it is very long."""
    return f'<blockquote dir="auto">{escape(_cut(caption))}</blockquote>' if caption else "<p>(empty)</p>"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
