"""Bytes to a PIL image, and which images are refused and why."""

from __future__ import annotations

import hashlib
import io
import re
from typing import IO

from PIL import Image, ImageFile, UnidentifiedImageError

from capeval_core.inputs.parts import crowded

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""What is opened, in Pillow's names: what sets of captions are published in and what cameras, browsers and
screenshots save; JPEG brings MPO, and HEIF is there where `pillow_heif` registered it. Everything else that
Pillow knows is left out: EPS starts Ghostscript, WMF the system's renderer; ICO and PSD hold several
images, of which none is the image; TGA has no signature, so that other files pass for it; the rest is
rare, and a parser that nobody needs is one more that a hostile file can reach."""
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
    "MP4": re.compile(rb".{4}ftyp(?:isom|iso[2-9]|mp4[12]|qt  |M4V |3gp)", re.DOTALL),
}

STEEPEST = 200  # longer / shorter side; scaling the shorter side to a model's input size would explode
# Several images in one file that are not frames: a phone's depth map or thumbnail.
NOT_FRAMES = {"MPO"}
BOMB = "scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the image"


class ImageError(ValueError):
    """An image cannot be used. The message begins with its place, e.g. `images[17]: `."""


class Refused(Exception):  # noqa: N818  (a reason on its way to InputImage, which knows the place)
    """Why a source is no image, without its place: `joint` is what stands between the two."""

    def __init__(
        self, reason: str, joint: str = ": ", kind: type[ValueError] | type[TypeError] = ImageError
    ) -> None:
        super().__init__(reason)
        self.joint = joint
        self.kind = kind

    def at(self, where: str) -> str:
        return f"{where}{self.joint}{self}"


def open_image(file: str | IO[bytes]) -> Image.Image:
    """`PIL.Image.open` for the formats in `FORMATS` alone; the one place where image files are opened."""
    return Image.open(file, formats=readable_formats())


def readable_formats() -> list[str]:
    """Those of `FORMATS` that this Pillow, or a plugin that was imported, can read."""
    Image.init()
    return [form for form in FORMATS if form in Image.OPEN]


def not_opened(name: str, form: str) -> str:
    return f"{name} is in the format {form}, which is not opened: convert it to one of {OPENED}"


def decode(data: bytes, name: str, reduced: bool) -> Image.Image:
    """Decode the bytes of a file that has pixels worth scoring; Refused otherwise."""
    refuse_crowded(data, name)
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
                raise Refused(not_opened(name, form)) from None
            raise Refused(
                f"{name} is not an image that Pillow can read, or its header is truncated"
            ) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise Refused(f"{name} is too large to trust ({said}): {BOMB}") from None
        except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
            raise undecodable(name, error) from None


def format_of(data: bytes) -> str | None:
    """The name of a format that is not among those that are opened, by how its files begin (or end)."""
    for form, signature in SIGNATURES.items():
        if form not in readable_formats() and signature.match(data):
            return form
    if data.endswith(b"TRUEVISION-XFILE.\0"):
        return "TGA"
    for form, (_, accepts) in list(Image.OPEN.items()):
        try:
            if form not in FORMATS and accepts and accepts(data[:16]):
                return form
        except Exception:  # a plugin that trips over a few bytes does not know them
            continue
    return None


def refuse_format(image: Image.Image, name: str) -> None:
    """Refuse an image that Pillow has opened from a file of another format and not read yet."""
    form = image.format
    unread = bool(getattr(image, "tile", None)) or isinstance(image, ImageFile.StubImageFile)
    known = form is None or form in readable_formats() or form in NOT_FRAMES
    if isinstance(image, ImageFile.ImageFile) and not known and unread:
        raise Refused(f"{not_opened(name, str(form))}, or .load() it first")


def refuse_crowded(data: bytes, name: str) -> None:
    """Refuse, before Pillow opens it, a small file that would take minutes."""
    if many := crowded(data):
        raise Refused(f"{name} has {many}, which would take minutes: save it again as a plain image")


def refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse sizes that no encoder can use, and animations, by the header alone."""
    refuse_size(*image.size, name)
    # Not `n_frames`: to count them Pillow reads a whole GIF, and a TIFF in quadratic time.
    if image.format not in NOT_FRAMES and getattr(image, "is_animated", False):
        raise Refused(f"{name} has more than one frame: save one of them as an image")


def refuse_size(width: int, height: int, name: str) -> None:
    size = f"{width}x{height}"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Refused(
            f"{name} is {size} = {width * height:,} pixels (a decompression bomb?), "
            f"the limit is {limit:,}: {BOMB}"
        )
    if min(width, height) <= 1:
        raise Refused(f"{name} is {size} pixels: an image needs at least 2 on each side")
    if max(width, height) > STEEPEST * min(width, height):
        raise Refused(f"{name} is {size} pixels: one side is more than {STEEPEST} times the other, crop it")


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
