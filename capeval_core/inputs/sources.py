"""Where a visual comes from: a file, bytes, an open PIL image, an array, or the texts that stand for it."""

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

import numpy as np
from PIL import Image

from capeval_core.inputs.decoding import (
    Refused,
    decode,
    pixel_key,
    quoted,
    refuse_size,
    refuse_unfit,
    undecodable,
)
from capeval_core.inputs.sequences import is_tensor

LONGEST_FILE = 2**30  # bytes; what is longer is a video or a disk image, and would be read into memory
ROUNDING = 1e-5  # how far beyond [0, 1] float arithmetic may carry a pixel

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


# ---- files and bytes


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


def file_key(file: IO[bytes]) -> str:
    """The content key of an open file; it is never in memory as a whole."""
    digest = hashlib.blake2b(digest_size=16)
    while part := file.read(1 << 20):
        digest.update(part)
    return f"file:{digest.hexdigest()}"


def read_file(path: str, content: str = "image") -> bytes:
    """The bytes of a regular file that is not empty and not too long; Refused otherwise."""
    with open_file(path, content, LONGEST_FILE) as file:
        try:
            data = file.read()
        except OSError as error:
            raise _unreadable(path, error) from None
    if not data:
        raise Refused(f"{quoted(path)} is empty (zero bytes)")
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
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> Refused:
    return Refused(f"cannot read {quoted(path)} ({getattr(error, 'strerror', None) or error})")


# ---- pixels


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
        origin = (
            f" of {quoted(os.fsdecode(filename))}" if isinstance(filename, (str, Path)) and filename else ""
        )
        return f"the PIL image{origin} ({self.value.mode}, {width}x{height})"

    def image(self) -> Image.Image:
        with _loading:
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
class FromArray(Pixels):
    """(H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8 or float, numpy or torch; `shape`: as given."""

    value: Any
    kind: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"the {self.kind} of shape {self.shape}"

    def image(self) -> Image.Image:
        value = self.value
        refuse_size(value.shape[1], value.shape[0], self.name)  # a view of few numbers may have any shape
        if is_tensor(value):
            value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
        array = _as_uint8(value, self.kind)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        return Image.fromarray(np.ascontiguousarray(array))


def source_of_array(value: Any) -> FromArray:
    if np.ma.is_masked(value):
        raise Refused("the numpy array has masked pixels, and an image has none", "pass array.filled(value)")
    array = np.asarray(value)
    shape: tuple[int, ...] = array.shape
    _refuse_dtype(array.dtype.name, "numpy array")
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))):
        fix = "expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
        if len(shape) == 3 and shape[0] in (1, 3, 4):
            fix += "; this looks like channels first: pass array.transpose(1, 2, 0)"
        raise Refused(f"the numpy array has shape {shape}", fix + _of_batch(shape, "array"))
    return _with_pixels(array, "array", shape)


def source_of_tensor(value: Any) -> FromArray:
    if value.is_nested or value.device.type == "meta" or "strided" not in str(value.layout):
        kind = "nested" if value.is_nested else f"of the layout {value.layout} on the device {value.device}"
        raise Refused(f"the tensor is {kind}", "pass a dense one with pixels")
    shape = tuple(value.shape)
    dtype = str(value.dtype).rpartition(".")[2]
    _refuse_dtype(dtype, "tensor")
    tensor = value.detach().resolve_neg()
    first = len(shape) == 3 and shape[0] in (1, 3)
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    if first and last:
        found = f"the tensor's shape {shape} can be read as (C, H, W) and as (H, W, C)"
        raise Refused(found, "pass a numpy array (H, W, C)")
    if not (first or last or len(shape) == 2):
        fix = "expected (3, H, W), (1, H, W), (H, W) or (H, W, 3)" + _of_batch(shape, "tensor")
        raise Refused(f"the tensor has shape {shape}", fix)
    if first:
        tensor = tensor.permute(1, 2, 0)
    if tensor.device.type == "cpu" and dtype in ("uint8", "float32", "float64"):
        # A view that pickles its own pixels only; a tensor cut from a batch would pickle the whole batch.
        tensor = tensor.numpy()
    return _with_pixels(tensor, "tensor", shape)


def _of_batch(shape: tuple[int, ...], kind: str) -> str:
    return f"; this looks like a batch: pass {kind}[0]" if len(shape) == 4 else ""


def _with_pixels(value: Any, kind: str, shape: tuple[int, ...]) -> FromArray:
    if 0 in shape:
        raise Refused(f"the {kind} of shape {shape} has no pixels")
    return FromArray(value, kind, shape)


def _refuse_dtype(dtype: str, kind: str) -> None:
    if dtype != "uint8" and not dtype.startswith(("float", "bfloat")):
        fixes = {"bool": "multiply a mask by 255 as uint8", "uint16": "divide by 65535 to get floats"}
        fix = fixes.get(dtype, "if the values are 0 to 255, convert it to uint8")
        raise Refused(f"the {kind} has dtype {dtype}", f"expected uint8, or float in [0, 1]; {fix}")


def _as_uint8(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Floats in [0, 1] rounded to 0..255; Refused for NaN, inf and other ranges."""
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())  # NaN passes through min
    if not np.isfinite([low, high]).all():
        found = "NaN" if np.isnan([low, high]).any() else "infinite values"
        raise Refused(f"the {kind} of floats has {found}", "expected values in [0, 1]")
    if low < -ROUNDING or high > 1 + ROUNDING:
        fix = "divide by 255" if low >= 0 else "pass the pixels as they were before normalisation"
        found = f"the {kind} of floats has values from {low:.4g} to {high:.4g}"
        raise Refused(found, f"expected [0, 1]; {fix}")
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    rounded: np.ndarray[Any, Any] = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return rounded


# ---- views of other sources


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
    """The references of an image that nobody opens; with its id, images of equal references differ."""

    texts: Sequence[str]
    image_id: str | None = None

    @property
    def name(self) -> str:
        return f"the image with {len(self.texts)} references"

    def compute_key(self) -> str:
        content = json.dumps([*([] if self.image_id is None else [self.image_id]), *self.texts])
        return "references:" + hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def decode(self, reduced: bool = False) -> Any:
        raise Refused("not opened by a metric on texts alone", verb="is")
