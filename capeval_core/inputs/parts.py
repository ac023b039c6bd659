"""Files of images whose small parts are so many that opening or decoding them would take minutes."""

from __future__ import annotations

import re
from collections.abc import Iterator

SCANS = 100
"""Of a JPEG at most: each is decoded over the whole image. Progressive files have some ten."""
FEW = 1_000
"""Parts that any file may have: Pillow reads each in Python."""
SHORTEST = 256
"""Bytes that parts must have on average in files of more than `FEW`: encoders write kilobytes at a time."""
COMMENT_BLOCKS = 1_000
"""Of a GIF at most, each of up to 255 bytes: Pillow copies the comment once for each."""

_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_SCAN_END = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
_SOS, _EOI = 0xDA, 0xD9
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def crowded(data: bytes) -> str | None:
    """What the file of an image has too many of, in words; None where all is well, or for other formats."""
    most = max(FEW, len(data) // SHORTEST)
    if data.startswith(b"\xff\xd8"):
        scans = 0
        for number, marker in enumerate(_jpeg_markers(data)):
            scans += marker == _SOS
            if scans > SCANS:
                return f"more than {SCANS} scans"
            if number >= most:
                return f"more than {most:,} segments"
    elif data.startswith(b"\x89PNG"):
        for number, _ in enumerate(_png_chunks(data)):
            if number >= most:
                return f"more than {most:,} chunks"
    elif data.startswith(b"GIF8"):
        for number, _ in enumerate(_gif_comment_blocks(data)):
            if number >= COMMENT_BLOCKS:
                return f"a comment of more than {COMMENT_BLOCKS:,} blocks"
    return None


def _jpeg_markers(data: bytes) -> Iterator[int]:
    """Markers up to the end of the image, as libjpeg comes upon them: bytes between segments are skipped.

    Not a count of FF DA: metadata, thumbnails and the film behind a phone's photograph have these bytes too.
    """
    place, scan = 2, False
    while found := (_SCAN_END if scan else _JPEG_MARKER).search(data, place):
        marker, place = found[1][0], found.end()
        yield marker
        if marker == _EOI:
            return
        scan = marker == _SOS
        if marker not in _ALONE:
            place += int.from_bytes(data[place : place + 2], "big")


def _png_chunks(data: bytes) -> Iterator[int]:
    """Where each chunk begins."""
    place = 8
    while place + 8 <= len(data):
        yield place
        place += 12 + int.from_bytes(data[place : place + 4], "big")


def _gif_comment_blocks(data: bytes) -> Iterator[int]:
    """Where each block of a comment begins, before the second frame: an animation is refused anyway."""
    frames, place = 0, 13 + _colours(data[10:11])
    while frames < 2 and place < len(data):
        kind, label = data[place], data[place + 1 : place + 2]
        place += 1
        if kind == 0x2C:
            frames += 1
            place += 10 + _colours(data[place + 8 : place + 9])
        elif kind == 0x21:
            place += 1
        elif kind == 0x3B:
            return
        else:
            continue  # Pillow skips what it does not know
        while place < len(data) and data[place]:
            if kind == 0x21 and label == b"\xfe":
                yield place
            place += 1 + data[place]
        place += 1


def _colours(flags: bytes) -> int:
    """Bytes of the colour table that flags announce."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0
