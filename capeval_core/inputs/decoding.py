"""Bytes to a PIL picture, and which pictures are refused and why."""

from __future__ import annotations

import hashlib
import io

from PIL import Image, UnidentifiedImageError

STEEPEST = 200  # longer / shorter side; scaling the shorter side to a model's input size would explode
# Several pictures in one file that are not frames: a phone's depth map or thumbnail, Photoshop's layers.
NOT_FRAMES = {"MPO", "PSD"}
HEIC = (b"ftypheic", b"ftypheix", b"ftypmif1")  # how a phone's photographs begin, after four bytes
BOMB = "scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the picture"


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


def decode(data: bytes, name: str, reduced: bool) -> Image.Image:
    """Decode the bytes of a file that has pixels worth scoring; Refused otherwise."""
    with io.BytesIO(data) as file:
        try:
            image = Image.open(file)
            refuse_unfit(image, name)
            if reduced:
                image.draft("L", (1, 1))  # JPEG only: an eighth of the size, without colour
            image.load()
            return image
        except Refused:
            raise
        except UnidentifiedImageError:
            if data[4:12] in HEIC:
                raise Refused(
                    f"{name} is a HEIC picture, which Pillow cannot read: convert it to JPEG"
                ) from None
            raise Refused(
                f"{name} is not a picture that Pillow can read, or its header is truncated"
            ) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise Refused(f"{name} is too large to trust ({said}): {BOMB}") from None
        except Exception as error:  # Pillow's plugins raise whatever their parsing trips over
            raise undecodable(name, error) from None


def refuse_unfit(image: Image.Image, name: str) -> None:
    """Refuse sizes that no encoder can use, and animations, by the header alone."""
    width, height = image.size
    size = f"{width}x{height}"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Refused(
            f"{name} is {size} = {width * height:,} pixels (a decompression bomb?), "
            f"the limit is {limit:,}: {BOMB}"
        )
    if min(width, height) <= 1:
        raise Refused(f"{name} is {size} pixels: a picture needs at least 2 on each side")
    if max(width, height) > STEEPEST * min(width, height):
        raise Refused(f"{name} is {size} pixels: one side is more than {STEEPEST} times the other, crop it")
    frames = 1 if image.format in NOT_FRAMES else getattr(image, "n_frames", 1)
    if frames > 1:
        raise Refused(f"{name} has {frames} frames: save one of them as a picture")


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
