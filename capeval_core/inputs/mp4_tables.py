"""What the tables of an MP4 or MOV file state, before FFmpeg makes room for it.

FFmpeg keeps 24 bytes of each sample that a file states when it opens it, and again for each entry of a list
of edits. A file of 3 kB can state 100 million of them, of no bytes each.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from capeval_core.inputs.decoding import Refused

MOST_SAMPLES = 2**22
"""Samples times edits, unless the file has more bytes than that: FFmpeg takes 100 MB for so many."""
_OTHERS = (b"\x1aE\xdf\xa3", b"RIFF", b"GIF8")
_PLACES = {b"stsz": 8, b"stz2": 8, b"trun": 4, b"elst": 4}
"""Where the count of a box stands, behind its type: sizes of samples, runs of a fragment, edits."""
_COUNTED = re.compile(rb"(stsz|stz2|trun|elst)(?=.{12})", re.DOTALL)
_PIECE, _OVERLAP = 2**20, 15


@dataclass(frozen=True)
class Tables:
    """samples: those stated times edits. compressed: whether tables are compressed, which hides their counts.
    cut: where the fragment begins within whose tables the file ends; None: it ends elsewhere."""

    samples: int = 0
    compressed: bool = False
    cut: int | None = None


def read_tables(file: IO[bytes]) -> Tables:
    """The tables of an open file, which is put back to its start; none in a file of another format."""
    file.seek(0)
    other = file.read(4).startswith(_OTHERS)
    size = file.seek(0, io.SEEK_END)
    samples, edits, compressed, cut = 0, 1, False, None
    for kind, start, end in () if other else _boxes(file, size):
        if end > size and kind in (b"mo", b"moo", b"moof"):
            cut = start
        if kind == b"mdat":
            continue
        for piece in _pieces(file, start, min(end, size)):
            compressed = compressed or (kind == b"moov" and b"cmov" in piece)
            for found in _COUNTED.finditer(piece):
                place = found.end() + _PLACES[found[1]]
                count = int.from_bytes(piece[place : place + 4], "big")
                if found[1] == b"elst":
                    edits = max(edits, count)
                else:
                    samples += count
    file.seek(0)
    return Tables(samples * edits, compressed, cut)


def refuse_tables(tables: Tables, size: int, name: str) -> None:
    """Raise Refused for tables that state far more than a file of so many bytes can hold."""
    if tables.samples > max(size, MOST_SAMPLES):
        found = f"{name} has {size:,} bytes and states {tables.samples:,} samples"
        raise Refused(found, "it is damaged, or made to fill the memory")
    if tables.compressed:
        raise Refused(f"{name} has compressed tables", "write it again, e.g. by ffmpeg -c copy")


def _boxes(file: IO[bytes], size: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of each box of a file; the end of the last one may lie behind the file's."""
    start = 0
    while start < size:
        file.seek(start)
        header = file.read(16)
        if len(header) < 8:
            yield header[4:], start, start + 8
            return
        length, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:], "big")
        if length == 0:
            length = size - start
        if length < 8:
            return
        yield kind, start, start + length
        start += length


def _pieces(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    """The content of a box; a count with the name before it is whole in exactly one of the pieces."""
    for place in range(start, end, _PIECE):
        file.seek(place)
        yield file.read(min(_PIECE + _OVERLAP, end - place))
