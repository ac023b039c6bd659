"""Rows of several systems by several metrics, encoded side by side; evidence of single captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core.inputs.samples import Samples, parts, text_counts
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric, Reranker, with_statistics
from capeval_core.result import Result
from capeval_core.rows import RowCollector, canonical, progress_bar

Integers = NDArray[np.int64]


class Task:
    """What one metric, opened and prepared, encodes: captions of several systems, checked.

    Systems have the same captions with every metric, and equal visuals of one metric share a source.
    folders: which keep the rows of each system.
    """

    def __init__(
        self, metric: CaptionMetric, systems: Sequence[Samples], folders: Sequence[Path | None]
    ) -> None:
        self.metric, self.systems, self.folders = metric, systems, folders
        self.collectors: list[RowCollector] = []
        self._starts = np.cumsum([0, *map(len, systems[:-1])])
        self._samples = _joined(systems)

    @property
    def rows(self) -> list[pa.Table]:
        """The outcome, of each system."""
        return [collector.table() for collector in self.collectors]

    @property
    def reused(self) -> int:
        """How many rows the folders had."""
        return sum(collector.reused for collector in self.collectors)

    def begin(self, order: Integers, bar: tqdm[object], stack: ExitStack) -> Integers:
        """Look for rows in the folders; how many texts each caption has, in the order of encoding."""
        missing, metric = np.zeros(len(order), dtype=np.bool_), self.metric
        for start, samples, folder in zip(self._starts, self.systems, self.folders, strict=True):
            rows = order[(order >= start) & (order < start + len(samples))] - start
            store = metric.stores.open(folder, metric.ROW, metric.stamp())
            collector = RowCollector(
                samples.select(rows.tolist()), metric.ROW, store, bar, metric.options.on_error
            )
            self.collectors.append(stack.enter_context(collector))
            missing[start + np.asarray(collector.missing.indices, dtype=np.int64)] = True
        self._order, self._missing = order, missing[order]
        return np.array(text_counts(self._samples), dtype=np.int64)[order]

    def encode(self, part: slice) -> None:
        """Encode the captions of a part that no folder has rows of, and give each system its own."""
        chosen = self._order[part][self._missing[part]]
        for table in self.metric.encode(self._samples.select(chosen.tolist())) if len(chosen) else ():
            index = table["index"].to_numpy()
            system = np.searchsorted(self._starts, index, side="right") - 1
            column = table.schema.get_field_index("index")
            for number in np.unique(system):
                rows = table.filter(pa.array(system == number))
                own = pa.array(index[system == number] - self._starts[number], pa.int64())
                rows = rows.set_column(column, table.schema.field(column), own)
                self.collectors[number].add(rows)


def encode_tasks(tasks: Sequence[Task], *, progress: bool = False) -> None:
    """Encode the rows of each task, of metrics on the same captions, none a reranker.

    Captions of one picture are encoded together, whatever their system, and metrics take turns: a network
    that reads an image with a text runs the image once, and metrics that share weights find its features.
    """
    for task in tasks:
        task.metric.options.check_separable(type(task.metric), scores=False)
    systems = next((task for task in tasks if task.metric.media), tasks[0]).systems
    visuals = [visual for samples in systems for visual in samples.images]
    rank: dict[int, int] = {}
    ranks = [rank.setdefault(id(visual.source), len(rank)) for visual in visuals]
    order = np.argsort(ranks, kind="stable") if len(systems) > 1 else np.arange(len(visuals))
    names = ", ".join(task.metric.name for task in tasks)
    with progress_bar(names, len(order) * len(tasks), progress) as bar, ExitStack() as stack:
        texts = np.max([task.begin(order, bar, stack) for task in tasks], axis=0)
        limit = tasks[0].collectors[0].texts if len(tasks) == 1 else LIMITS.texts_together
        for part in parts(texts.tolist(), limit):
            for task in tasks:
                task.encode(part)


def _joined(systems: Sequence[Samples]) -> Samples:
    """The samples of all systems, one system after the other, counted through."""
    references = [samples.references for samples in systems]
    captions = [caption for samples in systems for caption in samples.captions]
    return replace(
        systems[0],
        captions=captions,
        images=[visual for samples in systems for visual in samples.images],
        references=None if references[0] is None else [texts for own in references for texts in own or []],
        indices=range(len(captions)),
    )


class Evidence(Mapping[int, Mapping[str, Any]]):
    """Where scores come from, by the index of a caption, made when it is asked for; of pools, all at once."""

    def __init__(self, metric: CaptionMetric, samples: Samples, rows: pa.Table, result: Result) -> None:
        options: Any = metric.options
        if getattr(options, "statistics", ...) is None:  # those of all captions, not of the ones explained
            metric = with_statistics(metric, metric.prepare(metric.corpus(samples)))
        self._metric, self._samples, self._rows, self._result = metric, samples, canonical(rows), result
        self._pools: Mapping[int, Mapping[str, Any]] | None = None

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if not 0 <= index < len(self):
            raise KeyError(index)
        if isinstance(self._metric, Reranker):
            if self._pools is None:
                self._pools = self._metric.evidence_of(self._samples, self._rows, self._result.parts)
            return self._pools[index]
        parts = {name: [values[index]] for name, values in self._result.parts.items()}
        return self._metric.evidence_of(self._samples.select([index]), self._rows.slice(index, 1), parts)[0]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._result.scores)
