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
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, did_you_mean, file_problem, wrong_option
from capeval_core.inputs.images import LONGEST_FILE, URL
from capeval_core.integrations.shards.places import Place, reason_of
from capeval_core.limits import LIMITS

Rows = dict[str, list[Any]]
"""Columns of equal length: `uid`, `caption`, `image` or `video`, `references`, and `error`."""
NAMES: dict[str, tuple[str, ...]] = {
    "uid": ("uid", "__key__", "key", "id", "sample_id", "image_id"),
    "caption": ("txt", "caption", "text", "prediction", "candidate"),
    "image": ("image", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "bytes", "image_path", "path",
              "file_name", "filename", "bmp", "gif", "tif", "tiff"),
    "video": ("video", "mp4", "webm", "mkv", "mov", "avi", "video_bytes", "video_path", "path", "file_name",
              "filename", "gif"),
    "references": ("references", "refs", "reference"),
}  # fmt: skip
"""Names by which columns are found, best first, in any case. Members of a tar are columns by extension."""
_TEXT = r"(large_)?string(_view)?|null|dictionary<values=(large_)?string.*"
_VISUAL = rf"{_TEXT}|(large_)?binary(_view)?|struct<(.*, )?(bytes|path): .*"
_TYPES = {
    "uid": rf"{_TEXT}|u?int\d+",
    "caption": _TEXT,
    "image": _VISUAL,
    "video": _VISUAL,
    "references": rf"{_TEXT}|(large_|fixed_size_)?list<\w+: ({_TEXT})( not null)?>(\[\d+\])?",
}
"""The types of Arrow that a column of Parquet may have."""
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


def find_columns(
    present: Iterable[str], needed: Iterable[str], chosen: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Columns by what they hold, and what of `needed` is not there.

    >>> find_columns(["URL", "TEXT", "jpg"], ["uid", "caption", "image"], {})
    ({'caption': 'TEXT', 'image': 'jpg'}, ['uid'])
    """
    names = list(present)
    lower = {name.lower(): name for name in reversed(names)}
    found: dict[str, str] = {}
    missing: list[str] = []
    for role in needed:
        known = [chosen[role]] if role in chosen else [lower.get(name) for name in NAMES[role]]
        name = next((name for name in known if name in names), None)
        if name is None:
            missing.append(role)
        else:
            found[role] = name
    return found, missing


def several_columns(
    present: Iterable[str], needed: Iterable[str], chosen: Mapping[str, str]
) -> dict[str, list[str]]:
    """The columns that may hold the same texts, by what they hold, where none of them is chosen.

    >>> several_columns(["jpg", "png", "text", "Caption"], ["caption", "image"], {})
    {'caption': ['text', 'Caption']}
    """
    texts = [role for role in needed if role in ("caption", "references") and role not in chosen]
    found = {role: [name for name in dict.fromkeys(present) if name.lower() in NAMES[role]] for role in texts}
    return {role: names for role, names in found.items() if len(names) > 1}


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
    return [
        f"no column {chosen[role]!r} for {role}{did_you_mean(chosen[role], present)}"
        if role in chosen
        else f"no column for {role} (known names: {', '.join(NAMES[role])})"
        for role in missing
    ] + [f"several columns for {role} ({' and '.join(map(repr, names))})" for role, names in several.items()]


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

    @property
    def stem(self) -> str:
        """Its name in the uids of rows that have none."""
        return stem_of(self.address.rpartition("/")[2])

    def refuse(self, found: str, fix: str = "write it again") -> FileError:
        """The error of this file, to be raised."""
        return FileError(file_problem(self.address, found, fix))


def format_of(name: str) -> Callable[[Shard, int], Iterator[Rows]] | None:
    """What reads a shard of this name."""
    return next((read for end, read in FORMATS.items() if name.lower().endswith(end)), None)


def read_shard(shard: Shard, most: int) -> Iterator[Rows]:
    """Consecutive rows, so many at a time at most, with images where they lie.

    The file is refused now, as far as that shows without reading it whole, or where it turns out to be cut
    off or damaged.

    Raises:
        FileError: it is not of its format, or a needed column is not there.
    """
    read = format_of(shard.address)
    assert read is not None
    return _with_images(shard, read(shard, most))


def _with_images(shard: Shard, windows: Iterator[Rows]) -> Iterator[Rows]:
    for rows in windows:
        for visual in ("image", "video"):
            if visual in rows:
                _look_up(shard, rows[visual], rows["error"], visual)
        yield rows
        del rows  # before the next ones are read


def _look_up(shard: Shard, visuals: list[Any], errors: list[str | None], name: str) -> None:
    """Replace paths by those in the folder of images, or by the files' bytes where it is in an object store.

    Bytes stay as they are, and so do addresses: what a shard names is not fetched.
    """
    folder, fetched = shard.images, dict[str, list[int]]()
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


@contextmanager
def _reading(shard: Shard, found: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Let what the block, which reads the shard, raises of these kinds be a FileError."""
    try:
        yield
    except MemoryError:  # Arrow's is both
        raise
    except kinds as error:
        raise shard.refuse(f"{found} ({reason_of(error)})") from error


# Parquet


def _parquet(shard: Shard, most: int) -> Iterator[Rows]:
    """Images are bytes, paths, or structs of both as `datasets` writes them."""
    with _reading(shard, "is not Parquet, cut off or damaged", pa.ArrowException, OSError):
        # Without a buffer for whole row groups: some have gigabytes.
        options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
        file = pq.ParquetFile(shard.path, page_checksum_verification=True, **options)
    schema = file.schema_arrow
    found, missing = find_columns(schema.names, ["uid", *shard.needed], shard.columns)
    missing = [role for role in missing if role != "uid" or role in shard.columns]
    several = several_columns(schema.names, shard.needed, shard.columns)
    problems = column_problems(schema.names, missing, several, shard.columns)
    for role, name in found.items():
        if schema.names.count(name) > 1:
            problems.append(f"more than one column {name!r}")
        elif not re.fullmatch(_TYPES[role], str(schema.field(name).type)):
            problems.append(f"a column {name!r} of {schema.field(name).type} for {role}")
    if problems:
        raise shard.refuse(f"has {'; '.join(problems)}; its columns are {', '.join(schema.names)}", _FIX)
    shard.used = {role: {name: None} for role, name in found.items()}
    return _parquet_rows(shard, file, found, most)


def _parquet_rows(shard: Shard, file: pq.ParquetFile, found: Mapping[str, str], most: int) -> Iterator[Rows]:
    names, position = list(found.values()), 0
    columns = [
        group.column(i)
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups))
        for i in range(group.num_columns)
    ]
    used = [column for column in columns if column.path_in_schema.partition(".")[0] in names]
    size = max(1, sum(column.total_uncompressed_size for column in used))
    fitting = max(1, LIMITS.window_bytes * file.metadata.num_rows // size)  # rows of average length
    with _reading(shard, "is cut off or damaged", pa.ArrowException, OSError):
        for batch in file.iter_batches(min(most, fitting), columns=names):
            errors: list[str | None] = [None] * len(batch)
            rows = {role: _values(batch.column(name), role, errors) for role, name in found.items()}
            uids = rows.get("uid", [None] * len(batch))
            rows["uid"] = [
                f"{shard.stem}/{i}" if uid is None else str(uid) for i, uid in enumerate(uids, position)
            ]
            rows["error"] = errors
            position += len(batch)
            del batch, uids
            yield rows
            del rows


def _values(column: pa.Array, role: str, errors: list[str | None]) -> list[Any]:
    """The values of a column; None, and an error, where a text is not valid UTF-8."""
    values: list[Any] = [None] * len(column)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        for row, value in enumerate(column):
            try:
                values[row] = value.as_py()
            except UnicodeDecodeError:
                errors[row] = f"{role} is not valid UTF-8"
    return values


# formats in which each row brings columns of its own


def _from_records(shard: Shard, records: Iterator[dict[str, Any]], most: int, *uids: str) -> Iterator[Rows]:
    """The rows of records; `uids` are the names of their uid, best first."""
    first = list(islice(records, _LOOKED_AT))
    names = list(dict.fromkeys(name for record in first for name in _own(record)))
    missing = find_columns(names, shard.needed, shard.columns)[1] if any(map(_own, first)) else []
    problems = column_problems(names, missing, {}, shard.columns)
    problems += dict.fromkeys(text for record in first for text in _differing(shard, record))
    if problems:
        rows = f"its first {len(first)} rows have {', '.join(names) or 'none'}"
        raise shard.refuse(f"has {'; '.join(problems)}; {rows}", _FIX)
    chosen = shard.columns.get("uid")
    return _windows(shard, chain(first, records), most, uids if chosen is None else (chosen,))


def _windows(
    shard: Shard, records: Iterable[dict[str, Any]], most: int, uid_names: Sequence[str]
) -> Iterator[Rows]:
    window: Rows = {name: [] for name in ("uid", *shard.needed, "error")}
    size = 0
    for position, record in enumerate(records):
        if len(window["uid"]) >= most or size > LIMITS.window_bytes:
            yield window
            window, size = {name: [] for name in window}, 0
        found, missing = find_columns(record, shard.needed, shard.columns)
        own = next((name for name in uid_names if record.get(name) is not None), None)
        window["uid"].append(_valid(str(f"{shard.stem}/{position}" if own is None else record[own])))
        for role, used in {**({} if own is None else {"uid": own}), **found}.items():
            shard.used.setdefault(role, {})[used] = None
        for role in shard.needed:
            window[role].append(record.get(found.get(role, "")))
            size += _size(window[role][-1])
        error = record.get(_ERROR) or "; ".join(_differing(shard, record))
        if not error and missing:
            error = f"no {' and no '.join(missing)}, only {', '.join(_own(record)) or 'a uid'}"
        window["error"].append(_valid(str(error)) if error else None)
    if window["uid"]:
        yield window


def _differing(shard: Shard, record: Mapping[str, Any]) -> list[str]:
    """What is wrong where a record has several texts, and they differ: a caption may be in two places."""
    differing = {}
    for role, names in several_columns(record, shard.needed, shard.columns).items():
        values = [record[name] for name in names if isinstance(record[name], (str, list))]
        texts = [value.strip() if isinstance(value, str) else value for value in values]
        if any(text != texts[0] for text in texts):
            differing[role] = names
    return column_problems([], [], differing, {})


def _own(record: Mapping[str, Any]) -> list[str]:
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


def _opened(shard: Shard) -> IO[bytes]:
    """The file, uncompressed as it is read."""
    end = os.path.splitext(shard.address.lower())[1]  # noqa: PTH122  (an address is no path)
    opened: IO[bytes] = _OPEN.get(end, open)(shard.path, "rb")
    return opened


def _json_lines(shard: Shard, most: int) -> Iterator[Rows]:
    """An object per line, with paths of images."""
    return _from_records(shard, _lines(shard), most, *NAMES["uid"])


def _lines(shard: Shard) -> Iterator[dict[str, Any]]:
    with _reading(shard, "is cut off or damaged", OSError, EOFError), _opened(shard) as file:
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


def _tar(shard: Shard, most: int) -> Iterator[Rows]:
    """`0001.jpg` and `0001.txt` or `0001.json` are the row `0001`, whose columns are extensions.

    Fields of the `.json` are columns, too; members count first.
    """
    return _from_records(shard, map(_with_fields, _members(shard)), most, _KEY)


def _members(shard: Shard) -> Iterator[dict[str, Any]]:
    """Consecutive members whose names are equal up to the first dot."""
    chosen = shard.columns
    used = {*chosen.values(), _JSON, *(name for role in shard.needed for name in NAMES[role])}
    texts = {_JSON, *NAMES["caption"], chosen.get("caption")}
    damage = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)
    record: dict[str, Any] = {}
    with _reading(shard, "is not a tar, cut off or damaged", *damage), _opened(shard) as file:
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
                    yield record
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
            yield record


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


FORMATS: dict[str, Callable[[Shard, int], Iterator[Rows]]] = {
    **dict.fromkeys((".parquet", ".pq"), _parquet),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), _tar),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _json_lines),
}
"""How names of shards end, and what reads them."""
