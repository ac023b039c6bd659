"""Rows of plain numbers, one per caption: what encoding leaves and scores are made of."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
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
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capeval_core.inputs.pictures import PictureError
from capeval_core.inputs.samples import Samples

_MEANING = "meaning"  # key of a column's metadata
_CONTENT = "content"
_STAMP = "stamp.json"
_PARTIAL = ".partial"


def column(name: str, type: pa.DataType, meaning: str) -> pa.Field:
    """A column of rows; `meaning` says in the documents what one value is."""
    return pa.field(name, type, metadata={_MEANING: meaning})


COMMON = (
    column("index", pa.int64(), "position of the caption in the input"),
    column("group", pa.string(), "content key of its picture, empty if it could not be read"),
    column("error", pa.string(), "why it could not be encoded, null if it could"),
    column("truncated", pa.int32(), "token ids cut off, those of its references included"),
    column("references", pa.int32(), "how many references it is compared with, 0 for a metric without"),
    column("empty", pa.bool_(), 'whether the caption is empty, which `empty="score"` allows'),
)
"""The columns that every metric's rows begin with."""


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
        picture = samples.pictures[row].key
    except PictureError:
        picture = ""  # its row will hold the error, and is computed again in the next run
    parts = json.dumps([samples.captions[row], picture, references])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def canonical(rows: pa.Table) -> pa.Table:
    """Rows sorted by index, the last one of each index only, however they were gathered."""
    index = rows["index"].to_numpy()
    _, last_reversed = np.unique(index[::-1], return_index=True)
    return rows.take(pa.array(len(index) - 1 - last_reversed)).combine_chunks()


def check_folder(path: str | PathLike[str]) -> Path:
    """The folder that `rows=` means, if rows can be kept there; it changes nothing on the disk.

    Raises:
        ValueError: a file, a folder of something else, or a place where no folder can be made.
    """
    folder = Path(path)
    shown = f"rows={str(folder)!r}"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{shown} is a file: pass a folder for the rows")
    if folder.is_dir():
        names = {file.name for file in folder.iterdir()}
        if _STAMP not in names and any(not name.endswith(_PARTIAL) for name in names):
            raise ValueError(f"{shown} is a folder of something else: pass an empty or new one")
        return folder
    existing = next(place for place in folder.absolute().parents if place.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise ValueError(f"{shown}: no folder can be made there ({existing} cannot be written)")
    return folder


class RowStore:
    """Rows on disk, so that an interrupted run loses next to nothing.

    The folder holds Parquet shards and a stamp of everything that encoding depends on; it refuses
    to be opened with another stamp. Each row carries a key of its caption, picture and references,
    so a row is only reused for the very same content.

    Args:
        path: folder, made if it does not exist.
        schema: of the rows.
        stamp: settings and fingerprints, in JSON's types.

    Raises:
        ValueError: the folder holds rows of other settings, or is not a folder of rows.
    """

    _SECONDS, _ROWS = 5.0, 65_536  # a shard is written after this long or this many rows

    def __init__(self, path: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.schema = schema
        self._waiting: list[pa.Table] = []
        self._rows: list[pa.Table] = []  # everything that this store has read or been given
        self._known: dict[int, str] | None = None  # content of each index's row, read when it is first needed
        self._written_at = time.monotonic()
        self._claim({**stamp, "columns": ", ".join(f"{field.name} {field.type}" for field in schema)})

    def _claim(self, stamp: dict[str, Any]) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"rows={str(self.path)!r} is a file: pass a folder for the rows")
        note = self.path / _STAMP
        if note.is_file():
            try:
                found = dict(json.loads(note.read_text(encoding="utf-8")))
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"rows={str(self.path)!r}: its {_STAMP} is damaged ({error}), so what its rows were made "
                    "with is unknown: delete the folder or pass another one"
                ) from error
            differing = [
                f"{key}: {found.get(key)!r} there, {stamp.get(key)!r} now"
                for key in sorted(found.keys() | stamp.keys())
                if found.get(key) != stamp.get(key)
                and (key != "columns" or found.get("metric") == stamp.get("metric"))
            ]
            if differing:
                raise ValueError(
                    f"rows={str(self.path)!r} holds rows of other settings ({'; '.join(differing)}): "
                    "pass another folder, or the same settings"
                )
            return
        # A run that was killed, or that starts at this moment, may have left files that are not whole.
        there = {file.name for file in self.path.iterdir()} if self.path.is_dir() else set()
        if _STAMP in there:  # another run has just claimed it
            self._claim(stamp)
            return
        if any(not name.endswith(_PARTIAL) for name in there):
            raise ValueError(
                f"rows={str(self.path)!r} is a folder of something else: pass an empty or new one"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"rows={str(self.path)!r}: no folder can be made there ({error.strerror})"
            ) from error
        _write_whole(note, json.dumps(stamp, indent=1).encode())

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
        """Keep rows; `content` names each one's caption, picture and references.

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
        if self._waiting:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(self._waiting), sink)
            # Time first, so that shards read in the order in which they were written.
            name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet"
            _write_whole(self.path / name, sink.getvalue())
            self._waiting = []
        self._written_at = time.monotonic()

    def read(self) -> tuple[pa.Table, dict[int, str]]:
        """All rows without an error, one per index, and the content key of each index."""
        self.flush()
        schema = self.schema.append(pa.field(_CONTENT, pa.string()))
        shards = [self._shard(path, schema) for path in sorted(self.path.glob("*.parquet"))]
        stored = canonical(pa.concat_tables([schema.empty_table(), *shards]))
        stored = stored.filter(pc.is_null(stored["error"]))
        content = dict(zip(stored["index"].to_pylist(), stored[_CONTENT].to_pylist(), strict=True))
        return stored.drop_columns([_CONTENT]), content

    def _shard(self, path: Path, schema: pa.Schema) -> pa.Table:
        try:
            return pq.read_table(path, schema=schema)
        except (pa.ArrowException, OSError) as error:  # e.g. the machine went down while the disk was writing
            warnings.warn(f"rows: {path} is damaged, what it held is computed again ({error})", stacklevel=2)
            return schema.empty_table()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()  # on errors and Ctrl-C too: nothing that was computed is lost


def _write_whole(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a file that is either there as a whole or not at all."""
    partial = path.with_name(f"{uuid.uuid4().hex}{_PARTIAL}")
    partial.write_bytes(content)
    partial.replace(path)
