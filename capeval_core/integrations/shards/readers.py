"""Rows of shards, a window at a time: Parquet, tars of webdataset, JSON lines."""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from capeval_core.errors import FileError, described, did_you_mean, file_error, wrong_option
from capeval_core.inputs.images import LONGEST_FILE, URL
from capeval_core.integrations.shards.places import Place, reason_of
from capeval_core.limits import LIMITS

Record = dict[str, Any]
"""A row as it is in a shard: values by the name of their column, `_KEY` and `_ERROR`."""
NAMES: dict[str, tuple[str, ...]] = {
    "uid": ("__key__", "uid", "key", "id", "sample_id", "image_id"),
    "caption": ("txt", "caption", "text", "prediction", "candidate"),
    "image": ("image", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "bytes", "image_path", "path",
              "file_name", "filename", "bmp", "gif", "tif", "tiff"),
    "video": ("video", "mp4", "webm", "mkv", "mov", "avi", "video_bytes", "video_path", "path", "file_name",
              "filename", "gif"),
    "references": ("references", "refs", "reference"),
}  # fmt: skip
"""Names by which columns are found, best first, in any case. Members of a tar are columns by extension."""
_TEXTS = ("caption", "references")  # columns of these are one only where they hold the same
_FIX = 'name it: columns={"caption": "...", "image": "..."} (capeval: --columns caption=...,image=...)'
_KEY, _ERROR, _JSON = "__key__", "__error__", "json"
"""Of a record: its uid in a tar, why it cannot be scored, and the member whose fields are columns too."""
_LOOKED_AT = 100  # rows in which a column must come up, where each row has columns of its own
_BATCH = 64  # rows of Parquet that are decoded together: some have megabytes each

# columns by name


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that a user names; ValueError for those of anything that no row has."""
    chosen = dict(columns or {})
    for role in chosen:
        if role not in NAMES:
            fix = f"expected some of {', '.join(NAMES)}{did_you_mean(str(role), NAMES)}"
            raise wrong_option("columns", chosen, f"has a key {role!r}", fix)
    return chosen


def find_columns(
    present: Sequence[str], needed: Iterable[str], chosen: Mapping[str, str]
) -> dict[str, list[str]]:
    """The columns that may hold each of `needed`, best first, in any case."""
    return {
        role: [name for name in present if name == chosen[role]]
        if role in chosen
        else [name for known in NAMES[role] for name in present if name.lower() == known]
        for role in needed
    }


def column_problems(
    found: Mapping[str, Sequence[str]], chosen: Mapping[str, str], present: Sequence[str]
) -> list[str]:
    """What is wrong with columns that are missing, and with those that may hold the same text."""
    problems = []
    for role, names in found.items():
        if not names and role in chosen:
            problems.append(f"no column {chosen[role]!r} for {role}{did_you_mean(chosen[role], present)}")
        elif not names and role != "uid":
            problems.append(f"no column for {role} (known names: {', '.join(NAMES[role])})")
        elif len(names) > 1 and role in _TEXTS:
            problems.append(f"several columns for {role} ({' and '.join(map(repr, names))})")
    return problems


# shards


def stem_of(name: str) -> str:
    """The name of a shard without its format: `train.00001` of `train.00001.tar.gz`."""
    return re.sub(r"\.[^.]+(\.(gz|bz2|xz))?$", "", name, flags=re.IGNORECASE)


class Shard:
    """A shard on a local disk, whose rows come a window at a time, with images where they lie."""

    def __init__(
        self, path: Path, source: Place, needed: Sequence[str], columns: Mapping[str, str], images: Place
    ) -> None:
        self.path, self.source, self.needed, self.columns, self.images = path, source, needed, columns, images
        self.used: dict[str, dict[str, None]] = {}  # the names of the columns that were read, by role
        self.looked_up = False  # whether an image was looked up in the folder `images`
        # For the names of a record, once for all records of the same columns.
        self.find = cache(lambda *names: find_columns(names, ["uid", *needed], columns))

    def windows(self, most: int) -> Iterator[dict[str, list[Any]]]:
        """Columns `uid`, `error` and those needed, of consecutive rows; FileError for the first rows now."""
        records = self._records()
        first = deque(islice(records, _LOOKED_AT))
        names = [name for name in dict.fromkeys(chain(*first)) if name not in (_KEY, _ERROR)]
        missing = {role: found for role, found in self.find(*names).items() if not found} if names else {}
        problems = column_problems(missing, self.columns, names)
        problems += dict.fromkeys(text for one in first for text in self._differing(one))
        captions = [record[name] for record in first for name in self.find(*record)["caption"][:1]]
        if captions and not any(isinstance(text, (str, bytes, type(None))) for text in captions):
            problems.append(f"no text as caption, only {described(captions[0])}")
        if problems:
            rows = f"its first {len(first)} rows have {', '.join(names)}"
            raise self.refuse(f"has {'; '.join(problems)}; {rows}", _FIX)
        # Popped, so that images leave memory with their window.
        return self._windows(chain((first.popleft() for _ in range(len(first))), records), most)

    def refuse(self, found: str, fix: str = "write it again") -> FileError:
        return file_error(self.source.address, found, fix)

    def _records(self) -> Iterator[Record]:
        with self.source.reading():
            yield from FORMATS[format_of(self.source)](self)

    def _differing(self, record: Record) -> list[str]:
        """Columns of a record that may hold the same text, and do not."""
        found = {}
        for role, names in self.find(*record).items():
            values = [record[name] for name in names if isinstance(record[name], (str, list))]
            texts = [value.strip() if isinstance(value, str) else value for value in values]
            if any(text != texts[0] for text in texts):
                found[role] = names
        return column_problems(found, {}, [])

    def _windows(self, records: Iterable[Record], most: int) -> Iterator[dict[str, list[Any]]]:
        rows: list[Record] = []
        size = 0
        for position, record in enumerate(records):
            rows.append(self._row(record, position))
            size += _size(rows[-1])
            if len(rows) >= most or size > LIMITS.window_bytes:
                yield self._looked_up(rows)
                rows, size = [], 0
        if rows:
            yield self._looked_up(rows)

    def _row(self, record: Record, position: int) -> Record:
        """What is needed of a record, `uid` and `error`."""
        row, missing = Record(), []
        for role, names in self.find(*record).items():
            # Of several texts the first one that is there; they are equal.
            there = [name for name in names if role in _TEXTS and record[name] is not None] or names
            row[role] = record[there[0]] if there else None
            if there:
                self.used.setdefault(role, {})[there[0]] = None
            elif role != "uid" or role in self.columns:
                missing.append(role)
        error = record.get(_ERROR) or "; ".join(self._differing(record))
        if missing and not error:
            own = ", ".join(name for name in record if name not in (_KEY, _ERROR))
            error = f"no {' and no '.join(missing)}, only {own or 'a uid'}"
        uid = f"{stem_of(self.source.name)}/{position}" if row["uid"] is None else row["uid"]
        return row | {"uid": _valid(str(uid)), "error": _valid(str(error)) if error else None}

    def _looked_up(self, rows: Sequence[Record]) -> dict[str, list[Any]]:
        """Columns of rows; images are paths in their folder, or bytes from a store; addresses stay."""
        columns = {role: [row[role] for row in rows] for role in ("uid", *self.needed, "error")}
        folder, fetched = self.images, defaultdict[str, list[int]](list)
        name = "video" if "video" in columns else "image"
        visuals = columns.get(name, [])
        for i, value in enumerate(visuals):
            path = value.get("path") if isinstance(value, Mapping) and value.get("bytes") is None else value
            if not isinstance(path, str) or not path or URL.match(path):
                continue
            self.looked_up |= not (folder.is_local and os.path.isabs(path))  # noqa: PTH117
            if folder.is_local:
                visuals[i] = os.path.join(folder.path, path)  # noqa: PTH118  (absolute ones stay)
            else:
                fetched[f"{folder.path.rstrip('/')}/{path.lstrip('/')}"].append(i)
        # Not `cat`, which sorts paths and takes `*` and `[` in them for patterns.
        paths = list(fetched)
        contents = folder.filesystem.cat_ranges(paths, None, None, on_error="return") if paths else []
        for path, content in zip(paths, contents, strict=True):
            for i in fetched[path]:
                visuals[i] = {"bytes": content, "path": path} if isinstance(content, bytes) else None
                if visuals[i] is None:
                    columns["error"][i] = f"{name}: cannot read {path!r} ({reason_of(content)})"
        return columns


def format_of(source: Place) -> str:
    """The end of a shard's name that says how it is read. Raises FileError."""
    ends = [end for end in FORMATS if source.name.lower().endswith(end)]
    if not ends:
        raise file_error(source.address, "is no shard by its name", f"one ends in {', '.join(FORMATS)}")
    return ends[0]


def _valid(text: str) -> str:
    """A text with lone surrogates escaped, such as stand for bytes of a name that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _size(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, (dict, list)):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, (str, bytes)) else 8


# formats


def _parquet(shard: Shard) -> Iterator[Record]:
    """Images are bytes, paths, or structs of both as `datasets` writes them."""
    # Without a buffer for whole row groups: some have gigabytes.
    options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
    with pq.ParquetFile(shard.path, page_checksum_verification=True, **options) as file:
        names = file.schema_arrow.names
        used = list(dict.fromkeys(name for own in shard.find(*names).values() for name in own))
        if twice := [name for name in used if names.count(name) > 1]:
            raise shard.refuse(f"has more than one column {twice[0]!r}")
        record: Record = dict.fromkeys(names)  # with those that are not read: errors name them
        for batch in file.iter_batches(_BATCH, columns=used):
            for values in zip(*batch.columns, strict=True):
                own = dict(record)
                for name, value in zip(batch.schema.names, values, strict=True):
                    try:
                        own[name] = value.as_py()
                    except UnicodeDecodeError:
                        own[_ERROR] = f"{name} is not valid UTF-8"
                yield own


def _json_lines(shard: Shard) -> Iterator[Record]:
    """An object per line, with paths of images."""
    opened: Any = gzip.open if shard.source.name.lower().endswith(".gz") else open
    with opened(shard.path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            error = f"line {number} is no object"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as reason:
                record, error = None, f"line {number} is not JSON ({reason})"
            if not isinstance(record, dict) and not line.endswith(b"\n"):
                raise shard.refuse(f"is cut off in line {number}")
            yield record if isinstance(record, dict) else {_ERROR: error}


def _tar(shard: Shard) -> Iterator[Record]:
    """Members that are equal up to the first dot are a row; extensions and fields of `.json` are columns."""
    chosen = shard.columns
    used = {*chosen.values(), _JSON, *(name for role in shard.needed for name in NAMES[role])}
    texts = {_JSON, *NAMES["caption"], chosen.get("caption")}
    record: Record = {}
    with tarfile.open(shard.path, "r:*") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps a list of all
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            extension = extension.lower()
            if not member.isfile() or not stem or not extension:
                continue
            key = f"{folder}{slash}{stem}"
            if record and (key != record[_KEY] or extension in record):
                yield _with_fields(record)
                record = {}
            record.setdefault(_KEY, key)
            if extension not in used:
                record[extension] = None  # named where a column is missing, but not read
            elif member.size > LONGEST_FILE:
                record[_ERROR] = f"{member.name} has {member.size:,} bytes, too many"
            else:
                opened = tar.extractfile(member)
                assert opened is not None  # it is a file
                image = {"bytes": (data := opened.read()), "path": member.name}
                record[extension] = _text(data) if extension in texts else image
        # tarfile takes a damaged header, or the end of the file, for the archive's end: only zeros.
        file: Any = tar.fileobj
        file.seek(tar.offset)
        if file.read(512) != bytes(512) or any(map(any, iter(partial(file.read, 1 << 20), b""))):
            raise shard.refuse("is cut off, joined or damaged (it does not end as a tar ends)")
        if record:
            yield _with_fields(record)


def _text(data: bytes) -> str | bytes:
    """A text without the line's end; the bytes where they are no UTF-8, which the metric refuses."""
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return data


def _with_fields(record: Record) -> Record:
    """A record with the fields of its `.json`."""
    try:
        fields = json.loads(record.get(_JSON, ""))
    except (ValueError, TypeError, RecursionError):
        return record
    return {**fields, **record} if isinstance(fields, dict) else record


FORMATS: dict[str, Callable[[Shard], Iterator[Record]]] = {
    **dict.fromkeys((".parquet", ".pq"), _parquet),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), _tar),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _json_lines),
}
"""How names of shards end, and what reads them."""
