"""The rows of a shard, a window at a time: Parquet, tars of webdataset, JSON lines."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, did_you_mean, file_problem, wrong_option
from capeval_core.inputs.images import LONGEST_FILE, URL
from capeval_core.integrations.shards.places import Place, reason_of
from capeval_core.limits import LIMITS
from capeval_core.values import described

Rows = dict[str, list[Any]]
"""Columns of equal length: `uid`, `caption`, `image` or `video`, `references`, and `error`."""
Found = tuple[dict[str, str], list[str], dict[str, list[str]]]
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
_FIX = 'name it: columns={"caption": "...", "image": "..."} (capeval: --columns caption=...,image=...)'
_KEY, _ERROR, _JSON = "__key__", "__error__", "json"
"""Of a record: its uid in a tar, why it cannot be scored, and the member whose fields are columns too."""
_LOOKED_AT = 100  # rows in which a column must come up, where each row has columns of its own
_OPEN: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_BATCH = 64  # rows of Parquet that are decoded together: some have megabytes each
_BLOCK, _PADDING = 512, 1 << 20  # bytes of a tar


# columns by name


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that a user names. Raises ValueError or TypeError if they are no names of columns."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        fix = 'expected names by what they hold, {"caption": "alt_text"}'
        raise wrong_option("columns", columns, "", fix, verb="", kind=TypeError)
    for role in columns:
        if role not in NAMES:
            fix = f"expected some of {', '.join(NAMES)}{did_you_mean(str(role), NAMES)}"
            raise wrong_option("columns", dict(columns), f"a key {role!r}", fix, verb="has")
    return dict(columns)


def find_columns(present: Iterable[str], needed: Iterable[str], chosen: Mapping[str, str]) -> Found:
    """Columns by what they hold, what of `needed` is not there, and columns that may hold the same texts.

    >>> find_columns(["URL", "Text", "jpg", "caption"], ["uid", "caption", "image"], {})
    ({'caption': 'caption', 'image': 'jpg'}, ['uid'], {'caption': ['caption', 'Text']})
    """
    lower: dict[str, list[str]] = {}
    for name in present:
        lower.setdefault(name.lower(), []).append(name)
    found: dict[str, str] = {}
    several: dict[str, list[str]] = {}
    for role in needed:
        names = [name for known in NAMES[role] for name in lower.get(known, [])]
        if role in chosen:
            names = [name for name in lower.get(chosen[role].lower(), []) if name == chosen[role]]
        if names:
            found[role] = names[0]
        if len(names) > 1 and role in ("caption", "references"):
            several[role] = names
    return found, [role for role in needed if role not in found], several


def column_problems(
    present: Sequence[str],
    missing: Iterable[str],
    several: Mapping[str, Sequence[str]],
    chosen: Mapping[str, str],
) -> list[str]:
    """What is wrong with columns that are missing, and with those that may hold the same.

    >>> column_problems(["alt", "jpg"], ["caption"], {}, {"caption": "atl"})
    ["no column 'atl' for caption: did you mean 'alt'?"]
    """
    problems = []
    for role in missing:
        if role in chosen:
            problems.append(f"no column {chosen[role]!r} for {role}{did_you_mean(chosen[role], present)}")
        else:
            problems.append(f"no column for {role} (known names: {', '.join(NAMES[role])})")
    for role, names in several.items():
        problems.append(f"several columns for {role} ({' and '.join(map(repr, names))})")
    return problems


# shards


def stem_of(name: str) -> str:
    """The name of a shard without what says its format.

    >>> stem_of("train.00001.tar.gz"), stem_of("00001.parquet")
    ('train.00001', '00001')
    """
    return re.sub(r"\.[^.]+(\.(gz|bz2|xz))?$", "", name, flags=re.IGNORECASE)


@dataclass
class Shard:
    """A shard on a local disk, and what was read of it.

    address: what messages call it. needed: what rows must have beside a uid. columns: names of columns where
    they are not found by themselves. images: the folder that paths of images are relative to. used: the names
    of the columns that were read, by what they hold. looked_up: whether an image was looked up in the folder.
    """

    path: Path
    address: str
    needed: Sequence[str]
    columns: Mapping[str, str]
    images: Place
    used: dict[str, dict[str, None]] = field(default_factory=dict)
    looked_up: bool = False
    _found: dict[tuple[str, ...], Found] = field(default_factory=dict)

    def find(self, record: Iterable[str]) -> Found:
        """What `find_columns` finds in a record, once for all records of the same columns."""
        names = tuple(record)
        if names not in self._found:
            found, missing, several = find_columns(names, ["uid", *self.needed], self.columns)
            missing = [role for role in missing if role != "uid" or role in self.columns]
            self._found[names] = found, missing, several
        return self._found[names]

    def refuse(self, found: str, fix: str = "write it again") -> FileError:
        """The error of this file, to be raised."""
        return FileError(file_problem(self.address, found, fix))


def format_of(name: str) -> Callable[[Shard], Iterator[Record]] | None:
    """What reads a shard of this name."""
    return next((read for end, read in FORMATS.items() if name.lower().endswith(end)), None)


def read_shard(shard: Shard, most: int) -> Iterator[Rows]:
    """Consecutive rows, so many at a time at most, with images where they lie.

    Raises:
        FileError: now, if the first rows lack a needed column, or have texts that differ; later, where the
            file turns out to be cut off or damaged.
    """
    read = format_of(shard.address)
    assert read is not None
    records = read(shard)
    first = list(islice(records, _LOOKED_AT))
    names = list(dict.fromkeys(name for record in first for name in _own(record)))
    missing = shard.find(names)[1] if names else []
    problems = column_problems(names, missing, {}, shard.columns)
    problems += dict.fromkeys(text for record in first for text in _differing(shard, record))
    captions = [record[name] for record in first if (name := shard.find(record)[0].get("caption"))]
    if captions and not any(isinstance(text, (str, bytes, type(None))) for text in captions):
        problems.append(f"no text as caption, only {described(captions[0])}")
    if problems:
        rows = f"its first {len(first)} rows have {', '.join(names)}"
        raise shard.refuse(f"has {'; '.join(problems)}; {rows}", _FIX)

    def again() -> Iterator[Record]:
        while first:  # whose images leave memory
            yield first.pop(0)
        yield from records

    return _windows(shard, again(), most)


def _windows(shard: Shard, records: Iterable[Record], most: int) -> Iterator[Rows]:
    stem = stem_of(shard.address.rpartition("/")[2])
    window: Rows = {name: [] for name in ("uid", *shard.needed, "error")}
    size = 0
    for position, record in enumerate(records):
        if len(window["uid"]) >= most or size > LIMITS.window_bytes:
            _look_up(shard, window)
            yield window
            window, size = {name: [] for name in window}, 0
        found, missing, several = shard.find(record)
        for role, names in several.items():  # the first one that holds something
            found[role] = next((name for name in names if record[name] is not None), names[0])
        uid = record.get(found.get("uid", ""))
        window["uid"].append(_valid(str(f"{stem}/{position}" if uid is None else uid)))
        for role, name in found.items():
            shard.used.setdefault(role, {})[name] = None
        for role in shard.needed:
            window[role].append(record.get(found.get(role, "")))
            size += _size(window[role][-1])
        error = record.get(_ERROR) or "; ".join(_differing(shard, record))
        if missing and not error:
            error = f"no {' and no '.join(missing)}, only {', '.join(_own(record)) or 'a uid'}"
        window["error"].append(_valid(str(error)) if error else None)
    if window["uid"]:
        _look_up(shard, window)
        yield window


def _differing(shard: Shard, record: Record) -> list[str]:
    """What is wrong where a record has several texts, and they differ: a caption may be in two places."""
    several = {}
    for role, names in shard.find(record)[2].items():
        values = [record[name] for name in names if isinstance(record[name], (str, list))]
        texts = [value.strip() if isinstance(value, str) else value for value in values]
        if any(text != texts[0] for text in texts):
            several[role] = names
    return column_problems([], [], several, {})


def _own(record: Record) -> list[str]:
    """The names of a record's columns."""
    return [name for name in record if name not in (_KEY, _ERROR)]


def _valid(text: str) -> str:
    """A text with lone surrogates escaped, such as stand for bytes of a name that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _size(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, (dict, list)):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, (str, bytes)) else 8


def _look_up(shard: Shard, rows: Rows) -> None:
    """Replace paths by those in the folder of images, or by the files' bytes where it is in an object store.

    Bytes stay as they are, and so do addresses: what a shard names is not fetched.
    """
    folder, fetched = shard.images, dict[str, list[int]]()
    name = "video" if "video" in rows else "image"
    visuals, errors = rows.get(name, []), rows["error"]
    for i, value in enumerate(visuals):
        path = value
        if isinstance(value, Mapping):
            path = value.get("path") if value.get("bytes") is None else None
        if not isinstance(path, str) or not path or URL.match(path):
            continue
        shard.looked_up |= not (folder.is_local and os.path.isabs(path))  # noqa: PTH117
        if folder.is_local:
            visuals[i] = os.path.join(folder.path, path)  # noqa: PTH118  (absolute ones stay)
        else:
            fetched.setdefault(f"{folder.path.rstrip('/')}/{path.lstrip('/')}", []).append(i)
    # Not `cat`, which sorts paths and takes `*` and `[` in them for patterns.
    paths = list(fetched)
    contents = folder.filesystem.cat_ranges(paths, None, None, on_error="return") if paths else []
    for path, content in zip(paths, contents, strict=True):
        for i in fetched[path]:
            visuals[i] = {"bytes": content, "path": path} if isinstance(content, bytes) else None
            if isinstance(content, FileNotFoundError):
                errors[i] = f"{name}: there is no file {path!r}"
            elif visuals[i] is None:
                errors[i] = f"{name}: cannot read {path!r} ({reason_of(content)})"


# formats


@contextmanager
def _reading(shard: Shard, kind: str, *errors: type[BaseException]) -> Iterator[None]:
    """Let what the block, which reads the shard, raises of these kinds be a FileError."""
    try:
        yield
    except MemoryError:  # Arrow's is both
        raise
    except errors as error:
        raise shard.refuse(f"is no {kind}, cut off or damaged ({reason_of(error)})") from error


def _opened(shard: Shard) -> IO[bytes]:
    """The file, uncompressed as it is read."""
    end = os.path.splitext(shard.address.lower())[1]  # noqa: PTH122  (an address is no path)
    opened: IO[bytes] = _OPEN.get(end, open)(shard.path, "rb")
    return opened


def _parquet(shard: Shard) -> Iterator[Record]:
    """Images are bytes, paths, or structs of both as `datasets` writes them."""
    with _reading(shard, "Parquet", pa.ArrowException, OSError):
        # Without a buffer for whole row groups: some have gigabytes.
        options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
        with pq.ParquetFile(shard.path, page_checksum_verification=True, **options) as file:
            roles = ["uid", *shard.needed]
            known = {*shard.columns.values(), *(name for role in roles for name in NAMES[role])}
            names = file.schema_arrow.names
            used = [name for name in names if name in known or name.lower() in known]
            if twice := [name for name in used if names.count(name) > 1]:
                raise shard.refuse(f"has more than one column {twice[0]!r}")
            others = dict.fromkeys(name for name in names if name not in used)
            for batch in file.iter_batches(_BATCH, columns=used):
                try:
                    records = batch.to_pylist()
                except UnicodeDecodeError:
                    records = _decoded(batch)
                yield from ({**others, **record} for record in records)


def _decoded(batch: pa.RecordBatch) -> list[Record]:
    """The records of a batch some of whose texts are not valid UTF-8."""
    records: list[Record] = [{} for _ in range(len(batch))]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for record, value in zip(records, column, strict=True):
            try:
                record[name] = value.as_py()
            except UnicodeDecodeError:
                record |= {name: None, _ERROR: f"{name} is not valid UTF-8"}
    return records


def _json_lines(shard: Shard) -> Iterator[Record]:
    """An object per line, with paths of images."""
    with _reading(shard, "JSON lines", OSError, EOFError), _opened(shard) as file:
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
    """`0001.jpg` and `0001.txt` or `0001.json` are the row `0001`, whose columns are extensions.

    Members whose names are equal up to the first dot are one row. Fields of its `.json` are columns, too;
    members count first.
    """
    chosen = shard.columns
    used = {*chosen.values(), _JSON, *(name for role in shard.needed for name in NAMES[role])}
    texts = {_JSON, *NAMES["caption"], chosen.get("caption")}
    damage = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)
    record: Record = {}
    with _reading(shard, "tar", *damage), _opened(shard) as file:
        with tarfile.open(fileobj=file, mode="r:") as tar:
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
                    data = opened.read()
                    image = {"bytes": data, "path": member.name}
                    record[extension] = _text(data) if extension in texts else image
            # tarfile takes a damaged header, or the end of the file, for the archive's end: two blocks of 0.
            file.seek(tar.offset)
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise shard.refuse("is cut off or damaged (it does not end as a tar ends)")
            while block := file.read(_PADDING):
                if block.count(0) < len(block):
                    raise shard.refuse("goes on behind its end", "split it into the tars it was joined of")
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
    text = record.get(_JSON)
    with suppress(ValueError, RecursionError):
        fields = json.loads(text) if isinstance(text, str) else None
        if isinstance(fields, dict):
            return {**fields, **record}
    return record


FORMATS: dict[str, Callable[[Shard], Iterator[Record]]] = {
    **dict.fromkeys((".parquet", ".pq"), _parquet),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), _tar),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _json_lines),
}
"""How names of shards end, and what reads them."""
