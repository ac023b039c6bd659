"""What a page takes beside texts: uploads of images and videos, with limits and notes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import ExifTags

from capeval_core.demo import FOLDER
from capeval_core.inputs.decoders import frames_within_limits
from capeval_core.inputs.folder import EXTENSIONS
from capeval_core.inputs.images import open_image
from capeval_core.limits import LIMITS
from capeval_core.registry import media_of

LABELS = {"image": "Image", "video": "Video"}
"""Of the media that a page can take, in the order in which it offers them."""
_NARROWEST = 0.6  # shorter / longer side of images of which so little is cut off that no note is needed
_NOT_HERE = "the {} is not among the uploads of this page, which are deleted after an hour: upload it (again)"
_TURNED = (
    "The file says that the image is to be turned (EXIF), and so it is shown here. The score is that of "
    "the image as it is stored, as in the original code: save it upright if that is not what you mean."
)
_DEEP = (
    "The image has more than 8 bits a channel. As in the original code, everything above 255 is white: "
    "scale it to 8 bits."
)
_TRANSPARENT = (
    "The image is partly transparent. The metric sees its colours without that, often black where the "
    "page shows through: put it onto a background if that is not what you mean."
)
_CUT = "The metric sees the square in the image's centre only, {:.0%} of it."
_SPREAD = "The metric sees {} frames, spread evenly over the video."


def media_on_page(name: str) -> list[str]:
    """The media that a page of a metric offers; none for a metric on texts alone."""
    readable = [medium for medium in LABELS if medium == "image" or find_spec("av") is not None]
    return [medium for medium in media_of(name) if medium in readable]


def component(medium: str, *, visible: bool) -> Any:
    """The component that takes an upload."""
    if medium == "image":
        return gr.Image(
            label=LABELS[medium],
            type="filepath",
            sources=["upload", "clipboard"],
            height=260,
            placeholder="# Drop an image here\nor click to choose one",
            visible=visible,
            elem_id=medium,
        )
    # A plain file: Gradio's own component would convert a video and load an editor.
    return gr.File(
        label="Video: MP4, WebM, MOV, MKV, AVI or GIF",
        file_types=sorted(EXTENSIONS[medium]),
        height=160,
        visible=visible,
        elem_id=medium,
    )


def uploaded(value: Any, medium: str) -> str | None:
    """The path of the upload, or packaged example, that an event handed in; None where it has none.

    Gradio checks a path only where the request itself says, by its `meta`, that there is one. ValueError is
    the same for a file that was not uploaded to this page whether there is such a file or not.
    """
    path = value.get("path") if isinstance(value, Mapping) else None
    if value is None or (path is None and isinstance(value, Mapping) and not value.get("url")):
        return None
    resolved = None
    if isinstance(path, str) and path:
        with suppress(OSError, ValueError, RuntimeError):  # no such file, a NUL, links in a circle
            resolved = Path(path).resolve(strict=True)
    folders = [folder.resolve() for folder in (Path(get_upload_folder()), FOLDER)]
    if resolved is None or not resolved.is_file() or not any(map(resolved.is_relative_to, folders)):
        raise ValueError(_NOT_HERE.format(medium))
    return str(resolved) if _frames(resolved, resolved.stat().st_mtime_ns, medium) else None


@lru_cache(maxsize=64)
def _frames(path: Path, time: int, medium: str) -> int:
    """The number of frames of an upload, which another process reads within limits. Raises ValueError."""
    return frames_within_limits(path, medium)


def options_of(path: Path, medium: str) -> dict[str, Any]:
    """Options of the metric for this upload."""
    many = medium == "video" and _frames(path, path.stat().st_mtime_ns, medium) > LIMITS.page_frames_encoded
    return {"max_frames": LIMITS.page_frames_encoded} if many else {}


def notes_on(path: Path, medium: str, *, crops: bool, options: Mapping[str, Any]) -> list[str]:
    """Where a metric sees something else than a browser shows; `crops`: of an image the centre alone."""
    if medium == "video":
        return [_SPREAD.format(LIMITS.page_frames_encoded)] if options else []
    with open_image(str(path)) as decoded:
        sides = sorted(decoded.size)
        notes = {
            _TURNED: decoded.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9),
            _DEEP: decoded.mode.startswith(("I", "F")),
            _TRANSPARENT: decoded.has_transparency_data
            and decoded.convert("RGBA").getchannel("A").getextrema() != (255, 255),
            _CUT.format(sides[0] / sides[1]): crops and sides[0] < _NARROWEST * sides[1],
        }
    return [note for note, holds in notes.items() if holds]
