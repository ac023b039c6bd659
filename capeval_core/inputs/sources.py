"""Where an image's pixels come from: a file, bytes, or an open PIL image."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from abc import ABC, abstractmethod
from pathlib import Path

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


class Source(ABC):
    """Where an image's pixels come from. The key is kept, bytes and pixels are not."""

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
    def decode(self, reduced: bool = False) -> Image.Image:
        """The image, or Refused. With `reduced` it is only valid or not: its size may be smaller."""


class Encoded(Source):
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
        try:
            status = os.stat(self.path)  # noqa: PTH116  (a Path per image costs more than the call)
            if stat.S_ISDIR(status.st_mode):
                raise Refused(f"{self.name} is a folder: pass the path of one image")
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{self.name} is not a regular file")
            if status.st_size > LONGEST_FILE:
                raise Refused(f"{self.name} has {status.st_size:,} bytes: too many for one image")
            data = Path(self.path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            mend = ": ~ is not expanded, write the whole path" if self.path.startswith("~") else ""
            raise Refused(f"there is no file {self.name}{mend}") from None
        except PermissionError:
            raise Refused(f"cannot read {self.name} (permission denied)") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Refused(f"cannot read {self.name} ({reason})") from None
        if not data:
            raise Refused(f"{self.name} is empty (zero bytes)")
        return data


class InMemory(Encoded):
    """The bytes of a file, with the path that they came from if it is known."""

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


class Pixels(Source):
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
        known = filename and isinstance(filename, (str, bytes, Path))
        told = f" of {quoted(os.fsdecode(filename))}" if known else ""
        return f"the PIL image{told} ({self.value.mode}, {width}x{height})"

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
                    raise Refused(f"{self.name} is closed: pass its path, or .load() it in time") from None
                raise undecodable(self.name, error) from None


def is_closed(image: Image.Image) -> bool:
    """Whether pixels are still to be read (there are tiles) from a file that is no longer open."""
    handle = getattr(image, "fp", None)
    return bool(getattr(image, "tile", None)) and (handle is None or bool(getattr(handle, "closed", False)))
