"""Row schemas of per-caption statistics, and the collection of rows while they are encoded."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core.errors import Problems
from capeval_core.inputs.samples import Samples, windows
from capeval_core.inputs.visual import ImageError
from capeval_core.limits import LIMITS

if TYPE_CHECKING:
    from capeval_core.row_store import RowStore


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


def row_schema(*own: pa.Field) -> pa.Schema:
    """The schema of a metric's rows: the common columns, then its own."""
    return pa.schema([*COMMON, *own])


def common_columns(
    batch: Samples,
    part: slice,
    *,
    groups: list[str],
    errors: list[str | None],
    truncated: NDArray[np.integer[Any]],
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


def nullable(values: NDArray[np.floating[Any]]) -> pa.Array:
    """A column of numbers, null where they are NaN, as of an image that failed."""
    return pa.array(values, mask=np.isnan(values))


def lists(values: Any, lengths: NDArray[np.int64]) -> pa.ListArray:
    """A list column: consecutive values, of an array or a torch tensor, in lists of these lengths.

    >>> lists(np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1])).to_pylist()
    [[1.0, 2.0], [], [3.0]]
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values.numpy() if hasattr(values, "numpy") else values)


def fixed_lists(values: NDArray[Any]) -> pa.FixedSizeListArray:
    """A column of lists of one length: a row of the array in each.

    >>> fixed_lists(np.array([[1.0, 2.0], [3.0, 4.0]])).to_pylist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def of_fixed_lists(column: pa.FixedSizeListArray | pa.ChunkedArray) -> NDArray[Any]:
    """The array (n, length) of a column of lists of one length, none of them null.

    >>> of_fixed_lists(pa.chunked_array([fixed_lists(np.array([[1.0, 2.0], [3.0, 4.0]]))[1:]]))
    array([[3., 4.]])
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: NDArray[Any] = array.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, column.type.list_size)


def content_key(samples: Samples, row: int) -> str:
    """Key of the caption, image and references of row `row`."""
    references = samples.references[row] if samples.references else []
    return key_of(samples.captions[row], samples.images[row], references)


def key_of(caption: str, visual: Any, references: Sequence[str]) -> str:
    """Key of a caption, its image and references."""
    try:
        image = visual.key
    except ImageError:
        image = ""  # its row will hold the error, and is computed again in the next run
    parts = json.dumps([caption, image, references])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    _, last_reversed = np.unique(index[::-1], return_index=True)
    return rows.take(pa.array(len(index) - 1 - last_reversed)).combine_chunks()


class RowCollector:
    """The rows of samples: those that a store has, and the others as they are encoded, window by window.

        with RowCollector(samples, schema, store, bar, refuse_errors=True) as collector:
            for window in collector.windows():
                for table in encode(window):
                    collector.add(table)
        rows = collector.table()

    Args:
        samples: checked input; a row's index is its sample's.
        schema: of the rows.
        store: keeps what is encoded, so that an interrupted run goes on where it stopped; None: nothing is
            kept.
        bar: counts rows.
        refuse_errors: whether a row with an error ends the run.
    """

    def __init__(
        self,
        samples: Samples,
        schema: pa.Schema,
        store: RowStore | None,
        bar: tqdm[Any],
        *,
        refuse_errors: bool,
    ) -> None:
        self._tables = [schema.empty_table()]
        self._missing, self.texts = samples, LIMITS.texts
        self._added = self.reused = 0
        self._store, self._bar, self._refuse_errors = store, bar, refuse_errors
        self._memory = FreedMemory()
        if store is not None:
            reused, missing = store.reuse(samples.indices, partial(content_key, samples))
            self._tables.append(reused)
            self._missing, self.texts = samples.select(missing), LIMITS.texts_between_shards
            self.reused = len(reused)
            _start_at(bar, len(reused))

    @property
    def missing(self) -> Samples:
        """The samples that the store had no row of, in order; `reused` is the number of the others."""
        return self._missing

    def windows(self) -> Iterator[Samples]:
        """The samples that have no row yet, as many at once as memory allows."""
        return windows(self._missing, self.texts)

    def add(self, table: pa.Table) -> None:
        """The next rows, in the order of the windows.

        Raises:
            ValueError: an image broke after it was checked, and `refuse_errors`.
        """
        if self._store is not None:
            positions = range(self._added, self._added + len(table))
            self._store.append(table, [content_key(self._missing, row) for row in positions])
        if self._refuse_errors and table["error"].null_count < len(table):
            Problems(table["error"].drop_null().to_pylist()).raise_if_any()
        self._tables.append(table)
        self._added += len(table)
        self._memory.add(len(table))
        self._bar.update(len(table))

    def table(self) -> pa.Table:
        """All rows, in no certain order."""
        return pa.concat_tables(self._tables)

    def __enter__(self) -> RowCollector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._store is not None:
            self._store.flush()  # on Ctrl-C too: nothing that was computed is lost


def _start_at(bar: tqdm[Any], rows: int) -> None:
    """Count rows that an earlier run made: they say nothing of how fast this one is."""
    if not bar.disable:
        bar.initial += rows
        bar.n += rows
        bar.last_print_n += rows
        bar.refresh()


class FreedMemory:
    """Returns freed pages to the system, every so many rows of a long run.

    Decoded images of many sizes come and go in several threads, and glibc keeps the holes that they leave,
    about 30 KB for each further image. Its settings are the host program's and stay as they are. Nothing
    happens with another C library.
    """

    _ROWS = 512  # between two returns: what piles up in between is some tens of megabytes

    def __init__(self) -> None:
        self._rows = 0

    def add(self, rows: int) -> None:
        """Count rows that have been made."""
        self._rows += rows
        trim = _malloc_trim()
        if self._rows >= self._ROWS and trim is not None:
            trim(0)
            self._rows = 0


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim
