"""Small video files to test with, made on the spot."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]

LOSSLESS = {"fmt": "matroska", "codec": "ffv1", "pix_fmt": "bgr0"}
FORMS: dict[str, dict[str, Any]] = {
    "mp4": {"fmt": "mp4", "codec": "libx264", "pix_fmt": "yuv420p", "container": {"movflags": "faststart"}},
    "webm": {"fmt": "webm", "codec": "libvpx-vp9", "pix_fmt": "yuv420p", "stream": {"cpu-used": "8"}},
    "avi": {"fmt": "avi", "codec": "mpeg4", "pix_fmt": "yuv420p"},
    "gif": {"fmt": "gif", "codec": "gif", "pix_fmt": "rgb8"},
    "mkv": LOSSLESS,
}


def drawn(count: int = 12, width: int = 48, height: int = 32) -> Frames:
    """(count, height, width, 3): the level of red counts the frames; the top right is green."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[..., 0] = np.linspace(0, 240, count).astype(np.uint8)[:, None, None]
    frames[:, : height // 2, width // 2 :] = (20, 200, 20)
    return frames


def numbers(images: Any, count: int = 12) -> list[int]:
    """Which frame of `drawn(count)` each image is."""
    return [round(float(np.asarray(image)[-8:, :8, 0].mean()) * (count - 1) / 240) for image in images]


def written(
    frames: Any,
    *,
    fmt: str,
    codec: str,
    pix_fmt: str,
    rate: int = 10,
    times: list[int] | None = None,
    container: dict[str, str] | None = None,
    stream: dict[str, str] | None = None,
) -> bytes:
    """A video file of frames (T, H, W, 3), at a rate, or at `times` in milliseconds."""
    import av

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video")
        with av.open(str(path), "w", format=fmt, options=container or {}) as file:
            out = file.add_stream(codec, rate=rate, options={"threads": "1", **(stream or {})})
            out.height, out.width, out.pix_fmt = *frames[0].shape[:2], pix_fmt
            if times is not None:
                out.codec_context.time_base = Fraction(1, 1000)
            for i, frame in enumerate(frames):
                one = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24")
                if times is not None:
                    one.pts, one.time_base = times[i], Fraction(1, 1000)
                file.mux(out.encode(one))
            file.mux(out.encode())
        return path.read_bytes()


@cache
def video(form: str = "mkv", count: int = 12) -> bytes:
    """A file of `drawn` frames, ten a second."""
    return written(drawn(count), **FORMS[form])


def turned(data: bytes, degrees: int) -> bytes:
    """An MP4 whose display matrix says that it is to be turned clockwise."""
    a, b, c, d = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees]
    matrix = [a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30]
    start = data.index(b"tkhd") + 4 + 40  # behind version, times, ids, layer and volume
    assert data[start : start + 4] == (1 << 16).to_bytes(4, "big")
    return data[:start] + b"".join(n.to_bytes(4, "big", signed=True) for n in matrix) + data[start + 36 :]


def chunk(data: bytes, number: int) -> tuple[int, int, bytes]:
    """Start, end and bytes of a frame of an AVI."""
    start = data.index(b"movi") + 4
    for _ in range(number + 1):
        start = data.index(b"00dc", start)
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        end = start + 8 + size + size % 2
        found = (start, end, data[start:end])
        start = end
    return found


def damaged_frame(data: bytes, number: int) -> bytes:
    """An AVI of which the second half of a frame is zeros."""
    start, end, _ = chunk(data, number)
    middle = start + 8 + (end - start - 8) // 2
    return data[:middle] + bytes(end - middle) + data[end:]


def of_many_samples(count: int = 100_000_000) -> bytes:
    """An MP4 of few bytes that states so many samples, all of one size."""
    data = video("mp4")
    place = data.index(b"stsz") + 8
    return data[:place] + (1).to_bytes(4, "big") + count.to_bytes(4, "big") + data[place + 8 :]
