"""Box features of images, as a detector gave them: a dict of arrays, an `.npz` file, or a store of many.

Stores are folders of .npz files, UNITER's LMDB, or a .tsv of bottom-up attention or LXMERT. Ids are listed
without reading features.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from importlib import import_module
from io import SEEK_END, BytesIO
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import described, did_you_mean, file_error, shown, warn
from capeval_core.inputs import images
from capeval_core.inputs.files import load_json, reading
from capeval_core.inputs.images import ImageError, Source, Visual, image_error, quoted, read_file
from capeval_core.inputs.joining import Names, names_in
from capeval_core.project import needs

_Floats = NDArray[np.float32]
REQUIRED = ("boxes", "features")
OPTIONAL = ("size", "scores", "relative_boxes", "selection")
RELEASED = {"norm_bb": "relative_boxes", "conf": "scores"}
"""Names in the files of UNITER and UMIC -> ours."""
NAMES = (*REQUIRED, *OPTIONAL, *RELEASED)
_SHAPES = {
    "boxes": "(n, 4): x0, y0, x1, y1",
    "features": "(n, d)",
    "scores": "(n,)",
    "relative_boxes": "(n, 6): x0, y0, x1, y1, width, height",
}
# Bounds on files of strangers, far above what detectors give: 10 to 100 boxes of 2,048 numbers.
MOST_BOXES = 1_000
_WIDEST = 16_384  # numbers of a feature
_LONGEST_SIDE = 1 << 20
_ACCEPTED = 'a dict {"boxes": (n, 4), "features": (n, d)} or the path of an .npz file with these'
_ROUNDED = 0.01
"""Of an image's side: how far relative boxes in float16, or of corners that count from 1, may be off."""
_MARGIN = 0.04
"""Of an image's longer side: detectors that pad what they read let boxes end there, 31 pixels of 800."""


@contextmanager
def damage(*index: str) -> Iterator[None]:
    """Let whatever the block trips over be an ImageError: what it reads is damaged."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:  # numpy, zipfile, LMDB and others raise what they like
        problem = f"is of another form, or damaged ({images.short_reason(error)})"
        raise image_error(problem, "write or download it again", index=index) from None


def npz_arrays(file: str | bytes, members: Collection[str] = NAMES) -> dict[str, NDArray[Any]]:
    """The arrays of these names in an `.npz`, a path or its bytes; nothing is unpickled."""
    data = read_file(file, "file of boxes") if isinstance(file, str) else file
    arrays = {}
    with damage(), np.load(BytesIO(data), allow_pickle=False) as stored:
        # Each by its name: a file may hold arrays of objects next to these, which only a pickle would give.
        for name in members:
            if name in stored.files:
                with damage(name):
                    arrays[name] = stored[name]
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
        # Which arrays there are is part of it: the same bytes may be scores of one and boxes of another.
        names = [name for name in OPTIONAL if getattr(self, name) is not None]
        description = f"{self.features.shape} {self.size} {names} {self.selection}"
        digest = hashlib.blake2b(description.encode(), digest_size=16)
        for array in (self.boxes, self.features, self.scores, self.relative_boxes):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return f"boxes:{digest.hexdigest()}"

    def relative(self) -> _Floats:
        """`relative_boxes`, else computed of boxes and size, (n, 6) float32; ValueError without both."""
        if self.relative_boxes is not None:
            return self.relative_boxes
        if self.size is None:
            fix = "give 'size' (width, height) beside 'boxes', or 'relative_boxes' (n, 6)"
            raise ValueError(f"the image's size is missing, which positions of boxes are relative to: {fix}")
        extents = self.boxes[:, 2:] - self.boxes[:, :2]
        corners_and_extents: _Floats = np.concatenate([self.boxes, extents], axis=1)  # x0 y0 x1 y1 w h
        return np.divide(corners_and_extents, [*self.size] * 3, dtype=np.float32)

    def first(self, n: int) -> BoxFeatures:
        """The first n boxes with all that belongs to them; warns where that leaves out better ones."""
        if n >= len(self):
            return self
        if self.scores is not None and (self.scores[n:].max() > self.scores[:n]).any():
            fix = "sort them, best first, unless their order is meant"
            warn(f"boxes are not sorted by score, and the first are kept, as the published rule does: {fix}")
        arrays: dict[str, Any] = {}
        for name in _SHAPES:
            array = getattr(self, name)
            if array is not None:
                arrays[name] = array[:n]
        return replace(self, **arrays)

    def check_width(self, width: int) -> None:
        """Raise ValueError unless each feature has that many numbers."""
        if self.features.shape[1] != width:
            problem = (
                f"its features have {self.features.shape[1]:,} numbers each, the network takes {width:,}"
            )
            raise ValueError(f"{problem}: give features of the detector that the network was trained with")


@dataclass(eq=False, slots=True)
class Boxes(Source[BoxFeatures]):
    """Box features, read and checked when they are needed. origin: what messages name, '' for a dict."""

    read: Callable[[], Mapping[str, Any]]
    origin: str = ""
    path: str = ""
    medium = "boxes"

    @property
    def name(self) -> str:
        return self.origin or "the dict of boxes"

    def compute_key(self) -> str:
        return self.decode().key

    def decode(self, reduced: bool = False) -> BoxFeatures:
        try:
            with damage():
                boxes = checked(self.read())
        except ImageError as error:
            (problem,) = error.problems
            # Stores name their path in some messages and not in others.
            if self.origin not in problem.text:
                text = f"{self.origin}: {problem.text}"
                error.problems[0] = problem._replace(text=text, sentence=True)
            raise
        self._key = self._key or boxes.key
        return boxes


InputBoxes = Visual[BoxFeatures]


def box_source(value: object) -> Source[BoxFeatures]:
    """Features of boxes that a detector found in an image: a dict or an `.npz` file with `boxes` (n, 4) and
    `features` (n, d), and where there are some `size` (width, height), `scores` (n,) and `relative_boxes`
    (n, 6), also under the names of UNITER's files, `norm_bb` and `conf`; relative boxes may stand alone."""
    if value is None:
        raise image_error("is missing", "every caption needs the boxes of its image")
    if isinstance(value, (str, os.PathLike)):
        path = images.local_path(value)
        if not path.endswith(".npz"):
            raise image_error(f"{quoted(path)} is not an .npz file", f"expected {_ACCEPTED}", sentence=True)
        return Boxes(partial(npz_arrays, path), quoted(path), path)
    if not isinstance(value, Mapping):
        raise image_error(f"is {described(value)}", f"expected {_ACCEPTED}", kind=TypeError)
    return Boxes(partial(dict, value))


def boxes_of(value: object, where: str = "boxes") -> InputBoxes:
    """A visual of such box features, unread; InputTypeError for what can never be some."""
    return Visual.of(value, where, box_source)


# ---- whether arrays fit each other


def checked(arrays: Mapping[str, Any]) -> BoxFeatures:
    """Arrays that fit each other, as box features."""
    keys: dict[str, str] = {}  # under which key each of our names is given; ours before those of releases
    for key in reversed(NAMES):
        if arrays.get(key) is not None:
            keys[RELEASED.get(key, key)] = key
    if "features" not in keys or keys.keys().isdisjoint(("boxes", "relative_boxes")):
        listed = ", ".join(map(repr, list(arrays)[:5])) or "none"
        problem = f"boxes or features are missing among the keys {listed}"
        raise image_error(problem, f"expected {_ACCEPTED}", sentence=True)
    _refuse_misspelt(arrays)
    numbers: dict[str, _Floats] = {}
    for name in _SHAPES:
        if name in keys:
            key = keys[name]
            numbers[name] = _numbers(key, arrays[key], name)
    size = _size_of(arrays["size"]) if "size" in keys else None
    relative = numbers.get("relative_boxes")
    # UNITER's files hold `norm_bb` and no boxes. Without a size these stay shares of the sides.
    if relative is not None and "boxes" not in numbers:
        numbers["boxes"] = relative[:, :4] * np.array([*(size or (1, 1))] * 2, dtype=np.float32)
    boxes = numbers["boxes"]
    features = numbers["features"]
    if not 1 <= len(boxes) <= MOST_BOXES or not 1 <= features.shape[1] <= _WIDEST:
        problem = f"there are {len(boxes) or 'no'} boxes, with {features.shape[1]:,} numbers each"
        fix = f"expected 1 to {MOST_BOXES:,} boxes with at most {_WIDEST:,} numbers"
        raise image_error(problem, fix, sentence=True)
    for name, array in numbers.items():
        if len(array) != len(boxes):
            problem = f"there are {len(boxes)} boxes but {len(array)} rows"
            raise image_error(problem, "give every box its own", index=(keys[name],), sentence=True)
    _check_ranges(numbers, keys, size)
    selection = _selection_of(arrays["selection"]) if "selection" in keys else None
    return BoxFeatures(boxes, features, size, numbers.get("scores"), relative, selection)


def _refuse_misspelt(arrays: Mapping[str, Any]) -> None:
    """Refuse a key that is nearly one that is known."""
    # `score` for `scores` would leave the boxes unsorted without a word. Other keys, as `image_h`, may stay.
    for key in arrays:
        if key not in NAMES and isinstance(key, str):
            hint = did_you_mean(key, NAMES, closeness=0.85)
            if hint:
                raise image_error(f"there is {quoted(key)}, which is not known{hint}", sentence=True)


def _check_ranges(
    numbers: Mapping[str, _Floats], keys: Mapping[str, str], size: tuple[int, int] | None
) -> None:
    """Refuse the first row of scores or boxes outside their range, or of boxes that contradict others."""

    def check(name: str, is_bad: NDArray[np.bool_], expected: str) -> None:
        if is_bad.any():
            row = int(np.argwhere(is_bad)[0, 0])
            raise image_error(
                f"is {numbers[name][row].tolist()}", f"expected {expected}", index=(keys[name], row)
            )

    scores = numbers.get("scores")
    if scores is not None:
        # A softmax in float32 may end a few units of rounding above 1.
        check("scores", (scores < 0) | (scores > 1 + 1e-6), "probabilities, from 0 to 1")
    relative = numbers.get("relative_boxes")
    if relative is not None:
        is_outside = (relative < -_ROUNDED) | (relative > 1 + _ROUNDED)
        is_odd = np.abs(relative[:, 2:4] - relative[:, :2] - relative[:, 4:]) > _ROUNDED
        check("relative_boxes", is_outside, "shares of the image's width and height, from 0 to 1")
        check("relative_boxes", is_odd, "x0, y0, x1, y1, width, height, and width = x1 - x0")
    if "boxes" not in keys:
        return
    boxes = numbers["boxes"]  # (n, 4): x0, y0, x1, y1
    most = np.inf if size is None else np.add(size, max(1, _MARGIN * max(size)))  # of x and y
    is_outside = (boxes[:, :2] < -1) | (boxes[:, 2:] > most)  # corners count from 0 or from 1
    image = "the image" if size is None else f"an image of {size[0]}x{size[1]}"
    check("boxes", boxes[:, 2:] < boxes[:, :2], "x0, y0, x1, y1; of a width make x0 + width")
    check("boxes", is_outside, f"pixels of {image}, from 0")
    if size is None:
        return
    sides = np.array([*size, *size], dtype=np.float32)
    if relative is not None:
        # One pixel more, as corners count from 0 or from 1.
        is_off = np.abs(relative[:, :4] * sides - boxes) > _ROUNDED * sides + 1
        check("relative_boxes", is_off, f"shares of {size} of the boxes in pixels")
    if min(size) > 2 and 0 < boxes.max() <= 1 + _ROUNDED:
        problem = "no box reaches beyond the first pixel of the image, so these are shares of its sides"
        fix = 'multiply them by its width and height, or give them as "relative_boxes" (n, 6)'
        raise image_error(problem, fix, index=("boxes",), sentence=True)


def _selection_of(value: object) -> str:
    """The name of a rule. Raises ImageError."""
    selection = np.asarray(value)
    if selection.dtype.kind != "U" or selection.ndim or len(str(selection)) > 100:
        raise image_error(f"is {described(value)}", "expected a short text", index=("selection",))
    return str(selection)


def _numbers(key: str, value: Any, name: str) -> _Floats:
    """The numbers under a key, in the shape of the array of that name. Raises ImageError."""
    with images.within("", key):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except ValueError as error:  # of ragged lists
            raise image_error(f"is {described(value)} that numpy cannot read ({error})") from None
        if array.dtype.kind not in "fiu":
            raise image_error(f"is an array of {array.dtype}", "expected an array of numbers", kind=TypeError)
        columns = {"boxes": (4,), "relative_boxes": (6,), "scores": ()}.get(name, array.shape[-1:])
        # A transposed (4, n) of four boxes would pass a check of the number of values alone.
        if not array.ndim or array.shape[1:] != columns:
            raise image_error(
                f"the array has shape {array.shape}", f"expected {_SHAPES[name]}", sentence=True
            )
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, refused below
            numbers = array.astype(np.float32)
        not_finite = np.argwhere(~np.isfinite(numbers))
        if len(not_finite):
            problem = f"the array has NaN or infinity, first at {not_finite[0].tolist()}"
            raise image_error(problem, "leave such boxes out", sentence=True)
        return numbers


def _size_of(value: object) -> tuple[int, int]:
    """The width and height of an image. Raises ImageError."""
    sides = np.asarray(value)
    numbers = sides.tolist() if sides.dtype.kind in "fiu" and sides.shape == (2,) else (0, 0)
    if not all(1 <= side <= _LONGEST_SIDE and side == int(side) for side in numbers):
        fix = f"expected width and height of the image, whole numbers from 1 to {_LONGEST_SIDE:,} pixels"
        raise image_error(f"is {shown(value)}", fix, index=("size",))
    return int(numbers[0]), int(numbers[1])


# ---- stores of many images

_FORMS = (
    "a folder of .npz files (one per image, named by its id), UNITER's LMDB, or a bottom-up-attention .tsv"
)
EXTENSION = ".npz"
_AGAIN = "write or download it again"


class BoxFeatureStore(ABC):
    """The box features of many images, by id. It may be pickled and used from several threads."""

    form: str
    selection: str | None = None
    """The rule that chose the boxes, where that is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"precomputed:{path.name}"  # in signatures

    @staticmethod
    def open(path: str | os.PathLike[str]) -> BoxFeatureStore:
        """The store at a path, whose form shows there. Raises FileError."""
        path = Path(path)
        fix = f"expected {_FORMS}"
        with reading(path, "file or folder", fix):
            databases = _databases_at(path)
            if databases:
                return _Database(path, databases)
            # At the first file that is one: a folder may hold a million.
            if path.is_dir() and any(entry.suffix == EXTENSION for entry in path.iterdir()):
                return _Files(path)
            if path.suffix.lower() == ".tsv" and path.is_file():
                return _Lines(path)
        if path.suffix == EXTENSION:
            fix = "pass the folder that it is in"
        is_file_or_folder = path.is_dir() or path.is_file()  # a pipe could block for ever
        problem = "has no box features of a known form" if is_file_or_folder else "is no regular file"
        raise file_error(path, problem, fix)

    @cached_property
    @abstractmethod
    def entries(self) -> Mapping[str, Any]:
        """By id, where its features lie."""

    @abstractmethod
    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image; what it raises says why they cannot be read."""

    @abstractmethod
    def state(self) -> Iterable[object]:
        """What changes with what is stored, as far as sizes and samples show."""

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for part in self.state():
            data = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
            # With its length before it, so that ("ab", "c") and ("a", "bc") differ.
            digest.update(len(data).to_bytes(8, "big") + data)
        return f"{self.form}-{digest.hexdigest()}"

    @cached_property
    def _names(self) -> Names:
        return Names(self.entries)

    def source(self, image_id: str) -> Source[BoxFeatures]:
        """The box features under exactly that id."""
        return Boxes(partial(self.arrays, image_id), f"{image_id!r} of {self.path}")

    def find(self, image_id: str) -> Source[BoxFeatures]:
        """Boxes by image id, in any spelling; a path is looked up by its last part."""
        return self.source(self._names.only(image_id, f"box features in {self.path}"))


def id_of(image: object) -> str:
    """The id that a value is, or the path that it has. Raises ImageError."""
    if isinstance(image, Visual) and isinstance(image.source, images.File) and image.source.on_disk:
        return image.source.path
    if isinstance(image, (str, os.PathLike)):
        name = os.fsdecode(image)
        if not name:
            raise image_error("is an empty id", "write the image's id")
        return name
    if isinstance(image, Integral) and not isinstance(image, bool):
        return str(int(image))
    value = image.name if isinstance(image, Visual) else described(image)
    raise image_error(f"is {value}", "with precomputed box features, images are ids or paths", kind=TypeError)


# ---- a file per image: .npz, with the manifest of `capeval regions`

MANIFEST = "regions.json"
_IMAGE = "image"
"""The array with the content key of the image."""


@dataclass(frozen=True)
class Manifest:
    """The network that made the files of a folder; `selection`: the rule of which boxes are kept."""

    encoder: str
    selection: str
    dtype: str
    fingerprint: str

    def text(self) -> str:
        return json.dumps({"format": 1, **vars(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in a folder, None where there is none. Raises FileError: it is something else."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        content = load_json(path)
        names = [spec.name for spec in fields(cls)]
        if not isinstance(content, dict) or content.get("format") != 1 or not content.keys() >= {*names}:
            problem = f"is no file of `capeval regions` of this version (format 1: {', '.join(names)})"
            raise file_error(path, problem, "name another folder, or delete that file")
        # Newer versions may add keys, which change nothing for this one.
        return cls(**{name: str(content[name]) for name in names})


class _Files(BoxFeatureStore):
    """A folder of `.npz` files, each named by the id of its image."""

    form = "npz"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.manifest = Manifest.read(path)
        self.selection = None if self.manifest is None else self.manifest.selection

    @cached_property
    def entries(self) -> Mapping[str, Path]:
        paths = {}
        for name in names_in(self.path):
            if name.endswith(EXTENSION):
                paths[name.removesuffix(EXTENSION)] = self.path / name
        return paths

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        return npz_arrays(str(self.entries[image_id]))

    def state(self) -> Iterable[object]:
        # Sizes, not bytes: to read a folder of gigabytes for its fingerprint would cost minutes per run.
        return self.manifest, [(name, path.stat().st_size) for name, path in sorted(self.entries.items())]


def npz_bytes(boxes: BoxFeatures, image_key: str) -> bytes:
    """The content of such a file, exact, with the content key of the image that the boxes are of."""
    arrays: dict[str, Any] = {name: value for name, value in vars(boxes).items() if value is not None}
    arrays[_IMAGE] = np.array(image_key)
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def is_whole(path: Path, image_key: str) -> bool:
    """Whether a file has box features that can be read, and they are of the image of that content key."""
    try:
        arrays = npz_arrays(read_file(str(path)), [*NAMES, _IMAGE])
        return str(arrays.pop(_IMAGE)) == image_key and len(checked(arrays)) > 0
    except (ImageError, KeyError):
        return False


# ---- LMDB

# The published files have tens of gigabytes: nothing here reads more of them than their keys and one entry.
_KEYS = b"__keys__"
"""The entry that lists all keys."""
_RULE = "th0.2_max100_min10"
_PUBLISHED = "bua10_100"
"""Of the published model, in the database's name and in ours: boxes of a score above 0.2, from 10 to 100."""
_OPENING = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child begins with no LMDB open, and does not wait for its parent's
    os.register_at_fork(
        before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_OPENING.release
    )


def _databases_at(path: Path) -> list[Path]:
    """The data files of the database that a path is, or of those in the subfolders of a folder."""
    if path.is_dir():
        data = path / "data.mdb"
        return [data] if data.is_file() else sorted(path.glob("*/data.mdb"))
    if not path.is_file():  # it could block for ever
        return []
    with path.open("rb") as file:
        # LMDB's magic number, behind the 16 bytes of the first page's head.
        is_database = file.read(20)[16:] == (0xBEEFC0DE).to_bytes(4, "little")
    return [path] if is_database else []


class _Database(BoxFeatureStore):
    """An LMDB of https://github.com/ChenRocks/UNITER: by name of an image's `.npz` that file, or a map in
    msgpack (also in a frame of lz4) whose arrays, in float16, are maps with `type`, `shape` and `data`.
    Several in one folder are those that UNITER published.

    Where the number of boxes of an image is given beside the database, or in its name, that many are read and
    no more chosen: scores are rounded, and could choose others.
    """

    form = "lmdb"

    def __init__(self, path: Path, databases: list[Path]) -> None:
        super().__init__(path)
        for package in ("lmdb", "lz4", "msgpack"):  # now, not at the first entry that needs one
            with needs(package, "lmdb"):
                import_module(package)
        by_name = {data.parent.name: data for data in databases}
        # UNITER's folder holds the same features by several rules. That of the published model is meant;
        # `all` is what UNITER opens where no counts were made.
        preferred = [f"feat_{_RULE}_compressed", f"feat_{_RULE}", "all_compressed", "all"]
        candidates = [name for name in preferred if name in by_name]
        if not candidates and len(databases) > 1:
            names = ", ".join(map(repr, sorted(by_name)))
            raise file_error(path, f"holds several databases ({names})", "pass the path of one of them")
        self.data = by_name[candidates[0]] if candidates else databases[0]
        self.rule, self.counts = _read_counts(self.data.parent)
        self.selection = self.rule if self.counts else None

    @cached_property
    def entries(self) -> Mapping[str, bytes]:
        with _opened(self.data) as (_, transaction):
            keys = list(map(bytes, transaction.cursor().iternext(values=False)))
        key_of_name = {key.decode(errors="replace"): key for key in keys if key != _KEYS}
        expected = "expected UNITER's image database"
        if isinstance(self.counts, dict) and self.counts and self.counts.keys().isdisjoint(key_of_name):
            problem = f"the numbers of boxes beside it are of other images: {next(iter(self.counts))!r}"
            raise file_error(self.data, problem, expected, sentence=True)
        entries: dict[str, bytes] = {}
        for name, key in key_of_name.items():
            # Keys are names of `.npz` files in UNITER's databases, mere ids in those of others.
            if f"{name}{EXTENSION}" in key_of_name:
                raise file_error(self.data, f"the id {name!r} comes twice", expected, sentence=True)
            entries[name.removesuffix(EXTENSION)] = key
        return entries

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        key = self.entries[image_id]
        with _opened(self.data) as (_, transaction):
            data = bytes(transaction.get(key))
        if data[:1] == b"\x80" and len(data) > 1:
            raise image_error(
                "its entry is a pickle, which could run code",
                "compute it with `capeval regions`",
                sentence=True,
            )
        arrays = npz_arrays(data) if data.startswith(b"PK\x03\x04") else _unpacked(data)
        n = self.counts if isinstance(self.counts, int) else self.counts.get(key.decode())
        if n is None:
            return arrays
        first_boxes = dict(arrays)
        for name in (*_SHAPES, *RELEASED):
            if name in arrays and arrays[name].ndim:
                first_boxes[name] = arrays[name][:n]
        # Said to whoever scores, so that the rule is not applied once more to rounded scores.
        first_boxes["selection"] = np.array(self.rule)
        return first_boxes

    def state(self) -> Iterable[object]:
        with _opened(self.data) as (environment, _):
            info = environment.info()
            entry_count = environment.stat()["entries"]
        # The number of the last transaction: any change of the database raises it.
        return info["last_txnid"], info["last_pgno"], entry_count, self.counts


@contextmanager
def _opened(data: Path) -> Iterator[tuple[Any, Any]]:
    """An LMDB and a transaction in it. Raises FileError: to read behind its end would kill the process."""
    import lmdb

    options = {"subdir": False, "readonly": True, "lock": False, "create": False, "readahead": False}
    with _OPENING:  # a process may have it open once; for each read anew it costs little
        try:
            environment = lmdb.open(os.path.realpath(data), **options)
        except lmdb.Error as error:
            raise file_error(data, f"is no LMDB, or cut off ({error})", _AGAIN) from None
        with environment, environment.begin() as transaction:
            size = data.stat().st_size
            stated_size = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if size < stated_size:
                raise file_error(data, f"is cut off: it has {size:,} of {stated_size:,} bytes", _AGAIN)
            yield environment, transaction


def _read_counts(folder: Path) -> tuple[str, dict[str, int] | int]:
    """The rule in a database's name, and the boxes per image: all the same, or by key in a file beside it."""
    fixed = re.fullmatch(r"feat_numbb([1-9][0-9]{0,3})(_compressed)?", folder.name)
    if fixed:
        return f"first {fixed[1]}", int(fixed[1])
    counted = re.fullmatch(r"feat_(th.+?)(_compressed)?", folder.name)
    rule = counted[1] if counted else _RULE
    published = _PUBLISHED if rule == _RULE else rule
    for path in (folder.parent / f"nbb_{rule}.json", folder / f"nbb_{rule}.json"):
        if path.is_file():
            counts = load_json(path)
            numbers = counts.values() if isinstance(counts, dict) else [None]
            # `type`, as True is an int.
            if not all(type(n) is int and 1 <= n <= MOST_BOXES for n in numbers):
                fix = f"expected {{name: number of boxes}}, from 1 to {MOST_BOXES:,}"
                raise file_error(path, "holds something else than numbers of boxes", fix)
            return published, counts
    return published, {}


def _unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a map in msgpack; other entries are not looked into."""
    import lz4.frame
    import msgpack.fallback

    if data.startswith(b"\x04\x22\x4d\x18"):
        data = lz4.frame.decompress(data)
    # Not `msgpack.unpackb`: `msgpack_numpy.patch()` has that decode arrays, and unpickle.
    content = msgpack.fallback.unpackb(data, raw=True)
    arrays = {}
    for name in NAMES:
        packed = content.get(name.encode())
        if packed is not None:
            with damage(name):
                dtype = np.dtype(packed[b"type"].decode())
                arrays[name] = np.frombuffer(packed[b"data"], dtype).reshape(packed[b"shape"])
    return arrays


# ---- a .tsv of bottom-up attention: one line per image, arrays of float32 in base64

_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_SAMPLE = 1 << 16  # bytes at the begin and the end of a file


class _Lines(BoxFeatureStore):
    """A `.tsv` file as https://github.com/peteanderson80/bottom-up-attention writes it, or LXMERT."""

    form = "tsv"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with path.open("rb") as file:
            first_line = file.readline().decode(errors="replace")
        cells = list(map(str.strip, first_line.split("\t")))
        # The published files have no header: the number of cells tells the two forms apart.
        forms = [form for form in (_BOTTOM_UP, _LXMERT) if len(form) == len(cells)]
        # A header in another order, as with the height before the width, is refused.
        if not forms or (cells[0] == forms[0][0] and cells != [*forms[0]]):
            problem = "is empty"
            if any(cells):
                problem = f"has {len(cells)} columns, {', '.join(cells)[:200]!a}"
            known_forms = f"{', '.join(_BOTTOM_UP)} or {', '.join(_LXMERT)}"
            raise file_error(path, problem, f"expected {known_forms}, separated by tabs")
        self.columns = forms[0]

    def state(self) -> Iterable[object]:
        with self.path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            # Its size, begin and end, as the file has tens of gigabytes.
            file.seek(0)
            begin = file.read(_SAMPLE)
            file.seek(max(0, size - _SAMPLE))
            return size, begin, file.read(_SAMPLE)

    @cached_property
    def entries(self) -> Mapping[str, tuple[int, int]]:
        status = self.path.stat()
        return _lines_of(self.path.absolute(), self.columns[0], status.st_size, status.st_mtime_ns)

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        offset, length = self.entries[image_id]
        with self.path.open("rb") as file:
            file.seek(offset)
            values = file.read(length).rstrip(b"\r\n").split(b"\t")
        if values[0].strip() != image_id.encode():
            raise image_error(
                "its line is no longer there", "open the file again, which has changed", sentence=True
            )
        columns = dict(zip(self.columns, values, strict=True))
        prefix = "image" if self.columns == _BOTTOM_UP else "img"
        # Width first, though LXMERT's files have the height first.
        arrays: dict[str, Any] = {"size": [int(columns[f"{prefix}_w"]), int(columns[f"{prefix}_h"])]}
        for name in {"boxes", "features", "objects_conf"} & columns.keys():
            with damage(name):
                arrays[name] = _from_base64(columns[name].strip()).reshape(int(columns["num_boxes"]), -1)
        if "objects_conf" in arrays:
            arrays["scores"] = arrays.pop("objects_conf")[:, 0]
        return arrays


@lru_cache(maxsize=4)
def _lines_of(path: Path, header: str, size: int, time: int) -> Mapping[str, tuple[int, int]]:
    """The begin and length of the line of each id; kept while the file is the same: it has gigabytes."""
    lines: dict[str, tuple[int, int]] = {}
    offset = 0
    with path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, start=1):
            image_id = line.split(b"\t", 1)[0].strip().decode(errors="replace")
            if line.strip(b"\r\n") and (number, image_id) != (1, header):
                if not image_id or "\ufffd" in image_id or image_id in lines:
                    problem = f"line {number} is not a line of an image"
                    if image_id in lines:
                        problem = f"the id {image_id[:200]!r} comes twice"
                    raise file_error(
                        path, problem, "expected one line per image, which begins with its id", sentence=True
                    )
                lines[image_id] = offset, len(line)
            offset += len(line)
    return lines


def _from_base64(value: bytes | str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
