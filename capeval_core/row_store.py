"""Rows while they are encoded, and the Parquet store that they are kept in.

An interrupted run goes on where it stopped, and damage costs recomputation only.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tqdm import tqdm

from capeval_core.errors import Problems, folder_path, warn, wrong_option
from capeval_core.inputs.images import ImageError
from capeval_core.inputs.samples import Samples, windows
from capeval_core.limits import LIMITS
from capeval_core.rows import canonical
from capeval_core.writing import PARTIAL, try_writing, write_whole

STAMP = "stamp.json"
_STAMP_KEY = b"capeval_stamp"  # of the stamp in a shard's metadata
_SHARD = re.compile(r"\d{20}-([0-9a-f]{32})\.parquet")  # time of writing, digest of the file
_OWN = re.compile(rf".*{PARTIAL}|{STAMP}|{_SHARD.pattern}")
_CONTENT = "content"


def check_folder(path: str | PathLike[str]) -> Path:
    """The folder that `rows=` means, if rows can be kept there, or are there already; it writes nothing."""
    folder = folder_path("rows", path)
    rows, problem = str(folder), "no folder can be made there"
    try:
        if folder.is_dir():
            problem = "nothing can be written there"
            if _is_foreign(folder):
                raise wrong_option("rows", rows, "a folder of something else", "pass an empty or new one")
            if any(path.suffix != PARTIAL for path in folder.iterdir()):
                return folder
        elif folder.exists() and not folder.is_dir():  # another run may have made it at this moment
            raise wrong_option("rows", rows, "a file", "pass a folder for the rows")
        try_writing(folder)
    except OSError as error:
        found = f"{problem} ({error.strerror})"
        raise wrong_option("rows", rows, found, "pass another folder", verb="") from error
    return folder


def _is_foreign(folder: Path) -> bool:
    """Whether a folder holds something else, and nothing shows that it holds rows, too."""
    if _stamp_of(folder) is not None:
        return False
    others = [path for path in folder.iterdir() if not _OWN.fullmatch(path.name)]
    return any(not path.is_dir() or _stamp_of(path) is None for path in others)  # below are rows of members


def kept_rows(folder: str | PathLike[str]) -> Callable[[str, Any, Sequence[str]], bool]:
    """Whether a folder of rows, or one below it, has a row of a caption, its image and references."""
    kept: set[str] = set()
    for path in Path(folder).rglob("*.parquet"):
        with contextlib.suppress(DamagedError, KeyError):
            rows, _ = _read(path)
            kept.update(rows.filter(pc.is_null(rows["error"]))[_CONTENT].to_pylist())
    return lambda *parts: _key_of(*parts) in kept


def _content_key(samples: Samples, row: int) -> str:
    """Key of the caption, image and references of row `row`."""
    references = samples.references[row] if samples.references else []
    return _key_of(samples.captions[row], samples.images[row], references)


def _key_of(caption: str, visual: Any, references: Sequence[str]) -> str:
    try:
        image = visual.key
    except ImageError:
        image = ""  # its row will hold the error, and is computed again in the next run
    return _digest(json.dumps([caption, image, references]).encode())


class RowStore:
    """Rows in a folder of Parquet shards, so that an interrupted run loses next to nothing.

    The folder and every shard hold a stamp of all that encoding depends on, and are refused with another one.
    Each row carries a key of its caption, image and references, so a row is only reused for the very same
    content. A shard's name holds a digest of the file: damage costs the shard's own rows. A disk that fills
    up or turns read-only costs one warning: from then on rows are in memory only.
    """

    def __init__(self, path: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> None:
        self.path = check_folder(path)
        self.schema = schema
        self._waiting: list[pa.Table] = []
        self._rows: list[pa.Table] = []  # read and appended
        self._content: dict[int, str] | None = None  # content key by index, read when it is first needed
        self._written_at = time.monotonic()
        self._writable = True
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        self._stamp: dict[str, Any] = json.loads(json.dumps({**stamp, "columns": columns}))
        self._claim()

    def _claim(self) -> None:
        """Refuse a folder of other settings, and note these in one that has none."""
        if (stored := _stamp_of(self.path)) is not None:
            self._refuse_other_settings(stored, self.path)
        if _note_of(self.path) != self._stamp:
            if stored is not None:
                warn(f"rows: {self.path / STAMP} is lost or damaged, it is made again")
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                write_whole(self.path / STAMP, json.dumps(self._stamp, indent=1))
            except OSError as error:
                self._give_up(error)

    def _refuse_other_settings(self, stored: Mapping[str, Any], path: Path) -> None:
        differing = [
            f"{key}: {stored.get(key)!r} there, {self._stamp.get(key)!r} now"
            for key in sorted(stored.keys() | self._stamp.keys())
            if stored.get(key) != self._stamp.get(key)
            and (key != "columns" or stored.get("metric") == self._stamp.get("metric"))
        ]
        if differing:
            others = f"rows of other settings ({'; '.join(differing)})"
            fix = "pass another folder, or the same settings"
            raise wrong_option("rows", str(path), others, fix, verb="holds")

    def reuse(self, indices: Sequence[int], content: Callable[[int], str]) -> tuple[pa.Table, list[int]]:
        """The stored rows of these indices, and the positions without one of the same content key."""
        stored = self._content_keys()
        reused = {row for row, i in enumerate(indices) if i in stored and stored[i] == content(row)}
        missing = [row for row in range(len(indices)) if row not in reused]
        if not reused:
            return self.schema.empty_table(), missing
        self._rows = [canonical(pa.concat_tables(self._rows))]
        chosen = pa.array([indices[row] for row in reused], pa.int64())
        return self._rows[0].filter(pc.is_in(self._rows[0]["index"], chosen)), missing

    def _content_keys(self) -> dict[int, str]:
        if self._content is None:
            rows, self._content = self.read()
            self._rows = [rows]
        return self._content

    def append(self, rows: pa.Table, content: Sequence[str]) -> None:
        """Keep rows; `content` has the key of each. A row with an error is written, but not reused."""
        keys = self._content_keys()
        self._rows.append(rows)
        for index, key, error in zip(
            rows["index"].to_pylist(), content, rows["error"].to_pylist(), strict=True
        ):
            keys.pop(index, None)
            if error is None:
                keys[index] = key
        self._waiting.append(rows.append_column(_CONTENT, pa.array(content, pa.string())))
        waited = time.monotonic() - self._written_at
        if waited > LIMITS.shard_seconds or sum(map(len, self._waiting)) >= LIMITS.shard_rows:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are still in memory."""
        if self._waiting and self._writable:
            try:
                _write(self.path, pa.concat_tables(self._waiting), self._stamp)
            except OSError as error:
                self._give_up(error)
            self._written_at = time.monotonic()
        self._waiting = []

    def _give_up(self, error: OSError) -> None:
        """A disk that cannot be written is no reason to lose a run: go on in memory."""
        self._writable = False
        warn(
            f"rows={str(self.path)!r} cannot be written any more ({error.strerror}): rows that are not there "
            "yet are kept in memory only, and a later run computes them again"
        )

    def read(self) -> tuple[pa.Table, dict[int, str]]:
        """All rows on disk without an error, one per index, and the content key of each index."""
        self.flush()
        schema = self.schema.append(pa.field(_CONTENT, pa.string()))
        shards = [self._shard(path, schema) for path in sorted(self.path.glob("*.parquet"))]
        stored = canonical(pa.concat_tables([schema.empty_table(), *shards]))
        stored = stored.filter(pc.is_null(stored["error"]))
        content = dict(zip(stored["index"].to_pylist(), stored[_CONTENT].to_pylist(), strict=True))
        return stored.drop_columns([_CONTENT]), content

    def _shard(self, path: Path, schema: pa.Schema) -> pa.Table:
        try:
            table, stamp = _read(path)
            self._refuse_other_settings(stamp, path)
            return table.select(schema.names).cast(schema)
        except DamagedError as error:
            warn(f"rows: {path} {error}: what it held is computed again, and the file can be deleted")
            return schema.empty_table()


class DamagedError(ValueError):
    """A file that does not hold rows as they were written; the message continues after its path."""


def _write(folder: Path, rows: pa.Table, stamp: Mapping[str, Any]) -> None:
    """Write rows with the stamp that they were made with."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({_STAMP_KEY: json.dumps(stamp)}), sink)
    content = sink.getvalue()
    # Time first, so that shards read in the order in which they were written.
    write_whole(folder / f"{time.time_ns():020d}-{_digest(content)}.parquet", memoryview(content))


def _read(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a shard and the stamp that they were made with. Raises DamagedError."""
    named = _SHARD.fullmatch(path.name)
    if named is None or not path.is_file():
        raise DamagedError("is not a file of rows by its name")
    try:
        content = path.read_bytes()
        if _digest(content) != named[1]:
            raise DamagedError("is damaged (its digest is not the one in its name)")
        table = pq.read_table(pa.BufferReader(content))
        return table.replace_schema_metadata(), dict(json.loads(table.schema.metadata[_STAMP_KEY]))
    except (pa.ArrowException, OSError, TypeError, KeyError) as error:
        raise DamagedError(f"cannot be read ({error})") from error


def _stamp_of(folder: Path) -> dict[str, Any] | None:
    """The stamp of the first shard that is whole, which all others have, too; without one, of the note."""
    for path in sorted(folder.glob("*.parquet")):
        with contextlib.suppress(DamagedError):
            return _read(path)[1]
    return _note_of(folder)


def _note_of(folder: Path) -> dict[str, Any] | None:
    note = folder / STAMP
    try:
        return dict(json.loads(note.read_bytes())) if note.is_file() else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class RowCollector:
    """The rows of samples: those that a store has, and the others as they are encoded, window by window.

    with RowCollector(samples, schema, store, bar, refuse_errors=True) as collector:
        for window in collector.windows():
            for table in encode(window):
                collector.add(table)
    rows = collector.table()
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
        self.missing, self.texts = samples, LIMITS.texts  # the samples that the store has no row of
        self._added = self.reused = 0
        self._store, self._bar, self._refuse_errors = store, bar, refuse_errors
        self._memory = FreedMemory()
        if store is not None:
            reused, missing = store.reuse(samples.indices, partial(_content_key, samples))
            self._tables.append(reused)
            self.missing, self.texts = samples.select(missing), LIMITS.texts_between_shards
            self.reused = len(reused)
            if not bar.disable:  # an earlier run made them: they say nothing of how fast this one is
                bar.initial, bar.n = bar.initial + self.reused, bar.n + self.reused
                bar.last_print_n += self.reused
                bar.refresh()

    def windows(self) -> Iterator[Samples]:
        """The samples that have no row yet, as many at once as memory allows."""
        return windows(self.missing, self.texts)

    def add(self, table: pa.Table) -> None:
        """The next rows, in the order of the windows; ValueError for one with an error, if it is refused."""
        if self._store is not None:
            positions = range(self._added, self._added + len(table))
            self._store.append(table, [_content_key(self.missing, row) for row in positions])
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

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self._store is not None:
            self._store.flush()  # on Ctrl-C too: nothing that was computed is lost


class FreedMemory:
    """Returns freed pages to the system, every 512 rows of a long run.

    Decoded images of many sizes come and go in several threads, and glibc keeps the holes that they leave,
    about 30 KB for each further image. Nothing happens with another C library.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        self._trim, self._rows = getattr(libc, "malloc_trim", None), 0

    def add(self, rows: int) -> None:
        """Count rows that have been made."""
        self._rows += rows
        if self._rows >= 512 and self._trim is not None:
            self._trim(0)
            self._rows = 0
