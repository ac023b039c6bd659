"""A judged set as tables and charts: ours beside the published values, and the differences between
metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
from PIL import Image

from capeval_core.judgements.judging import Entry, Judged
from capeval_core.judgements.protocols import PoolSet
from capeval_core.judgements.published import sources
from capeval_core.judgements.sets import SETS
from capeval_core.reports.figures import Bar, draw_bars, draw_spreads
from capeval_core.reports.tables import Table
from capeval_core.statistics import LEAST_IMAGES
from capeval_core.values import signed

_UNDEFINED = "n/a"
_NOUNS = ("rating", "caption", "image", "pair", "pool")
_LONG = (
    "set", "metric", "column", "value", "low", "high", "level", "rows", "deviation", "published", "distance",
    "z_score", "source", "undefined", "signature",
)  # fmt: skip


def judged_table(judged: Judged, notes: Sequence[str] = ()) -> Table:
    """A line per metric with its values and intervals, and a line of what is published with our distance."""
    rows = []
    for label in judged.cells:
        entries = [entry for entry in judged.entries if entry.label == label]
        rows.append([label, *map(_ours, entries)])
        if any(entry.published for entry in entries):
            rows.append(["  published", *map(_published, entries)])
    title = SETS[judged.judged.name].title if judged.judged.name in SETS else judged.judged.name
    return Table(title, ["metric", *judged.judged.columns], rows, [*_notes(judged), *notes])


def _notes(judged: Judged) -> list[str]:
    """What has to be known beside the numbers: rows, what was left out, what is undefined, sources."""
    the_set, resamples = judged.judged, judged.resamples
    rows, images = _counted(len(the_set.clusters), the_set.unit), len(set(the_set.clusters))
    notes = [f"times 100; {rows} of {_counted(images, 'images')}"]
    if resamples is not None and resamples.images < LEAST_IMAGES:
        notes[0] += f"; no intervals, which need at least {LEAST_IMAGES} images"
    elif resamples is not None:
        notes[0] += f"; intervals: {judged.level:.0%}, {len(resamples):,} bootstrap resamples of images"
    notes += [f"left out: {_counted(count, reason)}" for reason, count in the_set.dropped.items()]
    for label, runs in judged.scores.items():
        failed = sum(int(np.count_nonzero(~np.isfinite(run.scores))) for run in runs)
        if failed and not isinstance(the_set, PoolSet):  # of pools one is chosen
            notes.append(
                f"{label}: {_counted(failed, 'captions')} {'has' if failed == 1 else 'have'} no score"
            )
        reasons = [cell.undefined for cell in judged.cells[label].values() if cell.undefined]
        notes += [f"{label}: undefined where {_UNDEFINED}: {reason}" for reason in dict.fromkeys(reasons)]
        notes += [f"{label}: {reason}" for reason in _without_interval(judged, label)]
    labels = list(judged.scores)
    notes += [f"published: {source}" for source in sources(the_set.name, labels)]
    if "CIDEr-D" in labels:
        notes.append("CIDEr-D is what the papers and pycocoevalcap call CIDEr")
    if any(entry.z_score is not None for entry in judged.entries):
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


def _without_interval(judged: Judged, label: str) -> list[str]:
    """Why a metric's cells have no interval, of those that could have one."""
    if judged.resamples is None or judged.resamples.images < LEAST_IMAGES:
        return []
    reasons = []
    for entry in judged.entries:
        cell = entry.cell
        if entry.label == label and cell.draws is not None and not cell.undefined and entry.interval is None:
            undefined = len(cell.draws) - int(np.count_nonzero(np.isfinite(cell.draws)))
            found = f"undefined in {undefined:,} of {len(cell.draws):,} resamples"
            reasons.append(f"no interval of {entry.column}, {found}")
    return reasons


def long_table(judged: Judged, signatures: Mapping[str, str]) -> Table:
    """A line per cell with everything that is known of it, for programs."""
    rows = []
    for entry in judged.entries:
        published, deviation = entry.published, 100 * entry.cell.deviation
        rows.append(
            [
                judged.judged.name,
                entry.label,
                entry.column,
                *map(_digits, (entry.value, *(entry.bounds or (None, None)))),
                "" if entry.interval is None else f"{entry.interval.level:g}",
                str(entry.cell.rows),
                _digits(deviation),
                "" if published is None else f"{published.value:.{published.digits}f}",
                _digits(entry.distance),
                _digits(entry.z_score),
                "" if published is None else published.source,
                entry.cell.undefined or "",
                signatures.get(entry.label, ""),
            ]
        )
    return Table(judged.judged.name, _LONG, rows)


def contest_table(judged: Judged) -> Table:
    """Every two metrics in each column: the difference, its interval, and two tests."""
    rows = []
    for contest in judged.contests():
        value, interval = contest.difference.value, contest.difference.interval
        bounds = _UNDEFINED
        if interval is not None:
            bounds = f"{signed(100 * interval.low)} to {signed(100 * interval.high)}"
        shown = signed(100 * value) if math.isfinite(value) else _UNDEFINED
        tests = [_p(contest.difference.p_value), _p(contest.williams)]
        rows.append([contest.first, contest.second, contest.column, shown, bounds, *tests])
    header = ["first", "second", "column", "difference", "interval", "p, bootstrap", "p, Williams"]
    notes = ["Williams' test is of Pearson's correlations, and takes rows for independent"] if rows else []
    return Table("Differences between metrics", header, rows, notes)


def draw_agreement(judged: Judged) -> Image.Image:
    """Every cell with its interval, a panel per column."""
    panels: dict[str, list[Bar]] = {column: [] for column in judged.judged.columns}
    for entry in judged.entries:
        low, high = entry.bounds or (None, None)
        printed = None if entry.published is None else entry.published.value
        panels[entry.column].append(Bar(entry.label, entry.value, low, high, printed))
    note = "dot: ours, with its interval; red tick: published"
    return draw_bars(panels, note if any(entry.published for entry in judged.entries) else "")


def draw_scores(judged: Judged) -> Image.Image | None:
    """Scores by rating, a chart per metric; None for a set whose captions have no ratings."""
    panels = {label: judged.judged.levels(runs[0]) for label, runs in judged.scores.items()}
    return draw_spreads(panels) if any(panels.values()) else None


def eval_results(
    judged: Judged, label: str, *, dataset: str, date: str, signature: str, revision: str | None = None
) -> str:
    """The `.eval_results` YAML of one metric, for the repository of its weights on the Hub.

    Args:
        dataset: id of the judged set's repository on the Hub. date: of the run, ISO 8601.
        revision: commit of the data set.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=entry.column.replace(" ", "_"),
            value=round(entry.value, 4),
            dataset_revision=revision,
            date=date,
            notes=f"{label}, times 100, {entry.cell.rows:,} {judged.judged.unit}, {signature}",
        )
        for entry in judged.entries
        if entry.label == label and math.isfinite(entry.value)
    ]
    return str(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True))


def file_name(text: str) -> str:
    """A label as a part of a file's name."""
    words = "".join(c if c.isalnum() else " " for c in PurePath(text).as_posix().lower()).split()
    return "-".join(words)


def _ours(entry: Entry) -> str:
    if not math.isfinite(entry.value):
        return _UNDEFINED
    if entry.bounds is None:
        return f"{entry.value:.2f}"
    return f"{entry.value:.2f} [{entry.bounds[0]:.1f}, {entry.bounds[1]:.1f}]"


def _published(entry: Entry) -> str:
    if entry.published is None:
        return ""
    shown = f"{entry.published.value:.{entry.published.digits}f}"
    if entry.distance is None:
        return shown
    z_score = "" if entry.z_score is None else f", z {entry.z_score:+.1f}"
    return f"{shown} ({entry.distance:+.{max(entry.published.digits, 2)}f}{z_score})"


def _digits(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6f}"


def _p(value: float) -> str:
    if not math.isfinite(value):
        return _UNDEFINED
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
