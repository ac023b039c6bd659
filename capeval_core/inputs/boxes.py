"""Features of boxes in an image, as a detector gave them: a dict of arrays, or an `.npz` file."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.inputs.decoding import Refused, quoted, within
from capeval_core.inputs.sources import Source, read_file
from capeval_core.inputs.visual import InputVisual, local_path
from capeval_core.values import described, shown

MOST_BOXES = 1_000
WIDEST = 16_384
LONGEST_SIDE = 1 << 20
"""Numbers of a feature."""
MOST_BYTES = 8 * MOST_BOXES * WIDEST
"""Of one array in an `.npz`, unpacked: a small file may hold zeros without end."""
REQUIRED, OPTIONAL = ("boxes", "features"), ("size", "scores")
ACCEPTED = 'a dict {"boxes": (n, 4), "features": (n, d)} or the path of an .npz file with these'
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, eq=False)
class BoxFeatures:
    """boxes: (n, 4) float32, x0, y0, x1, y1 in pixels. features: (n, d) float32.

    size: width and height of the image, or None. scores: (n,) float32, of the detector.
    """

    boxes: NDArray[np.float32]
    features: NDArray[np.float32]
    size: tuple[int, int] | None = None
    scores: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def key(self) -> str:
        """The content key."""
        digest = hashlib.blake2b(f"{self.features.shape} {self.size}".encode(), digest_size=16)
        for array in (self.boxes, self.features, self.scores):
            digest.update(b"\0" if array is None else np.ascontiguousarray(array).data)
        return f"boxes:{digest.hexdigest()}"


@dataclass(eq=False, slots=True)
class BoxSource(Source[BoxFeatures]):
    """Box features that are at hand."""

    arrays: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "the dict of boxes"

    def read(self) -> Mapping[str, Any]:
        return self.arrays

    def compute_key(self) -> str:
        return self.decode().key

    def decode(self, reduced: bool = False) -> BoxFeatures:
        found = _checked(self.read())
        self._key = self._key or found.key
        return found


@dataclass(eq=False, slots=True)
class BoxFile(BoxSource):
    """Box features in an `.npz` file, read when they are needed; nothing in it is unpickled."""

    arrays: Mapping[str, Any] = field(default_factory=dict, init=False)
    path: str

    @property
    def name(self) -> str:
        return quoted(self.path)

    def read(self) -> Mapping[str, Any]:
        try:
            with zipfile.ZipFile(BytesIO(read_file(self.path, "file of boxes"))) as file:
                names = {name.removesuffix(".npy") for name in file.namelist()}
                arrays = {}
                for name in [name for name in (*REQUIRED, *OPTIONAL) if name in names]:
                    with within(name):
                        arrays[name] = _array_in(file, name)
                return arrays
        except Refused:
            raise
        except Exception as error:  # zipfile and numpy raise whatever the damaged part trips over
            reason = " ".join(str(error).split())[:200]
            raise Refused(
                f"{self.name} is not an .npz file, or damaged ({reason})", "write it again"
            ) from None


def boxes_source(value: Any) -> Source[BoxFeatures]:
    """The source of a value that `InputBoxes.of` accepts, or Refused."""
    if isinstance(value, InputBoxes):
        return value.source
    if value is None:
        raise Refused("None", "every caption needs the boxes of its image", verb="is")
    if isinstance(value, (str, os.PathLike)):
        path = local_path(value)
        if not path.endswith(".npz"):
            raise Refused(f"{quoted(path)} is not an .npz file", f"expected {ACCEPTED}")
        return BoxFile(path)
    if not isinstance(value, Mapping):
        raise Refused(described(value), f"expected {ACCEPTED}", verb="is", kind=TypeError)
    return BoxSource(value)


def _array_in(file: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an `.npz` whose header is checked before there is memory for it."""
    entry = file.getinfo(f"{name}.npy")
    if entry.file_size > MOST_BYTES:
        raise Refused(f"the array has {entry.file_size:,} bytes", f"expected at most {MOST_BYTES:,}")
    data = BytesIO(file.read(entry))
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(data)](data)
    if int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size - data.tell():
        found = f"the header says shape {shape} of {dtype}, which the array does not have"
        raise Refused(found, "write plain numbers with numpy.savez")
    data.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(data, allow_pickle=False)
    return array


def _checked(arrays: Mapping[str, Any]) -> BoxFeatures:
    """Arrays that fit each other, or Refused."""
    if missing := [name for name in REQUIRED if arrays.get(name) is None]:
        found = ", ".join(map(repr, list(arrays)[:5])) or "none"
        raise Refused(f"there is no {missing[0]!r} among the keys {found}", f"expected {ACCEPTED}")
    numbers = {}
    for name, axes in (("boxes", 2), ("features", 2), ("scores", 1)):
        if arrays.get(name) is not None:
            with within(name):
                numbers[name] = _numbers(arrays[name], axes)
    boxes, features, scores = numbers["boxes"], numbers["features"], numbers.get("scores")
    if boxes.shape[1] != 4:
        found = f"the array has shape {boxes.shape}"
        raise Refused(found, "expected (n, 4): x0, y0, x1, y1", index=("boxes",))
    if len(features) != len(boxes):
        found = f"there are {len(boxes)} boxes but {len(features)} rows of features"
        raise Refused(found, "give every box its features")
    if not 1 <= len(boxes) <= MOST_BOXES or not 1 <= features.shape[1] <= WIDEST:
        found = f"there are {len(boxes):,} boxes with {features.shape[1]:,} numbers each"
        raise Refused(found, f"expected 1 to {MOST_BOXES:,} boxes with at most {WIDEST:,} numbers")
    size = _size_of(arrays["size"]) if arrays.get("size") is not None else None
    if len(turned := np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1))):
        fix = "expected x0, y0, x1, y1; of x, y, width, height make x + width"
        raise Refused(f"{boxes[turned[0]].tolist()}", fix, verb="is", index=("boxes", int(turned[0])))
    if size is not None and len(outside := np.flatnonzero((boxes[:, 2:] > np.add(size, 1)).any(axis=1))):
        found = f"{boxes[outside[0]].tolist()}, outside of an image of {size[0]}x{size[1]}"
        fix = "expected pixels of the image of that size"
        raise Refused(found, fix, verb="is", index=("boxes", int(outside[0])))
    if scores is not None and len(scores) != len(boxes):
        raise Refused(f"there are {len(boxes)} boxes but {len(scores)} scores", "give every box its score")
    return BoxFeatures(boxes, features, size, scores)


def _numbers(value: Any, axes: int) -> NDArray[np.float32]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:  # an array interface of the user's own may fail in any way
        raise Refused(f"{described(value)} that numpy cannot read ({error})", verb="is") from None
    if array.dtype.kind not in "fiu":
        raise Refused(f"an array of {array.dtype}", "expected an array of numbers", verb="is", kind=TypeError)
    if array.ndim != axes:
        raise Refused(f"the array has shape {array.shape}", f"expected {axes} axes")
    if array.size > MOST_BOXES * WIDEST:  # before it is copied
        found = f"the array has shape {array.shape}"
        raise Refused(found, f"expected at most {MOST_BOXES:,} boxes with at most {WIDEST:,} numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if len(bad := np.argwhere(~np.isfinite(numbers))):
        found = f"the array has NaN or infinity, first at {bad[0].tolist()}"
        raise Refused(found, "leave such boxes out")
    return numbers


def _size_of(value: Any) -> tuple[int, int]:
    try:
        width, height = (0 if isinstance(side, bool) else int(side) for side in np.asarray(value).tolist())
    except Exception:  # an array interface of the user's own may fail in any way
        width = height = 0
    if not 1 <= min(width, height) <= max(width, height) <= LONGEST_SIDE:
        fix = f"expected width and height of the image, from 1 to {LONGEST_SIDE:,} pixels"
        raise Refused(shown(value), fix, verb="is", index=("size",))
    return width, height


class InputBoxes(InputVisual[BoxFeatures]):
    """Features of boxes that a detector found in an image, which is not needed itself.

    `InputBoxes.of` takes a dict or the path of an `.npz` file with `boxes` (n, 4) and `features` (n, d), and
    where there are some `size` (width, height) and `scores` (n,); `load` gives `BoxFeatures`.

    >>> found = InputBoxes.of({"boxes": np.ones((2, 4)), "features": np.ones((2, 8))})
    >>> found.load().features.shape
    (2, 8)
    """

    __slots__ = ()
    medium = "boxes"
    source_of = staticmethod(boxes_source)
