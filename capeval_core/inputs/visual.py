"""An image from wherever it lies: lazy, checked, and keyed by its content.

`InputImage.of` takes a path, bytes, a PIL image, a numpy array, a torch tensor or a `datasets` Image dict.
Nothing is read until it is needed, nothing decoded is kept, and equal contents share one `key`, so that an
encoder can see every distinct image once.

A file in one of the formats of `decoding.FORMATS` is decoded as `PIL.Image.open` decodes it: in its own mode,
without regard to its EXIF orientation, as the original metric scripts do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from capeval_core.inputs.arrays import source_of_array, source_of_tensor
from capeval_core.inputs.decoding import ImageError, Refused, quoted
from capeval_core.inputs.problems import described
from capeval_core.inputs.sequences import shape_of
from capeval_core.inputs.sources import FromPIL, InMemory, OnDisk, Source

ACCEPTED = (
    "a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
    'a datasets dict {"bytes": ..., "path": ...}'
)
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:image/")

__all__ = ["Image", "ImageError", "Row", "source_of"]


class InputImage:
    """One image at its place in the input.

    Make it with `InputImage.of`. Images that share a `source` share its key; `where` is only for messages.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> image = InputImage.of(grey, where="images[0]")
    >>> image.load().size, image.load().mode
    ((6, 4), 'L')
    >>> image.key == InputImage.of(grey.copy(), where="images[1]").key
    True
    """

    __slots__ = ("source", "where")

    def __init__(self, where: str, source: Source) -> None:
        self.where = where
        self.source = source

    @classmethod
    def of(cls, value: Any, where: str = "image") -> InputImage:
        """Wrap `value` without reading or decoding it.

        Accepts a path (str or PathLike), bytes, a PIL image, a numpy array ((H, W), (H, W, 1), (H, W, 3) or
        (H, W, 4); uint8, or float in [0, 1]), a torch tensor (also (1, H, W) and (3, H, W)), or the dict of a
        `datasets` Image feature. `where` names the place in messages, e.g. `images[17]`.

        Raises TypeError for what can never be an image and ImageError for what could but is not (None, an
        empty path, a URL, an unfit shape). Whether a file exists and decodes is asked by `check` and `load`.
        """
        try:
            return cls(where, source_of(value))
        except Refused as refused:
            raise refused.kind(refused.at(where)) from None

    @property
    def name(self) -> str:
        """What it is, in few words: `'dogs/x.jpg'`, `the PIL image (RGB, 640x480)`."""
        return self.source.name

    @property
    def key(self) -> str:
        """The content key: equal for equal contents, wherever they lie.

        Files and bytes are keyed by their bytes (`file:...`), decoded images by mode, size, palette and
        pixels (`pixels:...`). It is computed at the first call and kept; the bytes are not. Raises
        ImageError.
        """
        try:
            return self.source.key
        except Refused as refused:
            raise ImageError(refused.at(self.where)) from None

    def load(self) -> Image.Image:
        """The decoded image, in its own mode, EXIF orientation ignored. Raises ImageError."""
        try:
            return self.source.decode()
        except Refused as refused:
            raise ImageError(refused.at(self.where)) from None

    def check(self) -> None:
        """Raise ImageError unless `load` will succeed.

        The whole file is decoded, but a JPEG at an eighth of its size, so that nearly only the entropy
        decoding is paid, which is where truncation and damage show.
        """
        try:
            self.source.decode(reduced=True)
        except Refused as refused:
            raise ImageError(refused.at(self.where)) from None

    def __repr__(self) -> str:
        return f"<InputImage {self.where}: {self.name}>"


class Row(Source):
    """A row of something that makes its images when asked, such as a column of a dataset."""

    __slots__ = ("index", "rows")

    def __init__(self, rows: Sequence[Any], index: int) -> None:
        super().__init__()
        self.rows = rows
        self.index = index

    @property
    def name(self) -> str:
        return f"row {self.index}"

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = self.fetch().key
        return self._key

    def decode(self, reduced: bool = False) -> Image.Image:
        return self.fetch().decode(reduced)

    def fetch(self) -> Source:
        """The source of the row's value, or Refused."""
        try:
            value = self.rows[self.index]
        except Exception as error:  # the rows' own code may fail in any way, and costs this row only
            raise Refused(f"cannot be fetched ({type(error).__name__}: {error})", joint=" ") from None
        return source_of(value)


def source_of(value: Any) -> Source:
    """The source of any value that `InputImage.of` accepts, or Refused."""
    if isinstance(value, InputImage):
        return value.source
    if value is None:
        raise Refused("is None: every caption needs an image", joint=" ")
    if isinstance(value, (str, os.PathLike)):
        return OnDisk(local_path(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return InMemory(bytes_of(value))
    if isinstance(value, Image.Image):
        return FromPIL(value)
    if isinstance(value, Mapping):
        return source_of_dict(value)
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "is_floating_point") and not isinstance(value, type):
        return source_of_tensor(value)
    if shape_of(value) and hasattr(value, "__array_interface__"):
        return source_of_array(value)
    mend = "; this looks like an open file: pass its .read()" if hasattr(value, "read") else ""
    raise Refused(f"is {described(value)}: expected {ACCEPTED}{mend}", joint=" ", kind=TypeError)


def local_path(value: str | os.PathLike[Any]) -> str:
    path = path_text(value)
    if not path:
        raise Refused("the path is empty")
    if URL.match(path):
        mend = "pass the path without file://" if path.startswith("file:") else "download it first"
        raise Refused(f"{quoted(path)} is a URL, and images are never fetched; {mend}")
    return path


def path_text(value: str | os.PathLike[Any]) -> str:
    try:
        return os.fsdecode(value)
    except Exception as error:  # a path of the user's own may fail in any way
        found = f"is {described(value)} that gives no path ({error})"
        raise Refused(found, joint=" ", kind=TypeError) from None


def bytes_of(value: bytes | bytearray | memoryview) -> bytes:
    try:
        return bytes(value)
    except ValueError as error:
        raise Refused(f"is {described(value)} that gives no bytes ({error})", joint=" ") from None


def source_of_dict(value: Mapping[Any, Any]) -> Source:
    if not value.keys() & {"bytes", "path"}:
        found = ", ".join(map(repr, list(value)[:5]))
        raise Refused(f'a dict needs the keys "bytes" and "path", found {found or "none"}')
    data, path = value.get("bytes"), value.get("path")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise Refused(f'["path"] is {described(path)}: expected a str or None', joint="", kind=TypeError)
    if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
        raise Refused(f'["bytes"] is {described(data)}: expected bytes or None', joint="", kind=TypeError)
    if data is not None:
        return InMemory(bytes_of(data), None if path is None else path_text(path))
    if path is not None:
        return OnDisk(local_path(path))
    raise Refused('both "bytes" and "path" are None')
