"""Memory that is given back while a run goes on."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import capeval_core
from capeval_core import rows
from capeval_core.rows import FreedMemory

PROGRAM = """
import ctypes
from pathlib import Path
from capeval_core.rows import FreedMemory

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


def test_a_run_gives_memory_back_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(rows, "_malloc_trim", lambda: trims.append)
    grey = np.full((8, 8, 3), 128, "uint8")
    metric = capeval_core.load("clips", weights="tiny", device="cpu")
    metric.score(["a wall"] * 500, [grey] * 500)
    assert trims == []
    metric.score(["a wall"] * 1100, [grey] * 1100)
    assert trims and set(trims) == {0}


def test_rows_are_counted_anew_after_each_return(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[int] = []
    monkeypatch.setattr("capeval_core.rows._malloc_trim", lambda: returned.append)
    freed = FreedMemory()
    counts = []
    for count in (511, 1, 1, 510, 1):
        freed.add(count)
        counts.append(len(returned))
    assert counts == [0, 1, 1, 1, 2]
