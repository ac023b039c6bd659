"""A judged set's table: the cells of each metric with intervals, beside what papers print (`published.toml`),
and tests between metrics; as tables, charts and `.eval_results`.

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
from capeval_core.judgements.sets import SETS
from capeval_core.reports.figures import draw_bars, draw_spreads
from capeval_core.reports.tables import Table
from capeval_core.statistics import LEAST_IMAGES

_UNDEFINED = "n/a"
_Scores = Mapping[str, Sequence[Scored]]  # by label, of each scoring
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


class PublishedCell(NamedTuple):
    """A published number, as it is printed, and where it stands."""

    value: float
    printed: str
    source: str


def published(name: str, label: str, column: str) -> PublishedCell | None:
    """What a paper prints for a metric in a column of a set, None where none does."""
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
    level: str
    rows: int
    deviation: float
    published: str
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
        self.judged, self.scores, self.level = judged, scores, level
        self.resamples = Resamples(judged.clusters, draws=draws, seed=seed) if draws else None
        self.cells = {label: judged.cells(runs, self.resamples) for label, runs in scores.items()}
        self.signatures = {
            label: " and ".join(dict.fromkeys(run.signature for run in runs if run.signature))
            for label, runs in scores.items()
        }
        self.entries = [
            self._entry(label, column, cell)
            for label, cells in self.cells.items()
            for column, cell in cells.items()
        ]

    def entries_of(self, label: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.metric == label]

    def _entry(self, label: str, column: str, cell: Cell) -> Entry:
        value, deviation = 100 * cell.value, 100 * cell.deviation
        low, high = self.bounds(cell.draws)
        level = f"{self.level:g}" if math.isfinite(low) else ""
        paper = published(self.judged.name, label, column) or PublishedCell(math.nan, "", "")
        distance = value - paper.value
        z_score = distance / deviation if deviation > 0 else math.nan
        ours = (label, column, value, low, high, level, cell.rows, deviation)
        theirs = (paper.printed, distance, z_score, paper.source)
        return Entry(*ours, *theirs, cell.undefined or "", self.signatures[label])

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
    for column in judged.judged.columns if judged.resamples is not None else ():
        for first, second in combinations(judged.cells, 2):
            one, other = (judged.cells[label][column] for label in (first, second))
            if one.draws is not None and other.draws is not None:
                difference, draws = one.value - other.value, one.draws - other.draws
                low, high = judged.bounds(draws)
                shown = signed(100 * difference) if math.isfinite(difference) else _UNDEFINED
                bounds, p_value = f"{signed(low)} to {signed(high)}", _bootstrap_p(draws)
                if not math.isfinite(low):
                    bounds, p_value = _UNDEFINED, math.nan
                williams = _williams_p(judged, first, second, column)
                rows.append([first, second, column, shown, bounds, _p(p_value), _p(williams)])
    header = ["first", "second", "column", "difference", "interval", "p, bootstrap", "p, Williams"]
    notes = ["Williams' test is of Pearson's correlations, and takes rows for independent"] if rows else []
    return Table("Differences between metrics", header, rows, notes)


def _p(value: float) -> str:
    return _UNDEFINED if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _bootstrap_p(differences: Doubles) -> float:
    """2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples of images whose difference is below 0 (those
    at 0 count half)."""
    finite = differences[np.isfinite(differences)]
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
    sides = [judged.scores[label][0].scores[rated.item] for label in (first, second)]
    kept = np.isfinite(sides).all(axis=0)
    if spec.part is not None or spec.subset is not None or spec.statistic == "ap" or (n := kept.sum()) < 4:
        return math.nan
    x, y, ratings = sides[0][kept], sides[1][kept], rated.ratings[spec.ratings][kept]
    a, b, c = (pearson(*pair).value for pair in ((x, ratings), (y, ratings), (x, y)))
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
    title = SETS[name].title if name in SETS else name
    return Table(title, ["metric", *judged.judged.columns], rows, [*_notes(judged), *notes])


def _ours(entry: Entry) -> str:
    bounds = f" [{entry.low:.1f}, {entry.high:.1f}]" if math.isfinite(entry.low) else ""
    return f"{entry.value:.2f}{bounds}" if math.isfinite(entry.value) else _UNDEFINED


def _published(entry: Entry) -> str:
    if not math.isfinite(entry.distance):
        return entry.published
    digits = max(len(entry.published.partition(".")[2]), 2)
    z_score = f", z {entry.z_score:+.1f}" if math.isfinite(entry.z_score) else ""
    return f"{entry.published} ({entry.distance:+.{digits}f}{z_score})"


def _notes(judged: Judged) -> list[str]:
    """What has to be known beside the numbers: rows, what was left out, what is undefined, sources."""
    the_set, resamples = judged.judged, judged.resamples
    rows, images = _counted(len(the_set.clusters), the_set.unit), len(set(the_set.clusters))
    notes = [f"times 100; {rows} of {_counted(images, 'images')}"]
    intervals = resamples is not None and resamples.images >= LEAST_IMAGES
    if resamples is not None:
        of_images = f"intervals: {judged.level:.0%}, {len(resamples):,} bootstrap resamples of images"
        too_few = f"no intervals, which need at least {LEAST_IMAGES} images"
        notes[0] += f"; {of_images if intervals else too_few}"
    notes += [f"left out: {_counted(count, reason)}" for reason, count in the_set.dropped.items() if count]
    for label, runs in judged.scores.items():
        failed = sum(int(np.count_nonzero(~np.isfinite(run.scores))) for run in runs)
        if failed and not isinstance(the_set, PoolSet):  # of pools one is chosen
            have = "has" if failed == 1 else "have"
            notes.append(f"{label}: {_counted(failed, 'captions')} {have} no score")
        for entry in judged.entries_of(label):
            draws = judged.cells[label][entry.column].draws
            if entry.undefined:
                notes.append(f"{label}: undefined where {_UNDEFINED}: {entry.undefined}")
            elif intervals and draws is not None and math.isnan(entry.low):
                missing = f"{int(np.count_nonzero(~np.isfinite(draws))):,} of {len(draws):,}"
                notes.append(f"{label}: no interval of {entry.column}, undefined in {missing} resamples")
    notes += [f"published: {entry.source}" for entry in judged.entries if entry.source]
    if "CIDEr-D" in judged.scores:
        notes.append("CIDEr-D is what the papers and pycocoevalcap call CIDEr")
    if any(math.isfinite(entry.z_score) for entry in judged.entries):
        notes.append(
            "z: distance in standard deviations over the draws of references; the published draws are unknown"
        )
    return list(dict.fromkeys(notes))


def _counted(count: int, rows: str) -> str:
    """So many rows of a kind, whose first word is a plural."""
    noun, space, rest = rows.partition(" ")
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}{space}{rest}"


def long_table(judged: Judged) -> str:
    """A line of CSV per cell with everything that is known of it, for programs."""
    table = pd.DataFrame(judged.entries)
    table.insert(0, "set", judged.judged.name)
    return str(table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


# charts and files


def draw_agreement(judged: Judged) -> Image.Image:
    """Every cell with its interval, a panel per column."""
    panels: dict[str, list[Any]] = {column: [] for column in judged.judged.columns}
    for own in judged.entries:
        bar = own.metric, own.value, own.low, own.high, float(own.published or "nan")
        panels[own.column].append(bar)
    note = "dot: ours, with its interval; red tick: published"
    return draw_bars(panels, note if any(entry.published for entry in judged.entries) else "")


def draw_scores(judged: Judged) -> Image.Image | None:
    """Scores by rating, a chart per metric; None for a set whose captions have no ratings."""
    panels = {label: judged.judged.levels(runs[0]) for label, runs in judged.scores.items()}
    return draw_spreads(panels) if any(panels.values()) else None


def eval_results(judged: Judged, label: str, **about: str | None) -> str:
    """The `.eval_results` YAML of one metric, for the repository of its weights on the Hub; about:
    `dataset_id`, `date` (ISO 8601) and `dataset_revision` of the entries."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            task_id=entry.column.replace(" ", "_"),
            value=round(entry.value, 4),
            notes=f"{label}, times 100, {entry.rows:,} {judged.judged.unit}, {entry.signature}",
            **about,  # type: ignore[arg-type]
        )
        for entry in judged.entries_of(label)
        if math.isfinite(entry.value)
    ]
    return str(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True))
