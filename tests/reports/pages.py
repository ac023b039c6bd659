"""Comparisons to report, and what a page of HTML holds: its tags with their attributes, and its text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from capeval_core.reports.systems import Cell, Column, System, Systems
from capeval_core.reports.systems import Test as PairedTest

NAN = float("nan")


class Parsed(HTMLParser):
    """A page as a strict reader of tags meets it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "circle", "line", "rect", "use", "image", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def cell(scores: Sequence[float], **changes: Any) -> Cell:
    """A cell by its scores: NaN is a failure."""
    finite = [score for score in scores if math.isfinite(score)]
    made: dict[str, Any] = {
        "mean": sum(finite) / len(finite) if finite else NAN,
        "interval": None,
        "scores": scores,
        "parts": {"cosine": [score / 2 for score in scores]},
        "errors": {i: "broken" for i, score in enumerate(scores) if math.isnan(score)},
        "signature": "capeval:x|v:1",
    }
    return Cell(**{**made, **changes})


def system(name: str, captions: Sequence[str], cells: Mapping[str, Cell], **changes: Any) -> System:
    made: dict[str, Any] = {
        "ids": [f"id{i}" for i in range(len(captions))],
        "images": None,
        "references": None,
    }
    return System(name=name, captions=captions, cells=cells, **{**made, **changes})


X = Column("x", "X-S", "x_s", (0.0, 1.0), summary="What X means.", citation="Ada, X, 2026")
Y = Column("y", "Y-S", "y_s", (0.0, 2.0), higher_is_better=False)


def two_systems(**changes: Any) -> Systems:
    """B is better by X, and worse by Y, where lower is better."""
    better = PairedTest(0.2, 0.1, 0.3, 0.001, 0.004, 4)
    systems = [
        system(
            "A",
            [f"a{i}" for i in range(4)],
            {"x": cell([0.1, 0.2, 0.3, 0.4], interval=(0.2, 0.31)), "y": cell([1.0, 1.0, 1.0, 1.0])},
        ),
        system(
            "B",
            [f"b{i}" for i in range(4)],
            {
                "x": cell([0.2, 0.9, 0.3, 0.4], test=better),
                "y": cell([1.5, 1.4, 1.1, 1.2], test=PairedTest(0.3, 0.1, 0.5, 0.002, 0.006, 4)),
            },
        ),
    ]
    return Systems(systems, [X, Y], "A", **changes)
