"""Atomic file writes, and stamped folders of tables.

folder/
    00000001764322000000-<digest>.parquet     named by the time of writing and a digest of the content;
    00000001764322060000-<digest>.parquet     its metadata hold the stamp: all that its rows depend on
    .<random>.partial                         unfinished: a kill leaves it, the next run removes it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from capeval_core.errors import expanded_path, warn, wrong_option

PARTIAL = ".partial"  # how names of unfinished files and folders end
STAMP = b"capeval_stamp"  # in the metadata of a file's schema
_NAME = re.compile(r"\d{20}-([0-9a-f]{32})\.(?:parquet|arrow)")  # time of writing, digest of the file
_DIGEST_BYTES = 16
_MOST_BYTES = 256 << 20  # that wait to be written


class DamagedError(ValueError):
    """A file that does not hold a table as it was written; the message continues after its path."""


@dataclass(eq=False)
class TableStore:
    """Tables in a folder, for the next run. A kill costs what was not flushed yet, damage its own file.

    Every file holds the stamp, all that its rows depend on, and is refused with another one; its name has the
    time and a digest of it. A disk that fills up costs one warning: from then on nothing more is written.
    """

    folder: Path
    stamp: Mapping[str, Any]
    argument: str  # what messages call the folder
    most_rows: int = 65_536  # after which they are written, or after the seconds
    most_seconds: float = 60.0
    mapped: bool = False  # Arrow files, of which only the rows that are used take memory, not Parquet
    required: bool = False  # whether a disk that cannot be written is an OSError

    def __post_init__(self) -> None:
        self.stamp = json.loads(json.dumps(self.stamp))  # as it will be read: tuples become lists
        self._written_at = time.monotonic()
        self._suffix = ".arrow" if self.mapped else ".parquet"
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._writable = True

    def tables(self) -> Iterator[pa.Table]:
        """The tables of all files, in the order of writing; a damaged one is left out with a warning."""
        for path in sorted(self.folder.glob(f"*{self._suffix}")):
            try:
                table, stamp = read_kept(path)
            except DamagedError as error:
                fix = "what it held is computed again, and the file can be deleted"
                warn(f"{self.argument}: {path} {error}: {fix}")
                continue
            if stamp != self.stamp:
                problem = f"holds {path.name} of other settings ({stamp_difference(stamp, self.stamp)})"
                fix = "pass another folder, or the same settings"
                raise wrong_option(self.argument, str(self.folder), problem, fix)
            yield table

    def append(self, table: pa.Table) -> None:
        """Keep a table, which is on the disk after `flush`, or when enough rows or seconds have come."""
        self._waiting.append(table)
        self._waiting_rows += len(table)
        self._waiting_bytes += table.nbytes
        full = self._waiting_rows >= self.most_rows or self._waiting_bytes >= _MOST_BYTES
        if full or time.monotonic() - self._written_at > self.most_seconds:
            self.flush()

    def flush(self) -> None:
        """Write the tables that wait, as one file."""
        if self._waiting and self._writable:
            try:
                self._write(pa.concat_tables(self._waiting))
            except OSError as error:
                place = f"{self.argument}={str(self.folder)!r}"
                problem = f"{place} cannot be written any more ({error.strerror})"
                # Features that a training reads again cannot be left out; rows are in memory as well.
                if self.required:
                    raise OSError(
                        f"{problem}: existing files are kept, and the next run resumes from them"
                    ) from error
                self._writable = False
                warn(f"{problem}: new rows are in memory only, and a later run computes them again")
            self._written_at = time.monotonic()
        # Also where nothing could be written: they would fill the memory.
        self._waiting = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def _write(self, table: pa.Table) -> None:
        # In memory first: the name holds the digest of the whole file.
        table = table.replace_schema_metadata({STAMP: json.dumps(self.stamp)}).combine_chunks()
        sink = pa.BufferOutputStream()
        if self.mapped:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        else:
            import pyarrow.parquet as pq

            pq.write_table(table, sink)
        content = sink.getvalue()
        # 20 digits, so that the order of names is that of time.
        name = f"{time.time_ns():020d}-{digest_of(content)}{self._suffix}"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / name, memoryview(content))


def stamp_difference(stamp: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """The settings in which two stamps differ, in words; "" where they are equal."""
    differences = []
    for name in {**stamp, **current}:
        if stamp.get(name) != current.get(name):
            differences.append(f"{name}: {stamp.get(name)!r} there, {current.get(name)!r} now")
    return "; ".join(differences)


def read_kept(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """The table of a file, and the stamp that it was made with. Raises DamagedError."""
    named = _NAME.fullmatch(path.name)
    if named is None or not path.is_file():
        raise DamagedError("is no file of this kind by its name")
    try:
        content = pa.memory_map(str(path)).read_buffer()
        # Parquet has no digest of its own by default: a flipped bit in a number would be read as a number.
        if digest_of(content) != named[1]:
            raise DamagedError("is damaged (its digest is not the one in its name)")
        if path.suffix == ".arrow":
            table = pa.ipc.open_file(content).read_all()
        else:
            import pyarrow.parquet as pq

            table = pq.read_table(pa.BufferReader(content))
        return table.replace_schema_metadata(), dict(json.loads(table.schema.metadata[STAMP]))
    except (pa.ArrowException, OSError, TypeError, KeyError) as error:
        raise DamagedError(f"cannot be read ({error})") from error


def digest_of(content: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def seal(path: Path) -> None:
    """Append a digest of its content to a file; formats that are read from their end, as zip, allow that."""
    digest = digest_of(pa.memory_map(str(path)).read_buffer())
    with path.open("ab") as file:
        file.write(bytes.fromhex(digest))


def check_seal(path: Path) -> None:
    """Raise DamagedError where a file is not as `seal` left it."""
    content = pa.memory_map(str(path)).read_buffer()
    digest = content[-_DIGEST_BYTES:].to_pybytes().hex()
    if digest_of(content[:-_DIGEST_BYTES]) != digest:
        raise DamagedError("it is damaged: its digest is not the one at its end")


def check_folder(argument: str, path: str | os.PathLike[str]) -> Path:
    """The folder that an option means, if it is one of tables, or can become one; it writes nothing."""
    folder = Path(path)
    refusal = partial(wrong_option, argument, str(folder))
    try:
        if folder.is_file():
            raise refusal("is a file", "pass a folder")
        names = []
        if folder.is_dir():
            for file in folder.iterdir():
                if file.suffix != PARTIAL and not file.is_dir():
                    names.append(file.name)
        if any(map(_NAME.fullmatch, names)):
            return folder
        if names:
            raise refusal(f"is a folder of something else ({min(names)})", "pass an empty or new one")
        try_writing(folder)
    except OSError as error:
        raise refusal(
            f"nothing can be written there ({error.strerror})", "pass another folder", sentence=True
        ) from error
    return folder


def write_whole(path: Path, content: bytes | memoryview | str) -> None:
    """Write a file under another name and rename it: whatever fails, an existing file stays as it was.

    The content is on the disk before the name is. A link stays a link, to the new content; permissions stay.
    An existing pipe or device is written to.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a pipe or a device, which cannot be replaced
        path.write_bytes(data)
        return
    with whole_file(path) as unfinished:
        unfinished.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new file in the same folder for the block to write, which then replaces a file; see `write_whole`."""
    target = Path(os.path.realpath(path))  # a link stays a link, to the new content
    unfinished = target.with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    try:
        with _locked(unfinished):
            yield unfinished
            # The content before the name: after a power cut a name must not be that of an empty file.
            _sync(unfinished)
            _move(unfinished, target)
    except OSError as error:
        _name(error, unfinished, path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A new file that is locked within the block; a kill ends the lock."""
    while True:
        with path.open("xb") as file:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():  # not removed before it was locked
                yield
                return


def remove_unfinished(folder: Path) -> None:
    """Remove files that `whole_file` had not finished in a folder when its process was killed."""
    for path in folder.glob(f".*{PARTIAL}"):
        # Whatever fails, the file stays: another process writes it, or it is gone, or cannot be locked.
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder for the block to write files to, which then become files of `folder`."""
    name = f".{uuid.uuid4().hex}{PARTIAL}"
    # An existing folder may be a mount or the one that the user is in: its files change, not the folder.
    unfinished = folder / name if folder.is_dir() else folder.with_name(name)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        for path in (*unfinished.rglob("*"), unfinished):
            _sync(path)
        if folder.is_dir():
            for file in unfinished.iterdir():
                _move(file, folder / file.name)
        else:
            _move(unfinished, folder)
    except OSError as error:
        _name(error, unfinished, folder)
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _name(error: OSError, unfinished: Path, path: Path) -> None:
    """Let an error name the user's path: a full disk names none, and an unfinished file is unknown to him."""
    named = "" if error.filename is None else os.fsdecode(error.filename)
    if not named or named.startswith(os.fspath(unfinished)):
        below = named.removeprefix(os.fspath(unfinished))
        error.filename = os.fspath(path) + below


def cache_home() -> Path:
    """The folder of everything that is remembered between runs: `CAPEVAL_CACHE`, else `~/.cache/capeval`."""
    return expanded_path(os.environ.get("CAPEVAL_CACHE", "~/.cache/capeval"))


def try_writing(folder: Path) -> None:
    """Write some bytes into a folder, or where it would be made, and remove them. Raises OSError."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    # Permissions alone do not tell: the disk may be full, the file system mounted for reading.
    with tempfile.TemporaryFile(dir=existing) as probe:
        probe.write(bytes(4096))


def _move(path: Path, target: Path) -> None:
    if target.exists():
        shutil.copymode(target, path)  # which a new file has by the umask
    path.replace(target)
    _sync(target.absolute().parent)


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # file systems that cannot do so with folders do not need it
            raise
    finally:
        os.close(descriptor)
