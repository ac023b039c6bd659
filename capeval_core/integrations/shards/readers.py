"""The rows of a shard, a window at a time: Parquet, tars of webdataset, JSON lines."""

from __future__ import annotations

import gzip
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from capeval_core.errors import FileError, file_problem
from capeval_core.integrations.shards.columns import (
    NAMES,
    find_columns,
    how_missing,
    how_several,
    several_columns,
)
from capeval_core.integrations.shards.images import ImageFolder
from capeval_core.integrations.shards.places import reason_of
from capeval_core.limits import LIMITS

Rows = dict[str, list[Any]]
"""Columns of equal length: `uid`, `caption`, `image` or `video`, `references`, and `error`."""
FIX = 'name it: columns={"caption": "...", "image": "..."} (capeval: --columns caption=...,image=...)'
KEY, ERROR = "__key__", "__error__"
"""Of a record: its uid, and why it cannot be scored."""
_LOOKED_AT = 100  # rows in which a column must come up, where each row has columns of its own


def stem_of(name: str) -> str:
    """The name of a shard without what says its format.

    >>> stem_of("train.00001.tar.gz"), stem_of("00001.parquet")
    ('train.00001', '00001')
    """
    return re.sub(r"\.[^.]+(\.(gz|bz2|xz))?$", "", name, flags=re.IGNORECASE)


class Reader(ABC):
    """The rows of one shard, on a local disk.

    Args:
        path: the file.
        address: what messages call it.
        needed: what rows must have beside a uid.
        columns: names of columns by what they hold, where they are not found by themselves.
        images: what paths of images are relative to.

    Raises:
        FileError: it is not of this format, or a needed column is not there.
    """

    def __init__(
        self, path: Path, address: str, needed: Sequence[str], columns: Mapping[str, str], images: ImageFolder
    ) -> None:
        self.path, self.address, self.needed, self.columns = path, address, list(needed), columns
        self.images = images
        self.used: dict[str, dict[str, None]] = {}
        """The names of columns that were read, by what they hold."""
        self.stem = stem_of(address.rpartition("/")[2])
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Refuse the file, as far as that shows without reading it whole."""

    @abstractmethod
    def rows(self, most: int) -> Iterator[Rows]:
        """Consecutive rows, so many at a time at most."""

    def windows(self, most: int) -> Iterator[Rows]:
        """Consecutive rows, so many at a time at most, with images where they lie.

        Raises:
            FileError: the file is cut off or damaged.
        """
        for rows in self.rows(most):
            for visual in ("image", "video"):
                if visual in rows:
                    self.images.resolve(rows[visual], rows["error"], visual)
            yield rows
            del rows  # before the next ones are read

    def refuse(self, found: str, fix: str = "write it again") -> FileError:
        """The error of this file, to be raised."""
        return FileError(file_problem(self.address, found, fix))


class ParquetReader(Reader):
    """Parquet: images are bytes, paths, or structs of both as `datasets` writes them."""

    def open(self) -> None:
        try:
            # Without a buffer for whole row groups: some have gigabytes.
            options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
            self.file = pq.ParquetFile(self.path, page_checksum_verification=True, **options)
        except MemoryError:  # Arrow's is both
            raise
        except (pa.ArrowException, OSError) as error:
            raise self.refuse(f"is not Parquet, cut off or damaged ({reason_of(error)})") from error
        schema = self.file.schema_arrow
        self.found, missing = find_columns(schema.names, ["uid", *self.needed], self.columns)
        missing = [role for role in missing if role != "uid" or role in self.columns]
        problems = [how_missing(role, schema.names, self.columns) for role in missing]
        several = several_columns(schema.names, self.needed, self.columns)
        problems += [how_several(role, names) for role, names in several.items()]
        self.used = {role: {name: None} for role, name in self.found.items()}
        for role, name in self.found.items():
            if schema.names.count(name) > 1:
                problems.append(f"more than one column {name!r}")
            elif not _FITS[role](schema.field(name).type):
                problems.append(f"a column {name!r} of {schema.field(name).type} for {role}")
        if problems:
            raise self.refuse(f"has {'; '.join(problems)}; its columns are {', '.join(schema.names)}", FIX)

    def rows(self, most: int) -> Iterator[Rows]:
        position = 0
        names = list(self.found.values())
        try:
            for batch in self.file.iter_batches(min(most, self._rows_in(LIMITS.window_bytes)), columns=names):
                errors: list[str | None] = [None] * len(batch)
                rows = {role: _values(batch.column(name), role, errors) for role, name in self.found.items()}
                uids = rows.get("uid") or [None] * len(batch)
                rows["uid"] = [
                    f"{self.stem}/{position + i}" if uid is None else str(uid) for i, uid in enumerate(uids)
                ]
                position += len(batch)
                rows["error"] = errors
                del batch, uids
                yield rows
                del rows
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self.refuse(f"is cut off or damaged ({reason_of(error)})") from error

    def _rows_in(self, size: int) -> int:
        """How many rows of average length have this size."""
        metadata = self.file.metadata
        used = tuple(self.found.values())
        total = sum(
            column.total_uncompressed_size
            for group in map(metadata.row_group, range(metadata.num_row_groups))
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema.partition(".")[0] in used
        )
        return max(1, size * int(metadata.num_rows) // max(1, int(total)))


class RecordReader(Reader):
    """A format in which each row brings columns of its own."""

    names_of_uid: tuple[str, ...] = NAMES["uid"]

    @abstractmethod
    def records(self) -> Iterator[dict[str, Any] | str]:
        """The columns of each row, or why it has none. `__key__` is its uid where it has no other."""

    def open(self) -> None:
        records = self.records()
        self._begin = list(islice(records, _LOOKED_AT))
        self._rest = records
        there = [record for record in self._begin if isinstance(record, dict)]
        names = list(dict.fromkeys(name for record in there for name in _own(record)))
        missing = find_columns(names, self.needed, self.columns)[1] if there else []
        problems = [how_missing(role, names, self.columns) for role in missing]
        problems += dict.fromkeys(text for record in there for text in self._differing(record))
        if problems:
            rows = f"its first {len(self._begin)} rows have {', '.join(names) or 'none'}"
            raise self.refuse(f"has {'; '.join(problems)}; {rows}", FIX)

    def rows(self, most: int) -> Iterator[Rows]:
        window, size = self._empty(), 0
        records: Iterable[dict[str, Any] | str] = chain(self._begin, self._rest)
        for position, record in enumerate(records):
            if len(window["uid"]) >= most or size > LIMITS.window_bytes:
                yield window
                window, size = self._empty(), 0
            size += self._add(window, record, f"{self.stem}/{position}")
        if window["uid"]:
            yield window

    def _differing(self, record: Mapping[str, Any]) -> list[str]:
        """What is wrong where a record has several texts, and they differ: a caption may be in two places."""
        problems = []
        for role, names in several_columns(record, self.needed, self.columns).items():
            values = [record[name] for name in names if isinstance(record[name], (str, list))]
            texts = [value.strip() if isinstance(value, str) else value for value in values]
            if any(text != texts[0] for text in texts):
                problems.append(how_several(role, names))
        return problems

    def _empty(self) -> Rows:
        return {name: [] for name in ("uid", *self.needed, "error")}

    def _add(self, window: Rows, record: dict[str, Any] | str, uid: str) -> int:
        """Add a row, and return how many bytes it has."""
        values = {} if isinstance(record, str) else record
        found, missing = find_columns(list(values), self.needed, self.columns)
        chosen = self.columns.get("uid")
        names = self.names_of_uid if chosen is None else (chosen,)
        own = next((name for name in names if values.get(name) is not None), None)
        window["uid"].append(_valid(str(uid if own is None else values[own])))
        for role, used in {**({} if own is None else {"uid": own}), **found}.items():
            self.used.setdefault(role, {})[used] = None
        for name in self.needed:
            window[name].append(values.get(found.get(name, "")))
        error = record if isinstance(record, str) else values.get(ERROR)
        if error is None and (differing := self._differing(values)):
            error = "; ".join(differing)
        if error is None and missing:
            error = f"no {' and no '.join(missing)}, only {', '.join(_own(values)) or 'a uid'}"
        window["error"].append(None if error is None else _valid(str(error)))
        return sum(_size(window[name][-1]) for name in self.needed)


class JsonLinesReader(RecordReader):
    """JSON lines: an object per line, with paths of images; may be compressed with gzip."""

    def records(self) -> Iterator[dict[str, Any] | str]:
        try:
            with _opened(self.path, self.address) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        record = _record(line, number)
                        if isinstance(record, str) and not line.endswith(b"\n"):
                            raise self.refuse(f"is cut off in line {number}")
                        yield record
        except (OSError, EOFError) as error:
            raise self.refuse(f"is cut off or damaged ({reason_of(error)})") from error


def _valid(text: str) -> str:
    """A text with lone surrogates escaped, such as stand for bytes of a name that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _own(record: Mapping[str, Any]) -> list[str]:
    """The names of a record's columns."""
    return [name for name in record if name not in (KEY, ERROR)]


def _record(line: bytes, number: int) -> dict[str, Any] | str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"line {number} is not JSON ({error})"
    return record if isinstance(record, dict) else f"line {number} is no object"


def _opened(path: Path, address: str) -> IO[bytes]:
    file: Any = gzip.open(path) if address.lower().endswith(".gz") else path.open("rb")  # noqa: SIM115
    opened: IO[bytes] = file
    return opened


def _size(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (str, bytes)) else 8


def _values(column: pa.Array, role: str, errors: list[str | None]) -> list[Any]:
    """The values of a column; None, and an error, where a text is not valid UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        values = [None] * len(column)
    for row, value in enumerate(column):
        try:
            values[row] = value.as_py()
        except UnicodeDecodeError:
            errors[row] = f"{role} is not valid UTF-8"
    return values


def _is_text(type: pa.DataType) -> bool:
    if pt.is_dictionary(type):
        type = type.value_type
    return bool(pt.is_string(type) or pt.is_large_string(type) or pt.is_string_view(type) or pt.is_null(type))


def _is_visual(type: pa.DataType) -> bool:
    if pt.is_struct(type):
        return bool({type.field(i).name for i in range(type.num_fields)} & {"bytes", "path"})
    binary = pt.is_binary(type) or pt.is_large_binary(type) or pt.is_binary_view(type)
    return bool(binary) or _is_text(type)


def _is_references(type: pa.DataType) -> bool:
    lists = pt.is_list(type) or pt.is_large_list(type) or pt.is_fixed_size_list(type)
    return _is_text(type.value_type) if lists else _is_text(type)


_FITS = {
    "uid": lambda type: _is_text(type) or pt.is_integer(type),
    "caption": _is_text,
    "image": _is_visual,
    "video": _is_visual,
    "references": _is_references,
}
