"""The Parquet file of one scored shard: its note, its rows, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem
from capeval_core.integrations.shards.places import Place, reason_of

NOTE, COUNTS = b"capeval_shard", b"capeval_counts"
"""Keys of an output's metadata: what its scores depend on, and how many there are."""
COLUMNS = ("uid", "score", "parts", "truncated", "error")
_MAGIC = b"PAR1"
_AT_ONCE = 65_536


class DamagedError(FileError):
    """An output is not as it was written."""

    @property
    def found(self) -> str:
        """What is wrong, without the path and the fix."""
        return str(next(iter(self.problems)).found)


def _damaged(place: Place, found: str) -> DamagedError:
    return DamagedError(file_problem(place.address, found, "delete it and score its shard again"))


@dataclass(frozen=True)
class TableWriter:
    """A Parquet file that is being written."""

    place: Place
    parquet: pq.ParquetWriter

    def write(self, table: pa.Table) -> None:
        """Add rows. Raises OSError, which names the file."""
        with self.place.writing():
            self.parquet.write_table(table)

    def add_note(self, key: bytes, content: Mapping[str, Any]) -> None:
        """Add to the file's metadata."""
        self.parquet.add_key_value_metadata({key: json.dumps(content)})


@contextmanager
def whole_table(place: Place, schema: pa.Schema) -> Iterator[TableWriter]:
    """A Parquet file with page checksums that appears at a place as a whole, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with place.whole() as partial:
        with place.writing():
            parquet = pq.ParquetWriter(partial, schema, write_page_checksum=True)
        try:
            yield TableWriter(place, parquet)
        finally:
            with place.writing():
                parquet.close()


@contextmanager
def _reading(place: Place) -> Iterator[pq.ParquetFile]:
    """An open output; the block does nothing but read it."""
    try:
        if place.is_local:
            place.version()  # refuses pipes and devices: opening one could block for ever
        with place.filesystem.open(place.path, "rb") as file:
            begin = file.read(len(_MAGIC))
            if begin and begin != _MAGIC:
                raise FileError(file_problem(place.address, "is not Parquet", "choose another file"))
            try:
                yield pq.ParquetFile(file, page_checksum_verification=True)
            except MemoryError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise _damaged(place, f"is cut off or damaged ({reason_of(error)})") from error
    except (FileError, MemoryError):
        raise
    except Exception as error:  # whatever the store's client raises
        raise place.unreadable(error) from error


def sealed(note: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """The counts with a digest of note and counts: Parquet has none of its metadata."""
    return {**counts, "digest": _digest({**note, **counts})}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_note(place: Place) -> dict[str, Any]:
    """What an output says of itself: signature, checksum of the source, rows, failed, truncated, ...

    Raises:
        DamagedError: it is not as it was written. FileError: it is no output of a shard.
    """
    metadata = metadata_of(place)
    try:
        note = {**json.loads(metadata[NOTE]), **json.loads(metadata[COUNTS])}
    except (KeyError, ValueError, TypeError) as error:
        found = "is Parquet of something else, not the scores of a shard"
        raise FileError(file_problem(place.address, found, "choose another file")) from error
    if note.pop("digest", None) != _digest(note):
        raise _damaged(place, "has a damaged note")
    return note


def metadata_of(place: Place) -> Mapping[bytes, bytes]:
    """The metadata of a Parquet file. Errors are those of `read_note`."""
    with _reading(place) as parquet:
        return dict(parquet.metadata.metadata or {})


def read_schema(place: Place) -> pa.Schema:
    """The columns of an output. Errors are those of `read_note`."""
    with _reading(place) as parquet:
        return parquet.schema_arrow


def read_batches(place: Place, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an output in order, some at a time.

    Raises:
        DamagedError: it is not as it was written.
    """
    with _reading(place) as parquet:
        yield from parquet.iter_batches(_AT_ONCE, columns=columns)


def check_whole(place: Place) -> dict[str, Any]:
    """The note of an output, every page of which is read.

    Raises:
        DamagedError: it is not as it was written. FileError: it is no output of a shard.
    """
    note = read_note(place)
    names = read_schema(place).names
    if names != list(COLUMNS):
        raise _damaged(place, f"has the columns {', '.join(names)}, and should have {', '.join(COLUMNS)}")
    rows = sum(map(len, read_batches(place)))
    if rows != note["rows"]:
        raise _damaged(place, f"has {rows:,} rows, and should have {note['rows']:,}")
    return note
