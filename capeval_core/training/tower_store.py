"""Outputs of frozen towers on the disk: computed once, kept by content, read as they are needed."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from capeval_core.errors import warn
from capeval_core.limits import LIMITS
from capeval_core.writing import write_whole

Array = NDArray[np.generic]
_INDEX, _ROWS = ".json", ".bin"


class TowerStore:
    """Arrays of one shape by key, in shards: a file of rows, and an index of their keys and a digest.

    A run that was interrupted loses the rows of a minute. A shard that is damaged, or has lost one of its
    files, is left out with a warning, so its rows are computed again.

    Args:
        folder: of the shards, made if it does not exist; stores of other names may share it.
        name: of what is kept; everything that rows depend on beside their own key.
        shape, dtype: of a row.

    Raises:
        OSError: the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.put("a dog", np.float32([1, 2]))
    >>> store.flush()
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.rows(store.places(["a dog"]))
    tensor([[1., 2.]])
    >>> store.missing(["a cat", "a dog"])
    ['a cat']
    """

    _BYTES = 256 << 20  # a shard is written at this size

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.folder, self.shape, self.dtype = folder, shape, np.dtype(dtype)
        self.row_size = math.prod(shape)
        description = json.dumps([name, shape, self.dtype.name])
        self.stem = hashlib.blake2b(description.encode(), digest_size=8).hexdigest()
        self._places: dict[str, tuple[int, int]] = {}
        self._shards: list[Array] = []
        self._keys: dict[str, None] = {}  # of the rows in memory
        self._waiting: list[Array] = []
        self._written_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        for index in sorted(folder.glob(f"{self.stem}-*{_INDEX}")):
            self._open(index)

    def _open(self, index: Path) -> None:
        try:
            content = json.loads(index.read_bytes())
            keys, digest = content["keys"], content["digest"]
            rows = np.memmap(index.with_suffix(_ROWS), self.dtype, "r", shape=(len(keys), self.row_size))
            if _digest(keys, rows) != digest:
                raise ValueError("its digest is another")
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn(
                f"{index} or the file of rows beside it is damaged ({error}): what it held is computed again"
            )
            for path in (index, index.with_suffix(_ROWS)):
                path.unlink(missing_ok=True)
            return
        self._places |= {key: (len(self._shards), row) for row, key in enumerate(keys)}
        self._shards.append(rows)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._keys

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those without a row, each once."""
        return [key for key in dict.fromkeys(keys) if key not in self]

    def put(self, key: str, row: NDArray[np.float32]) -> None:
        """Keep a row; it is on the disk after `flush`, or after a minute.

        Raises:
            ValueError: a value that exceeds the range of the store's dtype.
        """
        with np.errstate(over="ignore"):
            stored = row.astype(self.dtype).reshape(self.row_size)
        if not np.isfinite(stored).all():
            found = f"an output of a tower exceeds the range of {self.dtype.name}"
            raise ValueError(f"{found}, in which it is kept for training")
        self._keys[key] = None
        self._waiting.append(stored)
        waited = time.monotonic() - self._written_at
        if waited > LIMITS.training_seconds or len(self._waiting) * stored.nbytes > self._BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are still in memory as a shard."""
        if self._waiting:
            index = self.folder / f"{self.stem}-{uuid.uuid4().hex}{_INDEX}"
            rows = np.stack(self._waiting)
            write_whole(index.with_suffix(_ROWS), rows.data)
            keys = list(self._keys)
            write_whole(index, json.dumps({"keys": keys, "digest": _digest(keys, rows)}))
            self._keys, self._waiting = {}, []
            self._open(index)
        self._written_at = time.monotonic()

    def places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """(n, 2) where rows are, for `rows`.

        Raises:
            KeyError: a key without a row on the disk.
        """
        return np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def rows(self, places: NDArray[np.int64]) -> Tensor:
        """(n, ...) float32, in PyTorch's own memory: a killed training goes on with the same bits."""
        result = torch.empty(len(places), self.row_size)
        gathered = result.numpy()
        for shard in np.unique(places[:, 0]):
            here = places[:, 0] == shard
            gathered[here] = self._shards[shard][places[here, 1]]
        return result.view(len(places), *self.shape)


def _digest(keys: Sequence[str], rows: Array) -> str:
    digest = hashlib.blake2b(json.dumps(keys).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()
