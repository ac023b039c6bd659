"""Metrics over the items of a judged set: scored once, and aggregated again for each choice of references."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from capeval_core.inputs.samples import Samples
from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.protocols import Items, JudgedSet, Scored, Scoring
from capeval_core.metric import CaptionMetric, Reranker, prepared, with_options
from capeval_core.result import Result


def labels_of(metric: type[CaptionMetric]) -> dict[str, str]:
    """The rows that a metric gets in a table, and the key of each: BLEU has one per length of n-grams."""
    formula = metric.formula
    if formula is None:
        return {metric.title: metric.key}
    labels = {}
    for name in sorted(formula.names):
        labels[name.upper().replace("_", "-")] = name  # `bleu_4` is BLEU-4 in papers
    return labels


_Run = tuple[Result | None, list[int]]
"""The result of some of a set's items, and their positions; None where none can be scored."""


class SetScorer(NamedTuple):
    """Scores a judged set with metrics."""

    judged: JudgedSet
    visuals: Mapping[str, object] = {}  # by id; captions of others have no score
    rows: Path | None = None  # a folder that keeps rows, so that a run that was stopped can be resumed
    progress: bool = False

    def score(self, metric: CaptionMetric) -> dict[str, list[Scored]]:
        """By label, the scores of each scoring of the set."""
        runs = self._runs(metric)
        scored: dict[str, list[Scored]] = {}
        for label, key in labels_of(type(metric)).items():
            scored[label] = []
            for (result, rows), scoring in zip(runs, self.judged.scorings, strict=True):
                scored[label].append(_scored_by(key, result, rows, len(scoring.items)))
        return scored

    def _runs(self, metric: CaptionMetric) -> list[_Run]:
        """A run for each scoring; what scorings share is scored once."""
        scorings = self.judged.scorings
        share_items = all(scoring.items is scorings[0].items for scoring in scorings)
        # Where other references are another aggregation of the same rows: not where statistics, of which rows
        # depend, are made of the references themselves.
        aggregates = metric.reference_columns and not metric.options.lacks_statistics
        if aggregates and share_items and len(scorings) > 1:
            return self._runs_of_references(metric)
        runs: dict[str, _Run] = {}
        names = []
        for scoring in scorings:
            # What all scorings share has no name of one of them.
            name = scoring.name if metric.needs_references or not share_items else ""
            if name not in runs:
                runs[name] = self._run(metric, scoring, name)
            names.append(name)
        return [runs[name] for name in names]

    def _runs_of_references(self, metric: CaptionMetric) -> list[_Run]:
        """Results of scorings that share their items, from one run over all references that any takes.

        references of an item   0 1 2 3 4
        scoring "draw 1"        1 4          positions of the references that it takes
        scoring "draw 2"        0 4
        used                    0 1 4        encoded once
        places in `used`        1 2 and 0 2  by which each scoring aggregates the rows again
        """
        items = self.judged.items
        references = items.references or []
        positions_of_scorings: list[Sequence[Sequence[int]]] = []
        for scoring in self.judged.scorings:
            positions = scoring.positions
            if positions is None:
                positions = [range(len(texts)) for texts in references]
            positions_of_scorings.append(positions)
        used: list[list[int]] = []  # of each item, the references that any scoring takes
        texts_used: list[list[str]] = []
        for row in range(len(items)):
            union: set[int] = set()
            for positions in positions_of_scorings:
                union.update(positions[row])
            used.append(sorted(union))  # in the order of the set's references, as a single run has them
            texts_used.append([references[row][place] for place in used[row]])
        rows, samples = self._samples(metric, items, texts_used)
        if samples is None:
            return [(None, [])] * len(self.judged.scorings)
        table = self._with_folder(metric).encode_all(samples, progress=self.progress)
        runs: list[_Run] = []
        for positions in positions_of_scorings:
            places = []  # of each row's references among those that were encoded
            for row in rows:
                places.append([used[row].index(place) for place in positions[row]])
            # Every row needs a reference, else none of this scoring has a mean over the same captions.
            if all(places):
                runs.append((metric.combine(_with_references(metric, table, places)), rows))
            else:
                runs.append((None, []))
        return runs

    def _run(self, metric: CaptionMetric, scoring: Scoring, name: str) -> _Run:
        rows, samples = self._samples(metric, scoring.items, scoring.references())
        if samples is None:
            return None, []
        ready = prepared(self._with_folder(metric, name), samples)
        result = ready.combine(ready.encode_all(samples, progress=self.progress))
        if isinstance(metric, Reranker):  # scores are of the chosen candidate of each pool
            choices = []
            for start, choice in zip(samples.starts, result.parts["choice"], strict=True):
                choices.append(rows[start + choice])
            return result, choices
        return result, rows

    def _samples(
        self, metric: CaptionMetric, items: Items, references: list[list[str]] | None
    ) -> tuple[list[int], Samples | None]:
        """Checked samples of the items that can be scored, and their positions."""
        if metric.needs_references and references is None:
            raise ValueError(f"{metric.name} needs references, and {self.judged.name} has none")
        visual_of = self.visuals
        if metric.options.images_are_ids:
            visual_of = dict(zip(items.images, items.images, strict=True))
        pools: dict[str | int, list[int]] = {}  # by image for a reranker, else a pool per row
        for row, image in enumerate(items.images):
            if metric.needs_references and references and not references[row]:
                continue
            if metric.media and image not in visual_of:
                continue
            pools.setdefault(image if isinstance(metric, Reranker) else row, []).append(row)
        if not pools:
            return [], None
        rows: list[int] = []  # pool after pool, as candidates are
        captions: list[str | list[str]] = []
        visuals: list[object] = []
        for pool in pools.values():
            rows += pool
            visuals.append(visual_of[items.images[pool[0]]] if metric.media else None)
            captions_of_pool = [items.captions[row] for row in pool]
            if isinstance(metric, Reranker):
                captions.append(captions_of_pool)
            else:
                captions += captions_of_pool
        texts = None
        if metric.needs_references and references:
            texts = [references[row] for row in rows]
        return rows, metric.check(captions, visuals if metric.media else None, texts)

    def _with_folder(self, metric: CaptionMetric, name: str = "") -> CaptionMetric:
        """The metric with its own folder of rows, if there are any."""
        if self.rows is None:
            return metric
        return with_options(metric, rows=self.rows / metric.name / name.replace(" ", "-"))


def _with_references(metric: CaptionMetric, rows: pa.Table, positions: Sequence[Sequence[int]]) -> pa.Table:
    """Rows with only some of their references, by positions for each index."""
    # By index: rows that are read from a folder come in the order in which they were written.
    of_rows = []
    counts: list[object] = []
    for index in rows["index"].to_pylist():
        of_rows.append(positions[index])
        counts.append(len(positions[index]))
    columns = {"references": counts}
    for name in metric.reference_columns:
        columns[name] = []
        for values, places in zip(rows[name].to_pylist(), of_rows, strict=True):
            columns[name].append(None if values is None else [values[place] for place in places])
    for name, entries in columns.items():
        field = rows.schema.field(name)
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, field, pa.array(entries, field.type))
    return rows


def _scored_by(key: str, result: Result | None, rows: list[int], count: int) -> Scored:
    """The scores of all items by a result of some; `key` is its number, or a part of a corpus metric's."""
    if result is None:
        return Scored(np.full(count, math.nan))
    scores = result.scores if key == result.key else result.parts[key]
    # Of the parts only numbers can be compared with ratings; others are texts, lists or flags.
    parts = {}
    for name, part in result.parts.items():
        if _are_numbers(part):
            parts[name] = _in_place(part, rows, count)
    # The mean of BLEU's rows is not what papers report as BLEU of a system.
    corpus = None if result.formula is None else result.numbers[key]
    return Scored(_in_place(scores, rows, count), parts, corpus, result.signature)


def _in_place(values: Sequence[float], rows: list[int], count: int) -> Doubles:
    """(count,) values at their rows, NaN elsewhere."""
    array = np.full(count, math.nan)
    array[rows] = values
    return array


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
