"""Captions of a report: the worst and the best by a metric, and those that part two systems most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from capeval_core.reports.explanations import panels, parts
from capeval_core.reports.html_pictures import Pictures
from capeval_core.reports.systems import Cell, Column, System, Systems

SHOWN = 4
"""Captions at either end."""
DIFFERENCES = 4
"""Captions by which each of two systems is ahead."""
_LONGEST = 600
"""Characters of a text that are shown."""


def worst_and_best(
    system: System, column: Column, systems: Systems, pictures: Pictures
) -> list[dict[str, Any]]:
    """The captions of a system with the lowest and the highest scores, and where these come from."""
    cell = system.cells[column.name]
    numbers = [systems.for_page(score) for score in cell.scores]
    return [
        {
            "title": title,
            "cards": [_card(system, cell, index, numbers, systems, pictures) for index in indices],
            "tied": _tied(numbers, indices),
        }
        for title, indices in zip(("Worst", "Best"), ends(cell.scores, column.higher_is_better), strict=True)
        if indices
    ]


def _tied(numbers: Sequence[str], shown: Sequence[int]) -> str:
    """A note where the last of the captions that are shown is one of more with the same number."""
    last = numbers[shown[-1]]
    tied, here = numbers.count(last), sum(numbers[index] == last for index in shown)
    return f"{tied:,} captions tie at {last}; {here} of them are shown." if tied > here else ""


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
) -> dict[str, Any]:
    """The captions of the same visuals by which either system is furthest ahead of the other, and ties."""
    gains = sorted(differences(first, second, column), key=lambda gain: gain[2])
    numbers = [[*map(systems.for_page, one.cells[column.name].scores)] for one in (first, second)]
    apart = [gain for gain in gains if numbers[0][gain[0]] != numbers[1][gain[1]]]  # others tie

    def pair(index: int, other: int, _: float) -> dict[str, Any]:
        sides = [
            {"name": one.name, "score": scores[own], "caption": one.captions[own]}
            for one, scores, own in zip((first, second), numbers, (index, other), strict=True)
        ]
        shown = _picture(first, index, pictures) or _picture(second, other, pictures)
        return {"picture": shown, "sides": sides, "id": first.ids[index]}

    ahead, behind = [gain for gain in apart if gain[2] > 0][::-1], [gain for gain in apart if gain[2] < 0]
    return {
        "word": "higher" if column.higher_is_better else "better",
        "compared": len(gains),
        "ties": len(gains) - len(apart),
        "sides": [
            {"name": name, "ahead": len(chosen), "pairs": [pair(*gain) for gain in chosen[:DIFFERENCES]]}
            for name, chosen in ((first.name, ahead), (second.name, behind))
        ],
    }


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


def _card(
    system: System, cell: Cell, index: int, numbers: Sequence[str], systems: Systems, pictures: Pictures
) -> dict[str, Any]:
    """A caption with its evidence, its parts and its references."""
    from markupsafe import Markup

    evidence: Mapping[str, Any] = {}
    with suppress(OSError, ValueError):  # an image that is no longer there costs its explanation alone
        evidence = {} if cell.evidence is None else cell.evidence.get(index, {})
    compared = "references" in evidence or "compared" in evidence
    references = [] if system.references is None or compared else system.references[index]
    shown = panels(evidence, pictures.drawing)
    named = parts({name: values[index] for name, values in cell.parts.items()}, systems.titles)
    return {
        "picture": _picture(system, index, pictures),
        "score": numbers[index],
        "caption": system.captions[index],
        "id": system.ids[index],
        "panels": Markup(shown),
        "parts": Markup(named),
        "references": references,
        "why": bool(shown or named or references),
    }


def _picture(system: System, index: int, pictures: Pictures) -> str:
    from markupsafe import Markup

    if system.images is None:
        return ""
    return Markup(pictures.of(system.images[index], f"{pictures.visual} {system.ids[index]}"))


def cut(text: str) -> str:
    """A text, cut where it is very long."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
