"""Trials of the adapters with the real packages, each in an environment of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version

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

    @property
    def difference(self) -> float:
        return abs(self.value - self.expected)


def main(package: str, trial: Callable[[], list[Comparison]]) -> None:
    """Run a trial, and print the package's version and what came of it, in JSON, as the last line."""
    compared = [asdict(one) for one in trial()]
    sys.stdout.flush()
    print("\n" + json.dumps({"package": package, "version": version(package), "compared": compared}))
