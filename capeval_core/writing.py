"""Files that are either there as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"
"""How names of files end that are not whole yet."""


def write_whole(path: Path, content: bytes | memoryview | str, *, into_pipes: bool = False) -> None:
    """Write a file beside its place and rename it: whatever fails, a file that was there stays as it was.

    The content is on the disk before the name is. A link stays one, to another content; permissions stay.

    Args:
        path: the file.
        content: a text is written in UTF-8.
        into_pipes: a pipe or a device that is there is written to; otherwise it is an error.

    Raises:
        OSError: it cannot be written. ValueError: a text that is not valid Unicode.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "scores.json"), "{}")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('scores.json', '{}')]
    """
    data = content.encode() if isinstance(content, str) else content
    if into_pipes and path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with whole(path) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside a file for the block to write to, which then takes the file's name; see `write_whole`.

    Raises:
        OSError: a pipe or a device has the name, which could block for ever or never be full; or it cannot be
            written.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is no regular file", str(path))
    place = Path(os.path.realpath(path))
    partial = place.with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, partial)
        partial.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync(place.parent)


def sync(path: Path) -> None:
    """Have a file's content, or a folder's names, on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError:
        if path.is_file():  # file systems that cannot do so for folders do not need it
            raise
    finally:
        os.close(opened)
