"""sha256 of large files, remembered while a file does not change."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

_SETTLED = 2.0
"""Seconds after which a further change shows in a file's modification time on any file system."""


def file_checksum(path: Path) -> str:
    """sha256 of a file, in hexadecimal; computed once per (path, size, modification time) and remembered."""
    stat = path.stat()
    if time.time() - stat.st_mtime < _SETTLED:
        return sha256_of(path)
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = Path(os.environ.get("CAPEVAL_CACHE", "~/.cache/capeval")).expanduser() / "checksums"
    note = memory / hashlib.sha256(key.encode()).hexdigest()
    try:
        remembered = note.read_text()
        if len(remembered) == 64:
            return remembered
    except OSError:
        pass
    checksum = sha256_of(path)
    try:
        memory.mkdir(parents=True, exist_ok=True)
        note.write_text(checksum)
    except OSError:
        pass  # A read-only home costs a second hashing, nothing else.
    return checksum


def sha256_of(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
