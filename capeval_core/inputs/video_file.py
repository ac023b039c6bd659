"""Video files to frames, one after the other, by FFmpeg's libraries in PyAV.

Only the containers in `FORMATS` are opened, out of a file object that this process holds: FFmpeg gets no path
and no protocol, so that no playlist or reference in a file can make it open another one.

A frame is converted to RGB by FFmpeg's swscale (bicubic), with the matrix and range that the stream states,
BT.601 and limited range where it states none: the pixels that OpenCV gives for such streams. Alpha is
dropped, and there is no tone mapping. A frame is turned as the file's display matrix says, in steps of 90
degrees, as players and OpenCV do. Pixels that are not square stay so, interlaced frames too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import IO, Any

import numpy as np
from PIL import Image

from capeval_core.inputs.images import refuse_size, refused, unreadable
from capeval_core.project import install_command

FORMATS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "gif")
"""Containers that are opened, in FFmpeg's names."""
OPENED = "MP4 or MOV, WebM or Matroska, AVI and GIF"
EXTENSIONS = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi")
"""Of files that can only be videos; what a file is shows in its content."""
_TURNED = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}
_IMAGE = re.compile(rb"\xff\xd8|\x89PNG|.{4}ftyp(?:avi[fs]|he[iv][cxms]|mif1|msf1)|.{4}jP", re.DOTALL)
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d{1,9})?)\d*")


class OpenVideo:
    """The first video stream of an open file; a context that closes it.

    count: frames that were given so far. incomplete: why these are not all, known behind the last one. Raises
    ImageError, and ImportError without PyAV.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        try:
            import av
        except ImportError as error:
            file.close()
            missing = f"video files are read by PyAV, which is not installed: {install_command('video')}"
            raise ImportError(missing) from error
        self.name = name
        self.count = 0
        self.incomplete: str | None = None
        self._av: Any = av
        self._file = file
        self._size: tuple[int, int] | None = None
        self._end = Fraction(0)  # of the last packet, in seconds
        self._container: Any = None
        try:
            self._container = self._opened()
            self._stream = self._video_stream()
            self._stream.codec_context.thread_count = 1
            self._stream.codec_context.options = _most_pixels()
        except BaseException:
            self.__exit__()
            raise
        self._to_rgb = self._av.video.reformatter.VideoReformatter()

    def __enter__(self) -> OpenVideo:
        return self

    def __exit__(self, *_: object) -> None:
        if self._container is not None:
            self._container.close()
        self._file.close()

    def _opened(self) -> Any:
        start = self._file.read(64)
        self._file.seek(0)
        if not start:
            raise refused(f"{self.name} is empty (zero bytes)")
        if _IMAGE.match(start):
            raise refused(f"{self.name} is an image", "pass a list of images, or the path of their folder")
        try:
            return self._av.open(
                self._file,
                container_options={"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"},
                metadata_errors="replace",  # titles may be in any encoding
                options=_most_pixels(),  # of the decoders that look for the frames' size, too
            )
        except self._av.FFmpegError:
            fix = f"expected {OPENED}, whole or cut off behind its header"
            raise refused(f"{self.name} is not a video that can be read", fix) from None
        except OSError as error:  # of the file itself
            raise unreadable(self.name, error) from None

    def _video_stream(self) -> Any:
        streams = [stream for stream in self._container.streams.video if not _is_cover(stream)]
        if not streams:
            raise refused(f"{self.name} has no video stream", f"pass a file with frames: {OPENED}")
        best = self._container.streams.best("video")
        stream = best if best in streams else streams[0]
        if stream.codec_context is None:
            raise refused(f"{self.name} is in a video codec that PyAV cannot decode", "convert it to MP4")
        return stream

    def stated_frames(self) -> int:
        """The number of frames by the header, or by counting packets; `frames` may give more or fewer."""
        if self._stream.frames > 0:
            return int(self._stream.frames)
        packets = 0
        with suppress(self._av.FFmpegError):  # `frames` will meet it again
            for packet in self._container.demux(self._stream):
                packets += packet.size > 0
        return packets

    def frames(self) -> Iterator[Any]:
        """PyAV's frames in the order in which they are shown, up to the first that is damaged."""
        refuse_size(self._stream.codec_context.width or 2, self._stream.codec_context.height or 2, self.name)
        why, left_out = None, 0
        for frame in self._decoded():
            if frame is None or (frame.is_corrupt and self.count):
                why = "the file is damaged or cut off there"
                break
            if frame.is_corrupt:  # a clip may begin with frames whose reference was cut away
                left_out += 1
                continue
            self.count += 1
            yield frame
        if not self.count:
            raise refused(f"cannot decode {self.name} (its frames are damaged, or too large to trust)")
        notes = [f"damaged frames at its start are left out: {left_out:,}"] if left_out else []
        if why := why or self._missing():
            notes.append(f"frames end after {self.count:,}: {why}")
        self.incomplete = "; ".join(notes) or None

    def _decoded(self) -> Iterator[Any]:
        """Frames, None where something is damaged: what was read before it comes first."""
        damaged = False
        try:
            for packet in self._container.demux(self._stream):
                if packet.is_corrupt:
                    damaged = True
                    break
                if packet.size and packet.pts is not None:
                    self._end = max(self._end, (packet.pts + (packet.duration or 0)) * packet.time_base)
                yield from packet.decode()
        except self._av.FFmpegError:
            damaged = True
        except OSError as error:  # of the file itself
            raise unreadable(self.name, error) from None
        if damaged:
            with suppress(self._av.FFmpegError):  # frames that the decoder keeps, to put them into order
                yield from self._stream.codec_context.decode(None)
            yield None

    def _missing(self) -> str | None:
        """That the file states a longer video, although nothing in it is damaged; a GIF states its end."""
        if self._container.format.name == "gif":
            self._file.seek(max(0, self._file.seek(0, io.SEEK_END) - 16))
            return None if self._file.read().rstrip(b"\0").endswith(b";") else "the file has no end of a GIF"
        rate = self._stream.average_rate or self._stream.guessed_rate
        # The last packet may not say how long its frame is shown.
        tolerance = Fraction(3, 2) / rate if rate else Fraction(1, 10)
        if self._stream.duration is not None:
            # Some count it from 0 and not from the first frame: a later start is no reason to miss frames.
            stated = self._stream.duration * self._stream.time_base
        elif clock := _CLOCK.fullmatch(self._stream.metadata.get("DURATION", "")):
            stated = Fraction(int(clock[1]) * 3600 + int(clock[2]) * 60) + Fraction(clock[3])
        elif self._container.duration is not None:  # of all streams: sound may end later than the frames
            stated, tolerance = Fraction(self._container.duration, 1_000_000), max(tolerance, Fraction(1))
        else:
            return None
        if stated - self._end <= tolerance:
            return None
        return f"the file states {float(stated):.1f} s, and ends at {float(self._end):.1f} s"

    def seconds(self, frame: Any, last: Fraction | None) -> Fraction:
        """When a frame is shown; by the frame rate where the file does not say, after the last one's time."""
        if frame.pts is not None and frame.time_base:
            return Fraction(frame.pts * frame.time_base)
        rate = self._stream.average_rate or self._stream.guessed_rate or 25
        return Fraction(0) if last is None else last + 1 / Fraction(rate)

    @property
    def rounding(self) -> Fraction:
        """By how much a time may be early: one unit of the file's times, if they are fine enough to round."""
        return min(Fraction(self._stream.time_base or 0), Fraction(1, 500))

    def image(self, frame: Any) -> Image.Image:
        """The frame in RGB, turned as the file says."""
        if self._size != (frame.width, frame.height):
            refuse_size(frame.width, frame.height, self.name)
            self._size = frame.width, frame.height
        rgb = self._to_rgb.reformat(frame, format="rgb24", interpolation="BICUBIC")
        image = Image.fromarray(np.ascontiguousarray(rgb.to_ndarray()))
        turn = _TURNED.get(round(frame.rotation / 90) * 90 % 360)
        return image if turn is None else image.transpose(turn)


def _most_pixels() -> dict[str, str]:
    """What decoders refuse to make room for: the bound of `refuse_size`, and room for their margins."""
    limit = Image.MAX_IMAGE_PIXELS
    return {} if limit is None else {"max_pixels": str(2 * limit + 2**16)}


def _is_cover(stream: Any) -> bool:
    """Whether a stream is the picture on the cover of a record."""
    return bool(stream.disposition & type(stream.disposition).attached_pic)
