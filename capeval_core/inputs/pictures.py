"""A picture from wherever it lies: lazy, checked, and keyed by its content.

`Picture.of` takes a path, bytes, a PIL image, a numpy array, a torch tensor or a `datasets` Image dict.
Nothing is read until it is needed, nothing decoded is kept, and equal contents share one `key`, so that an
encoder can see every distinct picture once.

A file is decoded as `PIL.Image.open` decodes it: in its own mode, without regard to its EXIF orientation,
as the original metric scripts do.
"""

from __future__ import annotations

import hashlib
import io
import numbers
import os
import re
import stat
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageFile

if TYPE_CHECKING:
    import numpy as np

ACCEPTED = (
    "a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
    'a datasets dict {"bytes": ..., "path": ...}'
)
LONGEST_FILE = 2**30  # bytes; what is longer is a video or a disk image, and would be read into memory
STEEPEST = 200  # longer / shorter side; scaling the shorter side to a model's input size would explode
# Several pictures in one file that are not frames: a phone's depth map or thumbnail, Photoshop's layers.
NOT_FRAMES = {"MPO", "PSD"}
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:image/")
ROUNDING = 1e-5  # how far beyond [0, 1] float arithmetic may carry a pixel


class PictureError(ValueError):
    """A picture cannot be used. The message begins with its place, e.g. `images[17]: `."""


class Refused(Exception):  # noqa: N818  (a reason on its way to Picture, which knows the place)
    """Why a source is no picture, without its place: `joint` is what stands between the two."""

    def __init__(
        self, reason: str, joint: str = ": ", kind: type[ValueError] | type[TypeError] = PictureError
    ) -> None:
        super().__init__(reason)
        self.joint = joint
        self.kind = kind

    def at(self, where: str) -> str:
        return f"{where}{self.joint}{self}"


class Picture:
    """One picture at its place in the input.

    Make it with `Picture.of`. Pictures that share a `source` share its key; `where` is only for messages.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> picture = Picture.of(grey, where="images[0]")
    >>> picture.load().size, picture.load().mode
    ((6, 4), 'L')
    >>> picture.key == Picture.of(grey.copy(), where="images[1]").key
    True
    """

    __slots__ = ("source", "where")

    def __init__(self, where: str, source: Source) -> None:
        self.where = where
        self.source = source

    @classmethod
    def of(cls, value: Any, where: str = "image") -> Picture:
        """Wrap `value` without reading or decoding it.

        Accepts a path (str or PathLike), bytes, a PIL image, a numpy array ((H, W), (H, W, 1), (H, W, 3) or
        (H, W, 4); uint8, or float in [0, 1]), a torch tensor (also (1, H, W) and (3, H, W)), or the dict of a
        `datasets` Image feature. `where` names the place in messages, e.g. `images[17]`.

        Raises TypeError for what can never be a picture and PictureError for what could but is not (None, an
        empty path, a URL, an unfit shape). Whether a file exists and decodes is asked by `check` and `load`.
        """
        if isinstance(value, Picture):
            return cls(where, value.source)
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

        Files and bytes are keyed by their bytes (`file:...`), decoded pictures by mode, size, palette and
        pixels (`pixels:...`). It is computed at the first call and kept; the bytes are not. Raises
        PictureError.
        """
        try:
            return self.source.key
        except Refused as refused:
            raise PictureError(refused.at(self.where)) from None

    def load(self) -> Image.Image:
        """The decoded picture, in its own mode, EXIF orientation ignored. Raises PictureError."""
        try:
            return self.source.decode()
        except Refused as refused:
            raise PictureError(refused.at(self.where)) from None

    def check(self) -> None:
        """Raise PictureError unless `load` will succeed.

        The whole file is decoded, but a JPEG at an eighth of its size, so that nearly only the entropy
        decoding is paid, which is where truncation and damage show.
        """
        try:
            self.source.decode(reduced=True)
        except Refused as refused:
            raise PictureError(refused.at(self.where)) from None

    def __repr__(self) -> str:
        return f"<Picture {self.where}: {self.name}>"


class Source(ABC):
    """Where a picture's pixels come from. The key is kept, bytes and pixels are not."""

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
        """The picture, or Refused. With `reduced` it is only valid or not: its size may be smaller."""


class Encoded(Source):
    """A picture as the bytes of a file."""

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
            status = os.stat(self.path)  # noqa: PTH116  (a Path per picture costs more than the call)
            if stat.S_ISDIR(status.st_mode):
                raise Refused(f"{self.name} is a folder: pass the path of one picture")
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{self.name} is not a regular file")
            if status.st_size > LONGEST_FILE:
                raise Refused(f"{self.name} has {status.st_size:,} bytes: too many for one picture")
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
    """A picture that is already decoded, or that an open PIL image decodes by itself."""

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
        told = f" of {quoted(os.fsdecode(filename))}" if filename else ""
        return f"the PIL image{told} ({self.value.mode}, {width}x{height})"

    def image(self) -> Image.Image:
        with _loading:
            closed = is_closed(self.value)
            if not closed:
                refuse_unfit(self.value, self.name)  # before a lazy one is decoded in vain
            try:
                self.value.load()
                # A copy: whoever loads a picture may change it, and the original may be closed meanwhile.
                return self.value.copy()
            except Exception as error:
                if closed or "closed image" in str(error):
                    raise Refused(f"{self.name} is closed: pass its path, or .load() it in time") from None
                raise undecodable(self.name, error) from None


def is_closed(image: Image.Image) -> bool:
    """Whether pixels are still to be read (there are tiles) from a file that is no longer open."""
    handle = getattr(image, "fp", None)
    return bool(getattr(image, "tile", None)) and (handle is None or bool(getattr(handle, "closed", False)))


class FromArray(Pixels):
    """(H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8 or float, numpy or torch."""

    __slots__ = ("kind", "shape", "value")

    def __init__(self, value: Any, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.value = value
        self.kind = kind
        self.shape = shape

    @property
    def name(self) -> str:
        return f"the {self.kind} of shape {self.shape}"

    def image(self) -> Image.Image:
        import numpy as np

        value = self.value
        if self.kind == "tensor" and not isinstance(value, np.ndarray):
            value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
        array = as_uint8(value, self.kind)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        return Image.fromarray(np.ascontiguousarray(array))


class Row(Source):
    """A row of something that makes its pictures when asked, such as a column of a dataset."""

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
            self._key = self._fetch().key
        return self._key

    def decode(self, reduced: bool = False) -> Image.Image:
        return self._fetch().decode(reduced)

    def _fetch(self) -> Source:
        try:
            value = self.rows[self.index]
        except Exception as error:  # the rows' own code may fail in any way, and costs this row only
            raise Refused(f"cannot be fetched ({type(error).__name__}: {error})", joint=" ") from None
        return source_of(value)


def source_of(value: Any) -> Source:
    """The source of any value that `Picture.of` accepts, or Refused."""
    if value is None:
        raise Refused("is None: every caption needs a picture", joint=" ")
    if isinstance(value, (str, os.PathLike)):
        return OnDisk(local_path(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return InMemory(bytes(value))
    if isinstance(value, Image.Image):
        return FromPIL(value)
    if isinstance(value, Mapping):
        return source_of_dict(value)
    module = type(value).__module__.partition(".")[0]
    if module == "torch" and hasattr(value, "is_floating_point"):
        return source_of_tensor(value)
    if hasattr(value, "__array_interface__") and hasattr(value, "shape") and value.shape:
        return source_of_array(value)
    raise Refused(f"is {described(value)}: expected {ACCEPTED}", joint=" ", kind=TypeError)


def local_path(value: str | os.PathLike[Any]) -> str:
    path = os.fsdecode(value)
    if not path:
        raise Refused("the path is empty")
    if URL.match(path):
        mend = "pass the path without file://" if path.startswith("file:") else "download it first"
        raise Refused(f"{quoted(path)} is a URL, and pictures are never fetched; {mend}")
    return path


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
        return InMemory(bytes(data), None if path is None else os.fsdecode(path))
    if path is not None:
        return OnDisk(local_path(path))
    raise Refused('both "bytes" and "path" are None')


def source_of_array(value: Any) -> FromArray:
    import numpy as np

    array = np.asarray(value)
    shape: tuple[int, ...] = array.shape
    refuse_dtype(array.dtype.name, "numpy array")
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)):
        refuse_no_pixels(shape, "numpy array")
        return FromArray(array, "array", shape)
    mend = "expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)"
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        mend += "; this looks like channels first: pass array.transpose(1, 2, 0)"
    elif len(shape) == 4:
        mend += "; this looks like a batch: pass array[0]"
    raise Refused(f"the numpy array has shape {shape}: {mend}")


def source_of_tensor(value: Any) -> FromArray:
    shape = tuple(value.shape)
    refuse_dtype(str(value.dtype).rpartition(".")[2], "tensor")
    tensor = value.detach()
    first = len(shape) == 3 and shape[0] in (1, 3)
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    if first and last:
        raise Refused(
            f"the tensor's shape {shape} can be read as (C, H, W) and as (H, W, C): "
            "pass a numpy array (H, W, C)"
        )
    if not (first or last or len(shape) == 2):
        mend = "; this looks like a batch: pass tensor[0]" if len(shape) == 4 else ""
        raise Refused(
            f"the tensor has shape {shape}: expected (3, H, W), (1, H, W), (H, W) or (H, W, 3){mend}"
        )
    refuse_no_pixels(shape, "tensor")
    if first:
        tensor = tensor.permute(1, 2, 0)
    if tensor.device.type == "cpu" and tensor.dtype.itemsize != 2:
        # A view that pickles its own pixels only; a tensor cut from a batch would pickle the whole batch.
        tensor = tensor.numpy()
    return FromArray(tensor, "tensor", shape)


def refuse_no_pixels(shape: tuple[int, ...], kind: str) -> None:
    if 0 in shape:
        raise Refused(f"the {kind} of shape {shape} has no pixels")


def refuse_dtype(dtype: str, kind: str) -> None:
    if dtype == "uint8" or dtype.startswith(("float", "bfloat")):
        return
    if dtype == "bool":
        mend = "for a mask of black and white pass it as uint8 times 255"
    elif dtype == "uint16":
        mend = "divide by 65535 to get floats"
    elif dtype.startswith(("int", "uint")):
        mend = "if the values are 0 to 255, convert it to uint8"
    else:
        mend = "convert it"
    raise Refused(f"the {kind} has dtype {dtype}: expected uint8, or float in [0, 1]; {mend}")


def as_uint8(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Floats in [0, 1] rounded to 0..255; Refused for NaN, inf and other ranges."""
    import numpy as np

    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())  # NaN passes through min
    if not np.isfinite([low, high]).all():
        found = "NaN" if np.isnan([low, high]).any() else "infinite values"
        raise Refused(f"the {kind} of floats has {found}: expected values in [0, 1]")
    if low < -ROUNDING or high > 1 + ROUNDING:
        mend = "divide by 255" if low >= 0 else "pass the pixels as they were before normalisation"
        raise Refused(
            f"the {kind} of floats has values from {low:.4g} to {high:.4g}: expected [0, 1]; {mend}"
        )
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    rounded: np.ndarray[Any, Any] = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return rounded


def decode(data: bytes, name: str, reduced: bool) -> Image.Image:
    """Decode the bytes of a file that has pixels worth scoring; Refused otherwise."""
    with io.BytesIO(data) as file:
        try:
            image = open_image(file, data[:16], name)
            refuse_unfit(image, name)
            if reduced:
                image.draft("L", (1, 1))  # JPEG only: an eighth of the size, without colour
            image.load()
            return image
        except Refused:
            raise
        except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
            raise undecodable(name, error) from None


def open_image(file: io.BytesIO, prefix: bytes, name: str) -> ImageFile.ImageFile:
    """`PIL.Image.open` on a file in memory, without its bomb warning.

    The size is judged by `refuse_unfit`. Silencing the warning instead would mean to change the process's
    warning filters around every picture, which is neither free of side effects nor safe in threads.
    """
    broken: list[str] = []
    tried: set[str] = set()
    for register in (Image.preinit, Image.init):  # the common formats first, as Pillow does
        register()
        for format_name in [known for known in Image.ID if known not in tried]:
            tried.add(format_name)
            factory, accept = Image.OPEN[format_name]
            accepted = accept is None or accept(prefix)
            if not accepted or isinstance(accepted, str):  # str: this Pillow lacks the codec
                continue
            try:
                file.seek(0)
                return factory(file, "")
            except (SyntaxError, IndexError, TypeError, struct.error):
                if accept is not None:
                    broken.append(format_name)
    if broken:
        raise Refused(f"cannot decode {name} ({broken[0]} header truncated or damaged)")
    raise Refused(f"{name} is not a picture that Pillow can read: it begins with {prefix[:12]!r}")


def refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse sizes that no encoder can use, and animations, by the header alone."""
    width, height = image.size
    size = f"{width}x{height}"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Refused(
            f"{name} is {size} = {width * height:,} pixels (a decompression bomb?), the limit is {limit:,}: "
            "scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the picture"
        )
    if min(width, height) <= 1:
        raise Refused(f"{name} is {size} pixels: a picture needs at least 2 on each side")
    if max(width, height) > STEEPEST * min(width, height):
        raise Refused(f"{name} is {size} pixels: one side is more than {STEEPEST} times the other, crop it")
    frames = 1 if image.format in NOT_FRAMES else getattr(image, "n_frames", 1)
    if frames > 1:
        raise Refused(f"{name} has {frames} frames: pass one frame")


def undecodable(name: str, error: Exception) -> Refused:
    """Pillow's complaint in the one form `cannot decode 'x.jpg' (truncated)`."""
    said = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in said.lower() or isinstance(error, EOFError):
        return Refused(f"cannot decode {name} (truncated)")
    if isinstance(error, MemoryError):
        return Refused(f"cannot decode {name} (out of memory)")
    return Refused(f"cannot decode {name} (truncated or damaged: {said})")


def pixel_key(image: Image.Image) -> str:
    """Mode, size, palette, transparency and pixels in one hash."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{image.mode} {image.size} {image.info.get('transparency')!r}".encode())
    palette = image.palette
    if palette is not None:
        digest.update(f"{palette.mode} ".encode() + image.im.getpalette(palette.mode, palette.mode))
    digest.update(image.tobytes())
    return "pixels:" + digest.hexdigest()


def quoted(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:80]}...{path[-80:]}")


def described(value: Any) -> str:
    """A wrong value in few words: `the number 5`, `a list of length 3`."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return f"the bool {value}"
    if isinstance(value, numbers.Number):
        return f"the number {value}"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    try:
        return f"{article} {kind} of length {len(value)}"
    except TypeError:
        return f"{article} {kind}"
