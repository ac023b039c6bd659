"""A video as its frames, from whatever a user hands in.

`InputFrames` is the visual; what it loads is a `Video`, which is read by a `Sampling`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from capeval_core.errors import Problems
from capeval_core.inputs.decoding import ImageError, Refused, within
from capeval_core.inputs.frame_sources import FrameList, FrameSource, Sampled, VideoBytes, VideoPath
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.sequences import as_list, is_tensor, shape_of
from capeval_core.inputs.sources import Source
from capeval_core.inputs.visual import InputVisual, content_of_dict, image_source, local_path
from capeval_core.values import described

ACCEPTED = (
    "the path or bytes of a video file, the path of a folder of frames, a list of images, an array "
    "(T, H, W, 3) or a tensor (T, 3, H, W)"
)
EVERY = Sampling()


def frames_source(value: Any) -> Source[FrameSource]:
    """The source of a value that `InputFrames.of` accepts, or Refused."""
    if isinstance(value, InputFrames):
        return value.source
    if value is None:
        raise Refused("None", "every caption needs a video", verb="is")
    if isinstance(value, (str, os.PathLike)):
        return VideoPath(local_path(value, "videos"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return VideoBytes(bytes(value))
    if type(value).__module__.startswith("torchcodec."):
        return _of_decoder(value)
    if isinstance(value, Mapping) and value.keys() & {"bytes", "path"}:
        data, path = content_of_dict(value, "videos")
        return VideoPath(path) if data is None else VideoBytes(data, path)
    return FrameList(_image_sources(_listed_frames(value)))


def _of_decoder(value: Any) -> Source[FrameSource]:
    """The file behind a decoder that `datasets` hands out for a Video feature."""
    encoded = getattr(value, "_hf_encoded", None)
    if not isinstance(encoded, Mapping):
        raise Refused(
            described(value), "pass the path or the bytes that it decodes", verb="is", kind=TypeError
        )
    return frames_source(encoded)


def _listed_frames(value: Any) -> list[Any]:
    shape = shape_of(value)
    if shape is not None and (is_tensor(value) or hasattr(value, "__array_interface__")):
        if len(shape) != 4:
            fix = "expected (T, H, W, 3) of an array or (T, 3, H, W) of a tensor"
            one = "; pass value[None]" if len(shape) == 3 else ""
            raise Refused(f"the frames have shape {shape}", fix + one)
        _refuse_none(shape[0])
        return list(value)
    listed = None if isinstance(value, Image.Image) else as_list(value)
    if listed is None:
        fix = f"expected {ACCEPTED}" + ("; pass [image]" if isinstance(value, Image.Image) else "")
        raise Refused(described(value), fix, verb="is", kind=TypeError)
    _refuse_none(len(listed))
    return listed


def _image_sources(frames: Sequence[Any]) -> list[Source[Image.Image]]:
    sources = []
    for i, frame in enumerate(frames):
        with within(i):
            sources.append(image_source(frame))
    return sources


def _refuse_none(frames: int) -> None:
    if not frames:
        raise Refused("a video without frames", "pass at least one image", verb="is")


class Video:
    """The frames of a video, decoded while they are read; it may be read any number of times.

    >>> import numpy as np
    >>> video = InputFrames.of(np.zeros((5, 48, 64, 3), dtype="uint8")).load()
    >>> reading = video.read(Sampling(max_frames=3))
    >>> [(index, image.size) for index, image in reading], reading.sampled.indices
    ([(0, (64, 48)), (2, (64, 48)), (4, (64, 48))], [0, 2, 4])
    """

    def __init__(self, visual: InputFrames, source: FrameSource) -> None:
        self._visual = visual
        self._source = source

    def read(self, sampling: Sampling = EVERY) -> Reading:
        """One pass over the frames that are used."""
        return Reading(self._visual, self._source, sampling)

    def __iter__(self) -> Iterator[Image.Image]:
        """Every frame. Raises ImageError."""
        return (image for _, image in self.read())


class Reading(Iterator[tuple[int, Image.Image]]):
    """One pass over frames: each that is used with its number in the video, once. Raises ImageError."""

    def __init__(self, visual: InputFrames, source: FrameSource, sampling: Sampling) -> None:
        self.sampled = Sampled()
        self._visual = visual
        with visual.named():
            self._frames = source.frames(sampling, self.sampled)

    def __next__(self) -> tuple[int, Image.Image]:
        with self._visual.named():
            return next(self._frames)


class InputFrames(InputVisual[Any]):
    """A video as its frames: `load` gives a `Video`, which decodes them while they are read.

    `InputFrames.of` takes the path or the bytes of a video file (MP4, MOV, WebM, Matroska, AVI or GIF; needs
    `pip install "capeval[video]"`), the path of a folder of image files, in the order of their names (`9.jpg`
    before `10.jpg`), the dict of a `datasets` Video feature or the decoder that it hands out, a list of what
    `InputImage.of` takes, an array (T, H, W, 3), or a tensor (T, 3, H, W), also (T, H, W, 3) where it cannot
    be read both ways. An image file is no video; `[path]` is one of one frame.

    `check` decodes the first frame of a video file: what is damaged behind it costs the frames from there on,
    which is reported with the features. Of a list or a folder it looks at every frame.

    >>> import numpy as np
    >>> video = InputFrames.of(np.zeros((5, 48, 64, 3), dtype="uint8"))
    >>> [image.size for image in video.load()][:2]
    [(64, 48), (64, 48)]
    """

    __slots__ = ()
    medium = "video"
    source_of = staticmethod(frames_source)

    def load(self) -> Video:
        """The video; nothing of it is decoded yet. Raises ImageError."""
        with self.named():
            return Video(self, self.source.decode())

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ImageError for a sampling that these frames cannot have: by fps where they have no times."""
        with self.named():
            self.source.decode().refuse_sampling(sampling)


def check_samplings(videos: Iterable[InputFrames], sampling: Sampling) -> None:
    """Refuse a sampling that frames of some of these videos cannot have.

    Raises:
        ImageError: with all of them.

    >>> import numpy as np
    >>> check_samplings([InputFrames.of(np.zeros((5, 4, 6, 3), dtype="uint8"))], Sampling(fps=2))
    Traceback (most recent call last):
    capeval_core.inputs.decoding.ImageError: video: the video of 5 frames does not say when frames are shown,
    which fps needs: pass a video file, or take max_frames, or choose the frames yourself
    """
    problems = Problems()
    for video in videos:
        try:
            video.check_sampling(sampling)
        except ImageError as error:
            problems.extend(error.problems)
    problems.raise_if_any()
