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
        r"is missing|None|no such|does not exist|there is no|has? no |no CUDA|needs|lacks|"
        r"are missing|holds no|at least once|both .* None|but no "
    ),
    "empty": r"empty|names none|nothing to score",
    "type": (
        r"expected|pass (?:a|the|list|images|weights|one|tensor)|token ids: let|decode it first|"
        r"convert it|unknown form|is not a folder or a name"
    ),
    "value": (
        r"NaN|infinit|expected a (?:number|whole|size)|at least|at most|between|0, 1\]|outside|"
        r"is -?\d|0 to 1"
    ),
    "shape": r"shape|rows of|add up|sets but|channels",
    "count": r"len\(\w+\)=\d|but there are|equally many|cells|fields|several captions|exactly one",
    "damaged": (
        r"truncated|damaged|cannot be read|cannot decode|not valid|no valid|"
        r"not (?:UTF-8|a checkpoint|JSON)|sha256|line \d"
    ),
    "format": r"in the format|one frame|HEIC|not an image|not an image|extension",
    "large": r"too large|pixels|characters|no room",
    "unknown": r"unknown|not known|not part|no option|neither|did you mean|unrecognized|expected '|has no",
    "address": r"URL|never fetched|password",
    "twice": r"twice|more than once|repeat|several columns|again|another time",
    "foreign": r"something else|not comparable|no image in common",
    "place": (
        r"is a (?:folder|file)|is (?:not a|no) regular file|there is no folder|NUL|overwrite|"
        r"not a folder|cannot be made|a pipe"
    ),
}


@dataclass(frozen=True)
class Case:
    """A hostile input and what its error must name.

    door: how it is handed in, a name of the fixture `doors`. name: what is wrong, for people.
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
    """Files that a case may use or make: a folder of its own, and a good image in it."""

    folder: Path
    image: Path
    weights: Path

    def file(self, name: str, content: bytes | str | Any) -> Path:
        """A file of these bytes or this text; anything else is written as JSON."""
        path = self.folder / name
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def save(self, name: str, image: Image.Image, **options: Any) -> Path:
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
