"""Box features as 12-in-1 releases them, in pickles, whose names stand for functions of this file alone.

https://github.com/facebookresearch/vilbert-multi-task: `extract_features.py` writes an `.npy` per image,
which is a dict, and `convert_to_lmdb.py` an LMDB whose values are pickled dicts. Older ones hold base64.
"""

from __future__ import annotations

import base64
import binascii
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.box_arrays import MOST_BYTES
from capeval_core.inputs.box_lmdb import databases_in, entry, is_lmdb, opened, state_of
from capeval_core.inputs.box_stores import digest
from capeval_core.inputs.boxes import BoxFeatures, checked
from capeval_core.inputs.decoding import Refused, within
from capeval_core.inputs.sources import read_file
from capeval_core.inputs.texts import valid_unicode
from capeval_core.values import described

FORMS = "12-in-1's LMDB, an .npy file of its extract_features.py, or a folder of these"
EXTENSION = ".npy"
_KEYS = b"keys"
"""An entry that lists all keys."""
_NAMES = {
    "boxes": ("boxes", "bbox"),
    "features": ("features",),
    "width": ("image_w", "image_width"),
    "height": ("image_h", "image_height"),
}
"""Names here -> those in the dicts."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_NUMBERS = re.compile(r"[<>|=]?(?:f[248]|[iu][1248]|b1)|O8?")
_LONGEST_NAME = 200
"""Bytes of an id, which becomes the name of a file."""


class _Type:
    """A dtype of numbers, or "O" for the object that `numpy.save` wraps."""

    def __init__(self, code: str, *_: Any) -> None:
        if not _NUMBERS.fullmatch(code):
            raise Refused(f"an array of the pickle is of type {code[:40]!a}", "expected numbers")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """An array that the pickle's next instruction fills."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, type_, *content = state
        super().__setstate__((version, shape, type_.dtype, *content))


def _filled(data: bytes, type_: _Type, shape: Any, order: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(data, type_.dtype).reshape(shape, order=order)
    return array


_MULTIARRAY: dict[str, Callable[..., Any]] = {
    "_reconstruct": lambda *_: _Array(0),
    "scalar": lambda type_, data: _filled(data, type_, (), "C").item(),
    "_frombuffer": _filled,
}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("dtype", "numpy"): _Type,
    ("ndarray", "numpy"): tuple,
    ("encode", "_codecs"): lambda text, _: text.encode("latin-1"),
    **{("bytes", module): bytes for module in ("__builtin__", "builtins")},
    **{
        (name, f"numpy.{core}.{module}"): function
        for core in ("core", "_core")
        for module in ("multiarray", "numeric")
        for name, function in _MULTIARRAY.items()
    },
}
"""What stands for each name that a pickle of arrays, dicts, texts and numbers uses."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (name, module) not in _FUNCTIONS:
            shown = ascii(f"{module[:60]}.{name[:60]}")[1:-1]  # without control characters of a terminal
            raise Refused(f"the pickle names {shown}", "expected NumPy arrays, dicts, texts and numbers only")
        return _FUNCTIONS[name, module]


def load_plain(data: bytes) -> Any:
    """What a pickle of plain data holds, or Refused; nothing that it names is imported or called.

    >>> load_plain(pickle.dumps({"boxes": np.ones((1, 4), np.float32), "image_id": 42}))["image_id"]
    42
    >>> load_plain(pickle.dumps(len))
    Traceback (most recent call last):
    capeval_core.inputs.decoding.Refused: the pickle names builtins.len: expected NumPy arrays, dicts, texts
    and numbers only
    """
    try:
        value = _Unpickler(BytesIO(data), encoding="latin-1").load()
        return value.item() if isinstance(value, np.ndarray) and value.dtype == object else value
    except Refused:
        raise
    except Exception as error:  # a damaged file may trip over anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Refused(f"the pickle is damaged ({reason})", "write or download it again") from None


@dataclass(frozen=True)
class Entry:
    """The released features of one image. name: for messages. read: its pickle, or Refused."""

    name: str
    image_id: str
    read: Callable[[], bytes]

    def load(self) -> tuple[str, BoxFeatures, str]:
        """Image id, features, and content key of the pickle, or Refused."""
        data = self.read()
        content = load_plain(data)
        if not isinstance(content, dict):
            raise Refused(f"the pickle is {described(content)}", "expected a dict of box features")
        key = f"pickle:{blake2b(data, digest_size=16).hexdigest()}"
        return checked_id(self.image_id), features_of(content), key


@dataclass(frozen=True)
class ReleasedBoxes:
    """Released features of many images. fingerprint: changes with what is there, as far as sizes show."""

    name: str
    fingerprint: str
    count: int
    entries: Callable[[], Iterator[Entry]]

    @staticmethod
    def open(path: Path) -> ReleasedBoxes:
        """The features at a path, whose form shows there.

        Raises:
            FileError: there is nothing, or none of these forms.
        """
        try:
            if path.is_dir() and (found := databases_in(path)):
                if len(found) > 1:
                    names = ", ".join(repr(data.parent.name) for data in found)
                    problem = f"holds several databases ({names})"
                    raise FileError(file_problem(path, problem, "pass the path of one of them"))
                return _of_lmdb(path, found[0])
            if path.is_dir():
                files = sorted(path.glob(f"*{EXTENSION}"))
                if not files:
                    raise FileError(file_problem(path, "holds no such features", f"expected {FORMS}"))
                return _of_files(path, files)
            if not path.exists():
                raise FileError(file_problem(path, "there is no such file or folder", f"expected {FORMS}"))
            if path.suffix == EXTENSION:
                return _of_files(path, [path])
            if is_lmdb(path):
                return _of_lmdb(path, path)
        except OSError as error:
            raise FileError(file_problem(path, f"cannot be read ({error.strerror})")) from None
        raise FileError(file_problem(path, "is a file of another form", f"expected {FORMS}"))


def _of_lmdb(path: Path, data: Path) -> ReleasedBoxes:
    environment = opened(data)

    def entries() -> Iterator[Entry]:
        with environment.begin() as transaction:
            keys = [bytes(key) for key in transaction.cursor().iternext(values=False) if key != _KEYS]
        for key in keys:
            image_id = key.decode(errors="replace")
            yield Entry(f"the entry {image_id!r}", image_id, lambda key=key: entry(environment, key))  # type: ignore[misc]

    with environment.begin() as transaction:
        listed = transaction.get(_KEYS) is not None
    state = state_of(environment)
    return ReleasedBoxes(path.name, f"lmdb-{digest(*state)}", state[-1] - listed, entries)


def _of_files(path: Path, files: list[Path]) -> ReleasedBoxes:
    def entries() -> Iterator[Entry]:
        for file in files:
            yield Entry(repr(file.name), file.stem, lambda file=file: pickle_in_npy(file))  # type: ignore[misc]

    sizes = [(file.name, file.stat().st_size) for file in files]
    return ReleasedBoxes(path.name, f"npy-{digest(sizes)}", len(files), entries)


def pickle_in_npy(path: Path) -> bytes:
    """The pickle in an `.npy` file of one object, or Refused."""
    data = read_file(str(path), "file of boxes")
    file = BytesIO(data)
    try:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # numpy raises whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"it is not an .npy file, or damaged ({reason})", "write it again") from None
    if not dtype.hasobject or shape != ():
        fix = "expected a dict, as extract_features.py writes it"
        raise Refused(f"it is an array of shape {shape} of {dtype}", fix)
    return data[file.tell() :]


def features_of(content: Mapping[Any, Any]) -> BoxFeatures:
    """The box features in a released dict, or Refused.

    All boxes are kept, also those behind `num_boxes`, which have no confidence: the release's networks read
    them too. Confidences are not stored.

    >>> content = {"features": np.ones((2, 8)), "bbox": np.array([[0.0, 0, 9, 9]] * 2)}
    >>> features_of({**content, "image_width": 40, "image_height": 30}).size
    (40, 30)
    """
    given = {
        name: next((content[key] for key in keys if key in content), None) for name, keys in _NAMES.items()
    }
    if missing := [" or ".join(map(repr, _NAMES[name])) for name, value in given.items() if value is None]:
        raise Refused(f"there is no {', no '.join(missing)}", f"expected {FORMS}")
    boxes, features = (_numbers(name, given[name]) for name in ("boxes", "features"))
    if boxes.ndim == 1 and boxes.size % 4 == 0:
        boxes = boxes.reshape(-1, 4)
    if features.ndim == 1 and len(boxes) and features.size % len(boxes) == 0:
        features = features.reshape(len(boxes), -1)
    return checked({"boxes": boxes, "features": features, "size": _size(given["width"], given["height"])})


def _size(width: Any, height: Any) -> tuple[Real, Real]:
    for name, value in (("width", width), ("height", height)):
        if not isinstance(value, Real):
            with within(name):
                raise Refused(described(value), "expected a number of pixels", verb="is")
    return width, height


def _numbers(name: str, value: Any) -> NDArray[Any]:
    """An array, or float32 in base64."""
    with within(name):
        if isinstance(value, (str, bytes)):
            if len(value) > 2 * MOST_BYTES:
                raise Refused(f"base64 of {len(value):,} characters", f"expected at most {2 * MOST_BYTES:,}")
            try:
                value = np.frombuffer(base64.b64decode(value, validate=True), "<f4")
            except (binascii.Error, ValueError) as error:
                raise Refused(f"the base64 is damaged ({error})", "write it again") from None
        if not isinstance(value, np.ndarray):
            raise Refused(described(value), "expected an array, or base64 of one", verb="is")
        return np.asarray(value)


def checked_id(image_id: str) -> str:
    """An image id that can name a file, or Refused.

    >>> checked_id("../escape")
    Traceback (most recent call last):
    capeval_core.inputs.decoding.Refused: the image id '../escape' can name no file: give the image another id
    """
    plain = valid_unicode(image_id) and image_id.isprintable() and "\ufffd" not in image_id
    if not plain or not 0 < len(image_id.encode()) <= _LONGEST_NAME or image_id.startswith("."):
        raise Refused(f"the image id {image_id[:60]!a} can name no file", "give the image another id")
    if any(separator in image_id for separator in ("/", "\\", os.sep)):
        raise Refused(f"the image id {image_id[:60]!r} can name no file", "give the image another id")
    return image_id
