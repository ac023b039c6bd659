"""Small files of images with so many parts that counting or decoding them would take minutes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from capeval_core.inputs.decoding import COMMENT_BLOCKS, FEW, SCANS
from capeval_core.inputs.visual import InputImage
from tests.inputs.photographs import encoded, photograph
from tests.inputs.test_formats import complaint

ANIMATED = "has more than one frame: save one of them as an image"


class Counted(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


def tiff(directories: int) -> bytes:
    """Of one image and as many directories, one after the other."""
    tags = {256: 64, 257: 64, 258: 8, 259: 1, 262: 1, 273: 0, 277: 1, 278: 64, 279: 4096}
    length = 2 + 12 * len(tags) + 4
    tags[273] = 8 + directories * length
    data = b"II*\0" + struct.pack("<I", 8)
    for number in range(1, directories + 1):
        entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
        following = 8 + number * length if number < directories else 0
        data += struct.pack("<H", len(tags)) + b"".join(entries) + struct.pack("<I", following)
    return data + bytes(range(256)) * 16


def gif(frames: int, comments: bytes = b"") -> bytes:
    header = b"GIF89a" + struct.pack("<HHBBB", 64, 64, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x4c\x01\x00"
    return header + comments + frame * frames + b";"


def comment(blocks: int) -> bytes:
    return b"!\xfe" + b"\x01x" * blocks + b"\0"


def jpeg(scans: int) -> bytes:
    """A progressive one, whose last scan is there as often as asked for."""
    data = encoded(photograph(), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (scans - data.count(b"\xff\xda")) + b"\xff\xd9"


def png(chunks: int, kind: bytes = b"tEXt", content: bytes = b"k\0x") -> bytes:
    data = encoded(photograph(), "PNG")
    chunk = struct.pack(">I", len(content)) + kind + content
    return data[:33] + (chunk + struct.pack(">I", zlib.crc32(chunk[4:]))) * chunks + data[33:]


@pytest.mark.parametrize("make", [tiff, gif])
def test_frames_are_not_counted(make: Callable[[int], bytes]) -> None:
    for frames in (2, 2_000):
        assert complaint(make(frames)).endswith(ANIMATED)
        file = Counted(make(frames))
        with Image.open(file) as decoded:
            assert complaint(decoded).endswith(ANIMATED)
        assert file.reads < 500
    with Image.open(io.BytesIO(make(1))) as decoded:
        expected = decoded.copy().tobytes()
    for value in (make(1), Image.open(io.BytesIO(make(1)))):
        image = InputImage.of(value)
        image.check()
        assert image.load().tobytes() == expected


def test_a_jpeg_of_too_many_scans() -> None:
    assert complaint(jpeg(SCANS + 1)).endswith(
        "has more than 100 scans, which would take minutes: save it again as a plain image"
    )
    assert InputImage.of(jpeg(SCANS)).load().size == (96, 64)


def test_what_looks_like_a_scan_is_none() -> None:
    """In a thumbnail, in metadata, and in the film that phones put behind a photograph."""
    data = encoded(photograph(), progressive=True)
    false = b"\xff\xda\0\x08" * 10_000
    inside = b"\xff\xfe" + struct.pack(">H", len(false) + 2) + false
    found = InputImage.of(data[:2] + inside + data[2:] + false).load()
    with Image.open(io.BytesIO(data)) as expected:
        assert found.tobytes() == expected.tobytes()


def test_bytes_between_segments_hide_no_scan() -> None:
    for between in (b"\xff", b"\0\0", b"\xff\xd0", b"\xff\0ab"):
        data = jpeg(SCANS + 1)
        assert "more than 100 scans" in complaint(data.replace(b"\xff\xda", between + b"\xff\xda"))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (jpeg(20)[:2] + b"\xff\xfe\0\2" * FEW + jpeg(20)[2:], "more than 1,000 segments"),
        (png(FEW), "more than 1,000 chunks"),
        (png(FEW, b"IDAT", b""), "more than 1,000 chunks"),
        (png(8 * FEW), "more than 1,000 chunks"),
        (gif(1, comment(COMMENT_BLOCKS + 1)), "a comment of more than 1,000 blocks"),
        (gif(1, comment(1) * (COMMENT_BLOCKS + 1)), "a comment of more than 1,000 blocks"),
    ],
)
def test_too_many_small_parts(data: bytes, found: str) -> None:
    assert f"has {found}, which would take minutes" in complaint(data)


@pytest.mark.parametrize(
    "data", [png(FEW - 10), png(2 * FEW, content=b"k\0" + bytes(512)), gif(1, comment(COMMENT_BLOCKS))]
)
def test_many_parts_that_are_not_too_many(data: bytes) -> None:
    InputImage.of(data).check()
