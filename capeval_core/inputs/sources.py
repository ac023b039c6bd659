"""Where the pixels of an image come from: a file, bytes, an open PIL image; and their conversion to RGB."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

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


@dataclass(eq=False, slots=True)
class Source(ABC, Generic[Loaded]):
    """Where a visual comes from. The key is kept, bytes and pixels are not."""

    _key: str | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def compute_key(self) -> str: ...

    @property
    def key(self) -> str:
        """The content key, or Refused."""
        if self._key is None:
            self._key = self.compute_key()
        return self._key

    @abstractmethod
    def decode(self, reduced: bool = False) -> Loaded:
        """The content, or Refused. With `reduced` it may be smaller: it only shows whether it decodes."""


class Encoded(Source[Image.Image]):
    """An image as the bytes of a file."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> bytes: ...

    def compute_key(self) -> str:
        return file_key(io.BytesIO(self.read()))

    def decode(self, reduced: bool = False) -> Image.Image:
        data = self.read()
        self._key = self._key or file_key(io.BytesIO(data))
        return decode(data, self.name, reduced)


def file_key(file: IO[bytes]) -> str:
    """The content key of an open file; it is never in memory as a whole."""
    digest = hashlib.blake2b(digest_size=16)
    while part := file.read(1 << 20):
        digest.update(part)
    return f"file:{digest.hexdigest()}"


@dataclass(eq=False, slots=True)
class OnDisk(Encoded):
    path: str

    @property
    def name(self) -> str:
        return quoted(self.path)

    def read(self) -> bytes:
        return read_file(self.path)


@dataclass(eq=False, slots=True)
class InMemory(Encoded):
    """The bytes of a file, with the path that they came from where there is one."""

    data: bytes
    path: str | None = None

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
    with open_file(path, content, LONGEST_FILE) as file:
        try:
            data = file.read()
        except (OSError, ValueError) as error:
            raise _unreadable(name, error) from None
    if not data:
        raise Refused(f"{name} is empty (zero bytes)")
    return data


def open_file(path: str, content: str = "image", longest: int | None = None) -> IO[bytes]:
    """A regular file of at most so many bytes, open for reading; Refused otherwise."""
    name = quoted(path)
    try:
        status = os.stat(path)  # noqa: PTH116  (a Path per image costs more than the call)
        if stat.S_ISDIR(status.st_mode):
            raise Refused(f"{name} is a folder", f"pass the path of one {content}")
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{name} is not a regular file")
        if longest is not None and status.st_size > longest:
            raise Refused(f"{name} has {status.st_size:,} bytes", f"too many for one {content}")
        return Path(path).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        fix = "~ is not expanded, write the whole path" if path.startswith("~") else ""
        raise Refused(f"there is no file {name}", fix) from None
    except PermissionError:
        raise Refused(f"cannot read {name} (permission denied)") from None
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> Refused:
    return Refused(f"cannot read {name} ({getattr(error, 'strerror', None) or error})")


class Pixels(Source[Image.Image]):
    """An image that is already decoded, or that an open PIL image decodes by itself."""

    __slots__ = ()

    @abstractmethod
    def image(self) -> Image.Image: ...

    def compute_key(self) -> str:
        return pixel_key(self.image())

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.image()
        refuse_unfit(image, self.name)
        return image


# PIL reads a lazy image from its one file handle; two threads that both load it would read past each other.
_loading = threading.Lock()


@dataclass(eq=False, slots=True)
class FromPIL(Pixels):
    value: Image.Image

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
            handle = getattr(self.value, "fp", None)
            # Pixels are still to be read (there are tiles) from a file that is no longer open.
            closed = bool(getattr(self.value, "tile", None)) and getattr(handle, "closed", handle is None)
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


@dataclass(eq=False, slots=True)
class InRgb(Source[Image.Image]):
    """An image of any mode, converted to RGB when it is decoded.

    An image that is in RGB keeps its key, so that its features and rows serve both ways; any other mode has
    a key of its own, since a resize before the conversion gives other pixels than one after it.
    """

    source: Source[Image.Image]

    @property
    def name(self) -> str:
        return self.source.name

    def compute_key(self) -> str:
        try:
            mode = self.source.decode().mode
        except Refused:  # reported when it is loaded, at its own index
            return self.source.key
        return self.source.key if mode == "RGB" else f"rgb-{self.source.key}"

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.source.decode(reduced)
        try:
            return image.convert("RGB")
        except ValueError as error:  # e.g. no way from the mode La to RGB
            raise Refused(f"cannot convert {self.name} ({image.mode}) to RGB: {error}") from None


@dataclass(eq=False, slots=True)
class Changed(Source[Image.Image]):
    """An image that is changed when it is decoded; `how` names the change in its key."""

    source: Source[Image.Image]
    how: str
    change: Callable[[Image.Image], Image.Image]

    @property
    def name(self) -> str:
        return self.source.name

    def compute_key(self) -> str:
        return f"{self.how}-{self.source.key}"

    def decode(self, reduced: bool = False) -> Image.Image:
        return self.change(self.source.decode())


@dataclass(eq=False, slots=True)
class Texts(Source[Any]):
    """The references of an image that nobody opens."""

    texts: Sequence[str]

    @property
    def name(self) -> str:
        return f"the image with {len(self.texts)} references"

    def compute_key(self) -> str:
        content = json.dumps(list(self.texts)).encode()
        return "references:" + hashlib.blake2b(content, digest_size=16).hexdigest()

    def decode(self, reduced: bool = False) -> Any:
        raise Refused("not opened by a metric on texts alone", verb="is")


@dataclass(eq=False, slots=True)
class IdentifiedTexts(Texts):
    """The same, of an image whose id is known: another image with equal references is another one."""

    image_id: str

    def compute_key(self) -> str:
        content = json.dumps([self.image_id, *self.texts]).encode()
        return "references:" + hashlib.blake2b(content, digest_size=16).hexdigest()
