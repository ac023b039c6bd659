"""Features of boxes in an image, as a detector gave them: a dict of arrays, or an `.npz` file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import described, did_you_mean, shown, warn
from capeval_core.inputs.images import (
    Source,
    Visual,
    local_path,
    quoted,
    read_file,
    refused,
    short_reason,
    within,
)

_Floats = NDArray[np.float32]
REQUIRED, OPTIONAL = ("boxes", "features"), ("size", "scores", "relative_boxes", "selection")
RELEASED = {"norm_bb": "relative_boxes", "conf": "scores"}
"""Names in the files of UNITER and UMIC -> ours."""
NAMES = (*REQUIRED, *OPTIONAL, *RELEASED)
_SHAPES = {
    "boxes": "(n, 4): x0, y0, x1, y1",
    "features": "(n, d)",
    "scores": "(n,)",
    "relative_boxes": "(n, 6): x0, y0, x1, y1, width, height",
}
PER_BOX = (*_SHAPES, *RELEASED)
"""Arrays with a row per box."""
_COLUMNS = {"boxes": 4, "relative_boxes": 6}
MOST_BOXES = 1_000
_WIDEST = 16_384  # numbers of a feature
_LONGEST_SIDE = 1 << 20
_ACCEPTED = 'a dict {"boxes": (n, 4), "features": (n, d)} or the path of an .npz file with these'
_ROUNDED = 0.01
"""Of an image's side: how far relative boxes in float16, or of corners that count from 1, may be off."""
_MARGIN = 0.04
"""Of an image's longer side: detectors that pad what they read let boxes end there, 31 pixels of 800."""
_UNSORTED = (
    "boxes are not sorted by score, and the first of them are kept, as the published rule does: sort them, "
    "best first, unless their order is meant"
)


def npz_arrays(data: bytes, name: str, members: Collection[str] = NAMES) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` of these names, as far as they are there; nothing is unpickled."""
    arrays, member = {}, None
    try:
        with np.load(BytesIO(data), allow_pickle=False) as file:
            for member in members:
                if member in file.files:
                    arrays[member] = file[member]
    except Exception as error:  # zipfile and numpy raise whatever the damaged part trips over
        found = f"{name} is not an .npz file, or damaged ({short_reason(error)})"
        raise refused(found, "write it again", index=(member,) if member else ()) from None
    return arrays


@dataclass(frozen=True, eq=False)
class BoxFeatures:
    """Boxes of an image, best first, and a feature of each.

    boxes: (n, 4), x0, y0, x1, y1 in pixels; in shares of the image's sides where a file has relative boxes
    and no size. features: (n, d). size: width and height of the image. scores: (n,), from 0 to 1.
    relative_boxes: (n, 6), x0, y0, x1, y1, width, height in shares of the sides (`norm_bb`).
    selection: the rule that chose these boxes among all of a detector, so that none is to choose again.
    """

    boxes: _Floats
    features: _Floats
    size: tuple[int, int] | None = None
    scores: _Floats | None = None
    relative_boxes: _Floats | None = None
    selection: str | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def key(self) -> str:
        """The content key."""
        names = [name for name in OPTIONAL if getattr(self, name) is not None]
        fields = f"{self.features.shape} {self.size} {names} {self.selection}"
        digest = hashlib.blake2b(fields.encode(), digest_size=16)
        for array in (self.boxes, self.features, self.scores, self.relative_boxes):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return f"boxes:{digest.hexdigest()}"

    def relative(self) -> _Floats:
        """`relative_boxes`, or what they are by boxes and size, (n, 6) float32; ValueError without both."""
        if self.relative_boxes is not None:
            return self.relative_boxes
        if self.size is None:
            raise ValueError(
                "the size of the image is missing, which positions of boxes are relative to: give 'size' "
                "(width, height) beside 'boxes', or 'relative_boxes' (n, 6)"
            )
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        both: _Floats = np.concatenate([self.boxes, sides], axis=1)
        return np.divide(both, [*self.size] * 3, dtype=np.float32)

    def first(self, n: int) -> BoxFeatures:
        """The first n boxes with all that belongs to them; warns where that leaves out better ones."""
        if n >= len(self):
            return self
        if self.scores is not None and (self.scores[n:].max() > self.scores[:n]).any():
            warn(_UNSORTED)
        arrays = {name: getattr(self, name) for name in _SHAPES}
        return replace(self, **{name: array[:n] for name, array in arrays.items() if array is not None})

    def check_width(self, width: int) -> None:
        """Raise ValueError unless each feature has that many numbers."""
        if self.features.shape[1] != width:
            raise ValueError(
                f"its features have {self.features.shape[1]:,} numbers each, but the network takes "
                f"{width:,}: give features of the detector that the network was trained with"
            )


@dataclass(eq=False, slots=True)
class Boxes(Source[BoxFeatures]):
    """Box features that are at hand, or in an `.npz` file; arrays are checked whenever they are read."""

    arrays: Mapping[str, Any] | None
    path: str = ""
    medium = "boxes"

    @property
    def name(self) -> str:
        return quoted(self.path) if self.path else "the dict of boxes"

    def read(self) -> Mapping[str, Any]:
        """The arrays by name."""
        if self.arrays is not None:
            return self.arrays
        return npz_arrays(read_file(self.path, "file of boxes"), self.name)

    def compute_key(self) -> str:
        return self.decode().key

    def decode(self, reduced: bool = False) -> BoxFeatures:
        found = checked(self.read())
        self._key = self._key or found.key
        return found


InputBoxes = Visual[BoxFeatures]


def box_source(value: Any) -> Source[BoxFeatures]:
    """Features of boxes that a detector found in an image: a dict or an `.npz` file with `boxes` (n, 4) and
    `features` (n, d), and where there are some `size` (width, height), `scores` (n,) and `relative_boxes`
    (n, 6), also under the names of UNITER's files, `norm_bb` and `conf`; relative boxes may stand alone."""
    if value is None:
        raise refused("is missing", "every caption needs the boxes of its image")
    if isinstance(value, (str, os.PathLike)):
        path = local_path(value)
        if not path.endswith(".npz"):
            raise refused(f"{quoted(path)} is not an .npz file", f"expected {_ACCEPTED}")
        return Boxes(None, path)
    if not isinstance(value, Mapping):
        raise refused(f"is {described(value)}", f"expected {_ACCEPTED}", kind=TypeError)
    return Boxes(value)


def boxes_of(value: Any, where: str = "boxes") -> InputBoxes:
    """A visual of such box features, unread; InputTypeError for what can never be some."""
    return Visual.of(value, where, box_source)


# ---- whether arrays fit each other


def checked(arrays: Mapping[str, Any]) -> BoxFeatures:
    """Arrays that fit each other, as box features."""
    given = {RELEASED.get(name, name): name for name in reversed(NAMES) if arrays.get(name) is not None}
    for name in REQUIRED:
        if name not in given and not (name == "boxes" and "relative_boxes" in given):
            keys = ", ".join(map(repr, list(arrays)[:5])) or "none"
            raise refused(f"there is no {name!r} among the keys {keys}", f"expected {_ACCEPTED}")
    for key in arrays:
        if key not in NAMES and isinstance(key, str) and (hint := did_you_mean(key, NAMES, closeness=0.85)):
            raise refused(f"there is {quoted(key)}, which is not known{hint}")
    found = {name: _numbers(given[name], arrays[given[name]], name) for name in _SHAPES if name in given}
    size = _size_of(arrays["size"]) if "size" in given else None
    relative, scores = found.get("relative_boxes"), found.get("scores")
    if "boxes" not in found:
        found["boxes"] = found["relative_boxes"][:, :4] * np.array([*(size or (1, 1))] * 2, dtype=np.float32)
    boxes, features = found["boxes"], found["features"]
    for name, array in found.items():
        if len(array) != len(boxes):
            wrong = f"there are {len(boxes)} boxes but {len(array)} rows"
            raise refused(wrong, "give every box its own", index=(given[name],))
    if not 1 <= len(boxes) <= MOST_BOXES or not 1 <= features.shape[1] <= _WIDEST:
        wrong = f"there are {len(boxes) or 'no'} boxes, with {features.shape[1]:,} numbers each"
        raise refused(wrong, f"expected 1 to {MOST_BOXES:,} boxes with at most {_WIDEST:,} numbers")
    rules: list[tuple[str, Any, str]] = []
    if relative is not None:
        outside = (relative < -_ROUNDED) | (relative > 1 + _ROUNDED)
        odd = np.abs(relative[:, 2:4] - relative[:, :2] - relative[:, 4:]) > _ROUNDED
        rules.append(("relative_boxes", outside, "shares of the image's width and height, from 0 to 1"))
        rules.append(("relative_boxes", odd, "x0, y0, x1, y1, width, height, and width = x1 - x0"))
    if "boxes" in given:
        most = np.inf if size is None else np.add(size, max(1, _MARGIN * max(size)))
        outside = (boxes[:, :2] < -1) | (boxes[:, 2:] > most)  # corners count from 0 or from 1
        image = "the image" if size is None else f"an image of {size[0]}x{size[1]}"
        rules.append(("boxes", boxes[:, 2:] < boxes[:, :2], "x0, y0, x1, y1; of a width make x0 + width"))
        rules.append(("boxes", outside, f"pixels of {image}, from 0"))
    if scores is not None:
        rules.append(("scores", (scores < 0) | (scores > 1 + 1e-6), "probabilities, from 0 to 1"))
    if "boxes" in given and relative is not None and size is not None:
        whole = np.array([*size, *size], dtype=np.float32)
        other = np.abs(relative[:, :4] * whole - boxes) > _ROUNDED * whole + 1
        rules.append(("relative_boxes", other, f"shares of {size} of the boxes in pixels"))
    for name, bad, expected in rules:
        if bad.any():
            row = int(np.argwhere(bad)[0, 0])
            wrong = f"is {found[name][row].tolist()}"
            raise refused(wrong, f"expected {expected}", index=(given[name], row))
    if "boxes" in given and size is not None and min(size) > 2 and 0 < boxes.max() <= 1 + _ROUNDED:
        wrong = "no box reaches beyond the first pixel of the image, so these are shares of its sides"
        fix = 'multiply them by its width and height, or give them as "relative_boxes" (n, 6)'
        raise refused(wrong, fix, index=("boxes",))
    selection = np.asarray(arrays["selection"]) if "selection" in given else None
    if selection is not None and (selection.dtype.kind != "U" or selection.ndim or len(str(selection)) > 100):
        raise refused(f"is {described(arrays['selection'])}", "expected a short text", index=("selection",))
    return BoxFeatures(boxes, features, size, scores, relative, None if selection is None else str(selection))


def _numbers(given: str, value: Any, name: str) -> _Floats:
    with within("", given):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except ValueError as error:  # of ragged lists
            raise refused(f"is {described(value)} that numpy cannot read ({error})") from None
        if array.dtype.kind not in "fiu":
            raise refused(f"is an array of {array.dtype}", "expected an array of numbers", kind=TypeError)
        axes = 1 if name == "scores" else 2
        if array.ndim != axes or array.shape[1:] not in ((), (_COLUMNS.get(name, array.shape[-1]),)):
            raise refused(f"the array has shape {array.shape}", f"expected {_SHAPES[name]}")
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        if len(bad := np.argwhere(~np.isfinite(numbers))):
            found = f"the array has NaN or infinity, first at {bad[0].tolist()}"
            raise refused(found, "leave such boxes out")
        return numbers


def _size_of(value: Any) -> tuple[int, int]:
    sides = np.asarray(value)
    numbers = sides.tolist() if sides.dtype.kind in "fiu" and sides.shape == (2,) else (0, 0)
    if not all(1 <= side <= _LONGEST_SIDE and side == int(side) for side in numbers):
        fix = f"expected width and height of the image, whole numbers from 1 to {_LONGEST_SIDE:,} pixels"
        raise refused(f"is {shown(value)}", fix, index=("size",))
    return int(numbers[0]), int(numbers[1])
