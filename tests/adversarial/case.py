"""One hostile input: through which door it comes, and what its error must name; no sentence is pinned."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

GREY = np.full((48, 48, 3), 128, dtype=np.uint8)

# The words of which an error of each kind uses at least one; the only place that knows any of the sentences.
KINDS = {
    "missing": (
        r"missing|None|no such|does not exist|no CUDA|there is no|has no|have no|no picture|"
        r"holds no|needs|lacks|required|without"
    ),
    "empty": r"empty|nothing|names none",
    "type": r"expected|unknown form|pass|is a |is an |is the |convert it",
    "value": (
        r"expected|NaN|infinit|at least|at most|between|must|outside|unfit|range|not a |no number|"
        r"holds|is -?\d"
    ),
    "shape": r"shape|rows of|add up|sets but|channels|expected",
    "count": (
        r"several|exactly one|but len|but there|as many|equally many|differ|per caption|"
        r"with 1 picture|fields|cells|pool"
    ),
    "damaged": (
        r"truncated|damaged|cannot be read|cannot decode|not valid|is not|begins with|checksum|"
        r"sha256|line"
    ),
    "format": r"format|frames|HEIC|cannot read|not a picture|extension|not supported|is not",
    "large": r"too large|pixels|bomb|limit|long|large|at most|more than|no room",
    "unknown": (
        r"unknown|not known|not part|no option|has no|neither|expected|did you mean|unrecognized|"
        r"known"
    ),
    "address": r"URL|address|never fetched|credentials|outside",
    "twice": r"twice|both|several|more than one|ambiguous|differ|repeat|same|again",
    "foreign": (
        r"other settings|something else|not comparable|relative|no picture in common|of another|"
        r"z-scores"
    ),
    "place": r"folder|file|directory|cannot be written|no such|FIFO|pipe|regular|would overwrite|null|NUL",
}


@dataclass(frozen=True)
class Case:
    """A hostile input and what its error must name.

    door: how it is handed in, a name in `doors.DOORS`. name: what is wrong, for people.
    given: makes the input of the door, from a `World`. argument: what the message names, literally; several
    where doors call it differently. index: the place in the argument, literally, '' where there is none.
    kind: one of `KINDS`.
    """

    door: str
    name: str
    given: Callable[[World], Any]
    argument: str
    index: str
    kind: str

    def __str__(self) -> str:
        return f"{self.door}: {self.name}"


@dataclass(frozen=True)
class World:
    """Files that a case may use or make: a folder of its own, and a good picture in it."""

    folder: Path
    picture: Path
    weights: Path

    def file(self, name: str, content: bytes | str | Any) -> Path:
        """A file of these bytes or this text; anything else is written as JSON."""
        path = self.folder / name
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def image(self, name: str, image: Image.Image, **options: Any) -> Path:
        path = self.folder / name
        image.save(path, **options)
        return path


def jpeg(size: tuple[int, int] = (64, 48)) -> bytes:
    data = io.BytesIO()
    Image.effect_noise(size, 60).save(data, "JPEG")
    return data.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""
    data = io.BytesIO()
    Image.new("L", (1, 1)).save(data, "PNG")
    whole = bytearray(data.getvalue())
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    whole[29:33] = zlib.crc32(bytes(whole[12:29])).to_bytes(4, "big")
    return bytes(whole)
