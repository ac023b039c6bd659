"""The image column of a `datasets.Dataset`, read as it is stored.

Decoding by `datasets` turns a photograph upright (EXIF) and converts modes; the published metrics see the
file as it is. So the rows are taken from the Arrow table beneath: {"bytes", "path"} as stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload


def is_dataset_column(value: Any) -> bool:
    """Whether this is the column of a `datasets.Dataset` (datasets 4 and later), without importing it."""
    return (
        type(value).__module__.partition(".")[0] == "datasets"
        and isinstance(value, Sequence)
        and hasattr(value, "column_name")
        and hasattr(value, "source")
    )


class UndecodedColumn(Sequence[Any]):
    """Rows as stored, one at a time: a dict for an Image feature, a str for paths, None for a missing one."""

    def __init__(self, table: Any, names: list[str]) -> None:
        self.table = table
        self.names = names

    @classmethod
    def of(cls, column: Any) -> Sequence[Any]:
        """The stored rows behind a column; the column itself where its rows are not stored as images.

        The latter are columns behind a transform of the user's own (`with_transform`), and features that hold
        arrays.
        """
        names = [column.column_name]
        root = column.source
        while is_dataset_column(root):
            names.insert(0, root.column_name)
            root = root.source
        transformed = root.format["type"] == "custom"
        if transformed or type(column.features).__name__ not in ("Image", "Value"):
            untouched: Sequence[Any] = column
            return untouched
        return cls(root.with_format("arrow").select_columns([names[0]]), names)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        value = self.table[row].column(self.names[0])[0].as_py()
        for name in self.names[1:]:
            value = None if value is None else value[name]
        return value
