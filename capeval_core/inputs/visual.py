"""What captions are about, from wherever it lies: lazy, checked, and keyed by its content.

A `Visual` is an image (`InputImage`), the frames of a video (`InputFrames` in `frames`), or the features of
boxes (`InputBoxes` in `boxes`), which need no image. Nothing is read until it is needed, nothing decoded is
kept, and equal contents share one `key`, so that an encoder sees every distinct one once.

An image file in one of the formats of `decoding.FORMATS` is decoded as `PIL.Image.open` decodes it: in its
own mode, without regard to its EXIF orientation, as the original metric scripts do.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Protocol, Self

from PIL import Image

from capeval_core.errors import Problems
from capeval_core.inputs.decoding import ImageError, Refused, quoted
from capeval_core.inputs.sequences import is_tensor, shape_of
from capeval_core.inputs.sources import (
    Changed,
    FromPIL,
    InMemory,
    Loaded,
    OnDisk,
    Source,
    Texts,
    source_of_array,
    source_of_tensor,
)
from capeval_core.values import described

__all__ = ["ImageError", "InputImage", "InputReferences", "InputVisual", "Visual", "image_source"]

ACCEPTED = (
    "a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
    'a datasets dict {"bytes": ..., "path": ...}'
)
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:image/")


class Visual(Protocol[Loaded]):
    """What an encoder sees of an image, a video or boxes; all but the names raise ImageError.

    key: equal for equal contents, wherever they lie. where: its argument and index, `images[17]`. name: what
    it is, `'dogs/x.jpg'`, `the PIL image (RGB, 640x480)`. load: its content, decoded. check: whether `load`
    will succeed.
    """

    @property
    def key(self) -> str: ...

    @property
    def where(self) -> str: ...

    @property
    def name(self) -> str: ...

    def load(self) -> Loaded: ...

    def check(self) -> None: ...


class InputVisual(ABC, Generic[Loaded]):
    """A `Visual` and its position in the input. Visuals that share a `source` share its key."""

    __slots__ = ("source", "where")

    medium: ClassVar[str]
    """As in `CaptionMetric.media`."""

    def __init__(self, where: str, source: Source[Loaded]) -> None:
        self.where = where
        self.source = source

    @staticmethod
    @abstractmethod
    def source_of(value: Any) -> Source[Any]:
        """The source of any value that can be such a visual, or Refused."""

    @classmethod
    def of(cls, value: Any, where: str = "") -> Self:
        """Wrap a value without reading or decoding it; `where` names it in messages: `images[17]`.

        Raises InputTypeError for what can never be such a visual and ImageError for what could but is not
        (None, an empty path, a URL, an unfit shape). `check` and `load` tell whether files exist and decode.
        """
        where = where or cls.medium
        try:
            return cls(where, cls.source_of(value))
        except Refused as refused:
            raise Problems([refused.problem(where)]).error() from None

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def label(self) -> str:
        """Its path, where it is a file or a folder, else its name."""
        return getattr(self.source, "path", None) or self.name

    @property
    def key(self) -> str:
        """The content key, computed at the first call and kept; contents are not. Raises ImageError.

        Files and bytes are keyed by their bytes (`file:...`), decoded images by mode, size, palette and
        pixels (`pixels:...`), frames by their keys in order, box features by their numbers.
        """
        with self.named():
            return self.source.key

    def load(self) -> Loaded:
        """The content, decoded. Raises ImageError."""
        with self.named():
            return self.source.decode()

    def check(self) -> None:
        """Raise ImageError unless `load` will succeed, which is mostly cheaper to find out."""
        with self.named():
            self.source.decode(reduced=True)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let what is refused be a problem with this visual."""
        try:
            yield
        except Refused as refused:
            raise ImageError(refused.problem(self.where)) from None

    def at(self, where: str) -> Self:
        """The same visual under another name in messages."""
        return type(self)(where, self.source)


def image_source(value: Any) -> Source[Image.Image]:
    """The source of a value that `InputImage.of` accepts, or Refused."""
    if isinstance(value, InputImage):
        return value.source
    if value is None:
        raise Refused("None", "every caption needs an image", verb="is")
    if isinstance(value, (str, os.PathLike)):
        return OnDisk(local_path(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return InMemory(bytes(value))
    if isinstance(value, Image.Image):
        return FromPIL(value)
    if isinstance(value, Mapping):
        data, path = content_of_dict(value)
        return OnDisk(path) if data is None else InMemory(data, path or None)
    if is_tensor(value):
        return source_of_tensor(value)
    if shape_of(value) and hasattr(value, "__array_interface__"):
        return source_of_array(value)
    fix = "; this looks like an open file: pass its .read()" if hasattr(value, "read") else ""
    raise Refused(described(value), f"expected {ACCEPTED}{fix}", verb="is", kind=TypeError)


def local_path(value: str | os.PathLike[Any], content: str = "images") -> str:
    """A path that is not empty and no address; Refused otherwise."""
    path = os.fsdecode(value)
    if not path:
        raise Refused("the path is empty")
    if URL.match(path):
        fix = "pass the path without file://" if path.startswith("file:") else "download it first"
        raise Refused(f"{quoted(path)} is a URL, and {content} are never fetched; {fix}")
    return path


def content_of_dict(value: Mapping[Any, Any], content: str = "images") -> tuple[bytes | None, str]:
    """The bytes that a dict {"bytes", "path"} of a dataset holds, None where it has a path alone; the path.

    Refused for any other dict.
    """
    if not value.keys() & {"bytes", "path"}:
        found = ", ".join(map(repr, list(value)[:5]))
        raise Refused(f'a dict needs the keys "bytes" and "path", found {found or "none"}')
    data, path = value.get("bytes"), value.get("path")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise Refused(described(path), "expected a str or None", verb="is", index=("path",), kind=TypeError)
    if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
        raise Refused(described(data), "expected bytes or None", verb="is", index=("bytes",), kind=TypeError)
    if data is not None:
        return bytes(data), "" if path is None else os.fsdecode(path)
    if path is None:
        raise Refused('both "bytes" and "path" are None')
    return None, local_path(path, content)


class InputImage(InputVisual[Image.Image]):
    """An image: `load` gives a PIL image in its own mode, EXIF orientation ignored.

    `InputImage.of` takes a path (str or PathLike), bytes, a PIL image, a numpy array ((H, W), (H, W, 1),
    (H, W, 3) or (H, W, 4); uint8, or float in [0, 1]), a torch tensor (also (1, H, W) and (3, H, W)), or the
    dict of a `datasets` Image feature.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> image = InputImage.of(grey, where="images[0]")
    >>> image.load().size, image.load().mode
    ((6, 4), 'L')
    >>> image.key == InputImage.of(grey.copy(), where="images[1]").key
    True
    """

    __slots__ = ()
    medium = "image"
    source_of = staticmethod(image_source)

    def changed(self, how: str, change: Callable[[Image.Image], Image.Image]) -> InputImage:
        """Another view of the image, such as a crop; `how` tells its key from those of other changes."""
        return InputImage(self.where, Changed(self.source, how, change))


class InputReferences(InputVisual[Any]):
    """What an image is to a metric on texts alone: its references, by which its captions are grouped."""

    __slots__ = ()
    medium = "references"

    @staticmethod
    def source_of(value: Any) -> Source[Any]:
        return Texts(value)
