"""Trials of the adapters with the real packages."""

from __future__ import annotations

from dataclasses import dataclass

from capeval_core.demo import demo_set

ITEMS = demo_set()[:4]
CAPTIONS = [ITEMS[0].good, ITEMS[1].subtly_wrong, ITEMS[2].unrelated, ITEMS[3].good]
IMAGES = [item.image for item in ITEMS]
REFERENCES = [list(item.references) for item in ITEMS]


@dataclass(frozen=True)
class Comparison:
    """A number through an adapter, beside that of `metric.score`. case: what was done."""

    case: str
    expected: float
    value: float
