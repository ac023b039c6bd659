"""A result as a small piece of HTML for notebooks, in the colours of whatever it stands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from capeval_core.reports.explanations import number

_COLUMNS = 6
_REASONS = 3
_LONGEST = 120
"""Characters of a reason or a text."""


def result_html(
    numbers: Mapping[str, float],
    interval: tuple[float, float, float] | None,
    counts: Mapping[str, int],
    ends: Mapping[str, Sequence[Mapping[str, Any]]],
    errors: Mapping[int, str],
    signature: str,
) -> str:
    """The numbers to report, counts, and rows of captions by what they are.

    Args:
        numbers: by key. interval: of the first, low, high and level.
        counts: of captions first, then of those that failed, ...
        ends: rows of captions, e.g. the worst and the best ones.
        errors: index and reason of captions that failed, of which the first are shown.

    >>> shown = result_html({"x_s": 0.5}, (0.4, 0.6, 0.95), {"captions": 2}, {}, {1: "<b>"}, "x|v:1")
    >>> "<b>x_s 0.500</b>" in shown, "0.400 to 0.600 (95%)" in shown, "&lt;b&gt;" in shown
    (True, True, True)
    """
    reported = ", ".join(f"{escape(key)} {number(value)}" for key, value in numbers.items())
    facts = (
        [] if interval is None else [f"{number(interval[0])} to {number(interval[1])} ({interval[2]:.0%})"]
    )
    captions, *others = counts.items()
    facts.append(
        f"{captions[1]:,} {escape(captions[0] if captions[1] != 1 else captions[0].removesuffix('s'))}"
    )
    facts += [f"{count:,} {escape(name)}" for name, count in others if count]
    rows = "".join(_row(name, row) for name, own in ends.items() for row in own)
    table = ""
    if rows:
        names = _shown_of(next(own[0] for own in ends.values() if own))
        head = "<th></th>" + "".join(f"<th>{escape(_cut(name))}</th>" for name in names)
        body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
        table = f'<table style="color:inherit">{body}</table>'
    reasons = "".join(
        f"<div>{index}: {escape(_cut(reason))}</div>" for index, reason in islice(errors.items(), _REASONS)
    )
    return (
        f'<div style="color:inherit;max-width:60em"><div><b>{reported}</b> '
        f'<span style="opacity:0.75">{" · ".join(facts)}</span></div>{table}{reasons}'
        f'<code style="font-size:85%;overflow-wrap:anywhere;color:inherit;background:none">'
        f"{escape(_cut(signature, 4 * _LONGEST))}</code></div>"
    )


def _row(name: str, row: Mapping[str, Any]) -> str:
    cells = "".join(f"<td>{_cell(row.get(column))}</td>" for column in _shown_of(row))
    return f'<tr><th style="text-align:left">{escape(name)}</th>{cells}</tr>'


def _shown_of(row: Mapping[str, Any]) -> list[str]:
    """The names of the columns that are shown: short plain values."""
    plain = [name for name, value in row.items() if isinstance(value, (int, float, str)) and name != "group"]
    return plain[:_COLUMNS]


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, float) else escape(_cut(str(value)))


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
