"""Row schemas of per-caption statistics, and their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.inputs.samples import Samples


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


FLOATS = pa.list_(pa.float32())
"""The type of a column of lists, such as a number for each reference."""
NESTED = pa.list_(FLOATS)
"""Of lists of lists, such as numbers for the words of each reference."""


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


class Texts:
    """Captions and references of samples as one list, all captions first, and which are whose.

    all: the texts. counts: (n,) references of each caption.

    >>> texts = Texts(Samples(["a", "b"], [], [["c"], ["d", "e"]], range(2)))
    >>> texts.all, texts.references(slice(1, 2)), texts.total(slice(0, 2), [1, 0, 0, 5, 1])
    (['a', 'b', 'c', 'd', 'e'], slice(3, 5, None), array([1, 6]))
    """

    def __init__(self, samples: Samples, *, with_references: bool = True) -> None:
        references = (samples.references if with_references else None) or [[]] * len(samples)
        self.all = [*samples.captions, *(text for own in references for text in own)]
        self.counts = np.array([len(own) for own in references], dtype=np.int64)
        self._starts = len(samples) + np.cumsum([0, *self.counts])

    def references(self, part: slice) -> slice:
        """Where the references of some captions stand in `all`."""
        return slice(int(self._starts[part.start]), int(self._starts[part.stop]))

    def total(self, part: slice, values: Any) -> NDArray[np.int64]:
        """Whole numbers of all texts, added up to one of each caption with its references."""
        values = np.asarray(values, dtype=np.int64)
        owner = np.repeat(np.arange(part.stop - part.start), self.counts[part])
        of_references = np.bincount(owner, values[self.references(part)], part.stop - part.start)
        return np.asarray(values[part] + of_references.astype(np.int64))


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
    """A column of lists of one length: a row of the array in each."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def of_fixed_lists(column: pa.FixedSizeListArray | pa.ChunkedArray) -> NDArray[Any]:
    """The array (n, length) of a column of lists of one length, none of them null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: NDArray[Any] = array.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, column.type.list_size)


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    _, last_reversed = np.unique(index[::-1], return_index=True)
    return rows.take(pa.array(len(index) - 1 - last_reversed)).combine_chunks()
