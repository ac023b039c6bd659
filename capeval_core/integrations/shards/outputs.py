"""Tables of scores: written whole, with a note in the footer, and only read as they were written."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capeval_core.errors import FileError, Problem, file_error
from capeval_core.inputs.images import short_reason
from capeval_core.integrations.shards.places import Place, files_in

NOTE = b"capeval_scores"
"""Key of an output's metadata: what its scores depend on, how many there are, and a digest of both."""
MERGED_NOTE = b"capeval_merged"
"""Key of a merged table's metadata: signature and number of shards."""
FEATURES_NOTE = b"capeval_features"
"""Key of the metadata of a table of features: the note of the scores beside them."""
FEATURES = "features"
"""The folder, in that of the scores, of tables of features."""
IMAGE_KEY = "image_key"
"""The column with the content keys of images."""
_OF_FEATURES = ("signature", "checksum", "rows", "failed", "images")
"""What the note of features has as that of their scores has it, unless these were made again since."""
BATCH_ROWS = 65_536
"""Rows of an output, or numbers of a temporary file, that are in memory together."""


class DamagedError(FileError):
    """An output is not as it was written."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(
            Problem(place.address, problem, "score its shard again, which replaces it", FileError)
        )


def outputs_in(folder: str | PathLike[str]) -> list[Place]:
    """The Parquet files in a folder, by name, without those that were not finished."""
    place = Place.of("folder", folder)
    # An unfinished one of another run begins with a dot, and `manifest.json` is no table.
    outputs = [file for file in files_in(place) if file.name.endswith(".parquet") and file.name[0] != "."]
    if not outputs:
        folder_of_one = "of several metrics that of one, such as OUTPUT/clips"
        fix = f"pass the folder that shards were scored into, {folder_of_one}"
        raise file_error(place.address, "has no scores of shards (*.parquet)", fix)
    return outputs


@contextmanager
def written(
    place: Place, schema: pa.Schema, note: dict[str, Any], key: bytes = NOTE
) -> Iterator[pq.ParquetWriter]:
    """A table that appears as a whole or not at all; its footer holds what the note is in the end.

    The note's `rows` and the schema are under its digest, since Parquet has none of its own metadata.
    """
    with place.whole() as partial, pq.ParquetWriter(partial, schema, write_page_checksum=True) as parquet:
        yield parquet
        # In the footer, which is written last: counts are known now, and a note without its rows cannot be.
        content = {**note, "schema": _schema_text(schema)}
        parquet.add_key_value_metadata({key: json.dumps({**content, "digest": _digest(content)})})


def _schema_text(schema: pa.Schema) -> str:
    """Names, types and nullability of columns, those within structs too."""
    # Without metadata, in which the note itself lies.
    return str(schema.remove_metadata().to_string())


def _digest(note: Mapping[str, Any]) -> str:
    """A digest of a note without its digest."""
    return hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextmanager
def opened(place: Place) -> Iterator[pq.ParquetFile]:
    """An open table, which the block does nothing but read. DamagedError: it is not as it was written."""
    place.version()  # refuses pipes and devices: opening one could block for ever
    with place.reading(), place.filesystem.open(place.path, "rb") as file:
        # Something else is never replaced, while a damaged output is. An empty file holds nothing to lose.
        if file.read(4) not in (b"", b"PAR1"):
            raise file_error(place.address, "is not Parquet", "choose another file")
        try:
            yield pq.ParquetFile(file, page_checksum_verification=True)
        except MemoryError:  # Arrow's is both
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(place, f"is cut off or damaged ({short_reason(error)})") from error


def read_note(place: Place, key: bytes = NOTE, *, verify_rows: bool = False) -> dict[str, Any]:
    """The note in an output that has its columns; `verify_rows`: and as many rows, all of which are read."""
    with opened(place) as parquet:
        note = _note_in(place, parquet, key)
        if verify_rows:
            for _ in _batches(place, parquet, note, None):
                pass
    return note


def _note_in(place: Place, parquet: pq.ParquetFile, key: bytes) -> dict[str, Any]:
    """The note in a footer, whose columns are those that were written."""
    try:
        note = json.loads((parquet.metadata.metadata or {})[key])
    except (KeyError, ValueError) as error:
        problem = "is Parquet of something else, not the scores of a shard"
        raise file_error(place.address, problem, "choose another file") from error
    # Flipped bits in a count or a key pass Parquet, whose page checksums do not cover the footer.
    if not isinstance(note, dict) or note.pop("digest", None) != _digest(note):
        raise DamagedError(place, "has a damaged note")
    if note.get("schema") != _schema_text(parquet.schema_arrow):
        names = ", ".join(map(str, parquet.schema_arrow.names))
        raise DamagedError(
            place, f"has other columns, or columns of other types, than were written ({names})"
        )
    return note


def are_features_of(features_note: Mapping[str, Any], note: Mapping[str, Any]) -> bool:
    """Whether features are of these scores, by the notes of both."""
    return all(features_note[name] == note[name] for name in _OF_FEATURES)


def read_batches(
    place: Place, columns: Sequence[str] | None = None, key: bytes = NOTE
) -> Iterator[pa.RecordBatch]:
    """The rows of an output in order, some at a time; DamagedError where not all that were written come."""
    with opened(place) as parquet:
        yield from _batches(place, parquet, _note_in(place, parquet, key), columns)


def _batches(
    place: Place, parquet: pq.ParquetFile, note: Mapping[str, Any], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of an open output, counted: the footer may be damaged where it lists groups of rows."""
    rows = 0
    for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
        rows += len(batch)
        yield batch
    if rows != note["rows"]:
        raise DamagedError(place, f"has {rows:,} rows, not its {note['rows']:,} of scores")


@contextmanager
def numbers_on_disk(
    outputs: Sequence[Place], column: str, numbers_of: Callable[[pa.Array], Any], kind: type
) -> Iterator[NDArray[Any]]:
    """The numbers made of a column of all outputs, in a temporary file that may be changed."""
    # 8 bytes for each of a billion rows may be more than the memory, and are less than the disk.
    with tempfile.TemporaryFile(prefix="capeval-") as file:
        for output in outputs:
            for batch in read_batches(output, [column]):
                file.write(np.asarray(numbers_of(batch.column(column)), kind).tobytes())
        file.flush()
        yield np.memmap(file, kind) if file.tell() else np.empty(0, kind)  # mmap refuses an empty file
