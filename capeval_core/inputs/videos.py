"""Videos as their frames: files, folders of images, images at hand; and which frames are used.

Nothing is decoded before it is read, and one frame at a time: an hour of video takes no more memory than a
second.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any

import numpy as np
from PIL import Image

from capeval_core.errors import Problem, Problems, described, wrong_option
from capeval_core.inputs.folder import bare
from capeval_core.inputs.images import (
    File,
    ImageError,
    InputImage,
    InputVisual,
    Source,
    content_of_dict,
    file_key,
    is_tensor,
    local_path,
    open_file,
    quoted,
    refused,
    shape_of,
    unreadable,
    within,
)
from capeval_core.inputs.texts import as_list
from capeval_core.inputs.video_file import OpenVideo
from capeval_core.limits import LIMITS

_ACCEPTED = (
    "the path or bytes of a video file, the path of a folder of frames, a list of images, [image], an array "
    "(T, H, W, 3) or a tensor (T, 3, H, W)"
)


@dataclass(frozen=True)
class Sampling:
    """Which frames of a video are used; every one where nothing is given, as EMScore's released code does.

    fps: so many a second. The time since the first frame is cut into slots of 1 / fps seconds, and the first
    frame of each slot is used: a video of fewer frames a second keeps all of its own. max_frames: so many in
    all, at `int(numpy.linspace(0, n - 1, max_frames))` of n frames: a shorter video repeats some. 10 is the
    protocol of VATEX-EVAL.
    """

    fps: float | None = None
    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and not 0 < self.fps < math.inf:  # NaN is not
            raise wrong_option("fps", self.fps, "", "expected a positive number of frames a second", verb="")
        if self.max_frames is not None and not 1 <= self.max_frames <= LIMITS.frames:
            expected = f"expected an integer from 1 to {LIMITS.frames:,}"
            raise wrong_option("max_frames", self.max_frames, "", expected, verb="")
        if self.fps is not None and self.max_frames is not None:
            found = f"given together with fps={self.fps:g}"
            raise wrong_option("max_frames", self.max_frames, found, "leave one of the two out")

    def __str__(self) -> str:
        if self.fps is not None:
            return f"fps={float(self.fps)!r}"
        return "every" if self.max_frames is None else f"max_frames={self.max_frames}"

    def evenly(self, frames: int) -> list[int]:
        """The numbers of the frames that are used of so many (at least one), without `fps`."""
        if self.max_frames is None:
            return list(range(frames))
        chosen: list[int] = np.linspace(0, frames - 1, self.max_frames).astype(int).tolist()
        return chosen


EVERY = Sampling()


class Reading(Iterator[tuple[int, Image.Image]]):
    """One pass over frames: each that is used with its number in the video, once. Raises ImageError.

    indices: the number of each frame that is used, by `max_frames` some several times. incomplete: why the
    frames are not all of the video's. Both are whole when the last frame was given.
    """

    def __init__(self, where: str, source: Frames, sampling: Sampling) -> None:
        self.indices: list[int] = []
        self.incomplete: str | None = None
        self._where = where
        if sampling.fps is not None and isinstance(source, _FrameList):
            found = f"{source.name} does not say when frames are shown, which fps needs"
            fix = "pass a video file, or take max_frames, or choose the frames yourself"
            raise ImageError(Problem(where, found, fix))
        self._frames = source.frames(sampling, self)

    def __next__(self) -> tuple[int, Image.Image]:
        with within(self._where):
            return next(self._frames)


class Frames(Source["Frames"]):
    """Where the frames of a video come from; it is what it decodes to."""

    __slots__ = ()

    @abstractmethod
    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        """The frames that are used, each once and with its number; `reading` takes the list of them."""


@dataclass(eq=False, slots=True)
class _FrameList(Frames):
    """Frames that are at hand, or the files of a folder, listed when they are first needed."""

    given: Sequence[Source[Image.Image]]
    path: str = ""

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the video of {len(self.given):,} frames"

    @property
    def images(self) -> Sequence[Source[Image.Image]]:
        if self.path and not self.given:
            self.given = [File(os.path.join(self.path, name)) for name in _frame_names(self.path)]  # noqa: PTH118
        return self.given

    def compute_key(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for i, frame in enumerate(self.images):
            with within("", i):
                digest.update(f"{frame.key}\n".encode())
        return f"frames:{digest.hexdigest()}"

    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        if sampling.max_frames is None:
            _refuse_count(len(self.images))
        reading.indices = sampling.evenly(len(self.images))
        for i in dict.fromkeys(reading.indices):
            with within("", i):
                yield i, self.images[i].decode()

    def decode(self, reduced: bool = False) -> Frames:
        for i, frame in enumerate(self.images if reduced else ()):
            with within("", i):
                frame.decode(reduced=True)
        return self


@dataclass(eq=False, slots=True)
class _VideoFile(Frames):
    """A video's path or bytes."""

    path: str
    data: bytes | None = None

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the bytes object of length {len(self.data or b'')}"

    def open(self) -> IO[bytes]:
        return open_file(self.path, "video") if self.data is None else io.BytesIO(self.data)

    def compute_key(self) -> str:
        with self.open() as file:
            return file_key(file)

    def decode(self, reduced: bool = False) -> Frames:
        if reduced:  # damage behind the first frame is no error, frames before it are used
            with OpenVideo(self.open(), self.name) as video:
                video.image(next(video.frames()))
        return self

    def frames(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        if sampling.max_frames is not None:
            yield from self._evenly(sampling, reading)
            return
        with OpenVideo(self.open(), self.name) as video:
            first = seconds = None
            slot = -1
            for i, frame in enumerate(video.frames()):
                if sampling.fps is not None:
                    seconds = video.seconds(frame, seconds)
                    first = seconds if first is None else first
                    own = math.floor((seconds - first + video.rounding) * Fraction(str(sampling.fps)))
                    if own <= slot:
                        continue
                    slot = own
                _refuse_count(len(reading.indices) + 1)
                reading.indices.append(i)
                yield i, video.image(frame)
            reading.incomplete = video.incomplete

    def _evenly(self, sampling: Sampling, reading: Reading) -> Iterator[tuple[int, Image.Image]]:
        """By the number of frames that the file states; if it has another one, again by that."""
        with OpenVideo(self.open(), self.name) as video:
            frames = max(1, video.stated_frames())
        given: set[int] = set()
        while True:
            reading.indices = sampling.evenly(frames)
            wanted = set(reading.indices) - given
            with OpenVideo(self.open(), self.name) as video:
                for i, frame in enumerate(video.frames()):
                    if i in wanted:
                        given.add(i)
                        yield i, video.image(frame)
            reading.incomplete = video.incomplete
            if video.count == frames:
                return
            frames = video.count


def _refuse_count(frames: int) -> None:
    if frames > LIMITS.frames:
        fix = "take fewer of them, by fps or max_frames"
        raise refused(f"is a video of more than {LIMITS.frames:,} frames", fix)


def _frame_names(folder: str) -> list[str]:
    """The names of a folder's image files in order, `9.jpg` before `10.jpg`."""
    try:
        with os.scandir(folder) as entries:
            images = [e.name for e in entries if not e.name.startswith(".") and bare(e.name) != e.name]
    except (OSError, ValueError) as error:
        raise unreadable(quoted(folder), error) from None
    if not images:
        raise refused(f"{quoted(folder)} holds no image", "write the frames of the video into it")
    return sorted(images, key=_numbers_as_numbers)


def _numbers_as_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part[:18]), "") if part[0] in "0123456789" else (-1, part) for part in parts], name


class InputFrames(InputVisual[Any]):
    """A video: a file as path or bytes, a folder of images, the dict of a `datasets` Video feature or its
    decoder, a list of images, an array (T, H, W, 3), or a tensor (T, 3, H, W).

    `load` gives the video itself, whose frames are decoded while they are read. `check` decodes the first
    frame of a video file: what is damaged behind it costs the frames from there on, which is reported.
    """

    __slots__ = ()
    medium = "video"
    needed = "a video"

    @classmethod
    def new_source(cls, value: Any) -> Source[Frames]:
        if isinstance(value, (str, os.PathLike)):
            return _stored(local_path(value, "videos"))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _VideoFile("", bytes(value))
        if type(value).__module__.startswith("torchcodec."):  # the decoder that `datasets` hands out
            value = getattr(value, "_hf_encoded", value)
        if isinstance(value, Mapping) and value.keys() & {"bytes", "path"}:
            return _stored(*content_of_dict(value, "videos"))
        shape, frames = shape_of(value), None
        if shape is not None and (is_tensor(value) or hasattr(value, "__array_interface__")):
            if len(shape) != 4:
                fix = "expected (T, H, W, 3) of an array or (T, 3, H, W) of a tensor; of one frame [None]"
                raise refused(f"the frames have shape {shape}", fix)
            frames = list(value)
        elif not isinstance(value, Image.Image):
            frames = as_list(value)
        if frames is None:
            raise refused(f"is {described(value)}", f"expected {_ACCEPTED}", kind=TypeError)
        if not frames:
            raise refused("is a video without frames", "pass at least one image")
        sources = []
        for i, frame in enumerate(frames):
            with within("", i):
                sources.append(InputImage.source_of(frame))
        return _FrameList(sources)

    def load(self) -> InputFrames:
        """The video; nothing of it is decoded yet."""
        return self

    def read(self, sampling: Sampling = EVERY) -> Reading:
        """One pass over the frames that are used. Raises ImageError."""
        with within(self.where):
            source = self.source.decode()
        return Reading(self.where, source, sampling)

    def __iter__(self) -> Iterator[Image.Image]:
        """Every frame. Raises ImageError."""
        return (image for _, image in self.read())


def _stored(path: str, data: bytes | None = None) -> Frames:
    if data is None and os.path.isdir(path):  # noqa: PTH112
        return _FrameList((), path)
    return _VideoFile(path, data)


def check_samplings(videos: Iterable[InputFrames], sampling: Sampling) -> None:
    """Raise ImageError with all of these videos whose frames cannot have that sampling."""
    problems = Problems()
    for video in videos:
        try:
            video.read(sampling)
        except ImageError as error:
            problems.extend(error.problems)
    problems.raise_if_any()
