"""Pictures that several metrics look at, read and decoded once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from capeval_core.inputs.images import ImageError, Source, Wrapped
from capeval_core.metric import CommonOptions

_BYTES = 256 << 20  # of pixels that are kept for the next metric


class SharedVisuals:
    """Visuals of some rows, for one metric after the other.

    Pixels are kept up to 256 MB; of larger pictures than that the rest is decoded again by the next metric.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[int, str | None], Source[Any]] = {}
        self._memory = _Memory()

    def of(self, values: Sequence[Any], visuals: Sequence[Any], options: CommonOptions) -> list[Any]:
        """The visuals of rows with these values, which live as long as this: with sources of all metrics."""
        shared = []
        for value, visual in zip(values, visuals, strict=True):
            # By identity: rows of one window hold each value once, and comparing bytes would take long.
            # Turned by EXIF or not, the pixels differ.
            key = (id(value), options.exif)
            if key not in self._sources:
                # Processes that decode take files alone, and give pixels that are resized already.
                is_kept = visual.medium == "image" and getattr(options, "decoders", None) is None
                self._sources[key] = _Decoded(visual.source, self._memory) if is_kept else visual.source
            shared.append(replace(visual, source=self._sources[key]))
        return shared


@dataclass
class _Memory:
    """The bytes that pixels may still take; threads decode."""

    free: int = _BYTES
    lock: Any = field(default_factory=threading.Lock)

    def take(self, count: int) -> bool:
        """Whether there was room for so many more bytes, which are taken."""
        # Without the lock two threads could both take the last bytes.
        with self.lock:
            if count > self.free:
                return False
            self.free -= count
            return True


@dataclass(eq=False, slots=True)
class _Decoded(Wrapped):
    """An image whose pixels, or what is wrong with it, stay in memory once it has been decoded."""

    memory: _Memory
    picture: Image.Image | None = field(default=None, init=False, repr=False)
    error: ImageError | None = field(default=None, init=False, repr=False)

    def compute_key(self) -> str:
        return self.source.key

    def decode(self, reduced: bool = False) -> Any:
        if self.error is not None:
            raise self.error
        if self.picture is not None:
            return self.picture
        try:
            picture = self.source.decode(reduced)
        # Kept as well: the next metric would decode a broken picture up to its fault again.
        except ImageError as error:
            self.error = error
            raise
        self.traits = self.source.traits
        # A reduced one may be smaller: it only shows whether the file decodes.
        if not reduced and isinstance(picture, Image.Image):
            count = picture.width * picture.height * len(picture.getbands()) * _WIDTHS.get(picture.mode, 1)
            if self.memory.take(count):
                self.picture = picture
        return picture


_WIDTHS = {"I": 4, "F": 4, "I;16": 2}
"""Bytes of a number in modes in which it is not one."""
