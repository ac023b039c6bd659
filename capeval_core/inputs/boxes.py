"""Features of boxes in an image, as a detector gave them: a dict of arrays, or an `.npz` file."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import InputWarning, did_you_mean, warn
from capeval_core.inputs.box_arrays import MOST_BOXES, NAMES, OPTIONAL, RELEASED, REQUIRED, WIDEST, npz_arrays
from capeval_core.inputs.decoding import Refused, quoted, within
from capeval_core.inputs.sources import Source, read_file
from capeval_core.inputs.visual import InputVisual, local_path
from capeval_core.values import described, shown

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
            warn(InputWarning(UNSORTED))
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
        raise Refused("None", "every caption needs the boxes of its image", verb="is")
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
    found = ", ".join(map(repr, list(arrays)[:5])) or "none"
    for name in REQUIRED:
        if name not in given and not (name == "boxes" and "relative_boxes" in given):
            raise Refused(f"there is no {name!r} among the keys {found}", f"expected {ACCEPTED}")
    for key in arrays:
        if key not in NAMES and isinstance(key, str) and (hint := did_you_mean(key, NAMES, closeness=0.85)):
            raise Refused(f"there is {quoted(key)}, which is not known{hint}")
    numbers = {}
    for name, axes in (("boxes", 2), ("features", 2), ("scores", 1), ("relative_boxes", 2)):
        if name in given:
            with within(given[name]):
                numbers[name] = _numbers(arrays[given[name]], axes)
    size = _size_of(arrays["size"]) if "size" in given else None
    features, scores, relative = (numbers.get(name) for name in ("features", "scores", "relative_boxes"))
    assert features is not None
    if relative is not None:
        with within(given["relative_boxes"]):
            _check_relative(relative)
    boxes = numbers.get("boxes")
    if boxes is None:
        assert relative is not None
        boxes = relative[:, :4] * np.array([*(size or (1, 1))] * 2, dtype=np.float32)
    if boxes.shape[1] != 4:
        raise Refused(
            f"the array has shape {boxes.shape}", "expected (n, 4): x0, y0, x1, y1", index=("boxes",)
        )
    if len(features) != len(boxes):
        found = f"there are {len(boxes)} boxes but {len(features)} rows of features"
        raise Refused(found, "give every box its features")
    if len(boxes) == 0:
        raise Refused("there are no boxes", "take a lower threshold, or leave that image out")
    if len(boxes) > MOST_BOXES or not 1 <= features.shape[1] <= WIDEST:
        found = f"there are {len(boxes):,} boxes with {features.shape[1]:,} numbers each"
        raise Refused(found, f"expected 1 to {MOST_BOXES:,} boxes with at most {WIDEST:,} numbers")
    if "boxes" in given:
        with within("boxes"):
            _check_boxes(boxes, size)
    for name, array in (("scores", scores), ("relative_boxes", relative)):
        if array is not None and len(array) != len(boxes):
            what, fix = name.replace("_", " "), "give every box its own"
            raise Refused(f"there are {len(boxes)} boxes but {len(array)} {what}", fix)
    if scores is not None and len(wrong := np.flatnonzero((scores < 0) | (scores > 1 + 1e-6))):
        index, fix = (given["scores"], int(wrong[0])), "expected probabilities, from 0 to 1"
        raise Refused(f"{scores[wrong[0]]:.6g}", fix, verb="is", index=index)
    if relative is not None and "boxes" in given and size is not None:
        _check_agreement(boxes, relative, size)
    selection = _text("selection", arrays["selection"]) if "selection" in given else None
    return BoxFeatures(boxes, features, size, scores, relative, selection)


def _check_boxes(boxes: NDArray[np.float32], size: tuple[int, int] | None) -> None:
    """Refuse boxes whose corners are turned, that lie outside of the image, or are shares of its sides."""
    if len(turned := np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1))):
        fix = "expected x0, y0, x1, y1; of x, y, width, height make x + width"
        raise Refused(f"{boxes[turned[0]].tolist()}", fix, verb="is", index=(int(turned[0]),))
    image = "the image" if size is None else f"an image of {size[0]}x{size[1]}"
    outside = (boxes < -1).any(axis=1)  # corners count from 0 or from 1, so one pixel more is right
    if size is not None:
        outside |= (boxes[:, 2:] > np.add(size, max(1, MARGIN * max(size)))).any(axis=1)
    if len(rows := np.flatnonzero(outside)):
        found = f"{boxes[rows[0]].tolist()}, outside of {image}"
        fix = "expected pixels of the image of that size" if size else "expected pixels of the image, from 0"
        raise Refused(found, fix, verb="is", index=(int(rows[0]),))
    if size is not None and min(size) > _SMALLEST and 0 < boxes.max() <= 1 + ROUNDED:
        found = f"no box reaches beyond the first pixel of {image}, so these are shares of its sides"
        fix = 'multiply them by its width and height, or give them as "relative_boxes" (n, 6)'
        raise Refused(found, fix)


def _check_relative(relative: NDArray[np.float32]) -> None:
    if relative.shape[1] != 6:
        fix = "expected (n, 6): x0, y0, x1, y1, width, height"
        raise Refused(f"the array has shape {relative.shape}", fix)
    if len(rows := np.flatnonzero(((relative < -ROUNDED) | (relative > 1 + ROUNDED)).any(axis=1))):
        found = f"{relative[rows[0]].tolist()}, outside of the image"
        fix = "expected shares of the image's width and height, from 0 to 1"
        raise Refused(found, fix, verb="is", index=(int(rows[0]),))
    sides = relative[:, 2:4] - relative[:, :2]
    if len(rows := np.flatnonzero((np.abs(sides - relative[:, 4:]) > ROUNDED).any(axis=1))):
        fix = "expected x0, y0, x1, y1, width, height, and width = x1 - x0"
        raise Refused(f"{relative[rows[0]].tolist()}", fix, verb="is", index=(int(rows[0]),))


def _check_agreement(
    boxes: NDArray[np.float32], relative: NDArray[np.float32], size: tuple[int, int]
) -> None:
    """Refuse relative boxes that are those of other boxes."""
    sides = np.array([*size, *size], dtype=np.float32)
    far = np.abs(relative[:, :4] * sides - boxes) > ROUNDED * sides + 1
    if len(rows := np.flatnonzero(far.any(axis=1))):
        row = int(rows[0])
        found = f"{relative[row].tolist()}, but the box is {boxes[row].tolist()} of {size[0]}x{size[1]}"
        fix = "give boxes in pixels of the image that they are relative to"
        raise Refused(found, fix, verb="is", index=("relative_boxes", row))


def _numbers(value: Any, axes: int) -> NDArray[np.float32]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:  # an array interface of the user's own may fail in any way
        raise Refused(f"{described(value)} that numpy cannot read ({error})", verb="is") from None
    if array.dtype.kind not in "fiu":
        raise Refused(f"an array of {array.dtype}", "expected an array of numbers", verb="is", kind=TypeError)
    if array.ndim != axes:
        expected = f"expected {axes} {'axis' if axes == 1 else 'axes'}"
        raise Refused(f"the array has shape {array.shape}", expected)
    if array.size > MOST_BOXES * WIDEST:  # before it is copied
        found = f"the array has shape {array.shape}"
        raise Refused(found, f"expected at most {MOST_BOXES:,} boxes with at most {WIDEST:,} numbers")
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
    try:
        sides = np.asarray(value)
        numbers = sides.tolist() if sides.dtype.kind in "fiu" and sides.shape == (2,) else (0, 0)
        width, height = (int(side) if side == int(side) else 0 for side in numbers)
    except Exception:  # an array interface of the user's own may fail in any way
        width = height = 0
    if not 1 <= min(width, height) <= max(width, height) <= LONGEST_SIDE:
        fix = f"expected width and height of the image, whole numbers from 1 to {LONGEST_SIDE:,} pixels"
        raise Refused(shown(value), fix, verb="is", index=("size",))
    return width, height


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
