"""What a page takes beside texts: images and videos, each with its component, its limits and its notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from typing import Any, ClassVar

import gradio as gr
from PIL import Image

from capeval_core.inputs.decoding import Refused, open_image, readable_formats, refuse_crowded
from capeval_core.inputs.folder import VIDEO_EXTENSIONS
from capeval_core.inputs.video_file import OpenVideo
from capeval_core.integrations.page.uploads import notes_on, uploaded
from capeval_core.limits import LIMITS
from capeval_core.registry import media_of

LARGEST = 25_000_000
"""Pixels of an image at most: a photograph of 24 megapixels; larger ones hold a page for a minute."""
TAKEN = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats, in Pillow's names: what browsers and cameras save. The library opens some more, of which a small
file of a stranger can take minutes."""


class PageMedium(ABC):
    """A medium on a page.

    name: as in `CaptionMetric.media`, and in sentences. label: of its choice and its component.
    """

    name: ClassVar[str]
    label: ClassVar[str]

    @property
    def offered(self) -> bool:
        """Whether it can be read here."""
        return True

    def of(self, value: Any) -> str | None:
        """The path of the upload that an event handed in, None where there is none.

        Raises:
            ValueError: it was not uploaded to this page, or costs too much.
        """
        return uploaded(value, self.name, self.refuse_costly)

    @abstractmethod
    def component(self, *, visible: bool) -> Any:
        """The component that takes an upload."""

    @abstractmethod
    def refuse_costly(self, data: bytes) -> None:
        """Refuse what would hold the page for long; what cannot be read is for the metric to refuse.

        Raises:
            ValueError: too many pixels or parts, or another format than those of browsers and cameras.
        """

    def options(self, data: bytes) -> dict[str, Any]:
        """Options of the metric for this one."""
        return {}

    def notes(self, path: str, *, crops: bool, options: Mapping[str, Any]) -> list[str]:
        """Where the metric sees something else than the reader; `options` are those of `options`."""
        return []


class PageImage(PageMedium):
    """An image: a drop, a click or a paste."""

    name = "image"
    label = "Image"

    def component(self, *, visible: bool) -> gr.Image:
        return gr.Image(
            label=self.label,
            type="filepath",
            sources=["upload", "clipboard"],
            height=260,
            placeholder="# Drop an image here\nor click to choose one",
            visible=visible,
            elem_id=self.name,
        )

    def refuse_costly(self, data: bytes) -> None:
        for form in set(readable_formats()) - set(TAKEN):
            accepts = Image.OPEN[form][1]
            if accepts and accepts(data[:16]):
                found = f"the image is in the format {form}, which this page does not take"
                raise ValueError(f"{found}: save it as JPEG or PNG")
        try:
            refuse_crowded(data, "the image")
        except Refused as refused:
            raise ValueError(str(refused)) from None
        try:
            with open_image(BytesIO(data)) as image:
                width, height = image.size
        except Exception:
            return
        if width * height > LARGEST:
            raise ValueError(
                f"the image is {width}x{height} = {width * height / 1e6:,.1f} megapixels, this page takes "
                f"{LARGEST / 1e6:.0f}: scale it down, or use the library, which takes more"
            )

    def notes(self, path: str, *, crops: bool, options: Mapping[str, Any]) -> list[str]:
        return notes_on(path, square=crops)


class PageVideo(PageMedium):
    """A video file. It is a plain file to Gradio, whose own component would convert it and load an editor."""

    name = "video"
    label = "Video"

    @property
    def offered(self) -> bool:
        return find_spec("av") is not None

    def component(self, *, visible: bool) -> gr.File:
        return gr.File(
            label="Video: MP4, WebM, MOV, MKV, AVI or GIF",
            file_types=sorted(VIDEO_EXTENSIONS),
            height=160,
            visible=visible,
            elem_id=self.name,
        )

    def refuse_costly(self, data: bytes) -> None:
        """Frames are decoded and counted until they are too many: what a header states may be wrong."""
        frames = pixels = 0

        def count(frame: Any) -> None:
            nonlocal frames, pixels
            frames, pixels = frames + 1, pixels + frame.width * frame.height
            if frames <= LIMITS.page_frames and pixels <= LIMITS.page_pixels:
                return
            found = (
                f"{LIMITS.page_frames:,} frames"
                if frames > LIMITS.page_frames
                else f"{LIMITS.page_pixels / 1e6:,.0f} megapixels"
            )
            raise ValueError(
                f"the video has more than {found}, which is the most that this page takes: cut it, scale it "
                "down, or use the library, which takes more"
            )

        with suppress(Refused), OpenVideo(BytesIO(data), "the video") as video:
            for _ in video.frames(count):
                pass

    def options(self, data: bytes) -> dict[str, Any]:
        try:
            with OpenVideo(BytesIO(data), "the video") as video:
                few = (
                    sum(1 for _ in islice(video.frames(), LIMITS.page_frames_encoded + 1))
                    <= LIMITS.page_frames_encoded
                )
        except Refused:
            few = True
        return {} if few else {"max_frames": LIMITS.page_frames_encoded}

    def notes(self, path: str, *, crops: bool, options: Mapping[str, Any]) -> list[str]:
        return (
            [f"The metric sees {LIMITS.page_frames_encoded} frames, spread evenly over the video."]
            if options
            else []
        )


MEDIA: dict[str, PageMedium] = {medium.name: medium for medium in (PageImage(), PageVideo())}
"""By name, in the order in which a page offers them."""


def media_on_page(name: str) -> list[PageMedium]:
    """The media that a page of a metric offers; none for a metric on texts alone.

    >>> [medium.label for medium in media_on_page("refpacs")], media_on_page("cider")
    (['Image', 'Video'], [])
    """
    return [MEDIA[medium] for medium in media_of(name) if medium in MEDIA and MEDIA[medium].offered]
