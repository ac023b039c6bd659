"""A judged set: what metrics score, and the protocol that turns scores into the cells of a table."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.resampling import Resamples
from capeval_core.statistics import Interval


@dataclass(frozen=True)
class Items:
    """Captions to score, with the id of each one's image and its references (None: the set has none).

    names: of each caption in its file, for messages; None: the set's rows are not its captions.
    """

    captions: list[str]
    images: list[str]
    references: list[list[str]] | None = None
    names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.captions)


@dataclass(frozen=True)
class Scoring:
    """One way in which a protocol has its items scored.

    name: e.g. `draw 1` or `4 references`. items: equal objects are scored once where that is possible.
    chosen: positions of each item's references that count here; None: all.
    """

    name: str
    items: Items
    chosen: Sequence[Sequence[int]] | None = None

    def references(self) -> list[list[str]] | None:
        """The references of each item that count here."""
        if self.items.references is None or self.chosen is None:
            return self.items.references
        pairs = zip(self.items.references, self.chosen, strict=True)
        return [[texts[position] for position in positions] for texts, positions in pairs]


@dataclass(frozen=True)
class Scored:
    """The scores of a scoring's items; NaN where there is none.

    parts: components by name, one value per item. corpus: the value to report for all items, where that is
    not the mean of the scores. signature: of the result that they come from; None where there is none.
    """

    scores: Doubles
    parts: Mapping[str, Doubles] = field(default_factory=dict)
    corpus: float | None = None
    signature: str | None = None


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    value: NaN where it is undefined. draws: its value in each resample of images; None: no interval.
    rows: ratings or pairs that it is over. runs: its value in each scoring, where it is their mean.
    undefined: why there is no value.
    """

    value: float
    rows: int
    draws: Doubles | None = None
    runs: tuple[float, ...] = ()
    undefined: str | None = None

    @property
    def deviation(self) -> float:
        """The standard deviation over the scorings, NaN for fewer than two."""
        if len(self.runs) < 2:
            return math.nan
        # Of equal values rounding may leave a deviation, by which a distance would be thousands of them.
        return float(np.std(self.runs, ddof=1)) if min(self.runs) < max(self.runs) else 0.0


@dataclass(frozen=True)
class JudgedSet(ABC):
    """Human judgements and their protocol.

    name: of its entry in `SETS`. scorings: what is scored; each metric gives one `Scored` for each.
    dropped: what was left out of the files, by reason. unit: what a row of `clusters` is.
    """

    unit: ClassVar[str] = "ratings"

    name: str
    scorings: tuple[Scoring, ...]
    dropped: dict[str, int] = field(default_factory=dict, kw_only=True)

    @property
    def items(self) -> Items:
        """What is scored first."""
        return self.scorings[0].items

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the cells, in the order of the papers' tables."""

    @abstractmethod
    def cells(self, scored: Sequence[Scored], resamples: Resamples | None) -> dict[str, Cell]:
        """The cells of one metric, by column; without `resamples` none has an interval."""

    @property
    def clusters(self) -> list[str]:
        """The image of each rating or pair."""
        return self.items.images

    @cached_property
    def image_ids(self) -> list[str]:
        """Every image of the items once."""
        ids = (image for scoring in self.scorings for image in scoring.items.images)
        return list(dict.fromkeys(ids))

    def rated(self, run: Scored) -> tuple[Doubles, Doubles] | None:
        """Ratings and the scores of what they are about, to be drawn; None where there are no ratings."""
        return None


def mean_of_runs(cells: Sequence[Cell]) -> Cell:
    """The mean of a cell over scorings."""
    values = tuple(cell.value for cell in cells)
    draws = [cell.draws for cell in cells if cell.draws is not None]
    reasons = [cell.undefined for cell in cells if cell.undefined]
    return Cell(
        float(np.mean(values)),
        cells[0].rows,
        np.mean(draws, axis=0) if len(draws) == len(cells) else None,
        values if len(values) > 1 else (),
        reasons[0] if reasons else None,
    )


def interval_of(cell: Cell, resamples: Resamples | None, level: float = 0.95) -> Interval | None:
    """The interval of a cell, None where it has none."""
    if resamples is None or cell.draws is None or not math.isfinite(cell.value):
        return None
    return resamples.interval(cell.draws, level=level)
