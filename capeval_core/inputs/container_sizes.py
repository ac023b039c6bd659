"""The size that a WebM, Matroska or AVI file states of itself: one that ends before was cut off."""

from __future__ import annotations

import io
from typing import IO

_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_UNKNOWN = 0xFFFFFFFF
"""The size in an AVI that was never finished; it may be 0, too."""


def ends_early(file: IO[bytes]) -> bool:
    """Whether an open file ends before its container does.

    False where the container states no size, as in a stream that was recorded live, and of other formats.

    >>> whole = b"RIFF" + (12).to_bytes(4, "little") + b"AVI " + bytes(8)
    >>> ends_early(io.BytesIO(whole)), ends_early(io.BytesIO(whole[:-1]))
    (False, True)
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    start = file.read(4)
    if start == _EBML:
        return _end_of_segment(file, size) > size
    end = 0
    while start == b"RIFF":  # large files have several
        length = int.from_bytes(file.read(4), "little")
        if length in (0, _UNKNOWN):
            return False
        end += 8 + length
        if end > size:
            return True
        end += length % 2
        file.seek(end)
        start = file.read(4)
    return False


def _end_of_segment(file: IO[bytes], size: int) -> int:
    """Where the segment, which holds all but the header, ends by its own size; 0 if that is not known."""
    file.seek(4)
    length = _number(file)
    while length is not None and file.tell() + length < size:
        file.seek(length, io.SEEK_CUR)
        kind = file.read(4)
        if kind == _SEGMENT:
            length = _number(file)
            return 0 if length is None else file.tell() + length
        if not kind or kind[0] != 0xEC:  # of room that is left free
            break
        file.seek(-3, io.SEEK_CUR)
        length = _number(file)
    return 0


def _number(file: IO[bytes]) -> int | None:
    """A number of EBML: zeros before its first set bit say how many bytes follow; None: it is not known."""
    first = (file.read(1) or b"\0")[0]
    if not first:
        return None
    more = 8 - first.bit_length()
    number = int.from_bytes(bytes([first ^ (1 << (7 - more))]) + file.read(more), "big")
    return None if number == (1 << 7 * (more + 1)) - 1 else number
