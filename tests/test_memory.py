"""Memory that is given back while a run goes on."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes
from pathlib import Path
from capeval_core.memory import FreedMemory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(2000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
for place, piece in enumerate(pieces):
    if place % 16 != 15:  # what stays holds the others in the heap
        libc.free(piece)
before = resident()
memory = FreedMemory()
memory.add(10)
few = before - resident()
memory.add(10_000)
print(few >> 20, (before - resident()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no such holes")
def test_holes_between_what_stays_are_given_back_after_many_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    few, many = map(int, done.stdout.split())
    assert abs(few) < 10 and many > 80, done  # of 107 MB
