"""Box features in a `.tsv` of bottom-up attention: one line per image, arrays in base64.

The columns are those of https://github.com/peteanderson80/bottom-up-attention, or of LXMERT, which adds
classes and attributes: arrays are little-endian float32, boxes in pixels.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.box_arrays import MOST_BOXES, MOST_BYTES
from capeval_core.inputs.box_stores import BoxFeatureStore, digest, refuse_repeated
from capeval_core.inputs.boxes import LONGEST_SIDE
from capeval_core.inputs.decoding import Refused, within

BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_SIZE = {BOTTOM_UP: ("image_w", "image_h"), LXMERT: ("img_w", "img_h")}
_FORMS = {len(columns): columns for columns in (BOTTOM_UP, LXMERT)}
LONGEST_ID = 1_000
LONGEST_LINE = 2 * MOST_BYTES
"""Bytes; a longer line is no image's."""
_NUMBER = re.compile(rb"[0-9]{1,7}")
_SAMPLE = 1 << 16


class Line(NamedTuple):
    """Where a line begins, and its length, in bytes."""

    offset: int
    length: int


class BoxTsv(BoxFeatureStore):
    """A `.tsv` file, whose lines are located once, when ids are first asked for."""

    selection = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with path.open("rb") as file:
            first = file.readline(LONGEST_LINE + 1)
        columns = first.count(b"\t") + 1
        if columns not in _FORMS:
            found = f"has {columns} {'column' if columns == 1 else 'columns'}" if first else "is empty"
            fix = f"expected {' or '.join(', '.join(form) for form in _FORMS.values())}, separated by tabs"
            raise FileError(file_problem(path, found, fix))
        self.columns = _FORMS[columns]

    @cached_property
    def fingerprint(self) -> str:
        with self.path.open("rb") as file:
            start = file.read(_SAMPLE)
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - _SAMPLE))
            return f"tsv-{digest(size, start, file.read())}"

    @cached_property
    def _lines(self) -> Mapping[str, Line]:
        """The line of each id."""
        status = self.path.stat()
        return _lines_of(self.path.absolute(), self.columns, status.st_size, status.st_mtime_ns)

    def _ids(self) -> Iterable[str]:
        return self._lines

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image, or Refused."""
        columns = self._columns_of(image_id)
        n = _number("num_boxes", columns["num_boxes"], MOST_BOXES)
        arrays: dict[str, Any] = {
            "boxes": _floats("boxes", columns["boxes"], n, 4),
            "features": _floats("features", columns["features"], n),
            "size": [_number(name, columns[name], LONGEST_SIDE) for name in _SIZE[self.columns]],
        }
        if "objects_conf" in columns:
            arrays["scores"] = _floats("objects_conf", columns["objects_conf"], n, 1)[:, 0]
        return arrays

    def _columns_of(self, image_id: str) -> dict[str, bytes]:
        offset, length = self._lines[image_id]
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                values = file.read(length).rstrip(b"\r\n").split(b"\t")
        except OSError as error:
            raise Refused(f"it cannot be read ({error.strerror})") from None
        if values[0].strip() != image_id.encode():
            raise Refused("its line is no longer there", "open the file again, which has changed")
        if len(values) != len(self.columns):
            fix = f"expected {', '.join(self.columns)}; write it again"
            raise Refused(f"its line has {len(values)} columns", fix)
        return dict(zip(self.columns, values, strict=True))


@lru_cache(maxsize=4)
def _lines_of(path: Path, columns: tuple[str, ...], size: int, time: int) -> Mapping[str, Line]:
    """The line of each id, kept while size and time of the file stay the same: such files have gigabytes."""
    lines: list[tuple[str, Line]] = []
    offset = 0
    with path.open("rb", buffering=1 << 20) as file:
        for number in count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                break
            if len(line) > LONGEST_LINE:
                found = f"line {number} is longer than {LONGEST_LINE:,} bytes"
                raise FileError(file_problem(path, found, "write a line per image"))
            image_id = line.split(b"\t", 1)[0].strip()
            header = number == 1 and image_id.decode(errors="replace") == columns[0]
            if header:
                _check_header(path, line, columns)
            if line.strip(b"\r\n") and not header:
                lines.append((_text(path, columns, image_id, number), Line(offset, len(line))))
            offset += len(line)
    refuse_repeated(path, [image_id for image_id, _ in lines])
    return dict(lines)


def _check_header(path: Path, line: bytes, columns: tuple[str, ...]) -> None:
    """Refuse columns in another order, such as the height before the width."""
    found = [name.strip() for name in line.decode(errors="replace").split("\t")]
    if found != list(columns):
        listed = ascii(", ".join(found))[1:201]
        raise FileError(file_problem(path, f"has the columns {listed}", f"expected {', '.join(columns)}"))


def _text(path: Path, columns: tuple[str, ...], image_id: bytes, number: int) -> str:
    try:
        text = image_id.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LONGEST_ID:
        found = f"line {number} does not begin with an image's id"
        raise FileError(file_problem(path, found, f"expected {', '.join(columns)}"))
    return text


def _number(name: str, value: bytes, most: int) -> int:
    if not _NUMBER.fullmatch(value.strip()) or not 1 <= int(value) <= most:
        shown = ascii(value[:20].decode(errors="replace"))
        raise Refused(shown, f"expected a number from 1 to {most:,}", verb="is", index=(name,))
    return int(value)


def _floats(name: str, value: bytes, n: int, width: int | None = None) -> NDArray[np.float32]:
    """The array (n, width) of a column; None: as wide as it is."""
    with within(name):
        if len(value) > MOST_BYTES:
            raise Refused(f"the array has {len(value):,} characters", f"expected at most {MOST_BYTES:,}")
        try:
            data = base64.b64decode(value.strip(), validate=True)
        except binascii.Error as error:
            raise Refused(f"the base64 is damaged ({error})", "write it again") from None
        if not data or len(data) % (4 * n) or (width is not None and len(data) != 4 * n * width):
            expected = f"expected float32 of shape ({n}, {width or 'd'})"
            raise Refused(f"the array has {len(data):,} bytes", f"{expected}, in base64; write it again")
        return np.frombuffer(data, dtype="<f4").reshape(n, -1)
