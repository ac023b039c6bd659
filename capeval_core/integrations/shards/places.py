"""Places where shards and their outputs lie: files and folders, local or in object stores."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from capeval_core.errors import FileError, file_error, wrong_option
from capeval_core.inputs.images import short_reason
from capeval_core.store import remove_unfinished, whole_file


@dataclass(frozen=True)
class Place:
    """A file or folder, local or in an object store: a file system, and the whole path on it."""

    filesystem: Any
    path: str

    @classmethod
    def of(cls, argument: str, value: str | PathLike[str]) -> Place:
        """The place that a path or an address such as `s3://bucket/00000.tar` means; nothing is looked at."""
        try:
            return cls(*fsspec.core.url_to_fs(os.fspath(value)))
        except (ImportError, ValueError) as error:  # says which package is to be installed, or what is known
            raise wrong_option(argument, value, f"is not an address that can be opened ({error})") from error

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def address(self) -> str:
        """The address, as `of` takes it in this and in other processes."""
        # fsspec makes local paths absolute: workers may have other current folders.
        return self.path if self.is_local else str(self.filesystem.unstrip_protocol(self.path))

    @property
    def identity(self) -> str:
        """The address with links followed."""
        return os.path.realpath(self.path) if self.is_local else self.address.rstrip("/")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Place:
        return Place(self.filesystem, self.path.rpartition("/")[0])

    def child(self, name: str) -> Place:
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def matching(self) -> list[Place]:
        """The files that this path, or pattern, matches, by name."""
        with self.reading():
            self.filesystem.invalidate_cache()  # what others have written since counts
            exact = self.filesystem.isfile(self.path)  # its name may have brackets
            paths = [self.path] if exact else filter(self.filesystem.isfile, self.filesystem.glob(self.path))
            # A listing has the file system's order; merged rows and duplicates are in that of names.
            return [Place(self.filesystem, path) for path in sorted(paths)]

    def is_folder(self) -> bool:
        """True for a folder; in an object store, for an address with something below it."""
        with self.reading():
            return bool(self.filesystem.isdir(self.path))

    def version(self) -> str:
        """The state of the file, size and time or the store's tag, which changes with it; '' if unknown."""
        with self.reading():
            info = self.filesystem.info(self.path)
        if info["type"] != "file":
            raise file_error(self.address, f"is not a regular file ({info['type']})", "pass a file")
        names = ("size", "mtime", "ino", "ETag", "etag", "md5Hash")  # what file systems tell of a file
        facts = [f"{name}={info[name]}" for name in names if info.get(name) is not None]
        # A size alone is no state: a file that was written again may have the same.
        return " ".join(facts) if len(facts) > 1 else ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let what fails in the block, which reads it, be a FileError that names it."""
        try:
            yield
        # A FileError names its file already; what is too large for memory is nothing wrong with the file.
        except (FileError, MemoryError):
            raise
        except FileNotFoundError:
            raise file_error(self.address, "does not exist", "check the path") from None
        except Exception as error:  # whatever the store's client raises: no bucket, no rights, no network
            raise file_error(self.address, f"cannot be read ({reason_of(error)})") from error

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """The file on a local disk: itself, or a temporary copy."""
        if self.is_local:
            yield Path(self.path)
            return
        # Whole: a shard is read twice, for its checksum and for its rows, and Parquet from its end.
        with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
            copy = Path(folder, "shard")
            with self.reading():
                self.filesystem.get_file(self.path, str(copy))
            yield copy

    @contextmanager
    def whole(self) -> Iterator[Path]:
        """A local file for the block to write, which then appears here as a whole, or OSError not at all."""
        try:
            if self.is_local:
                parent = Path(self.path).parent
                parent.mkdir(parents=True, exist_ok=True)
                remove_unfinished(parent)  # what a killed run has left, as nothing else would
                with whole_file(Path(self.path)) as partial:
                    yield partial
                return
            with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
                copy = Path(folder, "shard")
                yield copy
                # A store shows an upload when it is complete.
                try:
                    self.filesystem.put_file(str(copy), self.path)
                except Exception as error:  # whatever the store's client raises
                    raise OSError(reason_of(error)) from error
        except OSError as error:
            raise OSError(f"{self.address} cannot be written ({reason_of(error)})") from error


def reason_of(error: BaseException) -> str:
    """The reason of an error about a file that the message names already."""
    return getattr(error, "strerror", None) or short_reason(error)


def files_in(folder: Place) -> list[Place]:
    """All files in a folder, by name; none where there is no such folder."""
    # Escaped: a folder may be named `scores[1]`.
    return Place(folder.filesystem, f"{glob.escape(folder.path.rstrip('/'))}/*").matching()
