"""Rows of plain numbers, one per caption: what encoding leaves and scores are made of."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.errors import folder_path, wrong_option
from capeval_core.inputs.samples import Samples
from capeval_core.inputs.visual import ImageError
from capeval_core.shards import (
    STAMP,
    DamagedError,
    is_foreign,
    members,
    read_shard,
    read_stamp,
    stamp_of_shards,
    write_shard,
    write_stamp,
)
from capeval_core.writing import PARTIAL

_MEANING = "meaning"  # key of a column's metadata
_CONTENT = "content"


def column(name: str, type: pa.DataType, meaning: str) -> pa.Field:
    """A column of rows; `meaning` says in the documents what one value is."""
    return pa.field(name, type, metadata={_MEANING: meaning})


COMMON = (
    column("index", pa.int64(), "position of the caption in the input"),
    column("group", pa.string(), "content key of its image, empty if it could not be read"),
    column("error", pa.string(), "why it could not be encoded, null if it could"),
    column("truncated", pa.int32(), "token ids cut off, those of its references included"),
    column("references", pa.int32(), "how many references it is compared with, 0 for a metric without"),
    column("empty", pa.bool_(), 'whether the caption is empty, which `empty="score"` allows'),
)
"""The columns that every metric's rows begin with."""


_NEVER_NULL = (*(spec.name for spec in COMMON if spec.name != "error"), _CONTENT)
_LARGEST_INDEX = 1 << 48  # more captions than any input has


def row_schema(*own: pa.Field) -> pa.Schema:
    """The schema of a metric's rows: the common columns, then its own."""
    return pa.schema([*COMMON, *own])


@dataclass(frozen=True)
class ColumnDescription:
    """One column of rows in words, for the documents."""

    name: str
    type: str
    meaning: str


def describe_columns(schema: pa.Schema) -> list[ColumnDescription]:
    """Every column of a row schema with its type and its meaning.

    >>> describe_columns(row_schema())[0]
    ColumnDescription(name='index', type='int64', meaning='position of the caption in the input')
    """
    return [
        ColumnDescription(
            spec.name, str(spec.type), (spec.metadata or {}).get(_MEANING.encode(), b"").decode()
        )
        for spec in schema
    ]


def common_columns(
    batch: Samples,
    part: slice,
    *,
    groups: list[str],
    errors: list[str | None],
    truncated: NDArray[np.integer[Any]],
) -> dict[str, Any]:
    """The common columns for a part of a batch; an encoder knows the keyword arguments."""
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


def content_key(samples: Samples, row: int) -> str:
    """Key of what row `row` was made from."""
    references = samples.references[row] if samples.references else []
    try:
        image = samples.images[row].key
    except ImageError:
        image = ""  # its row will hold the error, and is computed again in the next run
    parts = json.dumps([samples.captions[row], image, references])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    _, last_reversed = np.unique(index[::-1], return_index=True)
    return rows.take(pa.array(len(index) - 1 - last_reversed)).combine_chunks()


def check_folder(path: str | PathLike[str]) -> Path:
    """The folder that `rows=` means, if rows can be kept there; it changes nothing on the disk.

    A folder that holds rows passes even where it is read-only: they can be reused.

    Raises:
        TypeError, ValueError: no path, a file, a folder of something else, or a place where nothing can be
            written.
    """
    folder = folder_path("rows", path)
    rows, existing = str(folder), folder
    try:
        if folder.is_dir():
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
        existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        what = "nothing can be written there" if existing == folder else "no folder can be made there"
        found = f"{what} ({error.strerror})"
        raise wrong_option("rows", rows, found, "pass another folder", verb="") from error
    return folder


class RowStore:
    """Rows on disk, so that an interrupted run loses next to nothing.

    The folder holds Parquet shards and a stamp of everything that encoding depends on; it refuses
    to be opened with another stamp. Each row carries a key of its caption, image and references,
    so a row is only reused for the very same content. A shard's name holds a digest of the file, and its
    metadata the stamp: damage is noticed and costs the shard's own rows, and a lost stamp is made again.

    A disk that fills up or turns read-only costs one warning: from then on rows are in memory only.

    Args:
        path: folder, made if it does not exist.
        schema: of the rows.
        stamp: settings and fingerprints, in JSON's types.

    Raises:
        TypeError, ValueError: the folder holds rows of other settings, or `check_folder` refuses it.
    """

    _SECONDS, _ROWS = 5.0, 65_536  # a shard is written after this long or this many rows

    def __init__(self, path: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> None:
        self.path = check_folder(path)
        self.schema = schema
        self._waiting: list[pa.Table] = []
        self._rows: list[pa.Table] = []  # everything that this store has read or been given
        self._known: dict[int, str] | None = None  # content of each index's row, read when it is first needed
        self._written_at = time.monotonic()
        self._writable = True
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        self._stamp: dict[str, Any] = json.loads(json.dumps({**stamp, "columns": columns}))
        self._claim()

    def _claim(self) -> None:
        note = self.path / STAMP
        found, whole = read_stamp(note)
        if not whole:
            from_shards = stamp_of_shards(self.path)
            found, whole = read_stamp(note)  # another run may have claimed the folder in the meantime
        if not whole:
            if from_shards is not None or (found is None and note.exists()):
                warnings.warn(f"rows: {note} is lost or damaged, it is made again", stacklevel=5)
            found = from_shards or found
        if found is not None:
            self._refuse_other_settings(found, self.path)
        for member in [] if found is not None else members(self.path):
            # The folder of a metric that keeps rows in folders below it, which lost its own stamp.
            self._refuse_other_settings({**self._stamp, "metric": member.get("metric")}, self.path)
        if whole:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_stamp(self.path, self._stamp)
        except OSError as error:
            self._give_up(error)

    def _refuse_other_settings(self, found: Mapping[str, Any], where: Path) -> None:
        differing = [
            f"{key}: {found.get(key)!r} there, {self._stamp.get(key)!r} now"
            for key in sorted(found.keys() | self._stamp.keys())
            if found.get(key) != self._stamp.get(key)
            and (key != "columns" or found.get("metric") == self._stamp.get("metric"))
        ]
        if differing:
            others = f"rows of other settings ({'; '.join(differing)})"
            fix = "pass another folder, or the same settings"
            raise wrong_option("rows", str(where), others, fix, verb="holds")

    def reuse(self, indices: Sequence[int], content: Callable[[int], str]) -> tuple[pa.Table, list[int]]:
        """The stored rows of these indices, and the places of those that have none of the same content.

        `content` gives the key of what stands at a place; it is only asked where there is a row.
        """
        known = self._contents()
        reused = {row for row, i in enumerate(indices) if i in known and known[i] == content(row)}
        missing = [row for row in range(len(indices)) if row not in reused]
        if not reused:
            return self.schema.empty_table(), missing
        self._rows = [canonical(pa.concat_tables(self._rows))]
        wanted = pa.array([indices[row] for row in reused], pa.int64())
        return self._rows[0].filter(pc.is_in(self._rows[0]["index"], wanted)), missing

    def _contents(self) -> dict[int, str]:
        if self._known is None:
            rows, self._known = self.read()
            self._rows = [rows]
        return self._known

    def append(self, rows: pa.Table, content: Sequence[str]) -> None:
        """Keep rows; `content` names each one's caption, image and references.

        A row with an error is written, but not reused.
        """
        known = self._contents()
        self._rows.append(rows)
        for index, key, error in zip(
            rows["index"].to_pylist(), content, rows["error"].to_pylist(), strict=True
        ):
            known.pop(index, None)
            if error is None:
                known[index] = key
        self._waiting.append(rows.append_column(_CONTENT, pa.array(content, pa.string())))
        waited = time.monotonic() - self._written_at
        if waited > self._SECONDS or sum(map(len, self._waiting)) >= self._ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are still in memory."""
        if self._waiting and self._writable:
            try:
                write_shard(self.path, pa.concat_tables(self._waiting), self._stamp)
            except OSError as error:
                self._give_up(error)
        self._waiting = []
        self._written_at = time.monotonic()

    def _give_up(self, error: OSError) -> None:
        """Rows on disk are no reason to lose a run: go on in memory."""
        self._writable = False
        warnings.warn(
            f"rows={str(self.path)!r} cannot be written any more ({error.strerror}): rows that are not there "
            "yet are kept in memory only, and a later run computes them again",
            stacklevel=4,
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
            warnings.warn(
                f"rows: {path} {error}: what it held is computed again, and the file can be deleted",
                stacklevel=2,
            )
            return schema.empty_table()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()  # on errors and Ctrl-C too: nothing that was computed is lost


def _as_rows(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A shard's table as rows of a schema.

    Raises:
        DamagedError: it lacks columns, has others of a name, or has rows that belong to no caption.
    """
    try:
        rows = table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DamagedError(f"does not hold these columns ({str(error).strip(chr(39))})") from error
    for name in _NEVER_NULL:
        if rows[name].null_count:
            raise DamagedError(f"has rows without {name}")
    if len(rows) and not 0 <= pc.min(rows["index"]).as_py() <= pc.max(rows["index"]).as_py() < _LARGEST_INDEX:
        raise DamagedError("has rows whose index is that of no caption")
    return rows
