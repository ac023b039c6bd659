"""The Parquet file of one scored shard: its note, its rows, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem
from capeval_core.integrations.shards.places import Place, reason_of

NOTE, COUNTS = b"capeval_shard", b"capeval_counts"
"""Keys of an output's metadata: what its scores depend on, and how many there are."""
_MAGIC = b"PAR1"
_AT_ONCE = 65_536


class DamagedError(ValueError):
    """An output that is not as it was written; the message continues after its path."""


@contextmanager
def _reading(place: Place) -> Iterator[pq.ParquetFile]:
    """An open output; the block does nothing but read it."""
    try:
        with place.filesystem.open(place.path, "rb") as file:
            begin = file.read(len(_MAGIC))
            if begin and begin != _MAGIC:
                raise FileError(file_problem(place.address, "is not Parquet", "choose another file"))
            try:
                yield pq.ParquetFile(file, page_checksum_verification=True)
            except (pa.ArrowException, OSError) as error:
                raise DamagedError(f"is cut off or damaged ({reason_of(error)})") from error
    except (FileError, DamagedError):
        raise
    except Exception as error:  # whatever the store's client raises
        raise place.unreadable(error) from error


def read_note(place: Place) -> dict[str, Any]:
    """What an output says of itself: signature, checksum of the source, rows, failed, truncated, ...

    Raises:
        DamagedError: it is not as it was written. FileError: it is no output of a shard.
    """
    with _reading(place) as parquet:
        metadata = parquet.metadata.metadata or {}
    try:
        return {**json.loads(metadata[NOTE]), **json.loads(metadata[COUNTS])}
    except (KeyError, ValueError, TypeError) as error:
        found = "is Parquet of something else, not the scores of a shard"
        raise FileError(file_problem(place.address, found, "choose another file")) from error


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
    rows = sum(map(len, read_batches(place)))
    if rows != note["rows"]:
        raise DamagedError(f"has {rows:,} rows, and should have {note['rows']:,}")
    return note
