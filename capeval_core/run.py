"""The run of metrics over checked captions: rows of earlier runs are reused, the others are encoded.

              window 1           window 2           ...    a window is bounded by its number of texts
pacs          encode, add        encode, add
refpacs       encode, add        encode, add               finds the features that pacs has just made
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core.errors import Problem, Problems
from capeval_core.inputs.samples import Samples, joined, parts, text_counts
from capeval_core.limits import LIMITS
from capeval_core.row_store import CONTENT, RowStore, RowStores


class _RunOptions(Protocol):
    @property
    def on_error(self) -> str: ...


class RowEncoder(Protocol):
    """A maker of rows, opened: a metric, or a member of ECO's ensemble."""

    stores: RowStores

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> _RunOptions: ...

    @property
    def media(self) -> Sequence[str]: ...

    @property
    def ROW(self) -> pa.Schema: ...  # noqa: N802

    def stamp(self) -> dict[str, Any]: ...

    def encode(self, batch: Samples) -> Iterable[pa.Table]: ...


Encoder = TypeVar("Encoder", bound=RowEncoder)


@dataclass
class _System:
    """Rows of one system: those of its folder, and those that are encoded now."""

    store: RowStore | None
    digests: dict[int, str]  # of the samples whose rows are missing, by index
    tables: list[pa.Table]


class Task(Generic[Encoder]):
    """The work of one metric, opened and prepared: the checked captions of one system or several.

    Systems have the same captions with every metric, and equal visuals of one metric share a source.
    folders: which keep the rows of each system.
    """

    def __init__(
        self, metric: Encoder, systems: Sequence[Samples], folders: Sequence[str | PathLike[str] | None]
    ) -> None:
        self.metric = metric
        self.systems = systems
        self.samples = joined(systems)
        self.reused = 0  # rows that the folders had
        self._memory = FreedMemory()
        # Of each sample of all systems, the number of its system.
        self._system = np.repeat(np.arange(len(systems)), list(map(len, systems)))
        self._systems: list[_System] = []
        missing: list[bool] = []  # of each sample, whether its row has to be encoded
        for samples, folder in zip(systems, folders, strict=True):
            store = metric.stores.open(folder, metric.ROW, metric.stamp())
            rows = metric.ROW.empty_table()
            digests = dict.fromkeys(samples.indices, "")
            if store is not None:
                rows, digests = store.reuse(samples)
            self._systems.append(_System(store, digests, [rows]))
            self.reused += len(rows)
            missing += [index in digests for index in samples.indices]
        counts = np.array(text_counts(self.samples), dtype=np.int64)
        self.texts = np.where(missing, counts, 0)  # to be encoded, of each sample
        # Smaller windows with a folder: rows go to the disk after each, and a kill costs the last one.
        has_folder = self._systems[0].store is not None
        self.texts_together = LIMITS.texts_between_shards if has_folder else LIMITS.texts

    @property
    def rows(self) -> list[pa.Table]:
        """The rows of each system, in any order."""
        return [pa.concat_tables(system.tables) for system in self._systems]

    def add(self, table: pa.Table, places: NDArray[np.int64]) -> None:
        """Add rows of these captions, each to its system; one with an error may be refused."""
        numbers = self._system[places]
        for number in np.unique(numbers):
            system = self._systems[number]
            rows = table.filter(pa.array(numbers == number))
            if system.store is not None:
                # Stored before an error ends the run: the next one need not encode these again.
                digests = list(map(system.digests.__getitem__, rows["index"].to_pylist()))
                system.store.append(rows.append_column(CONTENT, pa.array(digests, pa.string())))
            if self.metric.options.on_error == "raise":
                errors = rows["error"].drop_null().to_pylist()
                Problems(Problem("", error) for error in errors).raise_if_any()
            system.tables.append(rows)
        self._memory.add(len(table))


def encode_tasks(
    tasks: Sequence[Task[Any]], *, progress: bool = False, on_rows: Callable[[int], None] | None = None
) -> None:
    """Encode the rows of each task, of metrics on the same captions; with a reranker's there is one.

    Captions of one picture are encoded together, whatever their system, and metrics take turns: a network
    that reads an image with a text runs the image once, and metrics that share weights find its features.
    """
    order = _by_image(tasks)
    texts = np.max([task.texts for task in tasks], axis=0)[order].tolist()
    limit = tasks[0].texts_together if len(tasks) == 1 else LIMITS.texts_together
    bar = tqdm(
        desc=", ".join(task.metric.name for task in tasks),
        unit="caption",
        total=len(order) * len(tasks),
        initial=sum(task.reused for task in tasks),  # so that its time is for the captions to encode
        disable=None if progress else True,  # None: on a terminal only
    )
    try:
        with bar:
            for window in parts(texts, limit):
                for task in tasks:
                    for rows in _encode(task, order[window]):
                        bar.update(rows)
                        if on_rows is not None:
                            on_rows(rows)
    except BaseException:  # Ctrl-C, too
        for task in tasks:
            task.metric.stores.flush()
        raise


def _encode(task: Task[Any], places: NDArray[np.int64]) -> Iterator[int]:
    """Encode the captions at these places that have no row yet; yields numbers of finished rows."""
    places = places[task.texts[places] > 0]
    if not len(places):
        return
    for table in task.metric.encode(task.samples.select(places.tolist())):
        task.add(table, places[: len(table)])
        places = places[len(table) :]  # tables cover the window in order
        yield len(table)


def _by_image(tasks: Sequence[Task[Any]]) -> NDArray[np.int64]:
    """An order of the captions of all systems in which those of one image follow each other."""
    # Metrics on texts alone have stand-ins for images, none of which two captions share.
    on_visuals = [task for task in tasks if task.metric.media]
    systems = (on_visuals or tasks)[0].systems
    if len(systems) == 1:  # whose order, of the user's files, usually has them together already
        return np.arange(len(tasks[0].texts))
    rank: dict[int, int] = {}  # of an image, by its source
    ranks = []
    for samples in systems:
        for visual in samples.images:
            ranks.append(rank.setdefault(id(visual.source), len(rank)))
    return np.argsort(ranks, kind="stable")


class FreedMemory:
    """Return freed pages to the system: glibc keeps 30 KB for each image that some thread has decoded."""

    _trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    _rows = 0

    def add(self, rows: int) -> None:
        """Count rows that have been made."""
        self._rows += rows
        if self._rows >= 512 and self._trim is not None:  # the call costs milliseconds
            self._trim(0)
            self._rows = 0
