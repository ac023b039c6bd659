"""Rows of per-caption statistics: their columns, their collection, and the folder that they are kept in."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core.encoders.tokenizers import coverage
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.images import ImageError
from capeval_core.inputs.samples import Samples, joined, parts, text_counts
from capeval_core.kept import DamagedError, Kept, check_folder, digest_of, read_kept
from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import grouped_cosine


def column(name: str, type: pa.DataType, meaning: str) -> pa.Field:
    """A column of rows; `meaning` says in the documents what one value is."""
    return pa.field(name, type, metadata={"meaning": meaning})


COMMON = (
    column("index", pa.int64(), "position of the caption in the input"),
    column("group", pa.string(), "content key of its image, empty if it could not be read"),
    column("error", pa.string(), "why it could not be encoded, null if it could"),
    column("truncated", pa.int32(), "token ids truncated, those of its references included"),
    column("references", pa.int32(), "how many references it is compared with, 0 for a metric without"),
    column("empty", pa.bool_(), 'whether the caption is empty, which `empty="score"` allows'),
)
"""The columns that every metric's rows begin with."""
COVERAGE = column("coverage", pa.float64(), "share of the caption's words that the text encoder reads")
"""Of metrics whose text encoder reads the beginning of a long caption; `Result` makes it a part."""
FLOATS = pa.list_(pa.float32())  # such as a number for each reference
NESTED = pa.list_(FLOATS)  # such as numbers for the words of each reference
_CONTENT = "content"  # the column of kept rows with the key of caption, image and references


def row_schema(*own: pa.Field) -> pa.Schema:
    """The schema of a metric's rows: the common columns, then its own."""
    return pa.schema([*COMMON, *own])


def common_columns(
    batch: Samples, part: slice, *, groups: list[str], errors: list[str | None], truncated: Any
) -> dict[str, Any]:
    """The common columns for a part of a batch; the keyword arguments come from the encoder."""
    captions = batch.captions[part]
    references = [[]] * len(captions) if batch.references is None else batch.references[part]
    return {
        "index": batch.indices[part],
        "group": groups,
        "error": errors,
        "truncated": truncated.astype(np.int32),
        "references": np.array([len(texts) for texts in references], dtype=np.int32),
        "empty": [not caption.strip() for caption in captions],
    }


class Texts:
    """Captions and references of samples as one list `all`, captions first, and which are whose."""

    def __init__(self, samples: Samples, *, with_references: bool = True) -> None:
        references = (samples.references if with_references else None) or [[]] * len(samples)
        self.samples = samples
        self.all = [*samples.captions, *(text for own in references for text in own)]
        self.counts = np.array([len(own) for own in references], dtype=np.int64)
        self._starts = len(samples) + np.cumsum([0, *self.counts])

    def references(self, part: slice) -> slice:
        """Where the references of some captions stand in `all`."""
        return slice(int(self._starts[part.start]), int(self._starts[part.stop]))

    def owners(self, part: slice) -> NDArray[np.int64]:
        """Of the references of some captions, which of these captions each one belongs to."""
        return np.repeat(np.arange(part.stop - part.start), self.counts[part])

    def total(self, part: slice, values: Any) -> NDArray[np.int64]:
        """Whole numbers of all texts, added up to one of each caption with its references."""
        numbers: NDArray[np.int64] = np.asarray(values, dtype=np.int64)
        totals = numbers[part].copy()
        np.add.at(totals, self.owners(part), numbers[self.references(part)])
        return totals

    def columns(
        self,
        part: slice,
        groups: list[str],
        errors: list[str | None],
        truncated: Any,
        tokenizer: Any = None,
        prompt: str = "",
    ) -> dict[str, Any]:
        """The common columns of some captions; `truncated` are the token ids cut off each of all texts.

        tokenizer: of an encoder that reads the beginning of a long text behind the prompt, for `coverage`.
        """
        cut = self.total(part, truncated)
        columns = common_columns(self.samples, part, groups=groups, errors=errors, truncated=cut)
        if tokenizer is not None:
            own = self.samples.captions[part]
            columns["coverage"] = coverage(tokenizer, own, truncated[part], prompt)
        return columns

    def cosines(self, part: slice, features: NDArray[np.float32]) -> pa.ListArray:
        """A list column: the cosine of each caption with each of its references, of features of all texts."""
        of_references, counts = features[self.references(part)], self.counts[part]
        return lists(grouped_cosine(features[part], of_references, counts), counts)


def nullable(values: NDArray[np.floating[Any]]) -> pa.Array:
    """A column of numbers, null where they are NaN, as of an image that failed."""
    return pa.array(values, mask=np.isnan(values))


def lists(values: Any, lengths: NDArray[np.int64]) -> pa.ListArray:
    """A list column: consecutive values, of an array or a torch tensor, in lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values.numpy() if hasattr(values, "numpy") else values)


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    _, last_reversed = np.unique(index[::-1], return_index=True)
    return rows.take(pa.array(len(index) - 1 - last_reversed)).combine_chunks()


def kept_rows(folder: str | PathLike[str]) -> Callable[[str, Any, Sequence[str]], bool]:
    """Whether a folder of rows, or one below it, has a row of a caption, its image and references."""
    kept: set[str] = set()
    for path in Path(folder).rglob("*.parquet"):
        with suppress(DamagedError, KeyError):
            rows, _ = read_kept(path)
            kept.update(rows.filter(pc.is_null(rows["error"]))[_CONTENT].to_pylist())
    return lambda *parts: _key_of(*parts) in kept


def _key_of(caption: str, visual: Any, references: Sequence[str]) -> str:
    try:
        image = visual.key
    except ImageError:
        image = ""  # its row will hold the error, and is computed again in the next run
    return digest_of(json.dumps([caption, image, references]).encode())


class RowStore(Kept):
    """Rows in a folder, each with a key of its caption, image and references, and only reused for these."""

    def __init__(self, path: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> None:
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        own, stamp = check_folder("rows", path), {**stamp, "columns": digest_of(columns.encode())}
        super().__init__(own, stamp, "rows", most_rows=LIMITS.shard_rows, most_seconds=LIMITS.shard_seconds)
        whole = schema.append(pa.field(_CONTENT, pa.string()))
        stored = (table.select(whole.names).cast(whole) for table in self.tables())
        self._rows = [whole.empty_table(), *stored]

    def reuse(self, samples: Samples) -> tuple[pa.Table, dict[int, str]]:
        """The stored rows of samples that have no error, and the content keys of the others by index."""
        rows = canonical(pa.concat_tables(self._rows))
        rows = rows.filter(pc.is_null(rows["error"]))
        self._rows = [rows]
        stored = dict(zip(rows["index"].to_pylist(), rows[_CONTENT].to_pylist(), strict=True))
        references = samples.references or [[]] * len(samples)
        contents = map(_key_of, samples.captions, samples.images, references)
        keys = dict(zip(samples.indices, contents, strict=True))
        missing = {index: key for index, key in keys.items() if stored.get(index) != key}
        reused = pc.is_in(rows["index"], pa.array(sorted(keys.keys() - missing.keys()), pa.int64()))
        return rows.filter(reused).drop_columns([_CONTENT]), missing

    def append(self, table: pa.Table) -> None:
        self._rows.append(table)
        super().append(table)


class RowStores(dict[str, RowStore]):
    """The folders of rows that a metric has opened, each once; `flush` writes what was added to them."""

    def open(
        self, folder: str | PathLike[str] | None, schema: pa.Schema, stamp: Mapping[str, Any]
    ) -> RowStore | None:
        """The rows in a folder, None without one."""
        if folder is None:
            return None
        key = json.dumps([str(Path(folder).resolve()), stamp], sort_keys=True)
        return self.get(key) or self.setdefault(key, RowStore(folder, schema, stamp))

    def flush(self) -> None:
        for store in self.values():
            store.flush()


class Task:
    """What one metric, opened and prepared, encodes: the checked captions of one system or several.

    Systems have the same captions with every metric, and equal visuals of one metric share a source.
    folders: which keep the rows of each system.
    """

    def __init__(self, metric: Any, systems: Sequence[Samples], folders: Sequence[Any]) -> None:
        metric.options.check_separable(type(metric), scores=False)
        self.metric, self.systems, self.samples = metric, systems, joined(systems)
        self.reused, self._memory = 0, FreedMemory()  # how many rows the folders had
        self._system = np.repeat(np.arange(len(systems)), [len(samples) for samples in systems])
        self._kept: list[tuple[RowStore | None, dict[int, str], list[pa.Table]]] = []
        missing: list[bool] = []
        for samples, folder in zip(systems, folders, strict=True):
            store = metric.stores.open(folder, metric.ROW, metric.stamp())
            rows, keys = metric.ROW.empty_table(), dict.fromkeys(samples.indices, "")
            if store is not None:
                rows, keys = store.reuse(samples)
            self._kept.append((store, keys, [rows]))
            self.reused += len(rows)
            missing += [index in keys for index in samples.indices]
        counts = np.array(text_counts(self.samples), dtype=np.int64)
        self.texts = np.where(missing, counts, 0)  # to be encoded
        self.texts_together = LIMITS.texts if self._kept[0][0] is None else LIMITS.texts_between_shards

    @property
    def rows(self) -> list[pa.Table]:
        """The outcome of each system, in any order."""
        return [pa.concat_tables(tables) for _, _, tables in self._kept]

    def add(self, table: pa.Table, places: NDArray[np.int64]) -> None:
        """Rows of these captions, which each system gets its own of; one with an error may be refused."""
        systems = self._system[places]
        for number in np.unique(systems):
            own = table.filter(pa.array(systems == number))
            store, keys, tables = self._kept[number]
            if store is not None:
                content = pa.array([keys[index] for index in own["index"].to_pylist()], pa.string())
                store.append(own.append_column(_CONTENT, content))
            if self.metric.options.on_error == "raise":
                errors = own["error"].drop_null().to_pylist()
                Problems(Problem("", error) for error in errors).raise_if_any()
            tables.append(own)
        self._memory.add(len(table))


def encode_tasks(
    tasks: Sequence[Task], *, progress: bool = False, on_rows: Callable[[int], None] | None = None
) -> None:
    """Encode the rows of each task, of metrics on the same captions; with a reranker's there is one.

    Captions of one picture are encoded together, whatever their system, and metrics take turns: a network
    that reads an image with a text runs the image once, and metrics that share weights find its features.
    """
    systems = next((task for task in tasks if task.metric.media), tasks[0]).systems
    order = np.arange(len(tasks[0].texts))
    if len(systems) > 1:
        rank: dict[int, int] = {}
        visuals = [visual for samples in systems for visual in samples.images]
        order = np.argsort([rank.setdefault(id(one.source), len(rank)) for one in visuals], kind="stable")
    texts = np.max([task.texts for task in tasks], axis=0)[order].tolist()
    limit = tasks[0].texts_together if len(tasks) == 1 else LIMITS.texts_together
    # A bar on a terminal only; its time left is for the captions that are not reused.
    shown: Any = {"desc": ", ".join(task.metric.name for task in tasks), "unit": "caption"}
    shown |= {"total": len(order) * len(tasks), "initial": sum(task.reused for task in tasks)}
    try:
        with tqdm(disable=None if progress else True, **shown) as bar:
            for part in parts(texts, limit):
                for task in tasks:
                    places = order[part][task.texts[order[part]] > 0]
                    samples = task.samples.select(places.tolist())
                    for table in task.metric.encode(samples) if len(samples) else ():
                        task.add(table, places[: len(table)])
                        places = places[len(table) :]
                        bar.update(len(table))
                        if on_rows is not None:
                            on_rows(len(table))
    except BaseException:  # Ctrl-C, too
        for task in tasks:
            task.metric.stores.flush()
        raise


class FreedMemory:
    """Returns freed pages to the system: glibc keeps 30 KB for each image that some thread has decoded."""

    _trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    _rows = 0

    def add(self, rows: int) -> None:
        """Count rows that have been made."""
        self._rows += rows
        if self._rows >= 512 and self._trim is not None:
            self._trim(0)
            self._rows = 0
