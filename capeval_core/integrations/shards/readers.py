"""Rows of shards, a window at a time: Parquet, tars of webdataset, JSON lines."""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from capeval_core.errors import FileError, described, did_you_mean, file_error, wrong_option
from capeval_core.inputs import names
from capeval_core.inputs.images import BYTES, LONGEST_FILE, URL
from capeval_core.integrations.shards.places import Place, reason_of
from capeval_core.limits import LIMITS

Record = dict[str, Any]
"""A row as it is in a shard: values by the name of their column, `_KEY` and `_ERROR`."""
_KEY = "__key__"
_ERROR = "__error__"
"""Reserved fields of a record: its uid in a tar, and why it cannot be scored."""
_JSON = "json"
"""The member of a tar whose fields are columns, too."""
NAMES: dict[str, Sequence[Sequence[str]]] = {
    "uid": [names.listed("shards", "uid")],
    # A member of a tar is named by its extension, so that `txt` is a caption here and nowhere else.
    "caption": [
        [*names.listed("shards", "caption"), *names.written_levels("caption")[0]],
        names.written_levels("caption")[2],
    ],
    "image": [names.listed("shards", "image")],
    "video": [names.listed("shards", "video")],
    # A caption would be compared with itself: only names that mean nothing else count.
    "references": [names.written_levels("references")[0]],
}
"""Names of columns by what they hold, best first; those of a later list count where none of the first is."""
_TEXTS = ("caption", "references")
_FIX = 'name it: columns={"caption": "...", "image": "..."} (capeval: --columns caption=...,image=...)'
_DOWNLOAD = "download them first, for example by img2dataset, whose tars are read here"
_LOOKED_AT = 100  # rows in which a column must come up, where each row has columns of its own
_BATCH = 64  # rows of Parquet that are decoded together: some have megabytes each


# columns by name


def columns_named(present: Iterable[str], role: str) -> list[str]:
    """The columns that may hold a role by their names, best first, in any case, with any blanks and marks."""
    columns = list(present)
    for level in NAMES[role]:
        ranked = []
        for name in level:
            for column in columns:
                if _plain(column) == _plain(name):
                    ranked.append(column)
        if ranked:
            return ranked
    return []


@cache
def _plain(name: str) -> str:
    """`imagepath` of `Image Path` and `image_path`; the reserved field stays."""
    return name if name == _KEY else names.plain(name)


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that a user names; ValueError for those of anything that no row has."""
    column_of = dict(columns or {})
    for role in column_of:
        # A role with a slip would be ignored, and another column read without a word.
        if role not in NAMES:
            fix = f"expected some of {', '.join(NAMES)}{did_you_mean(str(role), NAMES)}"
            raise wrong_option("columns", column_of, f"has a key {role!r}", fix)
    return column_of


def find_columns(
    present: Sequence[str], needed: Iterable[str], column_of: Mapping[str, str]
) -> dict[str, list[str]]:
    """The columns that may hold each of `needed`, best first: the one that a user names, or by name."""
    columns: dict[str, list[str]] = {}
    for role in needed:
        if role in column_of:
            # Exactly as written: a table may hold `JPG` and `Jpg`, of which a user means one.
            columns[role] = [name for name in present if name == column_of[role]]
        else:
            columns[role] = columns_named(present, role)
    return columns


def column_problems(
    columns: Mapping[str, Sequence[str]], column_of: Mapping[str, str], present: Sequence[str]
) -> list[str]:
    """Problems of columns that are missing, and of those that may hold the same text."""
    problems = []
    for role, present_names in columns.items():
        if not present_names and role in column_of:
            close = did_you_mean(column_of[role], present)
            problems.append(f"no column {column_of[role]!r} for {role}{close}")
        elif not present_names and role != "uid":  # without a uid a row is named by its place
            usual_names = ", ".join([*NAMES[role][0][:10], "..."])
            problems.append(f"no column for {role} (known names: {usual_names})")
        # Of texts nothing says which one is meant; of pictures the one with bytes is taken.
        elif len(present_names) > 1 and role in _TEXTS:
            problems.append(several_columns(role, present_names))
    return problems


def several_columns(role: str, present_names: Iterable[str]) -> str:
    """The problem of columns that may hold one role, and differ."""
    return f"several columns for {role} ({' and '.join(map(repr, present_names))})"


# shards


@dataclass
class RowFaults:
    """Reasons why a row cannot be scored, by the role that they concern: a metric may need only some.

    record: of all roles. differing: columns of a role that hold different values. missing: roles without a
    column, and `others` names the columns that there are. unread: of its image.
    """

    record: str | None
    differing: dict[str, list[str]] = field(default_factory=dict)
    missing: Sequence[str] = ()
    others: str = ""
    unread: dict[str, str] = field(default_factory=dict)

    def error(self, roles: Sequence[str]) -> str | None:
        """The error of the row for a metric that needs these roles; None where it can be scored."""
        for role in roles:
            if role in self.unread:
                return self.unread[role]
        if self.record is not None:
            return self.record
        differing: list[str] = []
        for role in roles:
            differing += self.differing.get(role, [])
        if differing:
            return _valid("; ".join(differing))
        # A uid is missing only where a user named its column: he counts on it.
        missing = [role for role in self.missing if role in roles or role == "uid"]
        return _valid(f"no {' and no '.join(missing)}, {self.others}") if missing else None


def stem_of(name: str) -> str:
    """The name of a shard without its format: `train.00001` of `train.00001.tar.gz`."""
    return re.sub(r"\.[^.]+(\.(gz|bz2|xz))?$", "", name, flags=re.IGNORECASE)


class Shard:
    """A shard on a local disk, whose rows come a window at a time, with images as they are stored.

    needed: the roles of all metrics. used: the names of the columns that were read, by role. looked_up:
    whether an image was looked up in the folder `images`.
    """

    def __init__(
        self, path: Path, source: Place, needed: Sequence[str], columns: Mapping[str, str], images: Place
    ) -> None:
        self.path = path
        self.source = source
        self.needed = needed
        self.columns = columns
        self.images = images
        self.visual = "video" if "video" in needed else "image"
        self.used: dict[str, dict[str, None]] = {}
        self.looked_up = False
        self.share: Callable[[], float] = lambda: 1.0  # of the shard that is read, set by its reader
        self.read = 0  # records, of which the next ones wait for their window
        self._records_in_windows = 0
        self._rows_in_windows = 0
        self._names: list[str] = []  # of the columns of the first rows
        # For the names of a record, once for all records of the same columns.
        self.find = cache(lambda *names: find_columns(names, ["uid", *needed], columns))

    def used_by(self, roles: Sequence[str]) -> dict[str, list[str]]:
        """Names of the columns that were read for a metric, by its roles and `uid`."""
        return {role: list(names) for role, names in self.used.items() if role in ("uid", *roles)}

    def unread_by(self, roles: Sequence[str]) -> list[str]:
        """Names of columns of the first rows that were not read for a metric."""
        used = set(chain.from_iterable(self.used_by(roles).values()))
        # The member `json` is read for its fields, which are columns themselves.
        return [name for name in self._names if name not in used and name != _JSON]

    @property
    def expected_rows(self) -> int:
        """About how many rows the shard has, by those of the part that is read; of Parquet exactly."""
        records = self.read / (self.share() or 1)
        # A record may have several captions, and how many the rest has is not known before it is read.
        return round(records * self._rows_in_windows / max(1, self._records_in_windows))

    def windows(self, most: int) -> Iterator[dict[str, list[Any]]]:
        """Columns of consecutive rows: `uid`, `faults`, those needed; FileError for the first rows now.

        `outside` says of a row that its image is a file outside of the shard.
        """
        records = self._records()
        # Looked at before any output is begun: a column that is not there would cost a file of failed rows.
        first = deque(islice(records, _LOOKED_AT))
        self._names = [name for name in dict.fromkeys(chain(*first)) if name not in (_KEY, _ERROR)]
        problems = self._problems(first)
        if problems:
            names = ", ".join(self._names)
            fix = _DOWNLOAD if any("not fetched" in problem for problem in problems) else _FIX
            raise self.refuse(f"has {'; '.join(problems)}; its first {len(first)} rows have {names}", fix)
        return self._windows(chain(_popped(first), records), most)

    def refuse(self, problem: str, fix: str = "write it again") -> FileError:
        return file_error(self.source.address, problem, fix)

    def _problems(self, records: Sequence[Record]) -> list[str]:
        """Problems of the columns of the first rows."""
        problems: list[str] = []
        if self._names:
            missing: dict[str, list[str]] = {}
            for role, columns in self.find(*self._names).items():
                if not columns:
                    missing[role] = columns
            addresses = self._addresses(records)
            # img2dataset's own input has a column `url` and no picture: known names would be no help.
            if addresses and self.visual in missing and self.visual not in self.columns:
                del missing[self.visual]
                only = f"only addresses ({addresses}), which are not fetched"
                problems.append(f"no column for {self.visual}, {only}")
            problems += column_problems(missing, self.columns, self._names)
            if problems:
                problems[-1] += _dots(records[0])
        differing: dict[str, None] = {}  # each problem once, in the order of rows
        captions = []
        are_addresses = []  # whether each image or video is an address
        for record in records:
            for problems_of_role in self._differing(record).values():
                differing |= dict.fromkeys(problems_of_role)
            captions += [record[name] for name in self.find(*record)["caption"][:1]]
            visual = self._visual_of(record)
            if visual is not None:
                are_addresses.append(isinstance(visual, str) and URL.match(visual) is not None)
        problems += differing
        # One number among texts costs its row; numbers alone are a column of something else.
        if captions and not any(map(_is_text, captions)):
            problems.append(f"no text as caption, only {described(captions[0])}")
        if are_addresses and all(are_addresses):
            problems.append(f"addresses as {self.visual}, which are not fetched")
        return problems

    def _addresses(self, records: Sequence[Record]) -> str:
        """Columns that hold addresses, by name or by value, as a message names them."""
        columns = []
        for name in self._names:
            values = [record[name] for record in records if isinstance(record.get(name), str)]
            is_address = bool(values) and all(map(URL.match, values))
            if is_address or re.search(r"(^|_|\b)ur[li]s?($|_|\b)", name, re.IGNORECASE):
                columns.append(repr(name))
        return " and ".join(columns)

    def _visual_of(self, record: Record) -> object:
        """The image or video of a record; None where a metric needs none."""
        if self.visual not in self.needed:
            return None
        name = self._column_of(record, self.visual)
        return None if name is None else _single(record[name])

    def _column_of(self, record: Record, role: str) -> str | None:
        """The column that holds a role in a record: of images the first with bytes, else the first value."""
        names = self.find(*record)[role]
        if role == self.visual:
            # A `.json` beside a picture may name the original file, which by now is another picture.
            with_bytes = [name for name in names if _content(record[name]) is not None]
            names = with_bytes or names
        # A null beside a filled column of the same meaning is no statement about the row. A uid comes from
        # one column in every row: those of two columns might be equal.
        if role != "uid":
            names = [name for name in names if record[name] is not None] or names
        return names[0] if names else None

    def _differing(self, record: Record) -> dict[str, list[str]]:
        """By role, columns of a record that may hold the same text or picture, and do not."""
        problems: dict[str, list[str]] = {}
        for role, columns in self.find(*record).items():
            if role == "uid":
                continue
            # Equal ones are one: img2dataset writes a caption as a member and into its `.json`, too.
            values = []
            for name in columns:
                value = _comparable(role, record[name])
                if value is not None:
                    values.append(value)
            if any(value != values[0] for value in values):
                problems[role] = [several_columns(role, columns)]
        return problems

    def uids(self) -> Iterator[list[str]]:
        """The uids of the rows of each record, several where it has several captions."""
        for position, record in enumerate(self._records()):
            yield [row["uid"] for row in self._rows(record, position)]

    def _records(self) -> Iterator[Record]:
        # What Arrow, tarfile and gzip raise in the middle of a file names no file.
        with self.source.reading():
            for record in FORMATS[format_of(self.source)](self):
                self.read += 1
                yield record

    def _windows(self, records: Iterable[Record], most: int) -> Iterator[dict[str, list[Any]]]:
        rows: list[Record] = []
        size = 0
        for position, record in enumerate(records):
            captioned = self._rows(record, position)
            rows += captioned
            size += _size(captioned)
            self._records_in_windows += 1
            self._rows_in_windows += len(captioned)
            # By bytes, too: 2,048 rows with photographs of 5 MB each would take 10 GB.
            if len(rows) >= most or size > LIMITS.window_bytes:
                yield self._looked_up(rows)
                rows = []
                size = 0
        if rows:
            yield self._looked_up(rows)

    def _rows(self, record: Record, position: int) -> list[Record]:
        """The rows of a record with the columns that are needed: one for each caption of a list."""
        row = Record()
        missing = []
        for role in ("uid", *self.needed):
            name = self._column_of(record, role)
            row[role] = None if name is None else record[name]
            if name is not None:
                self.used.setdefault(role, {})[name] = None
            elif role != "uid" or role in self.columns:
                missing.append(role)
        if self.visual in row:
            row[self.visual] = _single(row[self.visual])
        # Not an error yet: of several metrics one may need a role that another one does without.
        error = record.get(_ERROR)
        faults = RowFaults(_valid(str(error)) if error else None, self._differing(record))
        if missing:
            columns = [name for name in record if name not in (_KEY, _ERROR)]
            faults.missing = missing
            faults.others = f"only {', '.join(columns) or 'a uid'}{_dots(record)}"
        uid = f"{stem_of(self.source.name)}/{position}" if row["uid"] is None else row["uid"]
        row["uid"] = _valid(str(uid))
        row["faults"] = faults
        captions = row["caption"]
        if not isinstance(captions, list) or not captions:
            return [row]
        # Numbered, so that uids stay unique and lead back to the record, which `filter` keeps as a whole.
        rows = []
        for i, caption in enumerate(captions):
            rows.append({**row, "uid": f"{row['uid']}#{i}", "caption": caption})
        return rows

    def _looked_up(self, rows: Sequence[Record]) -> dict[str, list[Any]]:
        """Columns of rows; images are paths in their folder, or bytes from a store; addresses stay."""
        columns: dict[str, list[Any]] = {}
        for role in ("uid", *self.needed, "faults"):
            columns[role] = [row[role] for row in rows]
        columns["outside"] = [False] * len(rows)
        visuals = columns.get(self.visual, [])
        fetched = defaultdict[str, list[int]](list)  # rows by the path in the store
        for i, value in enumerate(visuals):
            path = value.get("path") if isinstance(value, Mapping) and value.get("bytes") is None else value
            if not isinstance(path, str) or not path or URL.match(path):
                continue  # bytes, or what the metric's own check refuses by the row
            columns["outside"][i] = True
            # An absolute path does not depend on the folder, nor do scores of it.
            self.looked_up |= not (self.images.is_local and os.path.isabs(path))  # noqa: PTH117
            if self.images.is_local:
                visuals[i] = os.path.join(self.images.path, path)  # noqa: PTH118  (absolute ones stay)
            else:
                fetched[f"{self.images.path.rstrip('/')}/{path.lstrip('/')}"].append(i)
        # Each path once: rows of several captions share their picture. A local file is read by the metric.
        paths = list(fetched)
        # Not `cat`, which sorts paths and takes `*` and `[` in them for patterns.
        read = self.images.filesystem.cat_ranges
        contents = read(paths, None, None, on_error="return") if paths else []
        for path, content in zip(paths, contents, strict=True):
            for i in fetched[path]:
                if isinstance(content, bytes):
                    visuals[i] = {"bytes": content, "path": path}
                else:
                    visuals[i] = None
                    reason = f"{self.visual}: cannot read {path!r} ({reason_of(content)})"
                    # Rows of one record share its faults.
                    faults = columns["faults"][i]
                    columns["faults"][i] = replace(faults, unread={self.visual: reason})
        return columns


def _popped(records: deque[Record]) -> Iterator[Record]:
    """The records, each leaving the queue, so that images leave memory with their window."""
    while records:
        yield records.popleft()


def _dots(record: Record) -> str:
    """A hint about names in a tar that have more than one dot."""
    if _KEY in record and any("." in name for name in record):
        return "; names of members are split at their first dot"
    return ""


def _is_text(value: object) -> bool:
    """True for a value that may be a caption, several captions, or one that is missing."""
    texts = value if isinstance(value, list) else [value]
    # Bytes are a text that was not UTF-8, which costs its row only.
    return all(isinstance(text, (str, bytes, type(None))) for text in texts)


def _single(value: object) -> object:
    """The one image of a list with one."""
    # Tables of chats, whose turns may show several images, have a column `images` of lists.
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, Mapping, *BYTES)):
        return value[0]
    return value


def _content(value: object) -> object:
    """The bytes of an image or video inside its shard; None of a path."""
    visual = _single(value)
    content = visual.get("bytes") if isinstance(visual, Mapping) else visual
    return content if isinstance(content, BYTES) else None


def _comparable(role: str, value: object) -> object:
    """The content that must be equal in all columns of a role; None where a value has none."""
    if role not in _TEXTS:
        return _content(value)  # paths of one file may differ
    if isinstance(value, list) and len(value) == 1 and role == "caption":
        value = value[0]
    if isinstance(value, str):
        return value.strip()  # a member was stripped when it was read, a field of a `.json` was not
    return value if isinstance(value, list) else None


def is_format(name: str) -> bool:
    """True for a file that is a shard by its name."""
    return name.lower().endswith(tuple(FORMATS))


def format_of(source: Place) -> str:
    """The end of a shard's name that says how it is read. Raises FileError."""
    for end in FORMATS:
        if source.name.lower().endswith(end):
            return end
    raise file_error(source.address, "is not a shard by its name", f"one ends in {', '.join(FORMATS)}")


def _valid(text: str) -> str:
    """A text with lone surrogates escaped, as in a name whose bytes are not UTF-8."""
    # Arrow has no place for them, and an error about one row would end the shard.
    return text.encode("utf-8", "backslashreplace").decode()


def _size(value: object) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, (dict, list)):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    # Numbers and nulls count alike: pictures are what a window is bounded for.
    return len(value) if isinstance(value, (str, bytes)) else 8


# formats


def _parquet(shard: Shard) -> Iterator[Record]:
    """Images are bytes, paths, or structs of both as `datasets` writes them."""
    # Without a buffer for whole row groups: some have gigabytes.
    options: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}
    with pq.ParquetFile(shard.path, page_checksum_verification=True, **options) as file:
        shard.share = lambda: shard.read / file.metadata.num_rows
        names = file.schema_arrow.names
        used = list(dict.fromkeys(chain.from_iterable(shard.find(*names).values())))
        repeated = [name for name in used if names.count(name) > 1]
        # A record is a dict, in which the last of them would win.
        if repeated:
            raise shard.refuse(f"has more than one column {repeated[0]!r}")
        unread: Record = dict.fromkeys(names)  # errors name all columns
        for batch in file.iter_batches(_BATCH, columns=used):
            for values in zip(*batch.columns, strict=True):
                record = dict(unread)
                for name, value in zip(batch.schema.names, values, strict=True):
                    try:
                        record[name] = value.as_py()
                    # Writers do not check it, and a whole column by `to_pylist` would fail for one row.
                    except UnicodeDecodeError:
                        record[_ERROR] = f"{name} is not valid UTF-8"
                yield record


def _json_lines(shard: Shard) -> Iterator[Record]:
    """An object per line, with paths of images."""
    with shard.path.open("rb") as raw:
        shard.share = _share_read(shard, raw)
        file: Any = gzip.GzipFile(fileobj=raw) if shard.source.name.lower().endswith(".gz") else raw
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            error = f"line {number} is not an object"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as reason:  # nested deeper than Python's own limit
                record = None
                error = f"line {number} is not JSON ({reason})"
            # Only the last line has no end: a copy stopped there, and nobody would miss the rows behind it. A
            # broken line in the middle costs itself.
            if not isinstance(record, dict) and not line.endswith(b"\n"):
                raise shard.refuse(f"is cut off in line {number}")
            yield record if isinstance(record, dict) else {_ERROR: error}


def _share_read(shard: Shard, raw: IO[bytes]) -> Callable[[], float]:
    """The share of an open file that is read."""
    size = shard.path.stat().st_size

    def share() -> float:
        # Of the packed file: how long an unpacked one is shows only at its end.
        return 1.0 if raw.closed else raw.tell() / size

    return share


def _tar(shard: Shard) -> Iterator[Record]:
    """Members that are equal up to a dot are a row; extensions and fields of `.json` are columns."""
    split = split_of(shard)
    column_of = shard.columns
    used = {_JSON, *column_of.values()}
    texts = {_JSON, column_of.get("caption")}
    record: Record = {}
    with shard.path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        shard.share = _share_read(shard, raw)
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps a list of all
            key, extension = split(member.name)
            if not is_in_record(member, key, extension):
                continue
            # Members of a row follow each other, as webdataset reads them, so that one row is in memory. A
            # key or an extension that comes again begins another row.
            if record and (key != record[_KEY] or extension in record):
                yield _with_fields(record)
                record = {}
            record.setdefault(_KEY, key)
            is_text = extension in texts or _may_hold(extension, "caption")
            if not (is_text or extension in used or _is_needed(extension, shard.needed)):
                record[extension] = None  # named where a column is missing, but not read
            elif member.size > LONGEST_FILE:  # by its header, before it is in memory
                record[_ERROR] = f"{member.name} has {member.size:,} bytes, too many"
            else:
                content: Any = tar.extractfile(member)
                data = content.read()
                record[extension] = _text(data) if is_text else {"bytes": data, "path": member.name}
        # tarfile takes a damaged header, or the end of the file, for the archive's end: only zeros.
        file: Any = tar.fileobj
        file.seek(tar.offset)
        if file.read(512) != bytes(512) or any(map(any, iter(partial(file.read, 1 << 20), b""))):
            raise shard.refuse("is cut off, joined or damaged (it does not end as a tar ends)")
        if record:
            yield _with_fields(record)


def is_in_record(member: tarfile.TarInfo, key: str, extension: str) -> bool:
    """Whether a member, whose name is split like this, belongs to a row."""
    # Links and devices are not followed, wherever they lead. `._a.jpg`, as macOS adds it, has no key.
    return member.isfile() and bool(key) and bool(extension)


Split = Callable[[str], tuple[str, str]]
"""The key and the extension of a member's name."""


def split_of(shard: Shard) -> Split:
    """The split of members' names: as webdataset does, or at the last dot where only that makes rows.

    Names such as `22.00.jpg` and `22.00.txt` have no extension that is known behind their first dot.
    """
    with tarfile.open(shard.path, "r:*") as tar:
        names = [member.name for member in islice(tar, 4 * _LOOKED_AT) if member.isfile()]
    # A column that a user names may have any extension, and references, as lists, stand in a `.json`.
    roles = [role for role in shard.needed if role not in shard.columns and role != "references"]
    if not roles:
        return _at_first_dot
    rows = defaultdict[str, list[str]](list)  # extensions by key, at the last dot
    for name in names:
        _, extension = _at_first_dot(name)
        # One that is known is enough: webdataset's own split is left only where it makes no row at all.
        if extension == _JSON or _is_needed(extension, roles):
            return _at_first_dot
        key, last_extension = _at_last_dot(name)
        rows[key].append(last_extension)
    for extensions in rows.values():
        if all(_JSON in extensions or columns_named(extensions, role) for role in roles):
            return _at_last_dot
    return _at_first_dot


def _at_first_dot(name: str) -> tuple[str, str]:
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return (f"{folder}{slash}{stem}" if stem else ""), extension.lower()


def _at_last_dot(name: str) -> tuple[str, str]:
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.rpartition(".")
    # A hidden file, as other systems add them, is not a row.
    return (f"{folder}{slash}{stem}" if stem and file[0] != "." else ""), extension.lower()


def _is_needed(extension: str, roles: Iterable[str]) -> bool:
    return any(_may_hold(extension, role) for role in roles)


@lru_cache(1024)  # asked of every member of a tar, which have a handful of extensions
def _may_hold(extension: str, role: str) -> bool:
    return bool(columns_named([extension], role))


def _text(data: bytes) -> str | bytes:
    """A text without the line's end; the bytes where they are not UTF-8, which the metric refuses."""
    # Without a byte order mark, which editors on Windows write, and which would be a token of the caption.
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return data


def _with_fields(record: Record) -> Record:
    """A record with the fields of its `.json`."""
    try:
        fields = json.loads(record.get(_JSON, ""))
    # A picture and a caption of members of their own make the row without it; else a column is missing.
    except (ValueError, TypeError, RecursionError):
        return record
    return {**fields, **record} if isinstance(fields, dict) else record


FORMATS: dict[str, Callable[[Shard], Iterator[Record]]] = {
    **dict.fromkeys((".parquet", ".pq"), _parquet),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), _tar),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _json_lines),
}
"""Readers of shards by the endings of their names."""
