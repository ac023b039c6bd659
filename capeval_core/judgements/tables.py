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
from typing import NamedTuple

import numpy as np
from PIL import Image

from capeval_core.errors import signed
from capeval_core.judgements.correlation import Doubles, Resamples, pearson
from capeval_core.judgements.protocols import Cell, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.sets import SETS
from capeval_core.reports.figures import draw_bars, draw_spreads
from capeval_core.reports.tables import Table
from capeval_core.statistics import LEAST_IMAGES, LEAST_P

_ALIASES = {
    "CIDEr": "CIDEr-D",
    "ROUGE": "ROUGE-L",
    "PAC-S for videos": "PAC-S",
    "RefPAC-S for videos": "RefPAC-S",
}
_UNDEFINED = "n/a"
_NOUNS = ("rating", "caption", "image", "pair", "pool")
PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


class PublishedCell(NamedTuple):
    """A published number, its digits behind the point as printed, and where it stands."""

    value: float
    digits: int
    source: str


def published(name: str, label: str, column: str) -> PublishedCell | None:
    """What a paper prints for a metric in a column of a set, None where none does."""
    label = _ALIASES.get(label, label)
    for table in PUBLISHED.get(name, ()):
        if column in table["columns"] and label in table["values"]:
            value = table["values"][label][table["columns"].index(column)]
            if not math.isnan(value):
                return PublishedCell(value, table.get("digits", 1), table["source"])
    return None


class Entry(NamedTuple):
    """One cell of a table in the papers' scale of 100, and its distance from what a paper prints, also in
    deviations over the draws of references; NaN where there is none."""

    label: str
    column: str
    cell: Cell
    value: float
    low: float
    high: float
    published: PublishedCell | None
    distance: float
    z_score: float


class Judged:
    """A judged set with the scores of metrics: by label, those of each of its scorings; without draws, the
    resamples of intervals, there are no intervals."""

    def __init__(
        self,
        judged: JudgedSet,
        scores: Mapping[str, Sequence[Scored]],
        *,
        draws: int,
        level: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.judged, self.scores, self.level = judged, scores, level
        self.resamples = Resamples(judged.clusters, draws=draws, seed=seed) if draws else None
        self.cells = {label: judged.cells(runs, self.resamples) for label, runs in scores.items()}
        self.entries = [
            self._entry(label, column, cell)
            for label, cells in self.cells.items()
            for column, cell in cells.items()
        ]

    def _entry(self, label: str, column: str, cell: Cell) -> Entry:
        value, paper = 100 * cell.value, published(self.judged.name, label, column)
        distance = math.nan if paper is None else value - paper.value
        deviation = 100 * cell.deviation
        z_score = distance / deviation if deviation > 0 else math.nan
        return Entry(label, column, cell, value, *self.bounds(cell.draws), paper, distance, z_score)

    def bounds(self, draws: Doubles | None) -> tuple[float, float]:
        """The interval of what has these values in the resamples, times 100; NaN where there is none."""
        if self.resamples is None or draws is None:
            return math.nan, math.nan
        interval = self.resamples.interval(draws, level=self.level)
        return (math.nan, math.nan) if interval is None else (100 * interval.low, 100 * interval.high)

    def entries_of(self, label: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.label == label]


# tests between metrics


def contest_table(judged: Judged) -> Table:
    """Every two metrics in each column: the difference, its interval, and two tests."""
    rows = []
    for column in judged.judged.columns if judged.resamples is not None else ():
        for first, second in combinations(judged.cells, 2):
            one, other = (judged.cells[label][column] for label in (first, second))
            if one.draws is not None and other.draws is not None:
                difference, draws = one.value - other.value, one.draws - other.draws
                shown = signed(100 * difference) if math.isfinite(difference) else _UNDEFINED
                low, high = judged.bounds(draws)
                bounds, p_value = _UNDEFINED, math.nan
                if math.isfinite(low):
                    bounds, p_value = f"{signed(low)} to {signed(high)}", _bootstrap_p(draws)
                williams = _williams(judged, first, second, column)
                rows.append([first, second, column, shown, bounds, _p(p_value), _p(williams)])
    header = ["first", "second", "column", "difference", "interval", "p, bootstrap", "p, Williams"]
    notes = ["Williams' test is of Pearson's correlations, and takes rows for independent"] if rows else []
    return Table("Differences between metrics", header, rows, notes)


def _bootstrap_p(differences: Doubles) -> float:
    """2 min(k + 1, draws - k + 1) / (draws + 1), k the resamples of images whose difference is below 0 (those
    at 0 count half)."""
    finite = differences[np.isfinite(differences)]
    below = float(np.count_nonzero(finite < 0) + np.count_nonzero(finite == 0) / 2)
    return min(1.0, 2 * (min(below, len(finite) - below) + 1) / (len(finite) + 1))


def _williams(judged: Judged, first: str, second: str, column: str) -> float:
    """For ratings alone: of Pearson's correlations of the rows that both metrics have a score on."""
    rated = judged.judged
    if not isinstance(rated, RatedSet) or rated.by_annotator or len(rated.scorings) != 1:
        return math.nan
    spec = rated.table[column]
    if spec.part is not None or spec.subset is not None:
        return math.nan
    sides = [judged.scores[label][0].scores[rated.item] for label in (first, second)]
    kept = np.isfinite(sides[0]) & np.isfinite(sides[1])
    x, y, ratings = sides[0][kept], sides[1][kept], rated.ratings[spec.ratings][kept]
    of_first, of_second, between = (pearson(*pair).value for pair in ((x, ratings), (y, ratings), (x, y)))
    return _williams_p(of_first, of_second, between, len(x))


def _williams_p(first: float, second: float, between: float, rows: int) -> float:
    """The two-sided p-value of Williams' test that two correlations with the same ratings are equal.

    Williams, The Comparison of Regression Variables, JRSS B 21, 1959; for metrics: Graham and Baldwin,
    Testing for Significance of Increased Correlation with Human Judgment, EMNLP 2014. Rows of one image are
    not independent, as it assumes, so it is beside the bootstrap, not in its place.
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
    bounds = f" [{entry.low:.1f}, {entry.high:.1f}]" if math.isfinite(entry.low) else ""
    return f"{entry.value:.2f}{bounds}"


def _published(entry: Entry) -> str:
    if entry.published is None:
        return ""
    shown = _printed(entry)
    if not math.isfinite(entry.distance):
        return shown
    z_score = f", z {entry.z_score:+.1f}" if math.isfinite(entry.z_score) else ""
    return f"{shown} ({entry.distance:+.{max(entry.published.digits, 2)}f}{z_score})"


def _printed(entry: Entry) -> str:
    return "" if entry.published is None else f"{entry.published.value:.{entry.published.digits}f}"


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
            elif intervals and cell.draws is not None and math.isnan(entry.low):
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
    rows = [
        {
            "set": judged.judged.name,
            "metric": entry.label,
            "column": entry.column,
            "value": _digits(entry.value),
            "low": _digits(entry.low),
            "high": _digits(entry.high),
            "level": f"{judged.level:g}" if math.isfinite(entry.low) else "",
            "rows": str(entry.cell.rows),
            "deviation": _digits(100 * entry.cell.deviation),
            "published": _printed(entry),
            "distance": _digits(entry.distance),
            "z_score": _digits(entry.z_score),
            "source": "" if entry.published is None else entry.published.source,
            "undefined": entry.cell.undefined or "",
            "signature": signatures.get(entry.label, ""),
        }
        for entry in judged.entries
    ]
    return Table(judged.judged.name, list(rows[0]), [list(row.values()) for row in rows])


def _digits(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def _p(value: float) -> str:
    if not math.isfinite(value):
        return _UNDEFINED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# charts and files


def draw_agreement(judged: Judged) -> Image.Image:
    """Every cell with its interval, a panel per column."""
    panels: dict[str, list[tuple[str, float, float, float, float]]] = {
        column: [] for column in judged.judged.columns
    }
    for entry in judged.entries:
        printed = math.nan if entry.published is None else entry.published.value
        panels[entry.column].append((entry.label, entry.value, entry.low, entry.high, printed))
    note = "dot: ours, with its interval; red tick: published"
    return draw_bars(panels, note if any(entry.published for entry in judged.entries) else "")


def draw_scores(judged: Judged) -> Image.Image | None:
    """Scores by rating, a chart per metric; None for a set whose captions have no ratings."""
    panels = {label: judged.judged.levels(runs[0]) for label, runs in judged.scores.items()}
    return draw_spreads(panels) if any(panels.values()) else None


def eval_results(judged: Judged, label: str, *, signature: str, **about: str | None) -> str:
    """The `.eval_results` YAML of one metric, for the repository of its weights on the Hub; about:
    `dataset_id`, `date` (ISO 8601) and `dataset_revision` of the entries."""
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
