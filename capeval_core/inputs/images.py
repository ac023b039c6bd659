"""Images, from wherever they lie: lazy, checked, and keyed by their content.

A `Visual` is a place in the input (`images[17]`) and a `Source`, which visuals of one content share: an image
(`InputImage`), the frames of a video (`InputFrames` in `videos`), or the features of boxes (`InputBoxes` in
`boxes`), which need no image. Nothing is read until it is needed, nothing decoded is kept, and equal contents
share one `key`, so that an encoder sees every distinct one once.

An image file in one of `FORMATS` is decoded as `PIL.Image.open` decodes it: in its own mode, without regard
to its EXIF orientation, as the original metric scripts do.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from capeval_core.errors import InputError, Kind, Problem, Problems, at, described

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""What is opened, in Pillow's names; JPEG brings MPO, and HEIF is there where `pillow_heif` registered it.
Everything else is left out: EPS starts Ghostscript, WMF the system's renderer; ICO and PSD hold several
images; TGA has no signature; the rest is rare, and one more parser that a hostile file can reach."""
OPENED = "JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, JPEG 2000 and AVIF"
FOREIGN = {
    "PDF": rb"%PDF-",
    "SVG": rb"(?:\xef\xbb\xbf)?\s{0,99}(?=<)(?!<!doctype html|<html).{0,2000}?<svg[\s>]",
    "HEIC": rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)",
    "AVIF": rb".{4}ftypavi[fs]",
    "JPEG XL": rb"\xff\x0a|\x00\x00\x00\x0cJXL ",
    "MP4": rb".{4}ftyp",
}
"""How formats begin that Pillow does not know, or only with libraries that may be absent."""
_STEEPEST = 200  # longer / shorter side; scaling the shorter side to a model's input size would explode
MPO = "MPO"  # several images in one file that are not frames: a phone's depth map or thumbnail
_BOMB = "scale it down, or raise Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS, if you trust the image"
LONGEST_FILE = 2**30  # bytes; what is longer is a video or a disk image, and would be read into memory
ROUNDING = 1e-5  # how far beyond [0, 1] float arithmetic may carry a pixel
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:image/")
_ACCEPTED = (
    "a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
    'a datasets dict {"bytes": ..., "path": ...}'
)

Loaded = TypeVar("Loaded", covariant=True)


# ---- what is wrong with a visual


class ImageError(InputError):
    """An image, or another visual, cannot be used. The message begins with its name, e.g. `images[17]: `."""

    index: tuple[int | str, ...] = ()
    """Where in the value it is, until the place of the value is known."""

    def at(self, argument: str, *steps: int | str) -> Problem:
        """Its one problem as that of an argument, or of a position in it."""
        (problem,) = self.problems
        return problem._replace(where=at(argument, (*steps, *self.index) or None))


def refused(
    found: str, fix: str = "", *, index: tuple[int | str, ...] = (), kind: Kind = ImageError
) -> ImageError:
    """Why a value is no visual, before its place in the input is known; index: where in the value."""
    error = ImageError(Problem("", found, fix, kind))
    error.index = index
    return error


@contextmanager
def within(argument: str, *steps: int | str) -> Iterator[None]:
    """Let what the block refuses be in this argument; with `''` at this position of another value."""
    try:
        yield
    except ImageError as error:
        if argument or not steps:
            raise ImageError(error.at(argument, *steps)) from None
        error.index = (*steps, *error.index)
        raise


# ---- visuals and their sources


@dataclass(eq=False, slots=True)
class Source(ABC, Generic[Loaded]):
    """What visuals of one content share. The key is kept, bytes and pixels are not."""

    _key: str | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def compute_key(self) -> str: ...

    @abstractmethod
    def decode(self, reduced: bool = False) -> Loaded:
        """The content. With `reduced` it may be smaller: it only shows whether it decodes."""

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = self.compute_key()
        return self._key

    @property
    def on_disk(self) -> bool:
        """Whether it has to be read once more for its key."""
        return hasattr(self, "path") and getattr(self, "data", None) is None


class Visual(Protocol[Loaded]):
    """What an encoder sees of an image, a video or boxes; all but the names raise ImageError.

    key: equal for equal contents, wherever they lie. where: its argument and index, `images[17]`. name: what
    it is, `'dogs/x.jpg'`. load: its content, decoded. check: whether `load` will succeed.
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
    """A source and its place in the input."""

    __slots__ = ("source", "where")

    medium: ClassVar[str]
    """As in `CaptionMetric.media`."""

    def __init__(self, where: str, source: Source[Loaded]) -> None:
        self.where = where
        self.source = source

    @staticmethod
    @abstractmethod
    def source_of(value: Any) -> Source[Any]:
        """The source of any value that can be such a visual."""

    @classmethod
    def of(cls, value: Any, where: str = "") -> Self:
        """Wrap a value without reading or decoding it; `where` names it in messages: `images[17]`.

        Raises InputTypeError for what can never be such a visual and ImageError for what could but is not
        (None, an empty path, a URL, an unfit shape). `check` and `load` tell whether files exist and decode.
        """
        where = where or cls.medium
        try:
            return cls(where, cls.source_of(value))
        except ImageError as error:
            raise Problems([error.at(where)]).error() from None

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
        with within(self.where):
            return self.source.key

    def load(self) -> Loaded:
        """The content, decoded. Raises ImageError."""
        with within(self.where):
            return self.source.decode()

    def check(self) -> None:
        """Raise ImageError unless `load` will succeed, which is mostly cheaper to find out."""
        with within(self.where):
            self.source.decode(reduced=True)

    def at(self, where: str) -> Self:
        """The same visual under another name in messages."""
        return type(self)(where, self.source)


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

    @staticmethod
    def source_of(value: Any) -> Source[Image.Image]:
        if isinstance(value, InputImage):
            return value.source
        if value is None:
            raise refused("is missing", "every caption needs an image")
        if isinstance(value, (str, os.PathLike)):
            return File(local_path(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return File("", bytes(value))
        if isinstance(value, Image.Image):
            return FromPIL(value)
        if isinstance(value, Mapping):
            return File(*content_of_dict(value))
        if is_tensor(value) or (shape_of(value) and hasattr(value, "__array_interface__")):
            return _array_source(value)
        fix = "; this looks like an open file: pass its .read()" if hasattr(value, "read") else ""
        raise refused(f"is {described(value)}", f"expected {_ACCEPTED}{fix}", kind=TypeError)

    def changed(self, how: str, change: Callable[[Image.Image], Image.Image]) -> InputImage:
        """Another view of the image, such as a crop; `how` tells its key from those of other changes."""
        return InputImage(self.where, _Changed(self.source, how, change))


class InputReferences(InputVisual[Any]):
    """What an image is to a metric on texts alone: its references, by which its captions are grouped."""

    __slots__ = ()
    medium = "references"

    @staticmethod
    def source_of(value: Any) -> Source[Any]:
        return Texts(value)


def local_path(value: str | os.PathLike[Any], content: str = "images") -> str:
    """A path that is not empty and no address."""
    path = os.fsdecode(value)
    if not path:
        raise refused("the path is empty")
    if URL.match(path):
        fix = "pass the path without file://" if path.startswith("file:") else "download it first"
        raise refused(f"{quoted(path)} is a URL, and {content} are never fetched; {fix}")
    return path


def content_of_dict(value: Mapping[Any, Any], content: str = "images") -> tuple[str, bytes | None]:
    """The path of a dict {"bytes", "path"} of a dataset, and its bytes, None where it has a path alone."""
    if not value.keys() & {"bytes", "path"}:
        found = ", ".join(map(repr, list(value)[:5]))
        raise refused(f'a dict needs the keys "bytes" and "path", found {found or "none"}')
    data, path = value.get("bytes"), value.get("path")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise refused(f"is {described(path)}", "expected a str or None", index=("path",), kind=TypeError)
    if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
        raise refused(f"is {described(data)}", "expected bytes or None", index=("bytes",), kind=TypeError)
    if data is not None:
        return "" if path is None else os.fsdecode(path), bytes(data)
    if path is None:
        raise refused('both "bytes" and "path" are None')
    return local_path(path, content), None


# ---- files and bytes


@dataclass(eq=False, slots=True)
class File(Source[Image.Image]):
    """The bytes of an image file with the path that they came from, or a path alone."""

    path: str
    data: bytes | None = None

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the bytes object of length {len(self.data or b'')}"

    def read(self) -> bytes:
        if self.data is None:
            return read_file(self.path)
        if not self.data:
            raise refused(f"{self.name} is empty (zero bytes)")
        return self.data

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


def read_file(path: str, content: str = "image") -> bytes:
    """The bytes of a regular file that is not empty and not too long."""
    name = quoted(path)
    with open_file(path, content, LONGEST_FILE) as file:
        try:
            data = file.read()
        except OSError as error:
            raise unreadable(name, error) from None
    if not data:
        raise refused(f"{name} is empty (zero bytes)")
    return data


def open_file(path: str, content: str = "image", longest: int | None = None) -> IO[bytes]:
    """A regular file of at most so many bytes, open for reading."""
    name = quoted(path)
    try:
        status = os.stat(path)  # noqa: PTH116  (a Path per image costs more than the call)
        if stat.S_ISDIR(status.st_mode):
            raise refused(f"{name} is a folder", f"pass the path of one {content}")
        if not stat.S_ISREG(status.st_mode):
            raise refused(f"{name} is not a regular file")
        if longest is not None and status.st_size > longest:
            raise refused(f"{name} has {status.st_size:,} bytes", f"too many for one {content}")
        return Path(path).open("rb")
    except ImageError:  # a ValueError, too
        raise
    except (FileNotFoundError, NotADirectoryError):
        fix = "~ is not expanded, write the whole path" if path.startswith("~") else ""
        raise refused(f"there is no file {name}", fix) from None
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from None


def unreadable(name: str, error: Exception) -> ImageError:
    return refused(f"cannot read {name} ({getattr(error, 'strerror', None) or error})")


def quoted(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:80]}...{path[-80:]}")


def open_image(file: str | IO[bytes]) -> Image.Image:
    """`PIL.Image.open` for the formats in `FORMATS` alone; image files are opened here only."""
    return Image.open(file, formats=_readable())


def _readable() -> list[str]:
    """Those of `FORMATS` that this Pillow, or a plugin that was imported, can read."""
    Image.init()
    return [form for form in FORMATS if form in Image.OPEN]


def decode(data: bytes, name: str, reduced: bool) -> Image.Image:
    """Decode the bytes of a file that has pixels worth scoring."""
    if reduced:
        data = _without_scan(data) or data
    with io.BytesIO(data) as file:
        try:
            image = open_image(file)
            _refuse_unfit(image, name)
            if reduced:
                image.draft("L", (1, 1))  # JPEG only: an eighth of the size, without colour
            image.load()
            return image
        except ImageError:
            raise
        except UnidentifiedImageError:
            if form := _begins(
                data, [form for form in (*FOREIGN, *Image.OPEN) if form not in (*_readable(), "CUR")]
            ):
                raise _other_format(name, form) from None
            found = f"{name} is not an image that Pillow can read, or its header is truncated"
            raise refused(found) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise refused(f"{name} is too large to trust ({reason})", _BOMB) from None
        except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
            raise _undecodable(name, error) from None


_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xda-\xfe])(..)", re.DOTALL)
_SCAN_END = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_SEQUENTIAL = re.compile(rb"[\xc4\xcc\xdb-\xfe]*[\xc0\xc1][\xc4\xcc\xdb-\xfe]*\xda")


def _without_scan(data: bytes) -> bytes | None:
    """A JPEG that decodes exactly if this one does, in a tenth of the time; None where there is none.

    In the one scan of a sequential JPEG nothing that is wrong is an error of libjpeg, which warns and goes on
    with grey: it fails by what is written before the scan, or because the file ends before the image does. So
    where the next marker behind the scan is the end of the image, the scan can be left out.
    """
    kinds, end = b"", 2
    while not kinds.endswith(b"\xda") and (segment := _SEGMENT.match(data, end)):
        kinds, end = kinds + segment[1], end + 2 + int.from_bytes(segment[2], "big")
    behind = _SCAN_END.search(data, end) if data[:2] == b"\xff\xd8" and _SEQUENTIAL.fullmatch(kinds) else None
    if behind is None or behind[1] != b"\xd9" or b"MPF\0" in data[:end]:  # that one says where others lie
        return None
    return data[:end] + b"\xff\xd9"


def image_format(start: bytes) -> str | None:
    """The format of a file of a single image, by its first bytes; None for a GIF, which may be a video.

    >>> image_format(b"BM5"), image_format(b"GIF89a"), image_format(b"RIFF1234AVI LIST")
    ('BMP', None, None)
    """
    return _begins(start, [form for form in (*FOREIGN, *_readable()) if form not in ("MP4", "GIF")])


def _begins(data: bytes, forms: Sequence[str]) -> str | None:
    """The first of these formats whose files begin so."""
    for form in forms:
        accepts = Image.OPEN[form][1] if form in Image.OPEN else None
        pattern = FOREIGN.get(form)
        try:
            if (pattern and re.match(pattern, data, re.DOTALL | re.IGNORECASE)) or (
                accepts and accepts(data[:16])
            ):
                return form
        except Exception:  # a plugin that trips over a few bytes does not know them
            continue
    return None


def _other_format(name: str, form: str, more: str = "") -> ImageError:
    found = f"{name} is in the format {form}, which is not opened"
    return refused(found, f"convert it to one of {OPENED}{more}")


def _refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse unread files of other formats, sizes that no encoder can use, and animations, by the header."""
    form = image.format
    unread = bool(getattr(image, "tile", None)) or isinstance(image, ImageFile.StubImageFile)
    known = form is None or form == MPO or form in _readable()
    if isinstance(image, ImageFile.ImageFile) and unread and not known:
        raise _other_format(name, str(form), ", or .load() it first")
    refuse_size(*image.size, name)
    # Not `n_frames`: to count them Pillow reads a whole GIF, and a TIFF in quadratic time.
    if form != MPO and getattr(image, "is_animated", False):
        raise refused(f"{name} has more than one frame", "save one of them as an image")


def refuse_size(width: int, height: int, name: str) -> None:
    """Refuse a size that is a decompression bomb, or that no encoder can use."""
    size = f"{name} is {width}x{height}"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        found = f"{size} = {width * height:,} pixels (a decompression bomb?), the limit is {limit:,}"
        raise refused(found, _BOMB)
    if min(width, height) <= 1:
        raise refused(f"{size} pixels", "an image needs at least 2 on each side")
    if max(width, height) > _STEEPEST * min(width, height):
        raise refused(f"{size} pixels", f"one side is more than {_STEEPEST} times the other, crop it")


def _undecodable(name: str, error: Exception) -> ImageError:
    """Pillow's complaint in the one form `cannot decode 'x.jpg' (truncated)`."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in reason.lower() or isinstance(error, EOFError):
        return refused(f"cannot decode {name} (truncated)")
    if isinstance(error, MemoryError):
        return refused(f"cannot decode {name} (out of memory)")
    return refused(f"cannot decode {name} (truncated or damaged: {reason})")


# ---- pixels


class Pixels(Source[Image.Image]):
    """An image that is already decoded, or that an open PIL image decodes by itself."""

    __slots__ = ()

    @abstractmethod
    def image(self) -> Image.Image: ...

    def compute_key(self) -> str:
        return _pixel_key(self.image())

    def decode(self, reduced: bool = False) -> Image.Image:
        image = self.image()
        _refuse_unfit(image, self.name)
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
        named = isinstance(filename, (str, Path)) and filename
        origin = f" of {quoted(os.fsdecode(filename))}" if named else ""
        return f"the PIL image{origin} ({self.value.mode}, {width}x{height})"

    def image(self) -> Image.Image:
        with _loading:
            handle = getattr(self.value, "fp", None)
            # Pixels are still to be read (there are tiles) from a file that is no longer open.
            closed = bool(getattr(self.value, "tile", None)) and getattr(handle, "closed", handle is None)
            if not closed:
                _refuse_unfit(self.value, self.name)  # before a lazy one is decoded in vain
            try:
                self.value.load()
                # A copy: whoever loads an image may change it, and the original may be closed meanwhile.
                return self.value.copy()
            except Exception as error:
                if closed or "closed image" in str(error):
                    raise refused(f"{self.name} is closed", "pass its path, or .load() it in time") from None
                raise _undecodable(self.name, error) from None


@dataclass(eq=False, slots=True)
class _FromArray(Pixels):
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


def _array_source(value: Any) -> _FromArray:
    """The source of a numpy array (H, W, C), or of a tensor, whose channels may come first."""
    tensor = is_tensor(value)
    kind, full_kind = ("tensor", "tensor") if tensor else ("array", "numpy array")
    if tensor and (value.is_nested or value.device.type == "meta" or "strided" not in str(value.layout)):
        raise refused("the tensor is nested, sparse or on the meta device", "pass a dense one with pixels")
    if np.ma.is_masked(value):
        raise refused("the numpy array has masked pixels, and an image has none", "pass array.filled(value)")
    value = value.detach().resolve_neg() if tensor else np.asarray(value)
    shape, dtype = tuple(value.shape), str(value.dtype).rpartition(".")[2]
    if dtype != "uint8" and not dtype.startswith(("float", "bfloat")):
        fixes = {"bool": "multiply a mask by 255 as uint8", "uint16": "divide by 65535 to get floats"}
        fix = fixes.get(dtype, "if the values are 0 to 255, convert it to uint8")
        found = f"the {full_kind} has dtype {dtype}"
        raise refused(found, f"expected uint8, or float in [0, 1]; {fix}")
    first = tensor and len(shape) == 3 and shape[0] in (1, 3)
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    if first and last:
        found = f"the tensor's shape {shape} can be read as (C, H, W) and as (H, W, C)"
        raise refused(found, "pass a numpy array (H, W, C)")
    if not (first or last or len(shape) == 2):
        expected = "(3, H, W), (1, H, W), (H, W) or (H, W, 3)"
        fix = f"expected {expected if tensor else '(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)'}"
        if len(shape) == 3 and shape[0] in (1, 3, 4) and not tensor:
            fix += "; this looks like channels first: pass array.transpose(1, 2, 0)"
        if len(shape) == 4:
            fix += f"; this looks like a batch: pass {kind}[0]"
        raise refused(f"the {full_kind} has shape {shape}", fix)
    if 0 in shape:
        raise refused(f"the {kind} of shape {shape} has no pixels")
    if first:
        value = value.permute(1, 2, 0)
    if tensor and value.device.type == "cpu" and dtype in ("uint8", "float32", "float64"):
        value = value.numpy()  # it pickles its own pixels; a tensor cut from a batch would pickle the batch
    return _FromArray(value, kind, shape)


def _as_uint8(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Floats in [0, 1] rounded to 0..255; NaN, inf and other ranges are refused."""
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())  # NaN passes through min
    if not np.isfinite([low, high]).all():
        found = "NaN" if np.isnan([low, high]).any() else "infinite values"
        raise refused(f"the {kind} of floats has {found}", "expected values in [0, 1]")
    if low < -ROUNDING or high > 1 + ROUNDING:
        fix = "divide by 255" if low >= 0 else "pass the pixels as they were before normalisation"
        found = f"the {kind} of floats has values from {low:.4g} to {high:.4g}"
        raise refused(found, f"expected [0, 1]; {fix}")
    wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
    rounded: NDArray[Any] = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return rounded


def _pixel_key(image: Image.Image) -> str:
    """Mode, size, palette, transparency and pixels in one hash."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{image.mode} {image.size} {image.info.get('transparency')!r}".encode())
    palette = image.palette
    if palette is not None:
        digest.update(f"{palette.mode} ".encode() + image.im.getpalette(palette.mode, palette.mode))
    digest.update(image.tobytes())
    return "pixels:" + digest.hexdigest()


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or tensor; None for what has none, as a class, a mock and a nested tensor."""
    try:
        return tuple(value.shape) if isinstance(value.shape, tuple) else None
    except (AttributeError, RuntimeError):  # nested tensors have none
        return None


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    module = type(value).__module__.partition(".")[0]
    return module == "torch" and hasattr(value, "is_floating_point") and not isinstance(value, type)


# ---- views of other sources, and what stands for an image


@dataclass(eq=False, slots=True)
class _Changed(Source[Image.Image]):
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
        image = self.source.decode()
        try:
            return self.change(image)
        except ValueError as error:  # e.g. no way from the mode La to RGB
            raise refused(f"cannot change {self.name} ({image.mode}) to {self.how}: {error}") from None


def in_rgb(image: InputImage) -> InputImage:
    """The image, converted to RGB when it is decoded."""
    return image.changed("RGB", _to_rgb)


def _to_rgb(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


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
        raise refused("is not opened by a metric on texts alone")


# ---- resizing


_PREMULTIPLIED = {"RGBA": "RGBa", "LA": "La"}


def resized(
    image: Image.Image,
    size: tuple[int, int],
    method: Image.Resampling,
    box: tuple[int, int, int, int] | None = None,
) -> Image.Image:
    """`image.resize(size, method)` as Pillow did it before 13: first to the width, then to the height.

    Pillow rounds to 8 bits between its two passes, and 13 takes the height of a tall image first, which
    moves pixels by a level or two. Published scores were computed with older versions.

    box: left, top, right and bottom of the part that is wanted; its columns alone take the second pass.

    >>> resized(Image.new("RGB", (40, 90)), (20, 30), Image.Resampling.BICUBIC).size
    (20, 30)
    """
    if image.size == size:  # as Pillow does: premultiplying and back would move pixels
        return image if box is None else image.crop(box)
    if image.mode in _PREMULTIPLIED:  # as Pillow does, but for both passes at once
        blended = image.convert(_PREMULTIPLIED[image.mode])
        return resized(blended, size, method, box).convert(image.mode)
    wide = image if image.width == size[0] else image.resize((size[0], image.height), method)
    if box is None:
        return wide.resize(size, method)
    left, top, right, bottom = box
    if (left, right) != (0, wide.width):
        wide = wide.crop((left, 0, right, wide.height))
    high = wide.resize((right - left, size[1]), method)
    return high if (top, bottom) == (0, high.height) else high.crop((0, top, right - left, bottom))


def _central_box(whole: tuple[int, int], size: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Width and height of an image whose shorter side becomes `size`, and the box of its central square."""
    width, height = whole
    sides = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    left, top = (round((side - size) / 2.0) for side in sides)
    return sides, (left, top, left + size, top + size)


def square_pixels(image: Image.Image, size: int, method: Image.Resampling) -> NDArray[np.uint8]:
    """(3, size, size) uint8 of the central square in RGB, the shorter side resized to `size`."""
    sides, box = _central_box(image.size, size)
    cropped = resized(image, sides, method, box).convert("RGB")
    return np.ascontiguousarray(np.asarray(cropped).transpose(2, 0, 1))
