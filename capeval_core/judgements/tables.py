"""A judged set's table: the cells of each metric with intervals, next to the numbers of papers
(`published.toml`), and tests between metrics; as tables, charts and `.eval_results`.

`CIDEr` of the papers is what pycocoevalcap computes, CIDEr-D.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from capeval_core.errors import signed
from capeval_core.judgements.correlation import Doubles, Resamples, pearson
from capeval_core.judgements.protocols import Cell, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.sets import judged_sets
from capeval_core.reports.figures import draw_bars, draw_spreads
from capeval_core.reports.hub_results import eval_results_yaml
from capeval_core.reports.tables import Table
from capeval_core.statistics import LEAST_IMAGES

_UNDEFINED = "n/a"
_Scores = Mapping[str, Sequence[Scored]]  # by label, of each scoring
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


class PublishedCell(NamedTuple):
    """A published number, as it is printed, and its source."""

    value: float
    printed: str
    source: str


def published(name: str, label: str, column: str) -> PublishedCell | None:
    """The number that a paper prints for a metric in a column of a set, None where none does."""
    label = PUBLISHED["aliases"].get(label, label)
    for table in PUBLISHED.get(name, ()):
        if column in table["columns"] and label in table["values"]:
            value = table["values"][label][table["columns"].index(column)]
            if not math.isnan(value):
                return PublishedCell(value, f"{value:.{table.get('digits', 1)}f}", table["source"])
    return None


class Entry(NamedTuple):
    """One cell of a table in the papers' scale of 100, and its distance from what a paper prints, also in
    deviations over the draws of references; NaN, or no text, where there is none."""

    metric: str
    column: str
    value: float
    low: float
    high: float
    level: str  # of the interval; "" without one, so that a CSV has an empty cell
    rows: int
    deviation: float
    published: str  # as it is printed, whose digits say how exact it is
    distance: float
    z_score: float
    source: str
    undefined: str
    signature: str


class Judged:
    """A judged set with the scores of metrics: by label, those of each of its scorings; without draws, the
    resamples of intervals, there are no intervals."""

    def __init__(
        self, judged: JudgedSet, scores: _Scores, *, draws: int, level: float = 0.95, seed: int = 0
    ) -> None:
        self.judged = judged
        self.scores = scores
        self.level = level
        # The same resamples for all metrics, so that differences of two are taken resample by resample.
        self.resamples = Resamples(judged.clusters, draws=draws, seed=seed) if draws else None
        self.cells: dict[str, dict[str, Cell]] = {}
        self.signatures: dict[str, str] = {}
        self.entries: list[Entry] = []
        for label, runs in scores.items():
            self.cells[label] = judged.cells(runs, self.resamples)
            signatures = dict.fromkeys(run.signature for run in runs if run.signature)
            self.signatures[label] = " and ".join(signatures)
            for column, cell in self.cells[label].items():
                self.entries.append(self._entry(label, column, cell))

    def entries_of(self, label: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.metric == label]

    def _entry(self, label: str, column: str, cell: Cell) -> Entry:
        low, high = self.bounds(cell.draws)
        value = 100 * cell.value
        deviation = 100 * cell.deviation
        paper = published(self.judged.name, label, column) or PublishedCell(math.nan, "", "")
        distance = value - paper.value  # NaN where no paper prints the number
        return Entry(
            metric=label,
            column=column,
            value=value,
            low=low,
            high=high,
            level=f"{self.level:g}" if math.isfinite(low) else "",
            rows=cell.rows,
            deviation=deviation,
            published=paper.printed,
            distance=distance,
            z_score=distance / deviation if deviation > 0 else math.nan,
            source=paper.source,
            undefined=cell.undefined or "",
            signature=self.signatures[label],
        )

    def bounds(self, draws: Doubles | None) -> tuple[float, float]:
        """The interval of what has these values in the resamples, times 100; NaN where there is none."""
        if self.resamples is None or draws is None:
            return math.nan, math.nan
        interval = self.resamples.interval(draws, level=self.level)
        return (math.nan, math.nan) if interval is None else (100 * interval.low, 100 * interval.high)


# tables


def contest_table(judged: Judged) -> Table:
    """Every two metrics in each column: the difference, its interval, and two tests."""
    rows = []
    columns = () if judged.resamples is None else judged.judged.columns
    for column in columns:
        for first, second in combinations(judged.cells, 2):
            row = _contest(judged, first, second, column)
            if row is not None:
                rows.append(row)
    header = ["first", "second", "column", "difference", "interval", "p, bootstrap", "p, Williams"]
    notes = ["Williams' test is of Pearson's correlations, and takes rows for independent"] if rows else []
    return Table("Differences between metrics", header, rows, notes)


def _contest(judged: Judged, first: str, second: str, column: str) -> list[str] | None:
    """The row of two metrics in a column, None where one of them has no resamples."""
    first_cell = judged.cells[first][column]
    second_cell = judged.cells[second][column]
    if first_cell.draws is None or second_cell.draws is None:
        return None
    difference = first_cell.value - second_cell.value
    # Paired: both metrics are of the same images in a resample, whose difficulty cancels out.
    draws = first_cell.draws - second_cell.draws
    low, high = judged.bounds(draws)
    bounds = f"{signed(low)} to {signed(high)}"
    p_value = _bootstrap_p(draws)
    if not math.isfinite(low):  # undefined in too many resamples, of which a p-value would be
        bounds = _UNDEFINED
        p_value = math.nan
    shown_difference = signed(100 * difference) if math.isfinite(difference) else _UNDEFINED
    williams = _williams_p(judged, first, second, column)
    return [first, second, column, shown_difference, bounds, _p(p_value), _p(williams)]


def _p(value: float) -> str:
    if math.isnan(value):
        return _UNDEFINED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _bootstrap_p(differences: Doubles) -> float:
    """2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples of images whose difference is below 0 (those
    at 0 count half)."""
    finite = differences[np.isfinite(differences)]
    # The 1 in both counts is the sample itself: a p-value of 0 would claim more than the draws can show.
    below = float(np.count_nonzero(finite < 0) + np.count_nonzero(finite == 0) / 2)
    return min(1.0, 2 * (min(below, len(finite) - below) + 1) / (len(finite) + 1))


def _williams_p(judged: Judged, first: str, second: str, column: str) -> float:
    """The two-sided p-value of Williams' test that two metrics' correlations with the same ratings are equal.

    Williams, The Comparison of Regression Variables, JRSS B 21, 1959; for metrics: Graham and Baldwin,
    Testing for Significance of Increased Correlation with Human Judgment, EMNLP 2014.
    """
    from scipy.stats import t as student

    rated = judged.judged
    if not isinstance(rated, RatedSet) or rated.by_annotator or len(rated.scorings) != 1:
        return math.nan
    spec = rated.table[column]
    x = judged.scores[first][0].scores[rated.item]
    y = judged.scores[second][0].scores[rated.item]
    finite = np.isfinite(x) & np.isfinite(y)
    n = int(finite.sum())
    # The test has n - 3 degrees of freedom.
    if spec.part is not None or spec.subset is not None or spec.statistic == "ap" or n < 4:
        return math.nan
    x = x[finite]
    y = y[finite]
    ratings = rated.ratings[spec.ratings][finite]
    a = pearson(x, ratings).value
    b = pearson(y, ratings).value
    c = pearson(x, y).value
    # The determinant of the three correlations; rounding must not make it negative.
    k = max(1 - a**2 - b**2 - c**2 + 2 * a * b * c, 0.0)
    spread = 2 * k * (n - 1) / (n - 3) + ((a + b) / 2) ** 2 * (1 - c) ** 3
    if a == b or not spread > 0:
        return 1.0 if a == b else math.nan
    statistic = (a - b) * math.sqrt((n - 1) * (1 + c) / spread)
    return float(2 * student.sf(abs(statistic), n - 3))


def judged_table(judged: Judged, notes: Sequence[str] = ()) -> Table:
    """A line per metric with its values and intervals, and a line of what is published with our distance."""
    rows = []
    for label in judged.cells:
        entries = judged.entries_of(label)
        rows.append([label, *map(_ours, entries)])
        if any(entry.published for entry in entries):
            rows.append(["  published", *map(_published, entries)])
    name = judged.judged.name
    sets = judged_sets()
    title = sets[name].title if name in sets else name
    return Table(title, ["metric", *judged.judged.columns], rows, [*_notes(judged), *notes])


def _ours(entry: Entry) -> str:
    bounds = f" [{entry.low:.1f}, {entry.high:.1f}]" if math.isfinite(entry.low) else ""
    return f"{entry.value:.2f}{bounds}" if math.isfinite(entry.value) else _UNDEFINED


def _published(entry: Entry) -> str:
    if not math.isfinite(entry.distance):
        return entry.published
    # At least as exact as the printed number: 0.04 beside "51.1" is within its rounding.
    digits = max(len(entry.published.partition(".")[2]), 2)
    z_score = f", z {entry.z_score:+.1f}" if math.isfinite(entry.z_score) else ""
    return f"{entry.published} ({entry.distance:+.{digits}f}{z_score})"


def _notes(judged: Judged) -> list[str]:
    """Notes under the numbers: rows, what was left out, what is undefined, sources."""
    the_set = judged.judged
    resamples = judged.resamples
    rows = _counted(len(the_set.clusters), the_set.unit)
    images = _counted(len(set(the_set.clusters)), "images")
    notes = [f"times 100; {rows} of {images}"]
    intervals = resamples is not None and resamples.images >= LEAST_IMAGES
    if resamples is not None:
        of_images = f"intervals: {judged.level:.0%}, {len(resamples):,} bootstrap resamples of images"
        too_few = f"no intervals, which need at least {LEAST_IMAGES} images"
        notes[0] += f"; {of_images if intervals else too_few}"
    for reason, count in the_set.dropped.items():
        if count:
            notes.append(f"left out: {_counted(count, reason)}")
    for label, runs in judged.scores.items():
        failed = 0
        for run in runs:
            failed += int(np.count_nonzero(~np.isfinite(run.scores)))
        if failed and not isinstance(the_set, PoolSet):  # of pools one is chosen
            have = "has" if failed == 1 else "have"
            notes.append(f"{label}: {_counted(failed, 'captions')} {have} no score")
        for entry in judged.entries_of(label):
            draws = judged.cells[label][entry.column].draws
            if entry.undefined:
                notes.append(f"{label}: undefined where {_UNDEFINED}: {entry.undefined}")
            elif intervals and draws is not None and math.isnan(entry.low):
                missing = int(np.count_nonzero(~np.isfinite(draws)))
                share = f"{missing:,} of {len(draws):,} resamples"
                notes.append(f"{label}: no interval of {entry.column}, undefined in {share}")
    has_z_score = False
    for entry in judged.entries:
        has_z_score = has_z_score or math.isfinite(entry.z_score)
        if entry.source:
            notes.append(f"published: {entry.source}")
    if "CIDEr-D" in judged.scores:
        notes.append("CIDEr-D is what the papers and pycocoevalcap call CIDEr")
    if has_z_score:
        notes.append(
            "z: distance in standard deviations over the draws of references; the published draws are unknown"
        )
    return list(dict.fromkeys(notes))  # columns share reasons and sources


def _counted(count: int, rows: str) -> str:
    """So many rows of a kind, whose first word is a plural."""
    plural, space, more = rows.partition(" ")
    noun = plural.removesuffix("s") if count == 1 else plural
    return f"{count:,} {noun}{space}{more}"


def long_table(judged: Judged) -> str:
    """A line of CSV per cell with everything that is known of it, for programs."""
    table = pd.DataFrame(judged.entries)
    table.insert(0, "set", judged.judged.name)
    return str(table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


# charts and files


def draw_agreement(judged: Judged) -> Image.Image:
    """Every cell with its interval, a panel per column."""
    panels: dict[str, list[Any]] = {column: [] for column in judged.judged.columns}
    note = ""
    for entry in judged.entries:
        bar = (entry.metric, entry.value, entry.low, entry.high, float(entry.published or "nan"))
        panels[entry.column].append(bar)
        if entry.published:
            note = "dot: ours, with its interval; red tick: published"
    return draw_bars(panels, note)


def draw_scores(judged: Judged) -> Image.Image | None:
    """Scores by rating, a chart per metric; None for a set whose captions have no ratings."""
    # Of the first scoring alone: others are of the same captions, with further references.
    panels = {label: judged.judged.levels(runs[0]) for label, runs in judged.scores.items()}
    return draw_spreads(panels) if any(panels.values()) else None


def eval_results(judged: Judged, label: str, **about: str | None) -> str:
    """The `.eval_results` YAML of one metric, for the repository of its weights on the Hub; about:
    `dataset_id`, `date` (ISO 8601) and `dataset_revision` of the entries."""
    from huggingface_hub import EvalResultEntry

    entries = []
    for entry in judged.entries_of(label):
        if math.isfinite(entry.value):  # the Hub's form has no undefined values
            entries.append(
                EvalResultEntry(
                    task_id=entry.column.replace(" ", "_"),  # as the Hub's ids of tasks, without blanks
                    value=round(entry.value, 4),
                    notes=f"{label}, times 100, {entry.rows:,} {judged.judged.unit}, {entry.signature}",
                    **about,  # type: ignore[arg-type]
                )
            )
    return eval_results_yaml(entries)
