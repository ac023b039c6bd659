"""Videos as their frames: files, folders of images, images at hand; and which frames are used.

Files are opened by PyAV out of a file object that this process holds: FFmpeg gets no path and no protocol, so
that nothing in a file can make it open another one. A frame is converted to RGB by swscale (bicubic), with
the matrix and range that the stream states, else BT.601 and limited range: the pixels that OpenCV gives. It
is turned as the display matrix says; pixels that are not square stay so, interlaced frames too.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any

import numpy as np
from PIL import Image

from capeval_core.errors import Problem, Problems, described, noting, wrong_option
from capeval_core.inputs import images as imaging
from capeval_core.inputs.files import bare
from capeval_core.inputs.images import (
    File,
    ImageError,
    Source,
    Visual,
    image_error,
    quoted,
    refuse_size,
    within,
)
from capeval_core.limits import LIMITS
from capeval_core.project import needs

_ACCEPTED = (
    "the path or bytes of a video file, the path of a folder of frames, a list of images, [image], an array "
    "(T, H, W, 3) or a tensor (T, 3, H, W)"
)


@dataclass(frozen=True)
class Sampling:
    """Which frames of a video are used; every one where nothing is given, as EMScore's released code does.

    fps: the first frame of each slot of 1 / fps seconds. max_frames: so many in all, at
    `int(numpy.linspace(0, n - 1, max_frames))` of n frames, some repeated in a shorter video.
    """

    fps: float | None = None
    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and not 0 < self.fps < math.inf:  # NaN is not
            raise wrong_option("fps", self.fps, "", "expected a positive number of frames a second")
        if self.max_frames is not None and not 1 <= self.max_frames <= LIMITS.frames:
            expected = f"expected an integer from 1 to {LIMITS.frames:,}"
            raise wrong_option("max_frames", self.max_frames, "", expected)
        if self.fps is not None and self.max_frames is not None:
            problem = f"is given together with fps={self.fps:g}"
            raise wrong_option("max_frames", self.max_frames, problem, "leave one of the two out")

    def __str__(self) -> str:
        if self.fps is not None:
            return f"fps={float(self.fps)!r}"
        return "every" if self.max_frames is None else f"max_frames={self.max_frames}"

    def evenly(self, frames: int) -> list[int]:
        """The numbers of the frames that are used of so many (at least one), without `fps`."""
        if self.max_frames is None:
            return list(range(frames))
        return [int(place) for place in np.linspace(0, frames - 1, self.max_frames)]


EVERY = Sampling()


class Reading(Iterator[tuple[int, Image.Image]]):
    """One pass over the frames that are used, each once with its number; raises ImageError at `where`. Behind
    the last one are whole: `indices`, the number of each, by `max_frames` some several times; `incomplete`,
    why they are not all of the video's."""

    def __init__(self, where: str, source: Frames, sampling: Sampling) -> None:
        self.indices: list[int] = []
        self.incomplete: str | None = None
        self._where = where
        self._frames = source.frames(sampling, self)

    def __next__(self) -> tuple[int, Image.Image]:
        with within(self._where):
            return next(self._frames)


class Frames(Source["Frames"]):
    """Where the frames of a video come from; it is what it decodes to. `check` decodes the first frame of a
    file alone: damage behind it costs the frames from there on."""

    __slots__ = ()
    medium = "video"
    timed = True
    """Whether it says when frames are shown."""

    @abstractmethod
    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        """The frames that are used, each once and with its number; `reading` takes the list of them."""

    def read(self, where: str = "video", sampling: Sampling = EVERY) -> Reading:
        """One pass over the frames that are used."""
        if sampling.fps is not None and not self.timed:
            problem = f"{self.name} does not say when frames are shown, which fps needs"
            fix = "pass a video file, or take max_frames, or choose the frames yourself"
            raise ImageError(Problem(where, problem, fix, sentence=True))
        return Reading(where, self, sampling)

    def __iter__(self) -> Iterator[Image.Image]:
        return (image for _, image in self.read())


InputFrames = Visual[Frames]


@dataclass(eq=False, slots=True)
class _FrameList(Frames):
    """Frames in memory, or the files of a folder, listed when they are first needed."""

    sources: Sequence[Source[Image.Image]]
    path: str = ""
    timed = False

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the video of {len(self.sources):,} frames"

    @property
    def images(self) -> Sequence[Source[Image.Image]]:
        if self.path and not self.sources:
            names = _frame_names(self.path)
            self.sources = [File(os.path.join(self.path, name)) for name in names]  # noqa: PTH118
        return self.sources

    def compute_key(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for i, frame in enumerate(self.images):
            with within("", i):
                digest.update(f"{frame.key}\n".encode())
        return f"frames:{digest.hexdigest()}"

    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        if sampling.max_frames is None and len(self.images) > LIMITS.frames:
            raise _too_many()
        reading.indices = sampling.evenly(len(self.images))
        for i in dict.fromkeys(reading.indices):  # a frame that is used twice is decoded once
            with within("", i):
                yield i, self.images[i].decode()

    def decode(self, reduced: bool = False) -> Frames:
        for i, frame in enumerate(self.images if reduced else ()):
            with within("", i):
                frame.decode(reduced=True)
        return self


class _VideoFile(File, Frames):
    """A video's path or bytes."""

    __slots__ = ()
    medium = "video"

    def decode(self, reduced: bool = False) -> Frames:
        if reduced:  # damage behind the first frame is no error, frames before it are used
            with _opened(self) as video:
                video.image(next(video.frames()))
        return self

    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        if sampling.max_frames is not None:
            yield from self._evenly(sampling, reading)
            return
        with _opened(self) as video:
            # Slots are counted from the first frame: the times of a clip begin where it was cut out.
            first = None
            seconds = None
            last_slot = -1
            # By how much a time may be early: one unit of the file's times, if they are fine enough to round.
            rounding = min(video.unit, Fraction(1, 500))
            for i, frame in enumerate(video.frames()):
                if sampling.fps is not None:
                    seconds = video.seconds(frame, seconds)
                    first = seconds if first is None else first
                    # In fractions: in floats 0.29 s times 100 is below 29, which is the slot before.
                    slot = math.floor((seconds - first + rounding) * Fraction(str(sampling.fps)))
                    if slot <= last_slot:
                        continue
                    last_slot = slot
                if len(reading.indices) == LIMITS.frames:
                    raise _too_many()
                reading.indices.append(i)
                yield i, video.image(frame)
            reading.incomplete = video.incomplete

    def _evenly(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        """By the number of frames that the file states; if it has another one, again by that."""
        with _opened(self) as video:
            count = max(1, video.stated_frames())
        assumed_count = 0
        yielded: set[int] = set()
        while assumed_count != count:
            assumed_count = count
            reading.indices = sampling.evenly(count)
            remaining = set(reading.indices) - yielded
            with _opened(self) as video:
                for i, frame in enumerate(video.frames()):
                    if i in remaining:
                        yielded.add(i)
                        yield i, video.image(frame)
            count = video.count
            reading.incomplete = video.incomplete


def _too_many() -> ImageError:
    fix = "take fewer of them, by fps or max_frames"
    return image_error(f"is a video of more than {LIMITS.frames:,} frames", fix)


def _frame_names(folder: str) -> list[str]:
    """The names of a folder's image files in order, `9.jpg` before `10.jpg`."""
    try:
        with os.scandir(folder) as entries:
            images = []
            for entry in entries:
                # A name with the extension of an image; macOS adds `._1.jpg` on foreign disks.
                if not entry.name.startswith(".") and bare(entry.name, "image") != entry.name:
                    images.append(entry.name)
    except OSError as error:
        raise image_error(f"cannot read {quoted(folder)} ({error.strerror})", sentence=True) from None
    if not images:
        raise image_error(
            f"{quoted(folder)} holds no image", "write the frames of the video into it", sentence=True
        )
    return sorted(images, key=_by_number)


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """The key by which numbers in names are compared as numbers."""
    key = []
    for part in re.findall(r"[0-9]+|[^0-9]+", name):
        # Pairs, as a number and a text cannot be compared. Python refuses numbers of thousands of digits.
        key.append((int(part[:18]), "") if part.isdecimal() else (-1, part))
    return key, name


def video_source(value: Any) -> Frames:
    """A video: a file, a folder of images, what `datasets` has, a list of images, an array or a tensor."""
    if value is None:
        raise image_error("is missing", "every caption needs a video")
    if isinstance(value, (str, os.PathLike)):
        return _stored(imaging.local_path(value))
    if isinstance(value, imaging.BYTES):
        return _VideoFile("", bytes(value))
    if type(value).__module__.startswith("torchcodec."):  # the decoder that `datasets` hands out
        value = getattr(value, "_hf_encoded", value)
    if isinstance(value, Mapping) and value.keys() & {"bytes", "path"}:
        return _stored(*imaging.content_of_dict(value))
    shape = imaging.shape_of(value)
    is_array = imaging.is_tensor(value) or hasattr(value, "__array_interface__")
    if shape is not None and is_array and len(shape) != 4:
        fix = "expected (T, H, W, 3) of an array or (T, 3, H, W) of a tensor"
        colours = shape[0] if imaging.is_tensor(value) else shape[-1]
        of_one_frame = "; of one frame [None]" if len(shape) == 3 and colours == 3 else ""
        raise image_error(f"the frames have shape {shape}", fix + of_one_frame, sentence=True)
    frames = list(value) if shape is not None and is_array else imaging.as_list(value)
    if not frames:
        if frames is None:
            raise image_error(f"is {described(value)}", f"expected {_ACCEPTED}", kind=TypeError)
        raise image_error("is a video without frames", f"expected {_ACCEPTED}")
    sources = []
    for i, frame in enumerate(frames):
        with within("", i):
            sources.append(imaging.image_source(frame))
    return _FrameList(sources)


def _stored(path: str, data: bytes | None = None) -> Frames:
    if data is None and os.path.isdir(path):  # noqa: PTH112
        return _FrameList((), path)
    return _VideoFile(path, data)


def check_samplings(videos: Iterable[InputFrames], sampling: Sampling) -> None:
    """Raise ImageError with all of these videos whose frames cannot have that sampling."""
    problems = Problems()
    for video in videos:
        with noting(problems):
            video.load().read(video.where, sampling)
    problems.raise_if_any()


# ---- files

_FORMATS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "gif")
"""Containers that are opened, in FFmpeg's names."""
_OPENED = "MP4 or MOV, WebM or Matroska, AVI and GIF"
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d{1,9})?)\d*")


@contextmanager
def _opened(source: File) -> Iterator[_OpenVideo]:
    """The first video stream of a file. Raises ImageError, and ImportError without PyAV."""
    with source.open() as file:
        name = source.name
        with needs("av", "video"):
            import av
        if not file.read(1):  # of which FFmpeg says that its data are invalid
            raise image_error(f"{name} is empty (zero bytes)", sentence=True)
        file.seek(0)
        # What decoders refuse to make room for: the bound of `refuse_size`, and room for their margins.
        limit = Image.MAX_IMAGE_PIXELS
        most_pixels = {} if limit is None else {"max_pixels": str(2 * limit + 2**16)}
        whitelists = {"format_whitelist": ",".join(_FORMATS), "protocol_whitelist": "none"}
        try:
            container: Any = av.open(
                file,
                options=most_pixels,  # the decoders, too, look for the frames' size
                container_options=whitelists,
                metadata_errors="replace",  # titles may be in any encoding
            )
        except av.FFmpegError:
            fix = f"expected {_OPENED}, whole or cut off behind its header, or a list of images"
            raise image_error(f"{name} is not a video that can be read", fix, sentence=True) from None
        with container:
            if container.metadata.get("major_brand", "")[:3] in ("avi", "hei", "hev", "mif", "msf"):  # HEIF
                raise image_error(
                    f"{name} is an image", "pass a list of images, or the path of their folder", sentence=True
                )
            videos = container.streams.video
            # Without the picture on the cover of a record.
            streams = []
            for video in videos:
                if not video.disposition & type(video.disposition).attached_pic:
                    streams.append(video)
            if not streams:
                raise image_error(
                    f"{name} has no video stream", f"pass a file with frames: {_OPENED}", sentence=True
                )
            best = container.streams.best("video")
            stream = best if best in streams else streams[0]
            if stream.codec_context is None:
                raise image_error(
                    f"{name} is in a video codec that PyAV cannot decode", "convert it to MP4", sentence=True
                )
            stream.codec_context.thread_count = 1
            stream.codec_context.options = most_pixels
            yield _OpenVideo(av, file, name, container, stream)


class _OpenVideo:
    """A video stream that is being decoded.

    count: frames that were given so far. incomplete: why these are not all, known behind the last one.
    """

    def __init__(self, av: Any, file: IO[bytes], name: str, container: Any, stream: Any) -> None:
        self.name = name
        self._av = av
        self._file = file
        self._container = container
        self._stream = stream
        self.count = 0
        self.incomplete: str | None = None
        self._end = Fraction(0)  # of the last packet, in seconds
        self.unit = Fraction(stream.time_base or 0)
        self._rate = Fraction(stream.average_rate or stream.guessed_rate or 25)
        self._to_rgb = av.video.reformatter.VideoReformatter()

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
        end = None
        left_out = 0
        for frame in self._decoded():
            if frame is None or (frame.is_corrupt and self.count):
                end = "the file is damaged or cut off there"
                break
            if frame.is_corrupt:  # a clip may begin with frames whose reference was cut away
                left_out += 1
                continue
            self.count += 1
            yield frame
        if not self.count:
            raise image_error(
                f"cannot decode {self.name} (its frames are damaged, or too large to trust)", sentence=True
            )
        notes = []
        if left_out:
            notes.append(f"damaged frames at its start are left out: {left_out:,}")
        end = end or self._missing()
        if end:
            notes.append(f"frames end after {self.count:,}: {end}")
        self.incomplete = "; ".join(notes) or None

    def _decoded(self) -> Iterator[Any]:
        """Frames, None where something is damaged: what was read before it comes first."""
        try:
            for packet in self._container.demux(self._stream):
                if packet.is_corrupt:
                    break
                if packet.size and packet.pts is not None:
                    self._end = max(self._end, (packet.pts + (packet.duration or 0)) * packet.time_base)
                yield from packet.decode()
            else:
                return
        except self._av.FFmpegError:
            pass
        with suppress(self._av.FFmpegError):  # frames that the decoder keeps, to put them into order
            yield from self._stream.codec_context.decode(None)
        yield None

    def _missing(self) -> str | None:
        """The problem of a file that states a longer video, with nothing damaged; a GIF ends with a mark."""
        if self._container.format.name == "gif":
            self._file.seek(max(0, self._file.seek(0, io.SEEK_END) - 16))
            return None if self._file.read().rstrip(b"\0").endswith(b";") else "the file has no end of a GIF"
        # The last packet may not say how long its frame is shown. Of all streams, sound may end later.
        tolerance = Fraction(3, 2) / self._rate
        stated = Fraction(0)
        clock = _CLOCK.fullmatch(self._stream.metadata.get("DURATION", ""))
        if self._stream.duration is not None:
            stated = self._stream.duration * self._stream.time_base
        elif clock:  # of Matroska
            stated = Fraction(int(clock[1]) * 3600 + int(clock[2]) * 60) + Fraction(clock[3])
        elif self._container.duration is not None:
            stated = Fraction(self._container.duration, 1_000_000)
            tolerance = max(tolerance, Fraction(1))
        if stated - self._end <= tolerance:
            return None
        return f"the file states {float(stated):.1f} s, and ends at {float(self._end):.1f} s"

    def seconds(self, frame: Any, last: Fraction | None) -> Fraction:
        """The time at which a frame is shown; where none is stated by the frame rate, after the last one."""
        if frame.pts is not None and frame.time_base:
            return Fraction(frame.pts * frame.time_base)
        return Fraction(0) if last is None else last + 1 / self._rate

    def image(self, frame: Any) -> Image.Image:
        """The frame in RGB, turned as the file says."""
        refuse_size(frame.width, frame.height, self.name)
        rgb = self._to_rgb.reformat(frame, format="rgb24", interpolation="BICUBIC")
        image = Image.fromarray(np.ascontiguousarray(rgb.to_ndarray()))
        # A display matrix may hold any angle, and rounding errors of it; players turn by quarters.
        turn = round(frame.rotation / 90) * 90 % 360
        return image.transpose(Image.Transpose[f"ROTATE_{turn}"]) if turn else image
