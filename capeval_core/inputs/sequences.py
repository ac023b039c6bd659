"""Sequences of any make as rows: lists, arrays, columns of tables; and the mend for what has no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any


def as_list(value: Any) -> list[Any] | None:
    """A sequence of any make as a list; None for what has no order, no length, or is no sequence."""
    if isinstance(value, (str, bytes, bytearray, range, type, Mapping, Set)):
        return None
    try:
        if isinstance(value, Sequence):
            return list(value)
        for method in ("to_pylist", "tolist"):  # pyarrow; numpy, pandas
            if hasattr(value, method):
                rows = getattr(value, method)()
                return rows if isinstance(rows, list) else None  # a numpy scalar has tolist too
    except Exception:  # tensors without storage, or a sequence of the user's own that fails
        return None
    return None


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or tensor; None for what has none, as a class, a mock and a nested tensor."""
    try:
        shape = value.shape
    except Exception:  # a property may fail in any way
        return None
    return tuple(shape) if isinstance(shape, tuple) else None


def is_table(value: Any) -> bool:
    """A pandas or polars DataFrame, or a whole Dataset: its columns are not rows."""
    return hasattr(value, "columns") or hasattr(value, "column_names")


def how_to_list(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", one per row in the order of the images"
    if isinstance(value, Iterator):
        return ", pass list(...) of it"
    if is_table(value):
        return ', pass one of its columns, as in dataset["image"]'
    if type(value).__module__.partition(".")[0] == "datasets":
        return ", a streamed dataset has no length, pass list(...) of it"
    return ""
