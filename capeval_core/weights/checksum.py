"""sha256 of large files, remembered while a file does not change."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

_SETTLED = 2.0
"""Seconds after which a further change shows in a file's times on any file system."""


def file_checksum(path: Path, *, remembered: bool = True) -> str:
    """sha256 of a file, in hexadecimal; computed once and remembered while the file stays as it is.

    A change shows in the file's path, device, inode, size, modification time, or status change time. The last
    one is set by the system alone: whoever writes into a file and puts its modification time back moves it.
    A file that changed just now is always read, since a second change may not show in the times.

    Args:
        path: of the file.
        remembered: False: read the file, whatever is remembered.
    """
    stat = path.stat()
    settled = time.time() - max(stat.st_mtime, stat.st_ctime) >= _SETTLED
    place = f"{path.resolve()}|{stat.st_dev}|{stat.st_ino}"
    key = f"{place}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
    memory = Path(os.environ.get("CAPEVAL_CACHE", "~/.cache/capeval")).expanduser() / "checksums"
    note = memory / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    if settled and remembered and (known := _read(note)):
        return known
    checksum = sha256_of(path)
    if settled:
        try:
            memory.mkdir(parents=True, exist_ok=True)
            note.write_text(checksum)
        except OSError:
            pass  # A read-only home costs a second hashing, nothing else.
    return checksum


def _read(note: Path) -> str | None:
    try:
        text = note.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text if re.fullmatch(r"[0-9a-f]{64}", text) else None


def sha256_of(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
