"""Box features of many images, on the disk in one of the forms that the field has.

    a folder of .npz files    one per image, named by its id: `capeval regions` writes these, and releases too
    an LMDB                   the image database of UNITER and UMIC
    a .tsv file               of bottom-up attention, or of LXMERT
    pickles                   of 12-in-1, for `capeval convert box-features` alone

Ids are listed without reading features, and features of an image are read when they are needed. An id is
matched as among images (see `folder`): a file name with or without folder and extension, or a COCO number.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import threading
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from io import SEEK_END, BytesIO
from numbers import Integral
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, described, file_problem, refuse_nul
from capeval_core.inputs.boxes import (
    MOST_BOXES,
    MOST_BYTES,
    NAMES,
    OPTIONAL,
    PER_BOX,
    REQUIRED,
    Boxes,
    BoxFeatures,
    checked,
    npz_arrays,
    short_reason,
)
from capeval_core.inputs.folder import Names, names_in
from capeval_core.inputs.images import (
    File,
    ImageError,
    InputImage,
    Source,
    quoted,
    read_file,
    refused,
    within,
)
from capeval_core.inputs.text_files import load_json
from capeval_core.project import install_command

_FORMS = (
    "a folder of .npz files (one per image, named by its id), UNITER's LMDB, or a bottom-up-attention .tsv"
)
_EXTENSION = ".npz"


class BoxFeatureStore(ABC, Mapping[str, Source[BoxFeatures]]):
    """Image id -> the source of its box features, which reads them when they are needed.

    path: where they lie. name: in signatures. selection: the rule that chose the boxes, where that is known.
    Stores may be pickled and used from several threads.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/COCO_val2014_000000000042.npz"
    ...     np.savez(path, boxes=np.ones((2, 4)), features=np.ones((2, 8)))
    ...     store = BoxFeatureStore.open(folder)
    ...     list(store), store.find("42").decode().features.shape
    (['COCO_val2014_000000000042'], (2, 8))
    """

    selection: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"precomputed:{path.name}"

    @staticmethod
    def open(path: str | os.PathLike[str]) -> BoxFeatureStore:
        """The store at a path, whose form shows there.

        Raises:
            FileError: there is nothing, or none of these forms; an image has features twice; a package that
                this form needs is missing.
        """
        path = Path(path)
        refuse_nul(path)
        with _readable(path, _FORMS):
            if found := _databases_at(path):
                return _BoxLmdb(path, found)
            if path.is_dir() and any(entry.suffix == _EXTENSION for entry in path.iterdir()):
                return _NpzFolder(path)
            if path.suffix.lower() == ".tsv" and path.is_file():
                return _BoxTsv(path)
        fix = "pass the folder that it lies in" if path.suffix == _EXTENSION else f"expected {_FORMS}"
        known = path.is_dir() or path.is_file()  # a pipe could block for ever
        what = "has no box features of a known form" if known else "is no regular file"
        raise FileError(file_problem(path, what, fix))

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes with what is stored, as far as sizes and samples show; features are keyed by content."""

    @abstractmethod
    def ids(self) -> Iterable[str]:
        """The image ids. Raises FileError."""

    @abstractmethod
    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of one of the ids, by name. Raises ImageError."""

    @cached_property
    def names(self) -> Names:
        """The ids under the several ways to write them."""
        return Names(self.ids())

    def __getitem__(self, image_id: str) -> Source[BoxFeatures]:
        if image_id not in self.names:
            raise KeyError(image_id)
        return _StoredEntry(self, image_id)

    def __len__(self) -> int:
        return len(self.names.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.entries)

    def find(self, image_id: str) -> Source[BoxFeatures]:
        """The source of an id, however it is written; a path is looked up by its last part.

        Raises ImageError: no such id, or several that it can mean.
        """
        last = image_id.replace("\\", "/").rpartition("/")[2]
        for name in (image_id, last):
            matches = self.names.find(name)
            if len(matches) == 1:
                return self[matches[0]]
            if matches:
                several = " and ".join(map(repr, matches[:3]))
                found = f"the id {quoted(image_id)} is ambiguous, it can mean {several}"
                raise refused(found, "write it in full")
        ids = self.names.entries
        at = bisect(ids, last)
        near = ", ".join(map(repr, ids[max(0, at - 1) : at + 1]))
        found = f"there are no box features of {quoted(image_id)} among the {len(ids):,} of {self.path}"
        raise refused(found + f", the nearest: {near}" * bool(ids), "compute them, or correct the id")


def id_of(image: Any) -> str:
    """The id that a value is, or the path that it has. Raises ImageError."""
    if isinstance(image, InputImage) and isinstance(image.source, File) and image.source.on_disk:
        return image.source.path
    if isinstance(image, (str, os.PathLike)):
        name = os.fsdecode(image)
        if not name:
            raise refused("is an empty id", "write the image's id")
        return name
    if isinstance(image, Integral) and not isinstance(image, bool):
        return str(int(image))
    value = image.name if isinstance(image, InputImage) else described(image)
    fix = "with precomputed box features, images are ids or paths"
    raise refused(f"is {value}", fix, kind=TypeError)


class _StoredEntry(Boxes):
    """One image's box features in a store. What is wrong with them names the image's id and the store."""

    __slots__ = ("image_id", "store")

    def __init__(self, store: BoxFeatureStore, image_id: str) -> None:
        super().__init__(None)
        self.store, self.image_id = store, image_id

    @property
    def name(self) -> str:
        return f"{self.image_id!r} of {self.store.path}"

    def read(self) -> Mapping[str, Any]:
        return self.store.arrays(self.image_id)

    def decode(self, reduced: bool = False) -> BoxFeatures:
        try:
            return Boxes.decode(self, reduced)
        except ImageError as error:
            (problem,) = error.problems
            found = f"{self.name}: {problem.found}"
            raise refused(found, problem.fix, index=error.index, kind=problem.kind) from None


@contextmanager
def _readable(path: Path, forms: str) -> Iterator[None]:
    """Let errors of the system, and a path that is not there, name the path."""
    if not path.exists():
        raise FileError(file_problem(path, "there is no such file or folder", f"expected {forms}"))
    try:
        yield
    except OSError as error:
        raise FileError(file_problem(path, f"cannot be read ({error.strerror})")) from None


def _digest(*parts: object) -> str:
    hashed = blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


# ---- a folder of .npz files, and the manifest of `capeval regions`

MANIFEST = "regions.json"
_IMAGE = "image"
"""The array with the content key of the image."""


@dataclass(frozen=True)
class Manifest:
    """What made the files of a folder.

    encoder: the region encoder's name. selection: its rule of which boxes are kept. dtype: that it ran in.
    fingerprint: of the encoder with its settings.
    """

    encoder: str
    selection: str
    dtype: str
    fingerprint: str

    def text(self) -> str:
        """The content of its file."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in a folder, None where there is none. Raises FileError: it is something else."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        content = load_json(path)
        names = [spec.name for spec in fields(cls)]
        known = isinstance(content, dict) and content.get("format") == 1
        if not known or not all(isinstance(content.get(name), str) for name in names):
            found = f"is no file of `capeval regions` of this version (format 1: {', '.join(names)})"
            raise FileError(file_problem(path, found, "name another folder, or delete that file"))
        return cls(*(content[name] for name in names))


class _NpzFolder(BoxFeatureStore):
    """A folder of `.npz` files whose names are image ids; arrays also under the names of releases."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.manifest = Manifest.read(path)
        self.selection = None if self.manifest is None else self.manifest.selection

    def ids(self) -> Iterable[str]:
        return [name.removesuffix(_EXTENSION) for name in names_in(self.path) if name.endswith(_EXTENSION)]

    @cached_property
    def fingerprint(self) -> str:
        sizes = [(image_id, file_of(self.path, image_id).stat().st_size) for image_id in self]
        return f"npz-{_digest(self.manifest, sizes)}"

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        return npz_arrays(read_file(str(file_of(self.path, image_id)), "file of boxes"), "its file")


def file_of(folder: Path, image_id: str) -> Path:
    """The file of an image's box features."""
    return folder / f"{image_id}{_EXTENSION}"


def npz_bytes(found: BoxFeatures, image_key: str) -> bytes:
    """The content of that file, exact, with the content key of the image that the boxes are of."""
    given = {name: getattr(found, name) for name in (*REQUIRED, *OPTIONAL)}
    arrays: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    file = BytesIO()
    np.savez(file, **{**arrays, _IMAGE: np.array(image_key)})
    return file.getvalue()


def is_whole(path: Path, image_key: str) -> bool:
    """Whether a file has box features that can be read, and they are of the image of that content key."""
    try:
        arrays = npz_arrays(read_file(str(path), "file of boxes"), "", [*NAMES, _IMAGE])
        return str(arrays.pop(_IMAGE)) == image_key and len(checked(arrays)) > 0
    except (ImageError, KeyError):
        return False


# ---- UNITER's LMDB

_RULE = "th0.2_max100_min10"
_PUBLISHED = "bua10_100"
"""Of the published model, in the database's name and in ours: boxes of a score above 0.2, from 10 to 100."""
_KEYS = (b"__keys__", b"keys")
"""Entries that list all keys, of UNITER and of 12-in-1."""
_COUNTED = re.compile(r"feat_(th.+?)(?:_compressed)?")
_FIXED = re.compile(r"feat_numbb([1-9][0-9]{0,3})(?:_compressed)?")
_MOST_UNPACKED = 4 * MOST_BYTES
_OPENED: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Databases by path: LMDB opens each once per process."""
_OPENING = threading.Lock()


def _databases_at(path: Path) -> list[Path]:
    """The data files of the database that a path is, or of those in the subfolders of a folder."""
    if path.is_dir():
        own = path / "data.mdb"
        return [own] if own.is_file() else sorted(path.glob("*/data.mdb"))
    if not path.is_file():  # it could block for ever
        return []
    with path.open("rb") as file:
        return [path] * (file.read(20)[16:] == (0xBEEFC0DE).to_bytes(4, "little"))


def _imported(name: str) -> Any:
    """A package of the extra."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        found = f"an LMDB of box features needs the package {package}: {install_command('lmdb')}"
        raise FileError(found) from None


class _Database:
    """The LMDB of a data file, read only. Raises FileError, also where it is cut off: LMDB would read behind
    its end, which kills the process."""

    def __init__(self, data: Path) -> None:
        self.data, self.lmdb, real = data, _imported("lmdb"), os.path.realpath(data)
        with _OPENING:
            self.environment: Any = _OPENED.get(real)
            if self.environment is None:
                with self.errors("is no LMDB, or cut off"):
                    self.environment = self.lmdb.open(
                        real, subdir=False, readonly=True, lock=False, create=False, readahead=False
                    )
                needed = (self.environment.info()["last_pgno"] + 1) * self.environment.stat()["psize"]
                if (size := data.stat().st_size) < needed:
                    found = f"is cut off: it has {size:,} of {needed:,} bytes"
                    raise FileError(file_problem(data, found, "write or download it again"))
                _OPENED[real] = self.environment

    @contextmanager
    def errors(self, found: str) -> Iterator[None]:
        try:
            yield
        except self.lmdb.Error as error:
            fix = "write or download it again"
            raise FileError(file_problem(self.data, f"{found} ({error})", fix)) from None

    def names(self) -> list[bytes]:
        with self.errors("cannot be read"), self.environment.begin() as transaction:
            return [bytes(key) for key in transaction.cursor().iternext(values=False) if key not in _KEYS]

    def digest(self, *more: object) -> str:
        """Of the last commit, the last page and the number of entries."""
        info = self.environment.info()
        entries = self.environment.stat()["entries"]
        return f"lmdb-{_digest(info['last_txnid'], info['last_pgno'], entries, *more)}"

    def read(self, key: bytes) -> bytes:
        """The value of a key. Raises ImageError."""
        try:
            with self.environment.begin() as transaction:
                value = transaction.get(key)
        except self.lmdb.Error as error:
            raise refused(f"its entry cannot be read ({error})", "write the database again") from None
        if value is None or len(value) > _MOST_UNPACKED:
            found = "is gone" if value is None else f"has {len(value):,} bytes"
            raise refused(f"its entry {found}", "open the database again, or write it again")
        return bytes(value)


class _BoxLmdb(BoxFeatureStore):
    """An LMDB of box features; of several in a folder that of the published rule.

    https://github.com/ChenRocks/UNITER: the key is the name of the image's `.npz`; the value is that file, or
    a map in msgpack whose arrays are maps with `nd`, `type`, `shape` and `data` (also in a frame of lz4).
    Arrays that were float32 are in float16. Where the number of boxes of an image is given beside the
    database, or in its name, that many are read and no more chosen: scores are rounded, and could choose
    others.
    """

    def __init__(self, path: Path, databases: list[Path]) -> None:
        super().__init__(path)
        for package in ("lmdb", "lz4.frame", "msgpack"):  # now, not at the first entry that needs one
            _imported(package)
        self.data = _chosen(path, databases)
        self._rule, self._counts = _read_counts(self.data.parent)
        self.selection = self._rule if self._counts else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_database"}

    @cached_property
    def _database(self) -> _Database:
        return _Database(self.data)

    @cached_property
    def fingerprint(self) -> str:
        return self._database.digest(self._counts)

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        """Image id -> key."""
        keys = self._database.names()
        try:
            names = [key.decode() for key in keys]
        except UnicodeDecodeError as error:
            found = f"has the key {error.object[:40]!r}, which is no name of an image"
            raise FileError(file_problem(self.data, found, "expected UNITER's image database")) from None
        if isinstance(self._counts, dict) and self._counts and not self._counts.keys() & set(names):
            found = (
                f"the numbers of boxes beside it are of other images, such as {next(iter(self._counts))!r}"
            )
            fix = "expected the names of its entries: take that file away, or correct it"
            raise FileError(file_problem(self.data, found, fix))
        found_keys = {name.removesuffix(_EXTENSION): key for name, key in zip(names, keys, strict=True)}
        if len(found_keys) < len(names):
            twice = next(name for name in names if f"{name}{_EXTENSION}" in names)
            raise FileError(file_problem(self.data, f"the id {twice!r} comes twice", "keep one of each"))
        return found_keys

    def ids(self) -> Iterable[str]:
        return self._keys

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        key = self._keys[image_id]
        data = self._database.read(key)
        if data[:1] == b"\x80" and len(data) > 1:
            fix = "convert them once: capeval convert box-features DATABASE --out FOLDER"
            raise refused("its entry is a pickle, as 12-in-1 releases features", fix)
        arrays = npz_arrays(data, "its entry") if data.startswith(b"PK\x03\x04") else _unpacked(data)
        n = self._counts if isinstance(self._counts, int) else self._counts.get(key.decode())
        if n is None:
            return arrays
        cut = {name: array[:n] for name, array in arrays.items() if name in PER_BOX and array.ndim}
        return {**arrays, **cut, "selection": np.array(self._rule)}


def _unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a map in msgpack; what is no array of numbers is not looked into."""
    index: tuple[str, ...] = ()
    try:
        if data.startswith(b"\x04\x22\x4d\x18"):
            frame = _imported("lz4.frame").LZ4FrameDecompressor()
            data = frame.decompress(data, max_length=_MOST_UNPACKED)
            if not frame.eof:
                raise ValueError(f"cut off, or more than {_MOST_UNPACKED:,} bytes")
        # Not `msgpack.unpackb`: `msgpack_numpy.patch()` has that decode arrays, and unpickle.
        content = _imported("msgpack.fallback").unpackb(data, raw=True)
        arrays = {}
        for name in NAMES:
            if (packed := content.get(name.encode())) is not None:
                index = (name,)
                dtype = np.dtype(packed[b"type"].decode())
                if dtype.kind not in "fiu":
                    raise ValueError(f"an array of {dtype}, and nothing is unpickled")
                arrays[name] = np.frombuffer(packed[b"data"], dtype).reshape(packed[b"shape"])
        return arrays
    except Exception as error:  # msgpack and numpy raise whatever the damaged part trips over
        raise refused(
            f"its entry is damaged ({short_reason(error)})", "write it again", index=index
        ) from None


def _chosen(path: Path, databases: list[Path]) -> Path:
    by_name = {data.parent.name: data for data in databases}
    preferred = [f"feat_{_RULE}_compressed", f"feat_{_RULE}", "all_compressed", "all"]
    for name in preferred if len(databases) > 1 else by_name:
        if name in by_name:
            return by_name[name]
    names = ", ".join(map(repr, sorted(by_name)))
    raise FileError(file_problem(path, f"holds several databases ({names})", "pass the path of one of them"))


def _read_counts(folder: Path) -> tuple[str, dict[str, int] | int]:
    """The rule in a database's name, and the boxes per image: all the same, or by key in a file beside it."""
    if fixed := _FIXED.fullmatch(folder.name):
        return f"first {fixed[1]}", int(fixed[1])
    counted = _COUNTED.fullmatch(folder.name)
    rule = counted[1] if counted else _RULE
    name = f"nbb_{rule}.json"
    path = next((path for path in (folder.parent / name, folder / name) if path.is_file()), None)
    counts = {} if path is None else load_json(path, once="keep one of them")
    numbers = list(counts.values()) if isinstance(counts, dict) else [None]
    if not all(type(n) is int and 1 <= n <= MOST_BOXES for n in numbers):
        fix = f"expected {{name: number of boxes}}, from 1 to {MOST_BOXES:,}"
        raise FileError(file_problem(str(path), "holds something else than numbers of boxes", fix))
    return (_PUBLISHED if rule == _RULE else rule), counts


# ---- a .tsv of bottom-up attention: one line per image, arrays of float32 in base64

_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_COLUMNS = {len(columns): columns for columns in (_BOTTOM_UP, _LXMERT)}
_LONGEST_ID = 1_000
_LONGEST_LINE = 2 * MOST_BYTES
_SAMPLE = 1 << 16
_Place = tuple[int, int]


class _BoxTsv(BoxFeatureStore):
    """A `.tsv` file, whose lines are located once, when ids are first asked for.

    The columns are those of https://github.com/peteanderson80/bottom-up-attention, or of LXMERT, which adds
    classes and attributes: boxes are in pixels.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with path.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
        count = first.count(b"\t") + 1
        if count not in _COLUMNS:
            found = f"has {count} {'column' if count == 1 else 'columns'}" if first else "is empty"
            fix = f"expected {' or '.join(', '.join(form) for form in _COLUMNS.values())}, separated by tabs"
            raise FileError(file_problem(path, found, fix))
        self.columns = _COLUMNS[count]

    @cached_property
    def fingerprint(self) -> str:
        with self.path.open("rb") as file:
            start = file.read(_SAMPLE)
            size = file.seek(0, SEEK_END)
            file.seek(max(0, size - _SAMPLE))
            return f"tsv-{_digest(size, start, file.read())}"

    @cached_property
    def _lines(self) -> Mapping[str, _Place]:
        status = self.path.stat()
        return _lines_of(self.path.absolute(), self.columns, status.st_size, status.st_mtime_ns)

    def ids(self) -> Iterable[str]:
        return self._lines

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        offset, length = self._lines[image_id]
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                values = file.read(length).rstrip(b"\r\n").split(b"\t")
        except OSError as error:
            raise refused(f"it cannot be read ({error.strerror})") from None
        if values[0].strip() != image_id.encode():
            raise refused("its line is no longer there", "open the file again, which has changed")
        if len(values) != len(self.columns):
            fix = f"expected {', '.join(self.columns)}; write it again"
            raise refused(f"its line has {len(values)} columns", fix)
        columns = {name: _cell(name, value) for name, value in zip(self.columns, values, strict=True)}
        n = columns["num_boxes"]
        if not 1 <= n <= MOST_BOXES:
            raise refused(f"is {n}", f"expected 1 to {MOST_BOXES:,}", index=("num_boxes",))
        arrays: dict[str, Any] = {}
        for name in {"boxes", "features", "objects_conf"} & columns.keys():
            if columns[name].size % n:
                found = f"the array has {columns[name].nbytes:,} bytes"
                raise refused(found, f"expected float32 of shape ({n}, d)", index=(name,))
            arrays[name] = columns[name].reshape(n, -1)
        if "objects_conf" in arrays:
            arrays["scores"] = arrays.pop("objects_conf")[:, 0]
        sides = [name for side in "wh" for name in self.columns if name.endswith(f"_{side}")]
        return {**arrays, "size": [columns[name] for name in sides]}


def _cell(name: str, value: bytes) -> Any:
    """An id, a whole number, or the numbers of an array; classes and attributes are not read."""
    with within("", name):
        if name in ("boxes", "features", "objects_conf"):
            return _from_base64(value.strip())
        if name.endswith(("_w", "_h", "_boxes")):
            if not re.fullmatch(rb"\s*[0-9]{1,7}\s*", value):
                shown = ascii(value[:20].decode(errors="replace"))
                raise refused(f"is {shown}", "expected a whole number")
            return int(value)
        return value


@lru_cache(maxsize=4)
def _lines_of(path: Path, columns: tuple[str, ...], size: int, time: int) -> Mapping[str, _Place]:
    """By id, where its line begins, and its length; kept while size and time of the file stay the same:
    such files have gigabytes."""
    lines: dict[str, _Place] = {}
    offset = 0
    with path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, start=1):
            image_id = line.split(b"\t", 1)[0].strip().decode(errors="replace")
            if number == 1 and image_id == columns[0]:
                names = [name.strip() for name in line.decode(errors="replace").split("\t")]
                if names != list(columns):  # such as the height before the width
                    found = f"has the columns {ascii(', '.join(names))[1:201]}"
                    raise FileError(file_problem(path, found, f"expected {', '.join(columns)}"))
            elif line.strip(b"\r\n"):
                if not 0 < len(image_id) <= _LONGEST_ID or "\ufffd" in image_id:
                    found = f"line {number} is not a line of an image, which begins with its id"
                    raise FileError(file_problem(path, found, f"expected {', '.join(columns)}"))
                if image_id in lines:
                    found = f"the id {image_id!r} comes twice"
                    raise FileError(file_problem(path, found, "keep one of each"))
                lines[image_id] = offset, len(line)
            offset += len(line)
    return lines


def _from_base64(value: bytes | str) -> NDArray[np.float32]:
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    except ValueError as error:
        raise refused(f"the base64 is damaged ({error})", "write it again") from None


# ---- 12-in-1's pickles, of which every name stands for a function of this file or of NumPy's arrays

_RELEASED = "12-in-1's LMDB, an .npy file of its extract_features.py, or a folder of these"
_ALIASES = {
    "boxes": ("boxes", "bbox"),
    "features": ("features",),
    "width": ("image_w", "image_width"),
    "height": ("image_h", "image_height"),
}
_OF_NUMPY = {
    "dtype": np.dtype,
    "ndarray": np.ndarray,
    "scalar": np.float32(0).__reduce__()[0],
    "_reconstruct": np.zeros(1).__reduce__()[0],
    "_frombuffer": np.zeros(1).__reduce_ex__(5)[0],
}
_OTHERS = {
    ("_codecs", "encode"): lambda text, _: text.encode("latin-1"),
    **{(module, "bytes"): bytes for module in ("builtins", "__builtin__")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _OF_NUMPY:
            return _OF_NUMPY[name]
        if (module, name) in _OTHERS:
            return _OTHERS[module, name]
        shown = ascii(f"{module[:60]}.{name[:60]}")[1:-1]  # without control characters of a terminal
        raise refused(f"the pickle names {shown}", "expected NumPy arrays, dicts, texts and numbers only")


def _load_plain(data: bytes) -> Any:
    """What a pickle of plain data holds; nothing that it names is run.

    >>> _load_plain(pickle.dumps({"boxes": np.ones((1, 4), np.float32), "image_id": 42}))["image_id"]
    42
    >>> _load_plain(pickle.dumps(len))
    Traceback (most recent call last):
    capeval_core.inputs.images.ImageError: the pickle names builtins.len: expected NumPy arrays, dicts, texts
    and numbers only
    """
    try:
        value = _Unpickler(BytesIO(data), encoding="latin-1").load()
        return value.item() if isinstance(value, np.ndarray) and value.dtype == object else value
    except ImageError:
        raise
    except Exception as error:  # a damaged file may trip over anything
        fix = "write or download it again"
        raise refused(f"the pickle is damaged ({short_reason(error)})", fix) from None


class BoxPickles(BoxFeatureStore):
    """Features that 12-in-1 released: https://github.com/facebookresearch/vilbert-multi-task, whose
    `extract_features.py` writes an `.npy` per image, which is a dict, and `convert_to_lmdb.py` an LMDB of
    pickled dicts; older ones hold base64.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._read: dict[str, Callable[[], bytes]] = {}
        with _readable(path, _RELEASED):
            if databases := _databases_at(path):
                database = _Database(_chosen(path, databases))
                for key in database.names():
                    self._read[key.decode(errors="replace")] = partial(database.read, key)
                self._fingerprint = database.digest()
            else:
                files = sorted(path.glob("*.npy")) if path.is_dir() else [path] * (path.suffix == ".npy")
                self._read = {file.stem: partial(_pickle_in, file) for file in files}
                self._fingerprint = f"npy-{_digest([(file.name, file.stat().st_size) for file in files])}"
        if not self._read:
            raise FileError(file_problem(path, "holds no such features", f"expected {_RELEASED}"))

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def ids(self) -> Iterable[str]:
        return self._read

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """All boxes, also those behind `num_boxes`, without confidence: the release's networks read them
        too. Confidences are not stored."""
        if not image_id.isprintable() or set(image_id) & set("/\\\ufffd") or image_id[:1] in ("", "."):
            raise refused("its id can name no file", "give the image another id")
        content = _load_plain(self._read[image_id]())
        if not isinstance(content, dict):
            raise refused(f"the pickle is {described(content)}", "expected a dict of box features")
        given = {
            name: next((content[k] for k in keys if k in content), None) for name, keys in _ALIASES.items()
        }
        if missing := [" or ".join(_ALIASES[name]) for name, value in given.items() if value is None]:
            raise refused(f"there is no {', no '.join(missing)}", f"expected {_RELEASED}")
        boxes, features = (
            np.asarray(_from_base64(value) if isinstance(value, (str, bytes)) else value)
            for value in (given["boxes"], given["features"])
        )
        if boxes.ndim == 1 and boxes.size % 4 == 0:
            boxes = boxes.reshape(-1, 4)
        if features.ndim == 1 and len(boxes) and features.size % len(boxes) == 0:
            features = features.reshape(len(boxes), -1)
        return {"boxes": boxes, "features": features, "size": (given["width"], given["height"])}


def _pickle_in(path: Path) -> bytes:
    """The pickle in an `.npy` file of one object."""
    data = read_file(str(path), "file of boxes")
    file = BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")(file)
    except Exception as error:  # numpy raises whatever the damaged part trips over
        found = f"it is not an .npy file, or damaged ({short_reason(error)})"
        raise refused(found, "write it again") from None
    return data[file.tell() :]
