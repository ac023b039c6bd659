"""LRU cache of features, bounded in memory and optionally stored on disk.

get(keys)          put(features)
   |                   |
_Memory: images, and another one for texts        bounded, the least recently used leaves first
   |                   |
features.sqlite        each feature with a digest of its bytes; shared by processes
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from capeval_core.errors import warn, wrong_option

_Path = str | PathLike[str]
Array = NDArray[Any]
Feature = Array | tuple[Array, ...]
TEXT_BYTES = 64 << 20  # memory for features of texts where they are held apart: new ones rarely come again
_FILE = "features.sqlite"


class _Memory(OrderedDict[str, Feature]):
    """Features by key, the least recently used first."""

    def __init__(self, max_bytes: float) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.used: set[str] = set()  # keys that were read or written in this run

    def use(self, key: str) -> Feature | None:
        if key in self:
            self.move_to_end(key)
            self.used.add(key)
        return self.get(key)

    def keep(self, key: str, feature: Feature) -> None:
        if self.use(key) is None:
            # A view would keep its whole batch alive.
            copies = tuple(array.copy() for array in _arrays(feature))
            for array in copies:
                array.setflags(write=False)  # whoever changed it would change later scores
            self[key] = copies if isinstance(feature, tuple) else copies[0]
            self.used.add(key)
            self.nbytes += _cost(key, feature)
        while self.nbytes > self.max_bytes:
            least_recent = next(iter(self))
            self.forget(least_recent)

    def forget(self, key: str) -> None:
        self.nbytes -= _cost(key, self.pop(key))
        self.used.discard(key)


class FeatureCache:
    """LRU cache of features by key; the least recently used ones leave when `max_bytes` is reached.

    A key names all that a feature depends on: weights, preprocessing and dtype of its encoder, and content.

    Args:
        max_bytes: bound of the features held in memory (512 MB by default); 0 keeps none there.
        folder: keep every feature on disk too, in `features.sqlite` there; several processes may share it.
            A damaged feature is left out with a warning, so it is computed again.
        text_bytes: bound of the features of texts, which are then held apart, so that ever new ones push no
            image out; None: they share `max_bytes`.

    Raises:
        TypeError, ValueError: a folder that cannot be used.

    >>> import numpy as np
    >>> cache = FeatureCache(max_bytes=1 << 20)
    >>> cache.put({"clip-1:dog": np.float32([1, 2])})
    >>> cache.get(["clip-1:dog", "clip-1:cat"])
    {'clip-1:dog': array([1., 2.], dtype=float32)}
    """

    def __init__(
        self, max_bytes: float = 512 << 20, folder: _Path | None = None, text_bytes: int | None = None
    ) -> None:
        self.max_bytes = max_bytes
        self.text_bytes = text_bytes
        self.folder = None if folder is None else Path(folder)
        self._images = _Memory(max_bytes)
        self._texts = self._images if text_bytes is None else _Memory(text_bytes)
        self._lock = threading.Lock()  # requests of a page come in several threads
        self._disk: sqlite3.Connection | None = None
        if self.folder is not None:
            with self._surviving():
                self._disk = _database(self.folder)

    def get(self, keys: Iterable[str]) -> dict[str, Any]:
        """The features of these keys; a key without features is left out."""
        with self._lock:
            features: dict[str, Any] = {}
            missing = []
            for key in dict.fromkeys(keys):
                feature = self._memory_of(key).use(key)
                if feature is None:
                    missing.append(key)
                else:
                    features[key] = feature
            if self._disk and missing:
                with self._surviving():
                    from_disk = self._read(self._disk, missing)
                    self._remember(from_disk)
                    features.update(from_disk)
        return features

    def put(self, features: Mapping[str, Any]) -> None:
        """Keep these features: arrays of any shape and type of numbers, or tuples of several."""
        with self._lock:
            self._remember(features)
            if self._disk:
                lines = []
                for key, feature in features.items():
                    arrays = {}
                    for number, array in enumerate(_arrays(feature)):
                        # `save` reads the memory of an array, whatever the order of its axes.
                        arrays[str(number)] = np.asarray(array, order="C")
                    value = save(arrays)
                    lines.append((key, value, _digest(key, value)))
                with self._surviving(), self._disk as disk:
                    # A line that is there under this key already is equal, or damaged.
                    disk.executemany("INSERT OR REPLACE INTO features_4 VALUES (?, ?, ?)", lines)

    def forget_unused(self) -> None:
        """End a run, such as an epoch: forget features that were neither read nor written during it."""
        with self._lock:
            for memory in self._memories():
                for key in memory.keys() - memory.used:
                    memory.forget(key)
                memory.used.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the features in memory."""
        return sum(memory.nbytes for memory in self._memories())

    def _memories(self) -> list[_Memory]:
        """The memories, each once."""
        return [self._images] if self._texts is self._images else [self._images, self._texts]

    def _memory_of(self, key: str) -> _Memory:
        """The memory for a key, whose third field is the kind of its feature; see `CheckedModel.key`."""
        return self._texts if key.split(":")[2:3] == ["text"] else self._images

    def _remember(self, features: Mapping[str, Feature]) -> None:
        for key, feature in features.items():
            self._memory_of(key).keep(key, feature)

    def _read(self, disk: sqlite3.Connection, keys: list[str]) -> dict[str, Feature]:
        """The features of these keys that are on the disk, but for damaged ones."""
        features: dict[str, Feature] = {}
        damaged = 0
        key_of = {key.encode(): key for key in keys}
        query = "SELECT key, value, digest FROM features_4 WHERE key IN (SELECT value FROM json_each(?))"
        for stored_key, value, digest in disk.execute(query, [json.dumps(keys)]):
            key = key_of.get(stored_key)
            # A damaged page may hold anything instead of bytes.
            if key is not None and isinstance(value, bytes) and digest == _digest(key, value):
                arrays = load(value)  # {"0": ..., "1": ...}, in any order
                ordered = tuple(arrays[name] for name in sorted(arrays, key=int))
                features[key] = ordered if len(ordered) > 1 else ordered[0]
            else:
                damaged += 1
        if damaged:
            warn(f"cache: damaged features in {self.folder}/{_FILE}, computed again: {damaged:,}")
        return features

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Continue in memory where the disk of the cache fails: a cache must not end a run."""
        try:
            yield
        except sqlite3.Error as error:
            self._disk = None
            problem = f"cache: {self.folder}/{_FILE} cannot be used any more ({error})"
            warn(f"{problem}: features are kept in memory only; if it is damaged, delete the file")

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process starts empty in memory and shares the disk.
        return FeatureCache, (self.max_bytes, self.folder, self.text_bytes)


def _arrays(feature: Feature) -> tuple[Array, ...]:
    return feature if isinstance(feature, tuple) else (feature,)


def _cost(key: str, feature: Feature) -> int:
    # The numbers, and what the arrays and the dictionary entry take in addition.
    return sum(array.nbytes for array in _arrays(feature)) + len(key) + 300


def _database(folder: Path) -> sqlite3.Connection:
    """A table of features, each with a digest. Raises sqlite3.DatabaseError where it is damaged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk = sqlite3.connect(folder / _FILE, timeout=60, check_same_thread=False)
        disk.text_factory = bytes  # text in a damaged page may not be valid
        with suppress(sqlite3.OperationalError):  # another process sets it at this moment
            disk.execute("PRAGMA journal_mode=WAL")
        columns = "(key TEXT PRIMARY KEY, value BLOB, digest BLOB)"
        disk.execute(f"CREATE TABLE IF NOT EXISTS features_4 {columns} WITHOUT ROWID")
    except (OSError, sqlite3.DatabaseError) as error:
        if "malformed" in str(error):  # damage costs no more than the features in the file
            raise
        problem = f"no features can be kept in a file there ({error})"
        fix = f"delete {_FILE} if it is damaged, or pass another folder"
        raise wrong_option("cache", str(folder), problem, fix, sentence=True) from error
    return disk


def _digest(key: str, value: bytes) -> bytes:
    return hashlib.blake2b(f"{len(key)} {key}".encode() + value, digest_size=16).digest()


SHARED = FeatureCache()
"""The cache of all metrics of the process that have no other."""
_BY_FOLDER: WeakValueDictionary[Path, FeatureCache] = WeakValueDictionary()


def shared_cache(cache: _Path | FeatureCache | None) -> FeatureCache:
    """The cache of an option: itself, that of a folder (one per process), or the common one."""
    if isinstance(cache, FeatureCache):
        return cache
    if cache is None:
        return SHARED
    path = Path(cache).resolve()
    return _BY_FOLDER.get(path) or _BY_FOLDER.setdefault(path, FeatureCache(folder=path))
