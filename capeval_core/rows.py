"""Rows of per-caption statistics: their columns, and the texts that the columns are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from capeval_core.encoders.tokenizers import coverage
from capeval_core.inputs.samples import Samples
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
"""Of metrics whose text encoder cuts a long caption; `Result` makes it a part."""
FLOATS = pa.list_(pa.float32())  # such as a number for each reference
NESTED = pa.list_(FLOATS)  # such as numbers for the words of each reference


def row_schema(*columns: pa.Field) -> pa.Schema:
    """The schema of a metric's rows: the common columns, then these."""
    return pa.schema([*COMMON, *columns])


def common_columns(
    batch: Samples, part: slice, *, groups: list[str], errors: list[str | None], truncated: Any
) -> dict[str, Any]:
    """The common columns for a part of a batch; the keyword arguments come from the encoder."""
    captions = batch.captions[part]
    references = [[]] * len(captions) if batch.references is None else batch.references[part]
    reference_counts = list(map(len, references))
    return {
        "index": batch.indices[part],
        "group": groups,
        "error": errors,
        "truncated": truncated.astype(np.int32),
        "references": np.array(reference_counts, dtype=np.int32),
        "empty": [not caption.strip() for caption in captions],
    }


class Texts:
    """Captions and references of samples as one list `all`, captions first, and which are whose.

    A text is found by four numbers. Of three captions with 2, 0 and 1 references, and part = slice(1, 3):

        row               0    1    2  | 0    0    2       which sample it belongs to
        all               c0   c1   c2 | r00  r01  r20     position in `all`: 0 to 5
        part                   c1   c2                     captions of the part: all[part]
        references(part)                           r20     slice(5, 6) of `all`
        owners(part)                               1       its caption's position within the part
    """

    def __init__(self, samples: Samples, *, with_references: bool = True) -> None:
        references: Any = samples.references if with_references else None
        if references is None:
            references = [[]] * len(samples)
        self.samples = samples
        self.all = list(samples.captions)
        for texts in references:
            self.all.extend(texts)
        self.counts = np.array([len(texts) for texts in references], dtype=np.int64)
        # Where the references of each caption begin in `all`, and where the last ones end.
        self._starts = len(samples) + np.cumsum([0, *self.counts])

    def references(self, part: slice) -> slice:
        """The place in `all` of the references of some captions."""
        return slice(int(self._starts[part.start]), int(self._starts[part.stop]))

    def owners(self, part: slice) -> NDArray[np.int64]:
        """The caption of each reference of a part, by its position within the part."""
        return np.repeat(np.arange(part.stop - part.start), self.counts[part])

    def total(self, part: slice, values: ArrayLike) -> NDArray[np.int64]:
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
            captions = self.samples.captions[part]
            columns["coverage"] = coverage(tokenizer, captions, truncated[part], prompt)
        return columns

    def cosines(self, part: slice, features: NDArray[np.float32]) -> pa.ListArray:
        """A list column: the cosine of each caption with each of its references, of features of all texts."""
        counts = self.counts[part]
        cosines = grouped_cosine(features[part], features[self.references(part)], counts)
        return lists(cosines, counts)


def nullable(values: NDArray[np.floating[Any]]) -> pa.Array:
    """A column of numbers, null where they are NaN, as of an image that failed."""
    return pa.array(values, mask=np.isnan(values))


def lists(values: Any, lengths: NDArray[np.int64]) -> pa.ListArray:
    """A list column: consecutive values, of an array or a torch tensor, in lists of these lengths."""
    # lengths 2 0 1 -> offsets 0 2 2 3: Arrow takes the values as they are, without a Python list per row.
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    if hasattr(values, "numpy"):
        values = values.numpy()
    return pa.ListArray.from_arrays(offsets, values)


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    # The last one: a row that failed is encoded again, and appended behind the failed one.
    # np.unique finds the first place of each value: in the reversed column this is the last one.
    _, place_from_end = np.unique(index[::-1], return_index=True)
    last_places = len(index) - 1 - place_from_end
    return rows.take(pa.array(last_places)).combine_chunks()
