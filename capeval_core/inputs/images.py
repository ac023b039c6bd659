"""Images from any source: lazy, checked, and keyed by their content.

A visual is a place in the input (`images[17]`) and a `Source`, which visuals of one content share. A file is
decoded as `PIL.Image.open` does: in its own mode, without regard to its EXIF orientation unless it is within
an `Upright`. One whose pixels do not fit 8 bits is refused: nothing says which of its numbers is white.
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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from capeval_core.errors import InputError, Kind, Problem, Problems, at, described

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""The formats that are opened, in Pillow's names; JPEG brings MPO, HEIF is one where `pillow_heif` registered
it. Everything else is left out: EPS starts Ghostscript, WMF the system's renderer; ICO and PSD hold several
images; TGA has no signature; the rest is rare, and one more parser that a hostile file can reach."""
OPENED = "JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, JPEG 2000 and AVIF"
_MAX_ASPECT_RATIO = (
    200  # longer / shorter side; scaling the shorter side to a model's input size would explode
)
_BOMB = "scale it down, or raise Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS, if you trust the image"
LONGEST_FILE = 2**30  # bytes; what is longer is a video or a disk image, and would be read into memory
BYTES = (bytes, bytearray, memoryview)
Resize = Literal["shortest", "squash", "longest"]
"""How an image becomes a square; see `square_pixels`."""
_digest = partial(hashlib.blake2b, digest_size=16)
_ROUNDING = 1e-5  # how far beyond [0, 1] float arithmetic may carry a pixel
TURNED = "turned"
"""Trait of an image that its EXIF orientation turns."""
DEEP = "deep"
"""Trait of an image of whose channels Pillow reads the upper 8 bits alone."""
# As in TIFF 6.0: 6 is what a phone writes that was held upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that makes an image upright, by its EXIF orientation; 1 is upright."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:image/")
_ACCEPTED = (
    "a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
    'a datasets dict {"bytes": ..., "path": ...}'
)

Loaded = TypeVar("Loaded", covariant=True)


class ImageError(InputError):
    """An image, or another visual, cannot be used. The message begins with its name, e.g. `images[17]: `."""

    index: tuple[int | str, ...] = ()
    """Where in the value it is, until the place of the value is known."""

    def at(self, argument: str, *steps: int | str) -> Problem:
        """Its one problem as that of an argument, or of a position in it."""
        (problem,) = self.problems
        return problem._replace(where=at(argument, (*steps, *self.index) or None))


def image_error(
    problem: str,
    fix: str = "",
    *,
    index: tuple[int | str, ...] = (),
    kind: Kind = ImageError,
    sentence: bool = False,
) -> ImageError:
    """The error about a value that is not a visual, before its place in the input is known.

    index: where in the value. sentence: as in `Problem`.
    """
    error = ImageError(Problem("", problem, fix, kind, sentence))
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


def short_reason(error: BaseException) -> str:
    """A library's message about damage, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def quoted(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:80]}...{path[-80:]}")


# ---- visuals and their sources


@dataclass(eq=False, slots=True)
class Source(ABC, Generic[Loaded]):
    """The content of visuals that share it. The key is kept, bytes and pixels are not.

    traits: of an image that has been decoded, what a user may want to know of it: `TURNED`, `DEEP`.
    """

    medium: ClassVar[str] = "image"
    """As in `CaptionMetric.media`."""
    _key: str | None = field(default=None, init=False, repr=False)
    traits: frozenset[str] = field(default=frozenset(), init=False, repr=False)

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
        self._key = self._key or self.compute_key()
        return self._key

    @property
    def known_key(self) -> str | None:
        """The key if it has been computed."""
        return self._key

    @property
    def on_disk(self) -> bool:
        """Whether it has to be read once more for its key."""
        return hasattr(self, "path") and getattr(self, "data", None) is None


@dataclass(eq=False, slots=True)
class Visual(Generic[Loaded]):
    """An image, or another visual, of the input; what uses its content raises ImageError.

    where: its place in the input, such as `images[17]`.
    """

    where: str
    source: Source[Loaded]

    @classmethod
    def of(cls, value: Any, where: str = "image", source_of: Callable[[Any], Any] | None = None) -> Self:
        """An image, without reading or decoding it; InputTypeError for what can never be one."""
        try:
            source: Source[Any] = (source_of or image_source)(value)
            return cls(where, source)
        except ImageError as error:
            raise Problems([error.at(where)]).error() from None

    @property
    def medium(self) -> str:
        return self.source.medium

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def label(self) -> str:
        """Its path, where it is a file or a folder, else its name."""
        return getattr(self.source, "path", None) or self.name

    @property
    def key(self) -> str:
        """The content key: of a file its bytes, of decoded images their mode, size, palette and pixels."""
        with within(self.where):
            return self.source.key

    def load(self) -> Loaded:
        """The content, decoded."""
        with within(self.where):
            return self.source.decode()

    def at(self, where: str) -> Visual[Loaded]:
        """The same visual under another name in messages."""
        return Visual(where, self.source)

    def changed(self, how: str, change: Callable[[Loaded], Loaded]) -> Visual[Loaded]:
        """Another view of an image, such as a crop; `how` tells its key from those of other changes."""
        return Visual(self.where, _Changed(self.source, how, change))


InputImage = Visual[Image.Image]


@dataclass(eq=False, slots=True)
class Wrapped(Source[Any]):
    """Another source, decoded in another way: name, path and value stay its own."""

    source: Source[Any]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def path(self) -> str | None:
        """That of the file, for labels."""
        return getattr(self.source, "path", None)

    @property
    def value(self) -> Any:
        return getattr(self.source, "value", None)

    @property
    def on_disk(self) -> bool:
        return self.source.on_disk


@dataclass(eq=False, slots=True)
class Upright(Wrapped):
    """An image, turned as its EXIF orientation says: everywhere, since its key is another one."""

    def compute_key(self) -> str:
        key = self.source.key
        # Two images of equal pixels may be turned differently.
        if key.startswith("pixels:"):  # a digest without EXIF, which that of a file's bytes holds
            key = f"{_orientation(self.source.decode())}-{key}"
        return f"upright-{key}"

    def decode(self, reduced: bool = False) -> Image.Image:
        image: Image.Image = self.source.decode(reduced)
        self.traits = self.source.traits - {TURNED}
        turn = _TURNS.get(_orientation(image))
        return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of an image that is loaded; 1, upright, where it has none that can be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF, which Pillow's parser trips over in any way, turns nothing in viewers
        return 1


def image_source(value: Any) -> Source[Image.Image]:
    """An image: a path, bytes, a PIL image, an array, a tensor, or the dict of a `datasets` Image feature."""
    if value is None:
        raise image_error("is missing", "every caption needs an image")
    if isinstance(value, (str, os.PathLike)):
        return File(local_path(value))
    if isinstance(value, BYTES):
        return File("", bytes(value))
    if isinstance(value, Image.Image):
        file = getattr(value, "filename", "")  # which Pillow keeps of a path, and not of bytes
        origin = f" of {quoted(os.fsdecode(file))}" if isinstance(file, (str, Path)) and file else ""
        return Pixels(value, f"the PIL image{origin} ({value.mode}, {value.width}x{value.height})")
    if isinstance(value, Mapping):
        return File(*content_of_dict(value))
    # A scalar of numpy has an interface, too, and no shape.
    if is_tensor(value) or (shape_of(value) and hasattr(value, "__array_interface__")):
        return _of_array(value)
    fix = "; this looks like an open file: pass its .read()" if hasattr(value, "read") else ""
    raise image_error(f"is {described(value)}", f"expected {_ACCEPTED}{fix}", kind=TypeError)


@dataclass(eq=False, slots=True)
class _Changed(Source[Any]):
    source: Source[Any]
    how: str
    change: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return self.source.name

    def compute_key(self) -> str:
        return f"{self.how}-{self.source.key}"

    def decode(self, reduced: bool = False) -> Any:
        image = self.source.decode()
        self.traits = self.source.traits
        try:
            return self.change(image)
        except ValueError as error:  # e.g. no way from the mode La to RGB
            raise image_error(
                f"cannot change {self.name} ({image.mode}) to {self.how}: {error}", sentence=True
            ) from None


def in_rgb(image: InputImage) -> InputImage:
    """The image, converted to RGB when it is decoded."""
    return image.changed("RGB", methodcaller("convert", "RGB"))


@dataclass(eq=False, slots=True)
class Texts(Source[Any]):
    """A stand-in image for metrics on texts alone: its references, which group its captions, and its id."""

    texts: Sequence[str]
    image_id: str | None = None
    medium = "references"

    @property
    def name(self) -> str:
        return f"the image with {len(self.texts)} references"

    def compute_key(self) -> str:
        texts = list(self.texts)
        if self.image_id is not None:
            texts.insert(0, self.image_id)
        content = json.dumps(texts)  # whose quotes keep ["a b"] and ["a", "b"] apart
        return "references:" + _digest(content.encode()).hexdigest()

    def decode(self, reduced: bool = False) -> Any:
        raise image_error("is not opened by a metric on texts alone")


# ---- files and bytes


def local_path(value: str | os.PathLike[Any]) -> str:
    """A path that is not empty and no address."""
    path = os.fsdecode(value)
    if not path or "\0" in path:
        raise image_error(
            f"the path {path!a} has a NUL character" if path else "the path is empty", sentence=True
        )
    # Never fetched: a number would depend on what a server answers today, and a page of captions would make
    # this machine ask addresses for whoever wrote it.
    if URL.match(path):
        fix = "pass the path without file://" if path.startswith("file:") else "download it first"
        raise image_error(f"{quoted(path)} is a URL, which is never fetched", fix, sentence=True)
    return path


def content_of_dict(value: Mapping[Any, Any]) -> tuple[str, bytes | None]:
    """The path of a dict {"bytes", "path"} of a dataset, and its bytes, None where it has a path alone."""
    data: Any = value.get("bytes")
    path: Any = value.get("path")
    if data is None and path is None:
        keys = ", ".join(map(repr, list(value)[:5])) or "no key"
        raise image_error(f'a dict needs "bytes" or "path", and neither None, found {keys}', sentence=True)
    if data is not None and not isinstance(data, BYTES):
        raise image_error(f"is {described(data)}", "expected bytes or None", index=("bytes",), kind=TypeError)
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise image_error(f"is {described(path)}", "expected a str or None", index=("path",), kind=TypeError)
    name = "" if path is None else os.fsdecode(path)
    # Next to bytes a path is a label: `datasets` keeps that of the machine on which the set was made.
    return (local_path(name), None) if data is None else (name, bytes(data))


@dataclass(eq=False, slots=True)
class File(Source[Any]):
    """The bytes of a file of an image or a video with the path that they came from, or a path alone."""

    path: str
    data: bytes | None = None

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else f"the bytes object of length {len(self.data or b'')}"

    def open(self) -> AbstractContextManager[IO[bytes]]:
        return open_file(self.path, self.medium) if self.data is None else io.BytesIO(self.data)

    def compute_key(self) -> str:
        with self.open() as file:  # a video is never in memory as a whole
            return f"file:{hashlib.file_digest(file, _digest).hexdigest()}"  # type: ignore[arg-type]

    def decode(self, reduced: bool = False) -> Any:
        data = read_file(self.path) if self.data is None else self.data
        if not data:
            raise image_error(f"{self.name} is empty (zero bytes)", sentence=True)
        self._key = self._key or f"file:{_digest(data).hexdigest()}"
        image, self.traits = _decode(data, self.name, reduced)
        return image


def read_file(path: str, content: str = "image") -> bytes:
    """The bytes of a regular file that is not empty and not too long."""
    with open_file(path, content) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LONGEST_FILE:
            raise image_error(
                f"{quoted(path)} has {size:,} bytes", f"too many for one {content}", sentence=True
            )
        data = file.read()
        if not data:
            raise image_error(f"{quoted(path)} is empty (zero bytes)", sentence=True)
        return data


@contextmanager
def open_file(path: str, content: str = "image") -> Iterator[IO[bytes]]:
    """A regular file, open for reading in the block."""
    name = quoted(path)
    try:
        # Before it is opened: a named pipe would wait for a writer for ever.
        mode = os.stat(path).st_mode  # noqa: PTH116  (a Path per image costs more than the call)
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise image_error(f"{name} is {kind}", f"pass the path of one {content}", sentence=True)
        with Path(path).open("rb") as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        fix = "~ is not expanded, write the whole path" if path.startswith("~") else ""
        raise image_error(f"there is no file {name}", fix, sentence=True) from None
    except (OSError, UnicodeEncodeError) as error:  # half a character, which no path has
        raise image_error(
            f"cannot read {name} ({getattr(error, 'strerror', None) or error})", sentence=True
        ) from None


def open_image(file: str | IO[bytes]) -> Image.Image:
    """`PIL.Image.open` for the formats in `FORMATS` alone; image files are opened here only."""
    Image.init()  # lists all plugins: AVIF and HEIF are there by build and by extra package only
    return Image.open(file, formats=[form for form in FORMATS if form in Image.OPEN])


@contextmanager
def _decoding(name: str, fix: str = "") -> Iterator[None]:
    """Let whatever Pillow raises in the block be an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        problem = f"{name} is not an image in the formats that are opened, or its header is cut off"
        raise image_error(problem, f"convert it to one of {OPENED}", sentence=True) from None
    # The warning is raised where a user made warnings errors.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise image_error(
            f"{name} is too large to trust ({short_reason(error)})", _BOMB, sentence=True
        ) from None
    except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
        reason = short_reason(error)
        is_cut_off = "truncated" in reason.lower() or isinstance(error, EOFError)
        reason = "truncated" if is_cut_off else f"truncated or damaged: {reason}"
        raise image_error(f"cannot decode {name} ({reason})", fix, sentence=True) from None


def _decode(data: bytes, name: str, reduced: bool) -> tuple[Image.Image, frozenset[str]]:
    """The image that the bytes of a file hold, if it has pixels worth scoring, and its traits."""
    # A check needs no pixels: without these two shortcuts the checks of a run would cost as much as decoding.
    if reduced:
        data = _without_scan(data) or data
    with io.BytesIO(data) as file, _decoding(name):
        image = open_image(file)
        _refuse_unfit(image, name)
        if reduced:
            image.draft("L", (1, 1))  # JPEG only: an eighth of the size, without colour
        return image, _load(image)


def _load(image: Image.Image) -> frozenset[str]:
    """Load an image; its traits."""
    traits = set()
    if is_deep(image):  # which shows in what is still to be read
        traits.add(DEEP)
    image.load()
    if _orientation(image) in _TURNS:
        traits.add(TURNED)
    return frozenset(traits)


def is_deep(image: Image.Image) -> bool:
    """Whether Pillow will make 8 bits of channels of 16, as it does of colours in PNG, TIFF and PPM."""
    for tile in getattr(image, "tile", None) or ():
        # The arguments of a decoder begin with the raw mode; those of PPM go on with the highest value.
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        raw_mode = arguments[0] if arguments else None
        if isinstance(raw_mode, str) and ";16" in raw_mode:
            return True
        highest = arguments[1] if len(arguments) > 1 else None
        if tile[0].startswith("ppm") and isinstance(highest, int) and highest > 255:
            return True
    return False


# The segments of a JPEG, each `ff`, its kind, and its length of two bytes:
#
#     ffd8 | ffe0 app | ffdb tables | ffc0 frame | ffc4 codes | ffda scan, then coded pixels | ffd9
#
# In coded pixels a byte ff is followed by 00; ffd0 to ffd7 restart the decoder within them.
_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xda-\xfe])(..)", re.DOTALL)
_SCAN_END = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_SEQUENTIAL = re.compile(rb"[\xc4\xcc\xdb-\xfe]*[\xc0\xc1][\xc4\xcc\xdb-\xfe]*\xda")


def _without_scan(data: bytes) -> bytes | None:
    """A JPEG that decodes exactly if this one does, in a tenth of the time; None where there is none."""
    # In the one scan of a sequential JPEG libjpeg finds no error: it warns and goes on with grey. So where
    # the next marker behind the scan is the end of the image, the scan can be left out.
    if data[:2] != b"\xff\xd8":
        return None
    kinds = b""
    end = 2
    while not kinds.endswith(b"\xda"):
        segment = _SEGMENT.match(data, end)
        if segment is None:
            break
        kinds += segment[1]
        end += 2 + int.from_bytes(segment[2], "big")
    if not _SEQUENTIAL.fullmatch(kinds) or b"MPF\0" in data[:end]:  # MPF says where further images are
        return None
    marker = _SCAN_END.search(data, end)
    if marker is None or marker[1] != b"\xd9":
        return None
    return data[:end] + b"\xff\xd9"


def _refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse unread files of other formats, sizes that no encoder can use, and animations, by the header."""
    form = image.format
    # An image that is loaded came from whatever format the user trusted: its pixels are there.
    unread = bool(getattr(image, "tile", None)) or isinstance(image, ImageFile.StubImageFile)
    if isinstance(image, ImageFile.ImageFile) and unread and form not in (None, "MPO", *FORMATS):
        problem = f"{name} is in the format {form}, which is not opened"
        raise image_error(problem, f"convert it to one of {OPENED}, or .load() it first", sentence=True)
    refuse_size(*image.size, name)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        content = "floats" if image.mode == "F" else "more than 8 bits"
        problem = f"{name} has {content} per channel (mode {image.mode}), and does not say which is white"
        raise image_error(
            problem,
            "scale it to 8 bits: divide 16 bits by 257, or by less if they are not used up",
            sentence=True,
        )
    # Not `n_frames`, for which Pillow reads a whole GIF. In an MPO lie a phone's depth map or thumbnail.
    if form != "MPO" and getattr(image, "is_animated", False):
        raise image_error(f"{name} has more than one frame", "save one of them as an image", sentence=True)


def refuse_size(width: int, height: int, name: str) -> None:
    """Refuse a size that is a decompression bomb, or that no encoder can use."""
    limit = Image.MAX_IMAGE_PIXELS
    size = f"{name} is {width}x{height} pixels"
    if limit is not None and width * height > limit:
        raise image_error(
            f"{size}, more than the limit of {limit:,} (a decompression bomb?)", _BOMB, sentence=True
        )
    if min(width, height) <= 1 or max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
        fix = (
            f"an image needs 2 on each side, and no side may be {_MAX_ASPECT_RATIO} times the other: crop it"
        )
        raise image_error(size, fix, sentence=True)


# ---- pixels

# PIL reads a lazy image from its one file handle; two threads that both load it would read past each other.
_loading = threading.Lock()


@dataclass(eq=False, slots=True)
class Pixels(Source[Image.Image]):
    """A PIL image, or an array or tensor (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8 or float."""

    value: Any
    name: str

    def decode(self, reduced: bool = False) -> Image.Image:
        value = self.value
        if isinstance(value, Image.Image):  # a copy: whoever loads an image may change it, or close it
            is_open = getattr(value, "fp", None) is not None
            fix = "" if is_open else "its file is closed: pass its path, or .load() it in time"
            with _loading, _decoding(self.name, fix):
                _refuse_unfit(value, self.name)  # before a lazy one is decoded in vain
                self.traits = _load(value) | (self.traits & {DEEP})  # once loaded, its depth is forgotten
                return value.copy()
        refuse_size(value.shape[1], value.shape[0], self.name)  # a view of few numbers may have any shape
        if is_tensor(value):  # numpy has no bfloat16
            value = value.cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy()
        if value.dtype != np.uint8:
            low = float(value.min())  # NaN passes through min
            high = float(value.max())
            if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
                fix = "expected [0, 1]: divide by 255, or pass the pixels as they were before normalisation"
                raise image_error(f"{self.name} has floats from {low:.4g} to {high:.4g}", fix, sentence=True)
            # In float16 the product with 255 would be rounded to an eighth before it is to a whole number.
            wide = value.astype(np.float32) if value.dtype.itemsize < 4 else value
            value = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(value[:, :, 0] if value.shape[2:] == (1,) else value))

    def compute_key(self) -> str:
        """A key of mode, size, palette, transparency and pixels."""
        image = self.decode()
        digest = _digest()
        digest.update(f"{image.mode} {image.size} {image.info.get('transparency')!r}".encode())
        palette = image.palette  # the pixels of an image of mode P are indices into it
        if palette is not None:
            digest.update(f"{palette.mode} ".encode() + image.im.getpalette(palette.mode, palette.mode))
        digest.update(image.tobytes())
        return "pixels:" + digest.hexdigest()


def _of_array(value: Any) -> Pixels:
    """The source of a numpy array (H, W, C), or of a tensor, whose channels may come first."""
    is_torch = is_tensor(value)
    if is_torch and (value.is_nested or value.device.type == "meta" or "strided" not in str(value.layout)):
        raise image_error(
            "the tensor is nested, sparse or on the meta device",
            "pass a dense one with pixels",
            sentence=True,
        )
    if not is_torch:
        value = np.asanyarray(value)
    shape = tuple(value.shape)
    dtype = str(value.dtype).rpartition(".")[2]
    name = f"the {'tensor' if is_torch else 'array'} of shape {shape}"
    if np.ma.is_masked(value):
        raise image_error(
            f"{name} has masked pixels, an image has none", "pass array.filled(value)", sentence=True
        )
    if dtype != "uint8" and not dtype.startswith(("float", "bfloat")):
        fix = "expected uint8, or float in [0, 1]: divide 16 bits by 65535, multiply a mask by 255"
        raise image_error(f"{name} has dtype {dtype}", fix, sentence=True)
    # torchvision gives (C, H, W), numpy has (H, W, C). A tensor of (3, H, 3) is both, and refused.
    channels_first = is_torch and len(shape) == 3 and shape[0] in (1, 3)
    channels_last = len(shape) == 3 and shape[2] in (1, 3, 4)
    if channels_first and channels_last:
        raise image_error(
            f"{name} may be (C, H, W) and (H, W, C)", "pass a numpy array (H, W, C)", sentence=True
        )
    if not (channels_first or channels_last or len(shape) == 2):
        fix = "expected (H, W), (H, W, 3) or (H, W, 4)"
        if is_torch:
            fix = "expected (3, H, W), (1, H, W) or (H, W)"
        if len(shape) == 4:
            fix = f"{fix}; of a batch pass one after the other"
        if len(shape) == 3:
            fix = f"{fix}; of grey images pass a list, each (H, W)"
        raise image_error(f"{name} is no image", fix, sentence=True)
    if 0 in shape:
        raise image_error(f"{name} has no pixels", sentence=True)
    # numpy cannot read a view that is negated lazily, as the imaginary part of a conjugate is.
    value = value.detach().resolve_neg() if is_torch else np.asarray(value)
    if channels_first:
        value = value.permute(1, 2, 0)
    if is_torch and value.device.type == "cpu" and dtype in ("uint8", "float32", "float64"):
        value = value.numpy()  # it pickles its own pixels; a tensor cut from a batch would pickle the batch
    return Pixels(value, name)


def shape_of(value: object) -> tuple[int, ...] | None:
    """The shape of an array or tensor; None for what has none, as a class, a mock and a nested tensor."""
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # nested tensors have none
        return None
    return tuple(shape) if isinstance(shape, tuple) else None


def is_tensor(value: object) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    module = type(value).__module__.partition(".")[0]
    return module == "torch" and hasattr(value, "is_floating_point") and not isinstance(value, type)


# ---- sequences as rows

NOT_A_LIST = "one per row, in order: of a table one column, of a generator or a stream list(...) of it"
"""The fix for what has no rows, behind the words for what is expected."""


def as_list(value: object) -> list[Any] | None:
    """Any sequence as a list; None for what has no order, no length, or is no sequence."""
    if isinstance(value, (str, bytes, bytearray, range, type, Mapping, Set)):
        return None
    if isinstance(value, Sequence):
        return list(value)
    to_list = getattr(value, "to_pylist", None) or getattr(value, "tolist", None)  # pyarrow; numpy, pandas
    rows = to_list() if to_list else None
    return rows if isinstance(rows, list) else None  # a numpy scalar has tolist too


def is_table(value: object) -> bool:
    """A pandas or polars DataFrame, or a whole Dataset: its columns are not rows."""
    return hasattr(value, "columns") or hasattr(value, "column_names")


# ---- resizing


_PREMULTIPLIED = {"RGBA": "RGBa", "LA": "La"}


def resized(
    image: Image.Image,
    size: tuple[int, int],
    method: Image.Resampling,
    box: tuple[int, int, int, int] | None = None,
) -> Image.Image:
    """`image.resize(size, method)` as Pillow did it before 13, as published scores need it.

    Pillow rounds to 8 bits between its two passes, and 13 takes the height of a tall image first. `box`:
    left, top, right and bottom of the part that is wanted; its columns alone take the second pass.
    """
    if image.size == size:  # as Pillow does: premultiplying and back would move pixels
        return image if box is None else image.crop(box)
    if image.mode in _PREMULTIPLIED and method != Image.Resampling.NEAREST:  # as Pillow, but for both passes
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


def central_square(height: int, width: int) -> tuple[int, int, int]:
    """Top, left and side of the largest square in the middle."""
    side = min(height, width)
    return height // 2 - side // 2, width // 2 - side // 2, side


def _square_with_margins(image: Image.Image, size: int, method: Image.Resampling) -> NDArray[np.uint8]:
    """(3, size, size) uint8 in RGB: the whole image in the middle of a square, as open_clip's "longest"."""
    ratio = max(image.size) / size
    sides = (max(1, round(image.width / ratio)), max(1, round(image.height / ratio)))
    left = (size - sides[0]) // 2  # an odd pixel goes behind the image
    top = (size - sides[1]) // 2
    # Pillow's crop fills what is beyond the image with zeros of its mode: black, or the first of a palette.
    padded = resized(image, sides, method, (-left, -top, size - left, size - top)).convert("RGB")
    return np.ascontiguousarray(np.asarray(padded).transpose(2, 0, 1))


def square_pixels(
    image: Image.Image, size: int, method: Image.Resampling, resize: Resize = "shortest"
) -> NDArray[np.uint8]:
    """(3, size, size) uint8 in RGB. resize: "shortest", the shorter side, of which the central square is cut
    out; "squash", both sides, whatever the image's shape; "longest", the longer side, with black margins."""
    width, height = image.size
    if resize == "longest":
        return _square_with_margins(image, size, method)
    if resize == "squash":
        sides = (size, size)
    # As torchvision's Resize cuts off: the longer side is rounded down.
    elif width <= height:
        sides = (size, int(size * height / width))
    else:
        sides = (int(size * width / height), size)
    # As torchvision's CenterCrop rounds: half a pixel to the even number.
    left = round((sides[0] - size) / 2.0)
    top = round((sides[1] - size) / 2.0)
    cropped = resized(image, sides, method, (left, top, left + size, top + size)).convert("RGB")
    return np.ascontiguousarray(np.asarray(cropped).transpose(2, 0, 1))
