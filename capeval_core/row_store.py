"""The Parquet store of rows: an interrupted run goes on where it stopped, damage costs recomputation only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capeval_core.errors import folder_path, warn, wrong_option
from capeval_core.limits import LIMITS
from capeval_core.rows import COMMON, canonical, key_of
from capeval_core.writing import PARTIAL, try_writing, write_whole

STAMP = "stamp.json"
_CHECKSUM = "checksum"  # of the other entries of stamp.json
_NOTE = b"capeval_stamp"  # key of the stamp in a shard's metadata
_SHARD = re.compile(r"\d{20}-([0-9a-f]{32})\.parquet")  # time of writing, digest of the file
_CONTENT = "content"
_NEVER_NULL = (*(spec.name for spec in COMMON if spec.name != "error"), _CONTENT)


def check_folder(path: str | PathLike[str]) -> Path:
    """The folder that `rows=` means, if rows can be kept there; changes nothing on the disk.

    A folder that holds rows passes even where it is read-only: they can be reused.

    Raises:
        TypeError, ValueError: no path, a file, a folder of something else, or one where nothing can be
            written.
    """
    folder = folder_path("rows", path)
    rows, problem = str(folder), "no folder can be made there"
    try:
        if folder.is_dir():
            problem = "nothing can be written there"
            if is_foreign(folder):
                raise wrong_option("rows", rows, "a folder of something else", "pass an empty or new one")
            stamp = folder / STAMP
            if stamp.exists() and not stamp.is_file():
                found = f"{STAMP} there is no regular file"
                raise wrong_option("rows", rows, found, "delete it, or pass another folder", verb="")
            if any(path.suffix != PARTIAL for path in folder.iterdir()):
                return folder
        elif folder.exists() and not folder.is_dir():  # another run may have made it at this moment
            raise wrong_option("rows", rows, "a file", "pass a folder for the rows")
        try_writing(folder)
    except OSError as error:
        found = f"{problem} ({error.strerror})"
        raise wrong_option("rows", rows, found, "pass another folder", verb="") from error
    return folder


def kept_rows(folder: str | PathLike[str]) -> Callable[[str, Any, Sequence[str]], bool]:
    """Whether a folder of rows, or one below it, has a row of a caption, its image and references."""
    kept: set[str] = set()
    for path in Path(folder).rglob("*.parquet"):
        with contextlib.suppress(DamagedError, KeyError):
            rows, _ = read_shard(path)
            kept.update(rows.filter(pc.is_null(rows["error"]))[_CONTENT].to_pylist())
    return lambda *parts: key_of(*parts) in kept


class RowStore:
    """Rows in a folder of Parquet shards, so that an interrupted run loses next to nothing.

    The folder also holds a stamp of everything that encoding depends on, and is refused with another stamp.
    Each row carries a key of its caption, image and references, so a row is only reused for the very same
    content. A shard's name holds a digest of the file, and its metadata the stamp: damage costs the shard's
    own rows, and a lost stamp is made again.

    A disk that fills up or turns read-only costs one warning: from then on rows are in memory only.

    Args:
        path: folder, made if it does not exist.
        schema: of the rows.
        stamp: settings and fingerprints, in JSON's types.

    Raises:
        TypeError, ValueError: the folder holds rows of other settings, or `check_folder` refuses it.
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
        note = self.path / STAMP
        whole = from_shards = read_stamp(note)
        if whole is None:
            from_shards = stamp_of_shards(self.path)
            whole = read_stamp(note)  # another run may have claimed the folder in the meantime
            if whole is None and (from_shards is not None or note.exists()):
                warn(f"rows: {note} is lost or damaged, it is made again")
        stored = whole or from_shards
        if stored is not None:
            self._refuse_other_settings(stored, self.path)
        for member in [] if stored is not None else member_stamps(self.path):
            # The folder of a metric that keeps rows in folders below it, which lost its own stamp.
            self._refuse_other_settings({**self._stamp, "metric": member.get("metric")}, self.path)
        if whole:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_stamp(self.path, self._stamp)
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
        """The stored rows of these indices, and the positions of those without a row of the same content.

        `content` gives the content key of a position; it is called only where there is a row.
        """
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
        """Keep rows; `content` has the content key of each.

        A row with an error is written, but not reused.
        """
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
                write_shard(self.path, pa.concat_tables(self._waiting), self._stamp)
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
        """All rows on disk without an error, one per index, and the content key of each index.

        Raises:
            ValueError: a shard holds rows of other settings.
        """
        self.flush()
        schema = self.schema.append(pa.field(_CONTENT, pa.string()))
        shards = [self._shard(path, schema) for path in sorted(self.path.glob("*.parquet"))]
        stored = canonical(pa.concat_tables([schema.empty_table(), *shards]))
        stored = stored.filter(pc.is_null(stored["error"]))
        content = dict(zip(stored["index"].to_pylist(), stored[_CONTENT].to_pylist(), strict=True))
        return stored.drop_columns([_CONTENT]), content

    def _shard(self, path: Path, schema: pa.Schema) -> pa.Table:
        try:
            table, stamp = read_shard(path)
            self._refuse_other_settings(stamp, path)
            return _as_rows(table, schema)
        except DamagedError as error:
            warn(f"rows: {path} {error}: what it held is computed again, and the file can be deleted")
            return schema.empty_table()


def _as_rows(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A shard's table as rows of a schema."""
    try:
        rows = table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DamagedError(f"does not hold these columns ({str(error).strip(chr(39))})") from error
    for name in _NEVER_NULL:
        if rows[name].null_count:
            raise DamagedError(f"has rows without {name}")
    if len(rows) and pc.min(rows["index"]).as_py() < 0:
        raise DamagedError("has rows with a negative index")
    return rows


class DamagedError(ValueError):
    """A file that does not hold rows as they were written; the message continues after its path."""


def write_shard(folder: Path, rows: pa.Table, stamp: Mapping[str, Any]) -> None:
    """Write rows with the stamp that they were made with."""
    sink = pa.BufferOutputStream()
    stamped = rows.replace_schema_metadata({_NOTE: json.dumps(stamp)})
    pq.write_table(stamped, sink, write_page_checksum=True)
    content = sink.getvalue()
    # Time first, so that shards read in the order in which they were written.
    write_whole(folder / f"{time.time_ns():020d}-{_digest(content)}.parquet", memoryview(content))


def write_stamp(folder: Path, stamp: Mapping[str, Any]) -> None:
    """Write the stamp of a folder of rows."""
    written = {**stamp, _CHECKSUM: _digest(_canonical_json(stamp))}
    write_whole(folder / STAMP, json.dumps(written, indent=1).encode())


def read_shard(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a shard and the stamp that they were made with.

    Raises:
        DamagedError: the file is not as it was written.
    """
    named = _SHARD.fullmatch(path.name)
    if named is None or not path.is_file():
        raise DamagedError("is not a file of rows by its name")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"cannot be read ({error.strerror})") from error
    if _digest(content) != named[1]:
        raise DamagedError("is damaged (its digest is not the one in its name)")
    try:
        shard = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        return shard.read(), dict(json.loads(shard.schema_arrow.metadata[_NOTE]))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"is damaged ({error})") from error


def read_stamp(note: Path) -> dict[str, Any] | None:
    """The stamp in a file, None if it is missing or not as it was written."""
    try:
        stamp = dict(json.loads(note.read_bytes())) if note.is_file() else {}
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return stamp if stamp.pop(_CHECKSUM, None) == _digest(_canonical_json(stamp)) else None


def stamp_of_shards(folder: Path) -> dict[str, Any] | None:
    """The stamp in the first shard that is whole; all shards of a folder have the same."""
    for path in sorted(folder.glob("*.parquet")):
        with contextlib.suppress(DamagedError):
            return read_shard(path)[1]
    return None


def member_stamps(folder: Path) -> Iterator[dict[str, Any]]:
    """Stamps of the folders of rows inside a folder."""
    for below in sorted(folder.iterdir()) if folder.is_dir() else []:
        if below.is_dir():
            stamp = read_stamp(below / STAMP) or stamp_of_shards(below)
            if stamp is not None:
                yield stamp


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds files, and none of them shows that it holds rows."""
    others = [
        path
        for path in folder.iterdir()
        if not (path.suffix == PARTIAL or _SHARD.fullmatch(path.name))
        and not (path.name == STAMP and path.is_file())
    ]
    return bool(others) and (
        read_stamp(folder / STAMP) is None
        and stamp_of_shards(folder) is None
        and next(member_stamps(folder), None) is None
    )


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _canonical_json(stamp: Mapping[str, Any]) -> bytes:
    return json.dumps(stamp, sort_keys=True).encode()
