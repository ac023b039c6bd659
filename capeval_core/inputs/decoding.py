"""Bytes to a PIL image: which formats are opened, the bounds of what is read, and resizing."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from capeval_core.errors import Detail, Index, InputError, InPython, Kind, Problem, Text

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""What is opened, in Pillow's names; JPEG brings MPO, and HEIF is there where `pillow_heif` registered it.
Everything else is left out: EPS starts Ghostscript, WMF the system's renderer; ICO and PSD hold several
images; TGA has no signature; the rest is rare, and one more parser that a hostile file can reach."""
OPENED = "JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, JPEG 2000 and AVIF"

# Formats that Pillow does not know, or knows only with plugins or libraries that may be absent.
SIGNATURES = {
    "PDF": re.compile(rb"%PDF-"),
    "SVG": re.compile(
        rb"(?:\xef\xbb\xbf)?\s{0,99}(?=<)(?!<!doctype html|<html).{0,2000}?<svg[\s>]",
        re.DOTALL | re.IGNORECASE,
    ),
    "HEIC": re.compile(rb".{4}ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL),
    "AVIF": re.compile(rb".{4}ftypavi[fs]", re.DOTALL),
    "JPEG XL": re.compile(rb"\xff\x0a|\x00\x00\x00\x0cJXL "),
    "TGA": re.compile(rb".*TRUEVISION-XFILE\.\0\Z", re.DOTALL),
    "MP4": re.compile(rb".{4}ftyp(?:isom|iso[2-9]|mp4[12]|qt  |M4V |3gp)", re.DOTALL),
}

STEEPEST = 200  # longer / shorter side; scaling the shorter side to a model's input size would explode
# Several images in one file that are not frames: a phone's depth map or thumbnail.
NOT_FRAMES = {"MPO"}
BOMB: Text = (
    "scale it down",
    InPython(", or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the image"),
)


class ImageError(InputError):
    """An image, or another visual, cannot be used. The message begins with its name, e.g. `images[17]: `."""


class Refused(Exception):  # noqa: N818  (on its way to who knows which argument it is)
    """Why a value is no visual: a `Problem` without its argument; index: where in the value, `("bytes",)`."""

    def __init__(
        self,
        found: Text,
        fix: Text = "",
        *,
        verb: str = "",
        index: tuple[int | str, ...] = (),
        kind: Kind = ImageError,
    ) -> None:
        super().__init__(found, fix)
        self.index = index
        self._problem = Problem("", None, found, fix, verb, kind=kind)

    def problem(self, argument: str, *index: int | str) -> Problem:
        """The problem with an argument, at an index of it."""
        path = (*index, *self.index)
        place: Index = path if len(path) > 1 or self.index else path[0] if path else None
        return replace(self._problem, argument=argument, index=place)

    def __str__(self) -> str:
        return str(InputError(self._problem))


@contextmanager
def within(index: int | str) -> Iterator[None]:
    """Let what the block refuses be the value at that index of another one."""
    try:
        yield
    except Refused as refused:
        refused.index = (index, *refused.index)
        raise


def open_image(file: str | IO[bytes]) -> Image.Image:
    """`PIL.Image.open` for the formats in `FORMATS` alone; image files are opened here only."""
    return Image.open(file, formats=readable_formats())


def readable_formats() -> list[str]:
    """Those of `FORMATS` that this Pillow, or a plugin that was imported, can read."""
    Image.init()
    return [form for form in FORMATS if form in Image.OPEN]


def decode(data: bytes, name: str, reduced: bool) -> Image.Image:
    """Decode the bytes of a file that has pixels worth scoring; Refused otherwise."""
    if reduced:
        data = without_scan(data) or data
    with io.BytesIO(data) as file:
        try:
            image = open_image(file)
            refuse_unfit(image, name)
            if reduced:
                image.draft("L", (1, 1))  # JPEG only: an eighth of the size, without colour
            image.load()
            return image
        except Refused:
            raise
        except UnidentifiedImageError:
            if form := format_of(data):
                raise other_format(name, form) from None
            found = f"{name} is not an image that Pillow can read, or its header is truncated"
            raise Refused(found) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise Refused(f"{name} is too large to trust ({reason})", BOMB) from None
        except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
            raise undecodable(name, error) from None


_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xda-\xfe])(..)", re.DOTALL)
_SCAN_END = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
_SEQUENTIAL = re.compile(rb"[\xc4\xcc\xdb-\xfe]*[\xc0\xc1][\xc4\xcc\xdb-\xfe]*\xda")


def without_scan(data: bytes) -> bytes | None:
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


def format_of(data: bytes) -> str | None:
    """The name of a format that is not among those that are opened, by how its files begin (or end)."""
    opened = readable_formats()
    return _begins(data, [form for form in (*SIGNATURES, *Image.OPEN) if form not in opened])


def image_format(start: bytes) -> str | None:
    """The format of a file of a single image, by its first bytes; None for a GIF, which may be a video.

    >>> image_format(b"BM5"), image_format(b"GIF89a"), image_format(b"RIFF1234AVI LIST")
    ('BMP', None, None)
    """
    return _begins(
        start,
        ["HEIC", "AVIF", "JPEG XL", "PDF", "SVG", *(form for form in readable_formats() if form != "GIF")],
    )


def _begins(data: bytes, forms: Sequence[str]) -> str | None:
    """The first of these formats whose files are so."""
    for form in forms:
        accepts = Image.OPEN[form][1] if form in Image.OPEN else None
        try:
            if (form in SIGNATURES and SIGNATURES[form].match(data)) or (accepts and accepts(data[:16])):
                return form
        except Exception:  # a plugin that trips over a few bytes does not know them
            continue
    return None


def other_format(name: str, form: str, more: str = "") -> Refused:
    found = f"{name} is in the format {form}, which is not opened"
    return Refused(found, f"convert it to one of {OPENED}{more}")


def refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse unread files of other formats, sizes that no encoder can use, and animations, by the header."""
    form = image.format
    unread = bool(getattr(image, "tile", None)) or isinstance(image, ImageFile.StubImageFile)
    known = form is None or form in readable_formats() or form in NOT_FRAMES
    if isinstance(image, ImageFile.ImageFile) and unread and not known:
        raise other_format(name, str(form), ", or .load() it first")
    refuse_size(*image.size, name)
    # Not `n_frames`: to count them Pillow reads a whole GIF, and a TIFF in quadratic time.
    if form not in NOT_FRAMES and getattr(image, "is_animated", False):
        raise Refused(f"{name} has more than one frame", "save one of them as an image")


def refuse_size(width: int, height: int, name: str) -> None:
    size = f"{name} is {width}x{height}"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        found = f"{size} = {width * height:,} pixels (a decompression bomb?), the limit is {limit:,}"
        raise Refused(found, BOMB)
    if min(width, height) <= 1:
        raise Refused(f"{size} pixels", "an image needs at least 2 on each side")
    if max(width, height) > STEEPEST * min(width, height):
        raise Refused(f"{size} pixels", f"one side is more than {STEEPEST} times the other, crop it")


def undecodable(name: str, error: Exception) -> Refused:
    """Pillow's complaint in the one form `cannot decode 'x.jpg' (truncated)`."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in reason.lower() or isinstance(error, EOFError):
        return Refused(f"cannot decode {name} (truncated)")
    if isinstance(error, MemoryError):
        return Refused(f"cannot decode {name} (out of memory)")
    return Refused((f"cannot decode {name} (truncated or damaged", Detail(f": {reason}"), ")"))


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


def central_box(whole: tuple[int, int], size: int) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Width and height of an image whose shorter side becomes `size`, and the box of its central square."""
    width, height = whole
    sides = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    left, top = (round((side - size) / 2.0) for side in sides)
    return sides, (left, top, left + size, top + size)


def square_pixels(image: Image.Image, size: int, method: Image.Resampling) -> NDArray[np.uint8]:
    """(3, size, size) uint8 of the central square in RGB, the shorter side resized to `size`."""
    sides, box = central_box(image.size, size)
    cropped = resized(image, sides, method, box).convert("RGB")
    return np.ascontiguousarray(np.asarray(cropped).transpose(2, 0, 1))
