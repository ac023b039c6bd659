"""Features of boxes in an image, as a detector gave them: a dict of arrays, or an `.npz` file."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import did_you_mean, warn
from capeval_core.inputs.images import InputVisual, Refused, Source, local_path, quoted, read_file, within
from capeval_core.values import described, shown

REQUIRED, OPTIONAL = ("boxes", "features"), ("size", "scores", "relative_boxes", "selection")
RELEASED = {"norm_bb": "relative_boxes", "conf": "scores"}
"""Names in the files of UNITER and UMIC -> ours."""
NAMES = (*REQUIRED, *OPTIONAL, *RELEASED)
_AXES = {"boxes": 2, "features": 2, "scores": 1, "relative_boxes": 2}
PER_BOX = (*_AXES, *RELEASED)
"""Arrays with a row per box."""
MOST_BOXES = 1_000
WIDEST = 16_384
"""Numbers of a feature."""
MOST_BYTES = 8 * MOST_BOXES * WIDEST
"""Of one array, unpacked: a small file may hold zeros without end."""
LONGEST_SIDE = 1 << 20
LONGEST_TEXT = 100
ACCEPTED = 'a dict {"boxes": (n, 4), "features": (n, d)} or the path of an .npz file with these'
ROUNDED = 0.01
"""Of an image's side: how far relative boxes in float16, or of corners that count from 1, may be off."""
_SMALLEST = 2
"""Pixels of an image's side up to which boxes in pixels may look like shares of it."""
MARGIN = 0.04
"""Of an image's longer side: detectors that pad what they read let boxes end there, 31 pixels of 800."""
UNSORTED = (
    "boxes are not sorted by score, and the first of them are kept, as the published rule does: sort them, "
    "best first, unless their order is meant"
)


def npz_arrays(data: bytes, name: str, members: Collection[str] = NAMES) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` of these names, as far as they are there, or Refused; nothing is unpickled.

    >>> file = BytesIO()
    >>> np.savez(file, boxes=np.zeros((2, 4)), labels=np.array(["a", "b"]))
    >>> list(npz_arrays(file.getvalue(), "'a.npz'"))
    ['boxes']
    """
    arrays, member = {}, None
    try:
        with np.load(BytesIO(data), allow_pickle=False) as file:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in file.zip.infolist()}
            for member in members:
                if sizes.get(member, 0) > MOST_BYTES:
                    raise ValueError(f"{sizes[member]:,} bytes, expected at most {MOST_BYTES:,}")
                if member in sizes:
                    arrays[member] = file[member]
    except Exception as error:  # zipfile and numpy raise whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        found, index = f"{name} is not an .npz file, or damaged ({reason})", (member,) if member else ()
        raise Refused(found, "write it again", index=index) from None
    return arrays


@dataclass(frozen=True, eq=False)
class BoxFeatures:
    """Boxes of an image, best first, and a feature of each.

    boxes: (n, 4) float32, x0, y0, x1, y1 in pixels; where a file has relative boxes and no size, in shares of
        the image's width and height.
    features: (n, d) float32.
    size: width and height of the image, or None.
    scores: (n,) float32, of the detector, from 0 to 1, or None.
    relative_boxes: (n, 6) float32, x0, y0, x1, y1, width, height, in shares of the image's width and height,
        as a file has them (UNITER's `norm_bb`); None where they follow from boxes and size.
    selection: the rule that chose these boxes among all of a detector, so that none is to choose again; None:
        none has.

    >>> found = BoxFeatures(np.float32([[10, 5, 30, 15]]), np.ones((1, 8), np.float32), size=(40, 20))
    >>> found.relative().tolist()
    [[0.25, 0.25, 0.75, 0.75, 0.5, 0.5]]
    """

    boxes: NDArray[np.float32]
    features: NDArray[np.float32]
    size: tuple[int, int] | None = None
    scores: NDArray[np.float32] | None = None
    relative_boxes: NDArray[np.float32] | None = None
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

    def relative(self) -> NDArray[np.float32]:
        """`relative_boxes`, or what they are by boxes and size, (n, 6) float32.

        Raises:
            ValueError: there are no relative boxes, and no size.
        """
        if self.relative_boxes is not None:
            return self.relative_boxes
        if self.size is None:
            raise ValueError(
                "the size of the image is missing, which positions of boxes are relative to: give 'size' "
                "(width, height) beside 'boxes', or 'relative_boxes' (n, 6)"
            )
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        corners_and_sides: NDArray[np.float32] = np.concatenate([self.boxes, sides], axis=1)
        return np.divide(corners_and_sides, [*self.size] * 3, dtype=np.float32)

    def first(self, n: int) -> BoxFeatures:
        """The first n boxes with all that belongs to them; all where there are fewer.

        Warns where that leaves out boxes of a higher score than some that are kept.

        Raises:
            ValueError: n is not positive.
        """
        if n < 1:
            raise ValueError(f"n={n}: expected at least one box")
        if n >= len(self):
            return self
        if self.scores is not None and (self.scores[n:].max() > self.scores[:n]).any():
            warn(UNSORTED)
        return replace(
            self,
            boxes=self.boxes[:n],
            features=self.features[:n],
            scores=None if self.scores is None else self.scores[:n],
            relative_boxes=None if self.relative_boxes is None else self.relative_boxes[:n],
        )

    def check_width(self, width: int) -> None:
        """Raise ValueError unless each feature has that many numbers."""
        if self.features.shape[1] != width:
            raise ValueError(
                f"its features have {self.features.shape[1]:,} numbers each, but the network takes "
                f"{width:,}: give features of the detector that the network was trained with"
            )


class BoxSource(Source[BoxFeatures]):
    """Arrays of box features, which are checked whenever they are read."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """The arrays by name, or Refused."""

    def compute_key(self) -> str:
        return self.decode().key

    def decode(self, reduced: bool = False) -> BoxFeatures:
        found = checked(self.read())
        self._key = self._key or found.key
        return found


@dataclass(eq=False, slots=True)
class BoxDict(BoxSource):
    """Box features that are at hand."""

    arrays: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "the dict of boxes"

    def read(self) -> Mapping[str, Any]:
        return self.arrays


class StoredBoxes(BoxSource):
    """Box features on the disk, read when they are needed."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class BoxFile(StoredBoxes):
    """Box features in an `.npz` file; nothing in it is unpickled."""

    path: str

    @property
    def name(self) -> str:
        return quoted(self.path)

    def read(self) -> Mapping[str, Any]:
        return npz_arrays(read_file(self.path, "file of boxes"), self.name)


def boxes_source(value: Any) -> Source[BoxFeatures]:
    """The source of a value that `InputBoxes.of` accepts, or Refused."""
    if isinstance(value, InputBoxes):
        return value.source
    if value is None:
        raise Refused("missing", "every caption needs the boxes of its image", verb="is")
    if isinstance(value, (str, os.PathLike)):
        path = local_path(value)
        if not path.endswith(".npz"):
            raise Refused(f"{quoted(path)} is not an .npz file", f"expected {ACCEPTED}")
        return BoxFile(path)
    if not isinstance(value, Mapping):
        raise Refused(described(value), f"expected {ACCEPTED}", verb="is", kind=TypeError)
    return BoxDict(value)


def checked(arrays: Mapping[str, Any]) -> BoxFeatures:
    """Arrays that fit each other, or Refused."""
    given = {name: name for name in (*REQUIRED, *OPTIONAL) if arrays.get(name) is not None}
    for released, name in RELEASED.items():
        if arrays.get(released) is not None:
            given.setdefault(name, released)
    for name in REQUIRED:
        if name not in given and not (name == "boxes" and "relative_boxes" in given):
            keys = ", ".join(map(repr, list(arrays)[:5])) or "none"
            raise Refused(f"there is no {name!r} among the keys {keys}", f"expected {ACCEPTED}")
    for key in arrays:
        if key not in NAMES and isinstance(key, str) and (hint := did_you_mean(key, NAMES, closeness=0.85)):
            raise Refused(f"there is {quoted(key)}, which is not known{hint}")
    numbers = {
        name: _numbers(given[name], arrays[given[name]], _AXES[name]) for name in _AXES if name in given
    }
    features, scores, relative = (numbers.get(name) for name in ("features", "scores", "relative_boxes"))
    size = _size_of(arrays["size"]) if "size" in given else None
    assert features is not None
    if relative is not None:
        _check_relative(relative, given["relative_boxes"])
    boxes = numbers.get("boxes")
    if boxes is None:
        assert relative is not None
        boxes = relative[:, :4] * np.array([*(size or (1, 1))] * 2, dtype=np.float32)
    _check_columns("boxes", boxes, ("x0", "y0", "x1", "y1"))
    for what, array in (("rows of features", features), ("scores", scores), ("relative boxes", relative)):
        if array is not None and len(array) != len(boxes):
            raise Refused(f"there are {len(boxes)} boxes but {len(array)} {what}", "give every box its own")
    if len(boxes) == 0:
        raise Refused("there are no boxes", "take a lower threshold, or leave that image out")
    if len(boxes) > MOST_BOXES or not 1 <= features.shape[1] <= WIDEST:
        found = f"there are {len(boxes):,} boxes with {features.shape[1]:,} numbers each"
        raise Refused(found, f"expected 1 to {MOST_BOXES:,} boxes with at most {WIDEST:,} numbers")
    if "boxes" in given:
        _check_boxes(boxes, size)
    if scores is not None:
        wrong = (scores < 0) | (scores > 1 + 1e-6)
        _refuse_rows(given["scores"], scores, wrong, "", "expected probabilities, from 0 to 1")
    if relative is not None and "boxes" in given and size is not None:
        sides = np.array([*size, *size], dtype=np.float32)
        far = (np.abs(relative[:, :4] * sides - boxes) > ROUNDED * sides + 1).any(axis=1)
        other = f", but the box is {boxes[far.argmax()].tolist()} of {size[0]}x{size[1]}"
        fix = "give boxes in pixels of the image that they are relative to"
        _refuse_rows("relative_boxes", relative, far, other, fix)
    selection = _text("selection", arrays["selection"]) if "selection" in given else None
    return BoxFeatures(boxes, features, size, scores, relative, selection)


def _refuse_rows(name: str, values: NDArray[Any], wrong: Any, more: str, fix: str) -> None:
    """Refuse the first of the values that is wrong."""
    if wrong.any():
        row = int(wrong.argmax())
        value = values[row].tolist() if values.ndim > 1 else f"{values[row]:.6g}"
        raise Refused(f"{value}{more}", fix, verb="is", index=(name, row))


def _check_columns(name: str, array: NDArray[Any], columns: tuple[str, ...]) -> None:
    if array.shape[1] != len(columns):
        fix = f"expected (n, {len(columns)}): {', '.join(columns)}"
        raise Refused(f"the array has shape {array.shape}", fix, index=(name,))


def _check_boxes(boxes: NDArray[np.float32], size: tuple[int, int] | None) -> None:
    """Refuse boxes whose corners are turned, that lie outside of the image, or are shares of its sides."""
    turned = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    fix = "expected x0, y0, x1, y1; of x, y, width, height make x + width"
    _refuse_rows("boxes", boxes, turned, "", fix)
    image = "the image" if size is None else f"an image of {size[0]}x{size[1]}"
    outside = (boxes < -1).any(axis=1)  # corners count from 0 or from 1, so one pixel more is right
    if size is not None:
        outside |= (boxes[:, 2:] > np.add(size, max(1, MARGIN * max(size)))).any(axis=1)
    fix = "expected pixels of the image of that size" if size else "expected pixels of the image, from 0"
    _refuse_rows("boxes", boxes, outside, f", outside of {image}", fix)
    if size is not None and min(size) > _SMALLEST and 0 < boxes.max() <= 1 + ROUNDED:
        found = f"no box reaches beyond the first pixel of {image}, so these are shares of its sides"
        fix = 'multiply them by its width and height, or give them as "relative_boxes" (n, 6)'
        raise Refused(found, fix, index=("boxes",))


def _check_relative(relative: NDArray[np.float32], name: str) -> None:
    columns = ("x0", "y0", "x1", "y1", "width", "height")
    _check_columns(name, relative, columns)
    outside = ((relative < -ROUNDED) | (relative > 1 + ROUNDED)).any(axis=1)
    fix = "expected shares of the image's width and height, from 0 to 1"
    _refuse_rows(name, relative, outside, ", outside of the image", fix)
    sides = relative[:, 2:4] - relative[:, :2]
    wrong = (np.abs(sides - relative[:, 4:]) > ROUNDED).any(axis=1)
    _refuse_rows(name, relative, wrong, "", f"expected {', '.join(columns)}, and width = x1 - x0")


def _numbers(name: str, value: Any, axes: int) -> NDArray[np.float32]:
    with within(name):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except ValueError as error:  # of ragged lists
            raise Refused(f"{described(value)} that numpy cannot read ({error})", verb="is") from None
        if array.dtype.kind not in "fiu":
            fix = "expected an array of numbers"
            raise Refused(f"an array of {array.dtype}", fix, verb="is", kind=TypeError)
        if array.ndim != axes:
            expected = f"expected {axes} {'axis' if axes == 1 else 'axes'}"
            raise Refused(f"the array has shape {array.shape}", expected)
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        if len(bad := np.argwhere(~np.isfinite(numbers))):
            found = f"the array has NaN or infinity, first at {bad[0].tolist()}"
            raise Refused(found, "leave such boxes out")
        return numbers


def _text(name: str, value: Any) -> str:
    text = np.asarray(value)
    if text.dtype.kind != "U" or text.ndim or not 1 <= len(str(text)) <= LONGEST_TEXT:
        raise Refused(described(value), "expected a short text", verb="is", index=(name,))
    return str(text)


def _size_of(value: Any) -> tuple[int, int]:
    sides = np.asarray(value)
    numbers = sides.tolist() if sides.dtype.kind in "fiu" and sides.shape == (2,) else (0, 0)
    if not all(1 <= side <= LONGEST_SIDE and side == int(side) for side in numbers):
        fix = f"expected width and height of the image, whole numbers from 1 to {LONGEST_SIDE:,} pixels"
        raise Refused(shown(value), fix, verb="is", index=("size",))
    return int(numbers[0]), int(numbers[1])


class InputBoxes(InputVisual[BoxFeatures]):
    """Features of boxes that a detector found in an image, which is not needed itself.

    `InputBoxes.of` takes a dict or the path of an `.npz` file with `boxes` (n, 4) and `features` (n, d), and
    where there are some `size` (width, height), `scores` (n,) and `relative_boxes` (n, 6), also under the
    names of UNITER's files, `norm_bb` and `conf`; relative boxes may stand alone. `load` gives `BoxFeatures`.

    >>> found = InputBoxes.of({"boxes": np.ones((2, 4)), "features": np.ones((2, 8))})
    >>> found.load().features.shape
    (2, 8)
    """

    __slots__ = ()
    medium = "boxes"
    source_of = staticmethod(boxes_source)
