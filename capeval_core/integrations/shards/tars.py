"""The rows of a tar of webdataset: consecutive members whose names are equal up to the first dot."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import IO, Any

from capeval_core.inputs.images import LONGEST_FILE
from capeval_core.integrations.shards.columns import NAMES
from capeval_core.integrations.shards.places import reason_of
from capeval_core.integrations.shards.readers import ERROR, KEY, RecordReader

_BLOCK, _PADDING = 512, 1 << 20
_JSON = "json"
_OPEN: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)


class TarReader(RecordReader):
    """A tar: `0001.jpg` and `0001.txt` or `0001.json` are the row `0001`, whose columns are extensions.

    Fields of the `.json` are columns, too; members count first.
    """

    names_of_uid = (KEY,)

    def records(self) -> Iterator[dict[str, Any] | str]:
        opener = next((open for end, open in _OPEN.items() if self.address.lower().endswith(end)), open)
        try:
            with opener(self.path, "rb") as file:
                yield from self._records(file)
        except _DAMAGE as error:
            found = f"is not a tar, cut off or damaged ({reason_of(error)})"
            raise self.refuse(found) from error

    def _records(self, file: IO[bytes]) -> Iterator[dict[str, Any] | str]:
        record: dict[str, Any] = {}
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps a list of all
                folder, slash, name = member.name.rpartition("/")
                stem, _, extension = name.partition(".")
                extension = extension.lower()
                if not member.isfile() or not stem or not extension:
                    continue
                key = f"{folder}{slash}{stem}"
                if record and (key != record[KEY] or extension in record):
                    yield _with_fields(record)
                    record = {}
                record.setdefault(KEY, key)
                if extension not in self._used:
                    record[extension] = None  # named where a column is missing, but not read
                elif member.size > LONGEST_FILE:
                    record[ERROR] = f"{member.name} has {member.size:,} bytes, too many"
                else:
                    data = _read(tar, member)
                    text = extension in self._texts
                    record[extension] = _text(data) if text else {"bytes": data, "path": member.name}
            # tarfile takes a damaged header, or the end of the file, for the archive's end: two blocks of 0.
            file.seek(tar.offset)
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise self.refuse("is cut off or damaged (it does not end as a tar ends)")
            while block := file.read(_PADDING):
                if block.count(0) < len(block):
                    raise self.refuse(
                        "goes on behind its end", "split it into the tars that it was joined of"
                    )
        if record:
            yield _with_fields(record)

    @cached_property
    def _used(self) -> set[str]:
        """The extensions of members that are read."""
        return {name for role in self.needed for name in NAMES[role]} | {*self.columns.values(), _JSON}

    @cached_property
    def _texts(self) -> set[str]:
        """The extensions of members that are texts."""
        return {*NAMES["caption"], _JSON, *(name for role, name in self.columns.items() if role == "caption")}


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = tar.extractfile(member)
    assert opened is not None  # it is a file
    return opened.read()


def _text(data: bytes) -> str | bytes:
    """A text without the line's end; the bytes where they are no UTF-8, which the metric refuses."""
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return data


def _with_fields(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the fields of its `.json`."""
    text = record.get(_JSON)
    with suppress(ValueError, RecursionError):
        fields = json.loads(text) if isinstance(text, str) else None
        if isinstance(fields, dict):
            return {**fields, **record}
    return record
