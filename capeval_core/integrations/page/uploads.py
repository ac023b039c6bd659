"""The files of a page: uploads and packaged examples, no other; notes on what a metric sees of an image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder
from PIL import ExifTags

from capeval_core.demo import FOLDER
from capeval_core.inputs.images import open_image

NARROWEST = 0.6
"""Shorter / longer side of images of which so little is cut off that no note is needed."""
TURNED = (
    "The file says that the image is to be turned (EXIF), and so it is shown here. The score is that of "
    "the image as it is stored, as in the original code: save it upright if that is not what you mean."
)
DEEP = (
    "The image has more than 8 bits a channel. As in the original code, everything above 255 is white: "
    "scale it to 8 bits."
)
TRANSPARENT = (
    "The image is partly transparent. The metric sees its colours without that, often black where the "
    "page shows through: put it onto a background if that is not what you mean."
)
CUT = "The metric sees the square in the image's centre only, {:.0%} of it."
_NOT_HERE = "the {} is not among the uploads of this page, which are deleted after an hour: upload it (again)"


def uploaded(value: Any, noun: str) -> Path | None:
    """The resolved path of the file that an event handed in, None where it has none.

    Gradio checks a path only where the request itself says, by its `meta`, that there is one. The message
    about a file that was not uploaded to this page is the same whether there is such a file or not.
    """
    if value is None:
        return None
    path = value.get("path") if isinstance(value, Mapping) else None
    if path is None and isinstance(value, Mapping) and not value.get("url"):
        return None
    resolved = _resolved(path)
    if resolved is None or not resolved.is_file():
        raise ValueError(_NOT_HERE.format(noun))
    return resolved


def _resolved(path: Any) -> Path | None:
    """Where a path leads, links followed, if that exists and is inside one of the folders; else None."""
    if not isinstance(path, str) or not path:
        return None
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # no such file, a NUL, links in a circle
        return None
    folders = (Path(get_upload_folder()), FOLDER)
    return resolved if any(resolved.is_relative_to(folder.resolve()) for folder in folders) else None


def notes_on(image: str, *, square: bool = True) -> list[str]:
    """Notes where a metric sees another image than a browser shows; `square`: it sees the centre alone."""
    with open_image(image) as decoded:
        sides = sorted(decoded.size)
        notes = {
            TURNED: decoded.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9),
            DEEP: decoded.mode.startswith(("I", "F")),
            TRANSPARENT: decoded.has_transparency_data
            and decoded.convert("RGBA").getchannel("A").getextrema() != (255, 255),
            CUT.format(sides[0] / sides[1]): square and sides[0] < NARROWEST * sides[1],
        }
    return [note for note, holds in notes.items() if holds]
