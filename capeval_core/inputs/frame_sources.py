"""Where the frames of a video come from: a file, a folder of image files, or images that are at hand.

Nothing is decoded before it is read, and one frame at a time: an hour of video takes no more memory than a
second.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from PIL import Image

from capeval_core.inputs.decoding import Refused, quoted, within
from capeval_core.inputs.folder import bare
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.sources import OnDisk, Source, file_key, open_file
from capeval_core.inputs.video_file import OpenVideo
from capeval_core.limits import LIMITS


@dataclass
class Sampled:
    """What a reading of frames finds out, whole when the last frame was given.

    indices: the number of each frame that is used, from 0, in order; by `max_frames` some several times.
    incomplete: why the frames are not all of the video's, None where they are.
    """

    indices: list[int] = field(default_factory=list)
    incomplete: str | None = None


class FrameSource(Source["FrameSource"]):
    """Where the frames of a video come from; it is what it decodes to."""

    __slots__ = ()

    @abstractmethod
    def frames(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        """The frames that are used, each once and with its number, or Refused; `sampled` is filled in."""

    @abstractmethod
    def check(self) -> None:
        """Raise Refused unless there are frames."""

    def refuse_sampling(self, sampling: Sampling) -> None:
        """Raise Refused for a sampling that frames of this source cannot have."""

    def decode(self, reduced: bool = False) -> FrameSource:
        if reduced:
            self.check()
        return self


@dataclass(eq=False, slots=True)
class FrameList(FrameSource):
    """Frames that are at hand, in order."""

    images: Sequence[Source[Image.Image]]

    @property
    def name(self) -> str:
        return f"the video of {len(self.listed()):,} frames"

    def listed(self) -> Sequence[Source[Image.Image]]:
        return self.images

    def compute_key(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for i, frame in enumerate(self.listed()):
            with within(i):
                digest.update(f"{frame.key}\n".encode())
        return f"frames:{digest.hexdigest()}"

    def frames(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        self.refuse_sampling(sampling)
        images = self.listed()
        if sampling.max_frames is not None:
            sampled.indices = sampling.evenly(len(images))
        else:
            _refuse_count(len(images))
            sampled.indices = list(range(len(images)))
        for i in dict.fromkeys(sampled.indices):
            with within(i):
                yield i, images[i].decode()

    def refuse_sampling(self, sampling: Sampling) -> None:
        if sampling.fps is not None:
            fix = "pass a video file, or take max_frames, or choose the frames yourself"
            raise Refused(f"{self.name} does not say when frames are shown, which fps needs", fix)

    def check(self) -> None:
        """Every frame is decoded, one after the other, as `InputImage.check` does."""
        for i, frame in enumerate(self.listed()):
            with within(i):
                frame.decode(reduced=True)


@dataclass(eq=False, slots=True)
class FrameFolder(FrameList):
    """The image files of a folder, in the order of their names; it is listed when it is needed."""

    images: Sequence[Source[Image.Image]] = field(default=(), init=False)
    path: str

    @property
    def name(self) -> str:
        return quoted(self.path)

    def listed(self) -> Sequence[Source[Image.Image]]:
        if not self.images:
            names = _frame_names(self.path)
            self.images = [OnDisk(os.path.join(self.path, name)) for name in names]  # noqa: PTH118
        return self.images


class EncodedVideo(FrameSource):
    """A video as the bytes of a file."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> IO[bytes]:
        """The file, or Refused."""

    def compute_key(self) -> str:
        with self.open() as file:
            return file_key(file)

    def check(self) -> None:
        """The file is opened and its first frame decoded.

        What is damaged behind that frame is no error: the frames before it are used, and it is reported.
        """
        with OpenVideo(self.open(), self.name) as video:
            video.image(next(video.frames()))

    def frames(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        if sampling.max_frames is None:
            return self._in_order(sampling, sampled)
        return self._evenly(sampling, sampled)

    def _in_order(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        with OpenVideo(self.open(), self.name) as video:
            first = seconds = None
            slot = -1
            for i, frame in enumerate(video.frames()):
                if sampling.fps is not None:
                    seconds = video.seconds(frame, seconds)
                    first = seconds if first is None else first
                    own = sampling.slot(seconds - first + video.rounding)
                    if own <= slot:
                        continue
                    slot = own
                _refuse_count(len(sampled.indices) + 1)
                sampled.indices.append(i)
                yield i, video.image(frame)
            sampled.incomplete = video.incomplete

    def _evenly(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        """By the number of frames that the file states; if it has another one, again by that."""
        with OpenVideo(self.open(), self.name) as video:
            frames = max(1, video.stated_frames())
        given: set[int] = set()
        while True:
            sampled.indices = sampling.evenly(frames)
            wanted = set(sampled.indices) - given
            with OpenVideo(self.open(), self.name) as video:
                for i, frame in enumerate(video.frames()):
                    if i in wanted:
                        given.add(i)
                        yield i, video.image(frame)
            sampled.incomplete = video.incomplete
            if video.count == frames:
                return
            frames = video.count


@dataclass(eq=False, slots=True)
class VideoBytes(EncodedVideo):
    """The bytes of a video file, with the path that they came from where there is one."""

    data: bytes
    path: str = ""

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the bytes object of length {len(self.data)}"

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.data)


@dataclass(eq=False, slots=True)
class VideoFile(EncodedVideo):
    """A video file on disk.

    Raises Refused where it was replaced or written to since its key was computed: features of its frames are
    stored under that key.
    """

    path: str
    _state: tuple[int, int] | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        return quoted(self.path)

    def compute_key(self) -> str:
        with self.open() as file:
            self._state = _state(file)
            return file_key(file)

    def open(self) -> IO[bytes]:
        file = open_file(self.path, "video")
        if self._state not in (None, _state(file)):
            file.close()
            raise Refused(f"{self.name} was changed after it was first read", "score it again")
        return file


@dataclass(eq=False, slots=True)
class VideoPath(FrameSource):
    """A video file or a folder of frames, whichever lies there when it is needed."""

    path: str
    _source: FrameSource | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        return quoted(self.path)

    def there(self) -> FrameSource:
        if self._source is None:
            self._source = FrameFolder(self.path) if os.path.isdir(self.path) else VideoFile(self.path)  # noqa: PTH112
        return self._source

    def compute_key(self) -> str:
        return self.there().key

    def check(self) -> None:
        self.there().check()

    def refuse_sampling(self, sampling: Sampling) -> None:
        self.there().refuse_sampling(sampling)

    def frames(self, sampling: Sampling, sampled: Sampled) -> Iterator[tuple[int, Image.Image]]:
        return self.there().frames(sampling, sampled)


def _state(file: IO[bytes]) -> tuple[int, int]:
    """Size and time of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _refuse_count(frames: int) -> None:
    if frames > LIMITS.frames:
        found = f"a video of more than {LIMITS.frames:,} frames"
        raise Refused(found, "take fewer of them, by fps or max_frames", verb="is")


def _frame_names(folder: str) -> list[str]:
    """The names of a folder's image files in order, `9.jpg` before `10.jpg`."""
    name = quoted(folder)
    try:
        with os.scandir(folder) as entries:
            images = [e.name for e in entries if not e.name.startswith(".") and bare(e.name) != e.name]
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read {name} ({getattr(error, 'strerror', None) or error})") from None
    if not images:
        raise Refused(f"{name} holds no image", "write the frames of the video into it")
    return sorted(images, key=_numbers_as_numbers)


def _numbers_as_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    """
    >>> sorted(["f10.jpg", "f9.jpg", "f09.jpg"], key=_numbers_as_numbers)
    ['f09.jpg', 'f9.jpg', 'f10.jpg']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part[:18]), "") if part[0] in "0123456789" else (-1, part) for part in parts], name
