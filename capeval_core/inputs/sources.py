"""Where the pixels of an image come from: a file, bytes, an open PIL image; and their conversion to RGB."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from PIL import Image

from capeval_core.inputs.decoding import (
    Refused,
    decode,
    pixel_key,
    quoted,
    refuse_format,
    refuse_unfit,
    undecodable,
)

LONGEST_FILE = 2**30  # bytes; what is longer is a video or a disk image, and would be read into memory

Loaded = TypeVar("Loaded", covariant=True)


class Source(ABC, Generic[Loaded]):
    """Where a visual comes from. The key is kept, bytes and pixels are not."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key: str | None = None

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def key(self) -> str: ...

    @abstractmethod
    def decode(self, reduced: bool = False) -> Loaded:
        """The content, or Refused. With `reduced` it may be smaller: it only shows whether it decodes."""


class Encoded(Source[Image.Image]):
    """An image as the bytes of a file."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> bytes: ...

    @property
    def key(self) -> str:
        return self._key or self._keep_key(self.read())

    def decode(self, reduced: bool = False) -> Image.Image:
        data = self.read()
        self._keep_key(data)
        return decode(data, self.name, reduced)

    def _keep_key(self, data: bytes) -> str:
        if self._key is None:
            self._key = "file:" + hashlib.blake2b(data, digest_size=16).hexdigest()
        return self._key


class OnDisk(Encoded):
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @property
    def name(self) -> str:
        return quoted(self.path)

    def read(self) -> bytes:
        return read_file(self.path)


class InMemory(Encoded):
    """The bytes of a file, with the path that they came from where there is one."""

    __slots__ = ("data", "path")

    def __init__(self, data: bytes, path: str | None = None) -> None:
        super().__init__()
        self.data = data
        self.path = path

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the bytes object of length {len(self.data)}"

    def read(self) -> bytes:
        if not self.data:
            raise Refused(f"{self.name} is empty (zero bytes)")
        return self.data


def read_file(path: str, content: str = "image") -> bytes:
    """The bytes of a regular file that is not empty and not too long; Refused otherwise."""
    name = quoted(path)
    try:
        status = os.stat(path)  # noqa: PTH116  (a Path per image costs more than the call)
        if stat.S_ISDIR(status.st_mode):
            raise Refused(f"{name} is a folder", f"pass the path of one {content}")
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{name} is not a regular file")
        if status.st_size > LONGEST_FILE:
            raise Refused(f"{name} has {status.st_size:,} bytes", f"too many for one {content}")
        data = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        fix = "~ is not expanded, write the whole path" if path.startswith("~") else ""
        raise Refused(f"there is no file {name}", fix) from None
    except PermissionError:
        raise Refused(f"cannot read {name} (permission denied)") from None
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read {name} ({getattr(error, 'strerror', None) or error})") from None
    if not data:
        raise Refused(f"{name} is empty (zero bytes)")
    return data


class Pixels(Source[Image.Image]):
    """An image that is already decoded, or that an open PIL image decodes by itself."""

    __slots__ = ()

    @abstractmethod
    def image(self) -> Image.Image: ...

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = pixel_key(self.image())
        return self._key

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.image()
        refuse_unfit(image, self.name)
        return image


# PIL reads a lazy image from its one file handle; two threads that both load it would read past each other.
_loading = threading.Lock()


class FromPIL(Pixels):
    __slots__ = ("value",)

    def __init__(self, value: Image.Image) -> None:
        super().__init__()
        self.value = value

    @property
    def name(self) -> str:
        width, height = self.value.size
        filename = getattr(self.value, "filename", "")
        is_path = filename and isinstance(filename, (str, bytes, Path))
        origin = f" of {quoted(os.fsdecode(filename))}" if is_path else ""
        return f"the PIL image{origin} ({self.value.mode}, {width}x{height})"

    def image(self) -> Image.Image:
        with _loading:
            refuse_format(self.value, self.name)
            closed = is_closed(self.value)
            if not closed:
                refuse_unfit(self.value, self.name)  # before a lazy one is decoded in vain
            try:
                self.value.load()
                # A copy: whoever loads an image may change it, and the original may be closed meanwhile.
                return self.value.copy()
            except Exception as error:
                if closed or "closed image" in str(error):
                    raise Refused(f"{self.name} is closed", "pass its path, or .load() it in time") from None
                raise undecodable(self.name, error) from None


def is_closed(image: Image.Image) -> bool:
    """Whether pixels are still to be read (there are tiles) from a file that is no longer open."""
    handle = getattr(image, "fp", None)
    return bool(getattr(image, "tile", None)) and (handle is None or bool(getattr(handle, "closed", False)))


class InRgb(Source[Image.Image]):
    """An image of any mode, converted to RGB when it is decoded.

    An image that is in RGB keeps its key, so that its features and rows serve both ways; any other mode has
    a key of its own, since a resize before the conversion gives other pixels than one after it.
    """

    __slots__ = ("source",)

    def __init__(self, source: Source[Image.Image]) -> None:
        super().__init__()
        self.source = source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def key(self) -> str:
        if self._key is None:
            try:
                mode = self.source.decode().mode
            except Refused:  # reported when it is loaded, at its own index
                return self.source.key
            self._key = self.source.key if mode == "RGB" else f"rgb-{self.source.key}"
        return self._key

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.source.decode(reduced)
        try:
            return image.convert("RGB")
        except ValueError as error:  # e.g. no way from the mode La to RGB
            raise Refused(f"cannot convert {self.name} ({image.mode}) to RGB: {error}") from None
