"""A real disk of 64 KB that can be filled or made read-only, where the system lets a test mount one."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    place.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no program to mount a small disk with")
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted, which takes root on Linux ({made.stderr.strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> None:
    """Write until nothing fits any more."""
    with pytest.raises(OSError, match="No space left"), (place / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond so many bytes, as one that fills up in the middle of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
