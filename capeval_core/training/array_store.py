"""Encoder outputs and box features on disk: arrays by key, computed once, mapped into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.limits import LIMITS
from capeval_core.store import TableStore


class StoredArrays(FeatureCache):
    """Flat arrays by key, in a folder by name; for the engine a cache whose `get` only tests membership."""

    def __init__(self, folder: Path, name: str, dtype: DTypeLike) -> None:
        super().__init__(max_bytes=0)
        self.dtype = np.dtype(dtype)
        stamp = {"arrays": name, "dtype": self.dtype.name}
        # A folder for each stamp: several trainings share the outer one, and some encoders two dtypes.
        store_folder = folder / hashlib.blake2b(repr(stamp).encode(), digest_size=8).hexdigest()
        seconds = LIMITS.training_seconds
        self._store = TableStore(
            store_folder, stamp, folder.name, most_seconds=seconds, mapped=True, required=True
        )
        self._places: dict[str, tuple[int, int]] = {}
        self._load()

    def _load(self) -> None:
        """Map the tables on the disk, and note the table and row of each key."""
        self._tables: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        self._new: set[str] = set()
        for table in self._store.tables():
            # Arrow's own buffers, so that pages are read when a batch needs them:
            #
            #     offsets   0 . . 4 . . 8 . . . . 14        in bytes, one more than there are rows
            #     values    row 0 | row 1 | row 2
            _, offset_bytes, value_bytes = table["array"].chunk(0).buffers()
            offsets = np.frombuffer(offset_bytes, np.int64)[: len(table) + 1] // self.dtype.itemsize
            for row, key in enumerate(table["key"].to_pylist()):
                self._places[key] = len(self._tables), row
            self._tables.append((offsets, np.frombuffer(value_bytes, self.dtype, offsets[-1])))

    def get(self, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
        """An empty array for each key that has one in the store."""
        empty = np.empty(0, dtype=self.dtype)
        return {key: empty for key in keys if key in self._places or key in self._new}

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays. Raises ValueError where one exceeds the range of the store's type."""
        contents = []
        for array in arrays.values():
            with np.errstate(over="ignore"):  # the infinity says it
                converted = array.astype(self.dtype)
            if not np.isfinite(converted).all():
                problem = f"a feature exceeds the range of {self.dtype.name}"
                raise ValueError(f"{problem}, in which it is kept for training")
            contents.append(converted.tobytes())
        # Large: offsets of 32 bits would end at 2 GB of a table.
        values = pa.array(contents, pa.large_binary())
        self._store.append(pa.table({"key": list(arrays), "array": values}))
        self._new |= arrays.keys()

    def flush(self) -> None:
        """Write all arrays to the disk, and map them."""
        if self._new:
            self._store.flush()
            self._load()

    def __getitem__(self, key: str) -> NDArray[Any]:
        """An array that is on the disk."""
        table, row = self._places[key]
        offsets, values = self._tables[table]
        return values[offsets[row] : offsets[row + 1]]

    def reader(self, keys: Sequence[str], shape: tuple[int, ...]) -> Callable[[NDArray[np.int64]], Tensor]:
        """A function from numbers of n of these keys to (n, *shape) float32; all arrays have one shape."""
        places = np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)

        def rows(numbers: NDArray[np.int64]) -> Tensor:
            tables, rows_of_tables = places[numbers].T
            # In PyTorch's memory: NumPy's may be aligned otherwise, but a resumed run needs the same bits.
            result = torch.empty(len(numbers), *shape)
            gathered = result.flatten(1).numpy()
            # All rows of a table in one indexing: a loop over the rows of a batch would be Python's.
            for table in np.unique(tables):
                offsets, values = self._tables[table]
                in_table = tables == table
                array_of_row = values.reshape(len(offsets) - 1, -1)
                gathered[in_table] = array_of_row[rows_of_tables[in_table]]
            return result

        return rows
