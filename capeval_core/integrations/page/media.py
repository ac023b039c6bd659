"""What a page takes beside texts: images and videos, each with its component, its limits and its notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr

from capeval_core.inputs.folder import EXTENSIONS
from capeval_core.inputs.trial import frames_within_limits
from capeval_core.integrations.page.uploads import notes_on, uploaded
from capeval_core.limits import LIMITS
from capeval_core.registry import media_of


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
            ValueError: it was not uploaded to this page, cannot be read, or costs too much.
        """
        path = uploaded(value, self.name)
        return None if path is None or not self.frames(path) else str(path)

    def frames(self, path: Path) -> int:
        """The number of frames of an upload, which another process reads within limits. Raises ValueError."""
        return _frames(path, path.stat().st_mtime_ns, self.name)

    @abstractmethod
    def component(self, *, visible: bool) -> Any:
        """The component that takes an upload."""

    def options(self, path: Path) -> dict[str, Any]:
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
            file_types=sorted(EXTENSIONS["video"]),
            height=160,
            visible=visible,
            elem_id=self.name,
        )

    def options(self, path: Path) -> dict[str, Any]:
        few = self.frames(path) <= LIMITS.page_frames_encoded
        return {} if few else {"max_frames": LIMITS.page_frames_encoded}

    def notes(self, path: str, *, crops: bool, options: Mapping[str, Any]) -> list[str]:
        return (
            [f"The metric sees {LIMITS.page_frames_encoded} frames, spread evenly over the video."]
            if options
            else []
        )


@lru_cache(maxsize=64)
def _frames(path: Path, time: int, medium: str) -> int:
    return frames_within_limits(path, medium)


MEDIA: dict[str, PageMedium] = {medium.name: medium for medium in (PageImage(), PageVideo())}
"""By name, in the order in which a page offers them."""


def media_on_page(name: str) -> list[PageMedium]:
    """The media that a page of a metric offers; none for a metric on texts alone.

    >>> [medium.label for medium in media_on_page("refpacs")], media_on_page("cider")
    (['Image', 'Video'], [])
    """
    return [MEDIA[medium] for medium in media_of(name) if medium in MEDIA and MEDIA[medium].offered]
