"""Files of rows on disk: written whole or not at all, and read only if they hold what was written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.writing import PARTIAL, write_whole

STAMP = "stamp.json"
_CHECKSUM = "checksum"  # of the other entries of stamp.json
_NOTE = b"capeval_stamp"  # key of the stamp in a shard's metadata
_SHARD = re.compile(r"\d{20}-([0-9a-f]{32})\.parquet")  # time of writing, digest of the file
_UNCHECKED = re.compile(r"\d{20}-[0-9a-f]{8}\.parquet")  # of earlier versions: a name without a digest


class DamagedError(ValueError):
    """A file does not hold rows as they were written; the message goes on after its path."""


def write_shard(folder: Path, rows: pa.Table, stamp: Mapping[str, Any]) -> None:
    """Write rows with the stamp that they were made with."""
    sink = pa.BufferOutputStream()
    stamped = rows.replace_schema_metadata({_NOTE: json.dumps(stamp)})
    pq.write_table(stamped, sink, write_page_checksum=True)
    content = sink.getvalue()
    # Time first, so that shards read in the order in which they were written.
    write_whole(folder / f"{time.time_ns():020d}-{_digest(content)}.parquet", memoryview(content))


def write_stamp(folder: Path, stamp: Mapping[str, Any]) -> None:
    """Write what the rows in a folder are made with, where a reader finds it first."""
    written = {**stamp, _CHECKSUM: _digest(_canonical_json(stamp))}
    write_whole(folder / STAMP, json.dumps(written, indent=1).encode())


def read_shard(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a shard and the stamp that they were made with, if it is what was written.

    Raises:
        DamagedError: it is not.
    """
    if _UNCHECKED.fullmatch(path.name):
        raise DamagedError("was written by an earlier version, without a digest to check it by")
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


def read_stamp(note: Path) -> tuple[dict[str, Any] | None, bool]:
    """What a stamp says, None if it is not there or not readable, and whether it is what was written."""
    try:
        stamp = dict(json.loads(note.read_bytes())) if note.is_file() else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None, False
    if stamp is None:
        return None, False
    checksum = stamp.pop(_CHECKSUM, None)
    if checksum is None:  # of an earlier version
        return stamp, False
    whole = checksum == _digest(_canonical_json(stamp))
    return (stamp if whole else None), whole


def stamp_of_shards(folder: Path) -> dict[str, Any] | None:
    """The stamp in the first shard that is whole; all shards of a folder have the same."""
    for path in sorted(folder.glob("*.parquet")):
        with contextlib.suppress(DamagedError):
            return read_shard(path)[1]
    return None


def members(folder: Path) -> Iterator[dict[str, Any]]:
    """Stamps of the folders of rows in a folder, where it has any."""
    for below in sorted(folder.iterdir()) if folder.is_dir() else []:
        if below.is_dir():
            stamp = read_stamp(below / STAMP)[0] or stamp_of_shards(below)
            if stamp is not None:
                yield stamp


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds something, and nothing shows that it holds rows."""
    others = [
        path
        for path in folder.iterdir()
        if not (path.suffix == PARTIAL or _SHARD.fullmatch(path.name) or _UNCHECKED.fullmatch(path.name))
        and not (path.name == STAMP and path.is_file())
    ]
    return bool(others) and (
        read_stamp(folder / STAMP)[0] is None
        and stamp_of_shards(folder) is None
        and next(members(folder), None) is None
    )


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _canonical_json(stamp: Mapping[str, Any]) -> bytes:
    return json.dumps(stamp, sort_keys=True).encode()
