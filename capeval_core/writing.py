"""Files, and folders of files, that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""How names of unfinished files and folders end."""


def write_whole(path: Path, content: bytes | memoryview | str, *, into_pipes: bool = False) -> None:
    """Write a file under another name and rename it: whatever fails, an existing file stays as it was.

    The content is on the disk before the name is. A link stays a link, to the new content; permissions stay.
    `into_pipes`: an existing pipe or device is written to; otherwise it is an OSError.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        if not into_pipes:  # it could block for ever, or never be full
            raise FileExistsError(errno.EEXIST, "it is no regular file", str(path))
        path.write_bytes(data)
        return
    with whole_file(path) as partial, partial.open("wb") as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new file beside for the block to write, which then takes the place of a file; see `write_whole`."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    _sync_names(target.parent)


def try_writing(folder: Path) -> None:
    """Write some bytes into a folder, or where it would be made, and remove them. Raises OSError."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    with tempfile.TemporaryFile(dir=existing) as probe:
        probe.write(bytes(4096))


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder for the block to write files to, which then become files of `folder`."""
    name = f".{uuid.uuid4().hex}{PARTIAL}"
    # An existing folder may be a mount or the one that the user is in: its files change, not the folder.
    partial = folder / name if folder.is_dir() else folder.with_name(name)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in filter(Path.is_file, partial.rglob("*")):
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        _sync_names(partial)
        if folder.is_dir():
            for file in partial.iterdir():
                if (folder / file.name).exists():
                    shutil.copymode(folder / file.name, file)
                file.replace(folder / file.name)
            _sync_names(folder)
        else:
            partial.rename(folder)
            _sync_names(folder.absolute().parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync_names(folder: Path) -> None:
    """Have a folder's names on the disk."""
    if os.name == "nt":  # Windows opens no folders
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # file systems that cannot do so do not need it
            os.fsync(opened)
    finally:
        os.close(opened)
