"""What papers print for each judged set (`published.toml`), to stand beside our own numbers.

`CIDEr` of the papers is what pycocoevalcap computes, CIDEr-D.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ALIASES = {
    "CIDEr": "CIDEr-D",
    "ROUGE": "ROUGE-L",
    "PAC-S for videos": "PAC-S",
    "RefPAC-S for videos": "RefPAC-S",
}


@dataclass(frozen=True)
class PublishedCell:
    """A published number: its value as printed, digits behind the point, and where it stands."""

    value: float
    digits: int
    source: str


@cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


def published(name: str, label: str, column: str) -> PublishedCell | None:
    """What a paper prints for a metric in a column of a set, None where none does."""
    label = _ALIASES.get(label, label)
    for table in _tables().get(name, ()):
        if column in table["columns"] and label in table["values"]:
            value = table["values"][label][table["columns"].index(column)]
            if not math.isnan(value):
                return PublishedCell(value, table.get("digits", 1), table["source"])
    return None


def sources(name: str, labels: list[str]) -> Iterator[str]:
    """Where the published numbers of these rows stand, each once."""
    names = {_ALIASES.get(label, label) for label in labels}
    tables = (table["source"] for table in _tables().get(name, ()) if names & table["values"].keys())
    yield from dict.fromkeys(tables)
