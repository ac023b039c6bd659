"""Sequences as rows: lists, arrays, columns of tables and of a `datasets.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any


def as_list(value: Any) -> list[Any] | None:
    """A sequence of any make as a list; None for what has no order, no length, or is no sequence."""
    if isinstance(value, (str, bytes, bytearray, range, type, Mapping, Set)):
        return None
    if isinstance(value, Sequence):
        return list(value)
    to_list = getattr(value, "to_pylist", None) or getattr(value, "tolist", None)  # pyarrow; numpy, pandas
    rows = to_list() if to_list else None
    return rows if isinstance(rows, list) else None  # a numpy scalar has tolist too


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or tensor; None for what has none, as a class, a mock and a nested tensor."""
    try:
        return tuple(value.shape) if isinstance(value.shape, tuple) else None
    except (AttributeError, RuntimeError):  # nested tensors have none
        return None


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    module = type(value).__module__.partition(".")[0]
    return module == "torch" and hasattr(value, "is_floating_point") and not isinstance(value, type)


def is_table(value: Any) -> bool:
    """A pandas or polars DataFrame, or a whole Dataset: its columns are not rows."""
    return hasattr(value, "columns") or hasattr(value, "column_names")


def how_to_list(value: Any) -> str:
    """The fix for what has no rows, behind the words for what is expected."""
    if isinstance(value, Mapping):
        return ", one per row in the order of the images"
    if isinstance(value, Iterator):
        return ", pass list(...) of it"
    if is_table(value):
        return ', pass one of its columns, as in dataset["image"]'
    if type(value).__module__.partition(".")[0] == "datasets":
        return ", a streamed dataset has no length, pass list(...) of it"
    return ""


def is_dataset_column(value: Any) -> bool:
    """Whether this is the column of a `datasets.Dataset` (datasets 4 and later), without importing it."""
    return (
        type(value).__module__.partition(".")[0] == "datasets"
        and isinstance(value, Sequence)
        and hasattr(value, "column_name")
        and hasattr(value, "source")
    )


class UndecodedColumn:
    """Rows as stored, one at a time: a dict for an Image or a Video feature, a str for paths, None for none.

    Decoding by `datasets` turns a photograph upright (EXIF) and converts modes; the published metrics see the
    file as it is. Videos it decodes by a package of its own. So the rows are taken from the Arrow table
    beneath: {"bytes", "path"} as stored.
    """

    def __init__(self, table: Any, names: list[str]) -> None:
        self.table = table
        self.names = names

    @classmethod
    def of(cls, column: Any) -> Any:
        """The stored rows behind a column; the column itself if it is transformed, or of arrays."""
        names = [column.column_name]
        root = column.source
        while is_dataset_column(root):
            names.insert(0, root.column_name)
            root = root.source
        transformed = root.format["type"] == "custom"
        if transformed or type(column.features).__name__ not in ("Image", "Video", "Value"):
            return column
        return cls(root.with_format("arrow").select_columns([names[0]]), names)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Any:
        value = self.table[row].column(self.names[0])[0].as_py()
        for name in self.names[1:]:
            value = None if value is None else value[name]
        return value
