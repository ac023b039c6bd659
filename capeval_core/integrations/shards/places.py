"""Where shards lie: local files, and object stores through fsspec."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec

from capeval_core.errors import NUL, FileError, file_problem, wrong_option
from capeval_core.project import install_command
from capeval_core.values import described, has_nul
from capeval_core.writing import whole_file

_PART = 8 << 20  # bytes read at a time
_INSTALL = {"s3": install_command("s3"), "gs": "pip install gcsfs", "gcs": "pip install gcsfs"}


@dataclass(frozen=True)
class Place:
    """A file on a local disk or in an object store; an address such as `s3://bucket/00000.tar` is one."""

    address: str
    filesystem: Any
    path: str
    """On its file system."""

    @classmethod
    def of(cls, argument: str, value: Any) -> Place:
        """The place that a path or an address means; nothing is looked at.

        Raises:
            TypeError, ValueError: it is none, or the package for its protocol is missing.
        """
        if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
            fix = "expected a path, or an address such as s3://bucket/00000.tar"
            raise wrong_option(argument, value, described(value), fix, kind=TypeError)
        address = os.fspath(value)
        if not address:
            raise wrong_option(argument, address, "empty", "pass the path of a file")
        if has_nul(address):
            raise wrong_option(argument, address, *NUL, verb="has")
        try:
            filesystem, path = fsspec.core.url_to_fs(address)
        except ImportError as error:
            protocol = address.partition("://")[0]
            install = _INSTALL.get(protocol, f"install fsspec's package for {protocol}")
            found = f"its package is missing ({error}): {install}"
            raise wrong_option(argument, address, found, verb="") from error
        except ValueError as error:
            raise wrong_option(argument, address, f"no address of fsspec's ({error})") from error
        return cls(address, filesystem, path)

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return "file" in _protocols(self.filesystem)

    @property
    def parent(self) -> Place:
        """The folder that it is in."""
        path = self.path.rpartition("/")[0]
        address = self.address.rpartition("/")[0] if "://" in self.address else path
        return Place(address, self.filesystem, path)

    @property
    def real(self) -> Place:
        """The file itself where this is a link."""
        if not self.is_local:
            return self
        path = os.path.realpath(self.path)
        return Place(path, self.filesystem, path)

    def child(self, name: str) -> Place:
        """A file in this folder."""
        path = f"{self.path.rstrip('/')}/{name}"
        address = f"{self.address.rstrip('/')}/{name}" if self.address.strip("/") else path
        return Place(address, self.filesystem, path)

    def names(self) -> list[str]:
        """The names of all files in this folder, sorted.

        Raises:
            FileError: there is no such folder.
        """
        try:
            self.filesystem.invalidate_cache()  # what others have written since counts
            found = self.filesystem.ls(self.path, detail=True)
        except FileNotFoundError:
            raise FileError(file_problem(self.address, "does not exist", "check the path")) from None
        except Exception as error:
            raise self.unreadable(error) from error
        if [one["name"] for one in found if one["type"] == "file"] == [self.path]:
            raise FileError(file_problem(self.address, "is a file", "pass the folder"))
        files = [one["name"] for one in found if one["type"] == "file" or Path(one["name"]).is_file()]
        return sorted(name.rpartition("/")[2] for name in files)

    @property
    def identity(self) -> str:
        """One text for a file or folder, however it is spelled: its whole path without links, or address."""
        if self.is_local:
            return os.path.realpath(self.path)
        return str(self.filesystem.unstrip_protocol(self.path.rstrip("/")))

    def is_same(self, other: Place) -> bool:
        """Whether both are one file, links followed."""
        return self.identity == other.identity

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rstrip("/").rpartition("/")[2]

    def version(self) -> str:
        """What changes when the file does: size and time, or the store's tag; '' where it has none.

        Raises:
            FileError: there is no such file.
        """
        try:
            info = self.filesystem.info(self.path)
        except FileNotFoundError:
            raise FileError(file_problem(self.address, "does not exist", "check the path")) from None
        except Exception as error:  # whatever the store's client raises: no bucket, no rights, no network
            raise self.unreadable(error) from error
        if info["type"] != "file":
            found = "is a folder" if info["type"] == "directory" else "is no regular file"
            raise FileError(file_problem(self.address, found, "pass a file"))
        facts = {name: info.get(name) for name in ("size", "mtime", "ino", "ETag", "etag", "md5Hash")}
        known = [f"{name}={value}" for name, value in facts.items() if value is not None]
        return " ".join(known) if len(known) > 1 else ""

    def exists(self) -> bool:
        """Whether there is such a file."""
        try:
            return bool(self.filesystem.exists(self.path))
        except Exception as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: BaseException) -> FileError:
        """The error of a file that cannot be read, to be raised."""
        return FileError(file_problem(self.address, f"cannot be read ({reason_of(error)})"))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Let what fails in the block, which writes the file, be an OSError that names it."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:  # Arrow's, the system's, or whatever the store's client raises
            raise OSError(f"{self.address} cannot be written ({reason_of(error)})") from error

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """The file on a local disk: itself, or a temporary copy."""
        if self.is_local:
            yield Path(self.path)
            return
        with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
            copy = Path(folder, "shard")
            try:
                self.filesystem.get_file(self.path, str(copy))
            except Exception as error:
                found = f"cannot be copied to {folder} ({reason_of(error)})"
                raise FileError(file_problem(self.address, found)) from error
            yield copy

    @contextlib.contextmanager
    def whole(self) -> Iterator[Path]:
        """A local file for the block to write, which then appears at this place as a whole or not at all.

        On a local disk it is written beside, synced and renamed; anywhere else it is written to the temporary
        folder and goes up in one upload, which object stores show when it is complete.

        Raises:
            OSError: it cannot be written.
        """
        if self.is_local:
            target = Path(self.path)
            with self.writing():
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_dir():
                    raise IsADirectoryError(errno.EISDIR, "it is a folder")
            with whole_file(target) as partial:
                yield partial
            return
        with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
            partial = Path(folder, "shard")
            yield partial
            with self.writing():
                self.filesystem.put_file(str(partial), self.path)


def checksum(file: IO[bytes]) -> str:
    """The SHA-256 of an open file, which is never in memory as a whole."""
    digest = hashlib.sha256()
    while part := file.read(_PART):
        digest.update(part)
    return digest.hexdigest()


def reason_of(error: BaseException) -> str:
    """An error of any package in one short line."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return reason[:200] or type(error).__name__


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
