"""Metrics over the items of a judged set: scored once, and aggregated again for each choice of references."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from capeval_core.judgements.protocols import Items, JudgedSet, Scored, Scoring
from capeval_core.metric import CaptionMetric, CorpusOptions, Reranker, prepared, with_options
from capeval_core.result import Result


def labels_of(metric: type[CaptionMetric]) -> dict[str, str]:
    """The rows that a metric gets in a table, and the key of each: BLEU has one per length of n-grams."""
    formula = metric.formula
    if formula is None:
        return {metric.title: metric.key}
    return {name.upper().replace("_", "-"): name for name in sorted(formula.names)}


_Run = tuple[Result | None, list[int]]  # of a set's items, and of which; None where none can be scored


class SetScorer(NamedTuple):
    """Scores a judged set with metrics."""

    judged: JudgedSet
    visuals: Mapping[str, Any] = {}  # by id; captions of others have no score
    rows: Path | None = None  # a folder that keeps rows, so that a run that was stopped goes on
    progress: bool = False

    def score(self, metric: CaptionMetric) -> dict[str, list[Scored]]:
        """By label, the scores of each scoring of the set."""
        scorings = self.judged.scorings
        shared = all(scoring.items is scorings[0].items for scoring in scorings)
        options = metric.options
        corpus = isinstance(options, CorpusOptions) and getattr(options, "idf", True) is not None
        # Where other references are another aggregation of the same rows.
        if metric.reference_columns and not corpus and shared and len(scorings) > 1:
            results = self._chosen(metric)
        else:
            # What all scorings share is scored once, and has no name of one of them.
            names = [one.name if metric.needs_references or not shared else "" for one in scorings]
            once = dict(zip(names, scorings, strict=True))
            runs = {name: self._scored(metric, scoring, name) for name, scoring in once.items()}
            results = [runs[name] for name in names]
        return {
            label: [
                _scored_by(key, result, kept, len(scoring.items))
                for (result, kept), scoring in zip(results, scorings, strict=True)
            ]
            for label, key in labels_of(type(metric)).items()
        }

    def _chosen(self, metric: CaptionMetric) -> list[_Run]:
        """Results of scorings that share their items, from one run over all references that any takes."""
        scorings, items = self.judged.scorings, self.judged.items
        references = items.references or []
        chosen = [[*map(range, map(len, references))] if s.chosen is None else s.chosen for s in scorings]
        used = [sorted({place for own in chosen for place in own[row]}) for row in range(len(items))]
        union = [[references[row][place] for place in own] for row, own in enumerate(used)]
        kept, samples = self._samples(metric, items, union)
        if samples is None:
            return [(None, [])] * len(scorings)
        table = self._keeping(metric).encode_all(samples, progress=self.progress)
        results: list[_Run] = []
        for own in chosen:
            places = [[used[row].index(place) for place in own[row]] for row in kept]
            result = metric.combine(_with_references(metric, table, places)) if all(places) else None
            results.append((result, kept if all(places) else []))
        return results

    def _scored(self, metric: CaptionMetric, scoring: Scoring, name: str) -> _Run:
        kept, samples = self._samples(metric, scoring.items, scoring.references())
        if samples is None:
            return None, []
        own = prepared(self._keeping(metric, name), samples)
        result = own.combine(own.encode_all(samples, progress=self.progress))
        if isinstance(metric, Reranker):  # scores are of the chosen candidate of each pool
            choices = zip(samples.starts, result.parts["choice"], strict=True)
            kept = [kept[start + choice] for start, choice in choices]
        return result, kept

    def _samples(
        self, metric: CaptionMetric, items: Items, references: list[list[str]] | None
    ) -> tuple[list[int], Any]:
        """Checked samples of the items that can be scored, and their positions."""
        kept = list(range(len(items)))
        if metric.needs_references:
            if references is None:
                raise ValueError(f"{metric.name} needs references, and {self.judged.name} has none")
            kept = [row for row in kept if references[row]]
        paths = {one: one for one in items.images} if metric.options.images_are_ids else self.visuals
        if metric.media:
            kept = [row for row in kept if items.images[row] in paths]
        if not kept:
            return [], None
        pools: dict[Any, list[int]] = {}
        for row in kept:
            pools.setdefault(items.images[row] if isinstance(metric, Reranker) else row, []).append(row)
        kept = [row for pool in pools.values() for row in pool]  # pool after pool, as candidates are
        captions: Any = [items.captions[row] for row in kept]
        if isinstance(metric, Reranker):
            captions = [[items.captions[row] for row in pool] for pool in pools.values()]
        visuals = [paths[items.images[pool[0]]] for pool in pools.values()] if metric.media else None
        chosen = [references[row] for row in kept] if metric.needs_references and references else None
        return kept, metric.check(captions, visuals, chosen)

    def _keeping(self, metric: CaptionMetric, name: str = "") -> CaptionMetric:
        """The metric with its own folder of rows, if there are any."""
        if self.rows is None:
            return metric
        return with_options(metric, rows=self.rows / metric.name / name.replace(" ", "-"))


def _with_references(metric: CaptionMetric, rows: pa.Table, chosen: Sequence[Sequence[int]]) -> pa.Table:
    """Rows with only some of their references, by positions for each index."""
    places = [chosen[index] for index in rows["index"].to_pylist()]
    found: dict[str, list[Any]] = {"references": [len(own) for own in places]}
    for name in metric.reference_columns:
        pairs = zip(rows[name].to_pylist(), places, strict=True)
        found[name] = [None if own is None else [own[place] for place in chosen] for own, chosen in pairs]
    for name, values in found.items():
        column, place = rows.schema.field(name), rows.schema.get_field_index(name)
        rows = rows.set_column(place, column, pa.array(values, column.type))
    return rows


def _scored_by(key: str, result: Result | None, kept: list[int], count: int) -> Scored:
    """The scores of all items by a result of some; `key` is its number, or a part of a corpus metric's."""
    if result is None:
        return Scored(np.full(count, math.nan))
    own = result.scores if key == result.key else result.parts[key]
    parts = {
        name: part
        for name, part in result.parts.items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in part)
    }
    columns = pd.DataFrame({**parts, "": own}, index=kept, dtype=np.float64).reindex(range(count))
    spread = {name: columns[name].to_numpy() for name in columns}
    corpus = None if result.formula is None else result.numbers[key]
    return Scored(spread.pop(""), spread, corpus, result.signature)
