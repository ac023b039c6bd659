"""The frames of a video: a list of images, an array, or a folder of image files. Videos are not decoded."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from capeval_core.inputs.decoding import Refused, quoted, within
from capeval_core.inputs.folder import bare
from capeval_core.inputs.sequences import as_list, is_tensor, shape_of
from capeval_core.inputs.sources import OnDisk, Source
from capeval_core.inputs.visual import InputVisual, image_source, local_path
from capeval_core.values import described

MOST_FRAMES = 1_024
"""Of a video at most: its frames are in memory together."""
MOST_PIXELS = 2**30
"""Of all frames of a video together: 3 GB in RGB."""
ACCEPTED = "a list of images, an array (T, H, W, 3), a tensor (T, 3, H, W) or the path of a folder of frames"


@dataclass(eq=False, slots=True)
class FrameList(Source[list[Image.Image]]):
    """Frames that are at hand, in order."""

    frames: Sequence[Source[Image.Image]]

    @property
    def name(self) -> str:
        return f"the video of {len(self.listed())} frames"

    def listed(self) -> Sequence[Source[Image.Image]]:
        return self.frames

    def compute_key(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for i, frame in enumerate(self.listed()):
            with within(i):
                digest.update(f"{frame.key}\n".encode())
        return f"frames:{digest.hexdigest()}"

    def decode(self, reduced: bool = False) -> list[Image.Image]:
        """All frames; none with `reduced`, which looks at one after the other."""
        images, pixels = [], 0
        for i, frame in enumerate(self.listed()):
            with within(i):
                image = frame.decode()
            pixels += image.width * image.height
            if pixels > MOST_PIXELS:
                found = f"{self.name} has more than {MOST_PIXELS:,} pixels in its first {i + 1:,} frames"
                raise Refused(found, "scale the frames down, or take fewer")
            if not reduced:
                images.append(image)
        return images


@dataclass(eq=False, slots=True)
class FrameFolder(FrameList):
    """The image files of a folder, in the order of their names; it is listed when it is needed."""

    frames: Sequence[Source[Image.Image]] = field(default=(), init=False)
    path: str

    @property
    def name(self) -> str:
        return quoted(self.path)

    def listed(self) -> Sequence[Source[Image.Image]]:
        if not self.frames:
            names = _frame_names(self.path)
            self.frames = [OnDisk(os.path.join(self.path, name)) for name in names]  # noqa: PTH118
        return self.frames


def frames_source(value: Any) -> Source[list[Image.Image]]:
    """The source of a value that `InputFrames.of` accepts, or Refused."""
    if isinstance(value, InputFrames):
        return value.source
    if value is None:
        raise Refused("None", "every caption needs a video", verb="is")
    if isinstance(value, (str, os.PathLike)):
        return FrameFolder(local_path(value))
    shape = shape_of(value)
    if shape is not None and (is_tensor(value) or hasattr(value, "__array_interface__")):
        if len(shape) != 4:
            fix = "expected (T, H, W, 3) of an array or (T, 3, H, W) of a tensor"
            raise Refused(
                f"the frames have shape {shape}", fix + ("; pass value[None]" if len(shape) == 3 else "")
            )
        _refuse_count(shape[0])
        frames = list(value)
    else:
        listed = None if isinstance(value, Image.Image) else as_list(value)
        if listed is None:
            fix = f"expected {ACCEPTED}" + ("; pass [image]" if isinstance(value, Image.Image) else "")
            raise Refused(described(value), fix, verb="is", kind=TypeError)
        _refuse_count(len(listed))
        frames = listed
    sources = []
    for i, frame in enumerate(frames):
        with within(i):
            sources.append(image_source(frame))
    return FrameList(sources)


def _refuse_count(frames: int) -> None:
    if not frames:
        raise Refused("a video without frames", "pass at least one image", verb="is")
    if frames > MOST_FRAMES:
        raise Refused(f"a video of {frames:,} frames", f"take at most {MOST_FRAMES:,} of them", verb="is")


def _frame_names(folder: str) -> list[str]:
    """The names of a folder's image files in order, `9.jpg` before `10.jpg`."""
    name = quoted(folder)
    try:
        with os.scandir(folder) as entries:
            images = [e.name for e in entries if not e.name.startswith(".") and bare(e.name) != e.name]
    except FileNotFoundError:
        raise Refused(f"there is no folder {name}") from None
    except NotADirectoryError:
        fix = "videos are not decoded: write its frames as images into a folder, and pass that"
        raise Refused(f"{name} is a file", fix) from None
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read {name} ({getattr(error, 'strerror', None) or error})") from None
    if not images:
        raise Refused(f"{name} holds no image", "write the frames of the video into it")
    _refuse_count(len(images))
    return sorted(images, key=_numbers_as_numbers)


def _numbers_as_numbers(name: str) -> tuple[list[tuple[int, str]], str]:
    """
    >>> sorted(["f10.jpg", "f9.jpg", "f09.jpg"], key=_numbers_as_numbers)
    ['f09.jpg', 'f9.jpg', 'f10.jpg']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part[:18]), "") if part[0] in "0123456789" else (-1, part) for part in parts], name


class InputFrames(InputVisual[list[Image.Image]]):
    """A video as its frames: `load` gives a list of PIL images.

    `InputFrames.of` takes a list of what `InputImage.of` takes, an array (T, H, W, 3), a tensor (T, 3, H, W),
    or the path of a folder of image files, in the order of their names (`9.jpg` before `10.jpg`).

    >>> import numpy as np
    >>> video = InputFrames.of(np.zeros((5, 48, 64, 3), dtype="uint8"))
    >>> len(video.load()), video.load()[0].size
    (5, (64, 48))
    """

    __slots__ = ()
    medium = "video"
    source_of = staticmethod(frames_source)
