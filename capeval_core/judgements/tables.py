"""A judged set's table: the cells of each metric with intervals, beside what papers print (`published.toml`),
and tests between metrics; as tables, charts and `.eval_results`.

`CIDEr` of the papers is what pycocoevalcap computes, CIDEr-D.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from capeval_core.errors import signed
from capeval_core.judgements.correlation import pearson
from capeval_core.judgements.protocols import Cell, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.resampling import Resamples
from capeval_core.judgements.sets import SETS
from capeval_core.reports.figures import Bar, draw_bars, draw_spreads
from capeval_core.reports.tables import Table
from capeval_core.statistics import LEAST_IMAGES, LEAST_P, Interval

_ALIASES = {
    "CIDEr": "CIDEr-D",
    "ROUGE": "ROUGE-L",
    "PAC-S for videos": "PAC-S",
    "RefPAC-S for videos": "RefPAC-S",
}
_UNDEFINED = "n/a"
_NOUNS = ("rating", "caption", "image", "pair", "pool")
_LONG = (
    "set", "metric", "column", "value", "low", "high", "level", "rows", "deviation", "published", "distance",
    "z_score", "source", "undefined", "signature",
)  # fmt: skip


@dataclass(frozen=True)
class PublishedCell:
    """A published number."""

    value: float
    digits: int  # behind the point, as printed
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


@dataclass(frozen=True)
class Entry:
    """One cell of a table, in the papers' scale of 100, beside what a paper prints, where one does."""

    label: str
    column: str
    cell: Cell
    interval: Interval | None
    published: PublishedCell | None

    @property
    def value(self) -> float:
        return 100 * self.cell.value

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the interval, times 100; NaN without one."""
        found = self.interval
        return (math.nan, math.nan) if found is None else (100 * found.low, 100 * found.high)

    @property
    def distance(self) -> float:
        """Ours less the published value; NaN where either is missing."""
        return math.nan if self.published is None else self.value - self.published.value

    @property
    def z_score(self) -> float:
        """The distance in standard deviations over the draws of references, NaN where there are none."""
        deviation = 100 * self.cell.deviation
        return self.distance / deviation if deviation > 0 else math.nan


@dataclass(frozen=True)
class Judged:
    """A judged set with the scores of metrics."""

    judged: JudgedSet
    scores: Mapping[str, Sequence[Scored]]  # by label, those of each of its scorings
    draws: int  # resamples of intervals; 0: no intervals
    level: float = 0.95
    seed: int = 0

    @cached_property
    def resamples(self) -> Resamples | None:
        return Resamples(self.judged.clusters, draws=self.draws, seed=self.seed) if self.draws else None

    @cached_property
    def cells(self) -> dict[str, dict[str, Cell]]:
        """By label and column."""
        return {label: self.judged.cells(runs, self.resamples) for label, runs in self.scores.items()}

    @cached_property
    def entries(self) -> list[Entry]:
        """Every cell, metric after metric."""
        return [
            Entry(label, column, cell, self._interval(cell), published(self.judged.name, label, column))
            for label, cells in self.cells.items()
            for column, cell in cells.items()
        ]

    def entries_of(self, label: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.label == label]

    def _interval(self, cell: Cell) -> Interval | None:
        if self.resamples is None or cell.draws is None or not math.isfinite(cell.value):
            return None
        return self.resamples.interval(cell.draws, level=self.level)

    def contests(self) -> Iterator[list[str]]:
        """Every two metrics in each column: the difference, its interval, and two tests."""
        for column in self.judged.columns if self.resamples is not None else ():
            for first, second in combinations(self.cells, 2):
                cells = [self.cells[label][column] for label in (first, second)]
                if all(cell.draws is not None for cell in cells):
                    p_value = _p(self._williams(first, second, column))
                    yield [first, second, column, *self._difference(*cells), p_value]

    def _difference(self, first: Cell, second: Cell) -> list[str]:
        """The difference of two metrics on the same resamples of images, its percentile interval, and the
        p-value 2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples whose difference is at most 0
        (those at 0 count half)."""
        assert self.resamples is not None and first.draws is not None and second.draws is not None
        value, differences = first.value - second.value, first.draws - second.draws
        shown = signed(100 * value) if math.isfinite(value) else _UNDEFINED
        interval = self.resamples.interval(differences, level=self.level)
        if interval is None:
            return [shown, _UNDEFINED, _UNDEFINED]
        bounds = f"{signed(100 * interval.low)} to {signed(100 * interval.high)}"
        finite = differences[np.isfinite(differences)]
        below = float(np.count_nonzero(finite < 0) + np.count_nonzero(finite == 0) / 2)
        extreme = min(below, len(finite) - below)
        return [shown, bounds, _p(min(1.0, 2 * (extreme + 1) / (len(finite) + 1)))]

    def _williams(self, first: str, second: str, column: str) -> float:
        """For ratings alone: of Pearson's correlations of the rows that both metrics have a score on."""
        judged = self.judged
        if not isinstance(judged, RatedSet) or judged.by_annotator or len(judged.scorings) != 1:
            return math.nan
        spec = judged.table[column]
        if spec.part is not None or spec.subset is not None:
            return math.nan
        sides = [self.scores[label][0].scores[judged.item] for label in (first, second)]
        kept = np.isfinite(sides[0]) & np.isfinite(sides[1])
        x, y, ratings = sides[0][kept], sides[1][kept], judged.ratings[spec.ratings][kept]
        of_first, of_second, between = (pearson(*pair).value for pair in ((x, ratings), (y, ratings), (x, y)))
        return _williams_p(of_first, of_second, between, len(x))


def _williams_p(first: float, second: float, between: float, rows: int) -> float:
    """The two-sided p-value of Williams' test that two correlations with the same ratings are equal.

    Williams, The Comparison of Regression Variables, JRSS B 21, 1959; for metrics: Graham and Baldwin,
    Testing for Significance of Increased Correlation with Human Judgment, EMNLP 2014. It is for Pearson's
    correlation of independent rows; rows of one image are not, so it is beside the bootstrap, not in its
    place. NaN with fewer than four rows, or where a correlation is undefined.
    """
    if rows < 4 or not all(map(math.isfinite, (first, second, between))):
        return math.nan
    if first == second:
        return 1.0
    from scipy.stats import t as student

    n = rows
    # The determinant of the three correlations; rounding must not make it negative.
    k = max(1 - first**2 - second**2 - between**2 + 2 * first * second * between, 0.0)
    spread = 2 * k * (n - 1) / (n - 3) + ((first + second) / 2) ** 2 * (1 - between) ** 3
    if spread <= 0:
        return math.nan
    statistic = (first - second) * math.sqrt((n - 1) * (1 + between) / spread)
    return max(float(2 * student.sf(abs(statistic), n - 3)), LEAST_P)


# tables


def judged_table(judged: Judged, notes: Sequence[str] = ()) -> Table:
    """A line per metric with its values and intervals, and a line of what is published with our distance."""
    rows = []
    for label in judged.cells:
        entries = judged.entries_of(label)
        rows.append([label, *map(_ours, entries)])
        if any(entry.published for entry in entries):
            rows.append(["  published", *map(_published, entries)])
    name = judged.judged.name
    title = SETS[name].title if name in SETS else name
    return Table(title, ["metric", *judged.judged.columns], rows, [*_notes(judged), *notes])


def _ours(entry: Entry) -> str:
    if not math.isfinite(entry.value):
        return _UNDEFINED
    bounds = "" if entry.interval is None else f" [{entry.bounds[0]:.1f}, {entry.bounds[1]:.1f}]"
    return f"{entry.value:.2f}{bounds}"


def _published(entry: Entry) -> str:
    if entry.published is None:
        return ""
    shown = f"{entry.published.value:.{entry.published.digits}f}"
    if not math.isfinite(entry.distance):
        return shown
    z_score = f", z {entry.z_score:+.1f}" if math.isfinite(entry.z_score) else ""
    return f"{shown} ({entry.distance:+.{max(entry.published.digits, 2)}f}{z_score})"


def _notes(judged: Judged) -> list[str]:
    """What has to be known beside the numbers: rows, what was left out, what is undefined, sources."""
    the_set, resamples = judged.judged, judged.resamples
    rows, images = _counted(len(the_set.clusters), the_set.unit), len(set(the_set.clusters))
    notes = [f"times 100; {rows} of {_counted(images, 'images')}"]
    intervals = resamples is not None and resamples.images >= LEAST_IMAGES
    if resamples is not None and intervals:
        notes[0] += f"; intervals: {judged.level:.0%}, {len(resamples):,} bootstrap resamples of images"
    elif resamples is not None:
        notes[0] += f"; no intervals, which need at least {LEAST_IMAGES} images"
    notes += [f"left out: {_counted(count, reason)}" for reason, count in the_set.dropped.items() if count]
    for label, runs in judged.scores.items():
        failed = sum(int(np.count_nonzero(~np.isfinite(run.scores))) for run in runs)
        if failed and not isinstance(the_set, PoolSet):  # of pools one is chosen
            have = "has" if failed == 1 else "have"
            notes.append(f"{label}: {_counted(failed, 'captions')} {have} no score")
        reasons: dict[str, None] = {}
        for entry in judged.entries_of(label):
            cell = entry.cell
            if cell.undefined:
                reasons[f"undefined where {_UNDEFINED}: {cell.undefined}"] = None
            elif intervals and cell.draws is not None and entry.interval is None:
                missing = f"{int(np.count_nonzero(~np.isfinite(cell.draws))):,} of {len(cell.draws):,}"
                reasons[f"no interval of {entry.column}, undefined in {missing} resamples"] = None
        notes += [f"{label}: {reason}" for reason in reasons]
    sources = dict.fromkeys(entry.published.source for entry in judged.entries if entry.published)
    notes += [f"published: {source}" for source in sources]
    if "CIDEr-D" in judged.scores:
        notes.append("CIDEr-D is what the papers and pycocoevalcap call CIDEr")
    if any(math.isfinite(entry.z_score) for entry in judged.entries):
        notes.append(
            "z: distance in standard deviations over the draws of references; the published draws are unknown"
        )
    return notes


def _counted(count: int, rows: str) -> str:
    """So many rows of a kind, where the first word is its noun."""
    noun, space, rest = rows.partition(" ")
    singular = noun.removesuffix("s")
    if singular in _NOUNS:
        noun = singular if count == 1 else f"{singular}s"
    return f"{count:,} {noun}{space}{rest}"


def long_table(judged: Judged, signatures: Mapping[str, str]) -> Table:
    """A line per cell with everything that is known of it, for programs."""
    rows = []
    for entry in judged.entries:
        paper = entry.published
        rows.append(
            [
                judged.judged.name,
                entry.label,
                entry.column,
                *map(_digits, (entry.value, *entry.bounds)),
                "" if entry.interval is None else f"{entry.interval.level:g}",
                str(entry.cell.rows),
                _digits(100 * entry.cell.deviation),
                "" if paper is None else f"{paper.value:.{paper.digits}f}",
                _digits(entry.distance),
                _digits(entry.z_score),
                "" if paper is None else paper.source,
                entry.cell.undefined or "",
                signatures.get(entry.label, ""),
            ]
        )
    return Table(judged.judged.name, _LONG, rows)


def contest_table(judged: Judged) -> Table:
    rows = list(judged.contests())
    header = ["first", "second", "column", "difference", "interval", "p, bootstrap", "p, Williams"]
    notes = ["Williams' test is of Pearson's correlations, and takes rows for independent"] if rows else []
    return Table("Differences between metrics", header, rows, notes)


def _digits(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def _p(value: float) -> str:
    if not math.isfinite(value):
        return _UNDEFINED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# charts and files


def draw_agreement(judged: Judged) -> Image.Image:
    """Every cell with its interval, a panel per column."""
    panels: dict[str, list[Bar]] = {column: [] for column in judged.judged.columns}
    for entry in judged.entries:
        low, high = (None, None) if entry.interval is None else entry.bounds
        printed = None if entry.published is None else entry.published.value
        panels[entry.column].append(Bar(entry.label, entry.value, low, high, printed))
    note = "dot: ours, with its interval; red tick: published"
    return draw_bars(panels, note if any(entry.published for entry in judged.entries) else "")


def draw_scores(judged: Judged) -> Image.Image | None:
    """Scores by rating, a chart per metric; None for a set whose captions have no ratings."""
    panels = {label: judged.judged.levels(runs[0]) for label, runs in judged.scores.items()}
    return draw_spreads(panels) if any(panels.values()) else None


def eval_results(judged: Judged, label: str, *, signature: str, **about: str | None) -> str:
    """The `.eval_results` YAML of one metric, for the repository of its weights on the Hub.

    about: `dataset_id`, `date` (ISO 8601) and `dataset_revision` of the entries.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            task_id=entry.column.replace(" ", "_"),
            value=round(entry.value, 4),
            notes=f"{label}, times 100, {entry.cell.rows:,} {judged.judged.unit}, {signature}",
            **about,  # type: ignore[arg-type]
        )
        for entry in judged.entries_of(label)
        if math.isfinite(entry.value)
    ]
    return str(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True))
