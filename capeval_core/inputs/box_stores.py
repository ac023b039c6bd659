"""Box features of many images: .npz files, UNITER's LMDB, a .tsv of bottom-up attention or LXMERT, and for
`capeval convert box-features` alone the pickles of 12-in-1.

Ids are listed without reading features, and features of an image are read when they are needed.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from hashlib import blake2b
from io import SEEK_END, BytesIO
from numbers import Integral
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, described, file_error
from capeval_core.inputs.boxes import (
    MOST_BOXES,
    NAMES,
    OPTIONAL,
    PER_BOX,
    REQUIRED,
    Boxes,
    BoxFeatures,
    checked,
    npz_arrays,
)
from capeval_core.inputs.folder import Names, names_in
from capeval_core.inputs.images import (
    File,
    ImageError,
    Source,
    Visual,
    quoted,
    read_file,
    refused,
    short_reason,
    within,
)
from capeval_core.inputs.text_files import load_json
from capeval_core.project import install_command

_FORMS = (
    "a folder of .npz files (one per image, named by its id), UNITER's LMDB, or a bottom-up-attention .tsv"
)
_RELEASED = "12-in-1's LMDB, an .npy file of its extract_features.py, or a folder of these"
EXTENSION = ".npz"
_AGAIN = "write or download it again"


class BoxFeatureStore(Mapping[str, Source[BoxFeatures]]):
    """Image id -> the source of its box features. It may be pickled and used from several threads."""

    selection: str | None = None
    """The rule that chose the boxes, where that is known."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def open(path: str | os.PathLike[str]) -> BoxFeatureStore:
        """The store at a path, whose form shows there. Raises FileError."""
        path = Path(path)
        with _readable(path, _FORMS):
            if databases := _databases_at(path):
                return _UniterDatabase(path, databases)
            if path.is_dir() and any(entry.suffix == EXTENSION for entry in path.iterdir()):
                return _NpzFolder(path)
            if path.suffix.lower() == ".tsv" and path.is_file():
                return _Lines(path)
        fix = "pass the folder that it lies in" if path.suffix == EXTENSION else f"expected {_FORMS}"
        known = path.is_dir() or path.is_file()  # a pipe could block for ever
        raise file_error(path, "has no box features of a known form" if known else "is no regular file", fix)

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """It changes with what is stored, as far as sizes and samples show."""

    @cached_property
    @abstractmethod
    def entries(self) -> Mapping[str, Any]:
        """By id, where its features lie."""

    @abstractmethod
    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image; what it raises says why they cannot be read."""

    @property
    def name(self) -> str:
        """In signatures."""
        return f"precomputed:{self.path.name}"

    @cached_property
    def _names(self) -> Names:
        return Names(self.entries)

    def __getitem__(self, image_id: str) -> Source[BoxFeatures]:
        if image_id not in self.entries:
            raise KeyError(image_id)
        return _Entry(self, image_id)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.entries)

    def find(self, image_id: str) -> Source[BoxFeatures]:
        """The source of an id, however it is written; a path is looked up by its last part."""
        matches = self._names.find(image_id) or self._names.find(re.split(r"[/\\]", image_id)[-1])
        if len(matches) == 1:
            return self[matches[0]]
        if matches:
            several = " and ".join(map(repr, matches[:3]))
            found = f"the id {quoted(image_id)} is ambiguous, it can mean {several}"
            raise refused(found, "write it in full")
        such = f", such as {self._names.entries[0]!r}" if len(self) else ""
        found = f"there are no box features of {quoted(image_id)} among the {len(self):,} of {self.path}"
        raise refused(found + such, "compute them, or correct the id")


class _Entry(Boxes):
    """One image's box features in a store. What is wrong with them names the image's id and the store."""

    __slots__ = ("image_id", "store")

    def __init__(self, store: BoxFeatureStore, image_id: str) -> None:
        super().__init__(None)
        self.store, self.image_id = store, image_id

    @property
    def name(self) -> str:
        return f"{self.image_id!r} of {self.store.path}"

    def decode(self, reduced: bool = False) -> BoxFeatures:
        try:
            return Boxes.decode(self, reduced)
        except ImageError as error:
            (problem,) = error.problems
            found = f"{self.name}: {problem.found}"
            raise refused(found, problem.fix, index=error.index, kind=problem.kind) from None

    def read(self) -> Mapping[str, Any]:
        try:
            return self.store.arrays(self.image_id)
        except ImageError:
            raise
        except Exception as error:  # numpy, LMDB and others raise whatever the damaged part trips over
            raise refused(f"its entry is damaged ({short_reason(error)})", _AGAIN) from None


def id_of(image: Any) -> str:
    """The id that a value is, or the path that it has. Raises ImageError."""
    if isinstance(image, Visual) and isinstance(image.source, File) and image.source.on_disk:
        return image.source.path
    if isinstance(image, (str, os.PathLike)):
        if name := os.fsdecode(image):
            return name
        raise refused("is an empty id", "write the image's id")
    if isinstance(image, Integral) and not isinstance(image, bool):
        return str(int(image))
    value = image.name if isinstance(image, Visual) else described(image)
    raise refused(f"is {value}", "with precomputed box features, images are ids or paths", kind=TypeError)


@contextmanager
def _readable(path: Path, forms: str) -> Iterator[None]:
    """Let errors of the system, and a path that is not there, name the path."""
    if not path.exists():
        raise file_error(path, "there is no such file or folder", f"expected {forms}")
    try:
        yield
    except OSError as error:
        raise file_error(path, f"cannot be read ({error.strerror})") from None


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
    """What made the files of a folder; `selection`: the rule of which boxes are kept."""

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
        content, names = load_json(path), [spec.name for spec in fields(cls)]
        if not isinstance(content, dict) or content.get("format") != 1 or not content.keys() >= {*names}:
            found = f"is no file of `capeval regions` of this version (format 1: {', '.join(names)})"
            raise file_error(path, found, "name another folder, or delete that file")
        return cls(*(str(content[name]) for name in names))


class _NpzFolder(BoxFeatureStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.manifest = Manifest.read(path)
        self.selection = None if self.manifest is None else self.manifest.selection

    @cached_property
    def entries(self) -> Mapping[str, Path]:
        return _files_in(self.path, EXTENSION)

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        return npz_arrays(read_file(str(self.entries[image_id]), "file of boxes"), "its file")

    @cached_property
    def fingerprint(self) -> str:
        sizes = [(image_id, path.stat().st_size) for image_id, path in sorted(self.entries.items())]
        return f"npz-{_digest(self.manifest, sizes)}"


def _files_in(folder: Path, ending: str) -> dict[str, Path]:
    return {name.removesuffix(ending): folder / name for name in names_in(folder) if name.endswith(ending)}


def npz_bytes(found: BoxFeatures, image_key: str) -> bytes:
    """The content of such a file, exact, with the content key of the image that the boxes are of."""
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


# ---- LMDB

_KEYS = (b"__keys__", b"keys")
"""Entries that list all keys, of UNITER and of 12-in-1."""
_RULE = "th0.2_max100_min10"
_PUBLISHED = "bua10_100"
"""Of the published model, in the database's name and in ours: boxes of a score above 0.2, from 10 to 100."""
_COUNTED = re.compile(r"feat_(th.+?)(?:_compressed)?")
_FIXED = re.compile(r"feat_numbb([1-9][0-9]{0,3})(?:_compressed)?")
_OPENED: dict[str, tuple[object, Any]] = {}
"""By path, the LMDB and the state of its file: LMDB opens one once per process."""
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


class _Database(BoxFeatureStore):
    """An LMDB of an entry per image, or the published one of several databases."""

    def __init__(self, path: Path, databases: list[Path]) -> None:
        super().__init__(path)
        try:  # now, not at the first entry that needs one
            import lmdb  # noqa: F401
            import lz4.frame  # noqa: F401
            import msgpack  # noqa: F401
        except ImportError as error:
            found = f"an LMDB of box features needs the package {error.name}: {install_command('lmdb')}"
            raise FileError(found) from None
        by_name = {data.parent.name: data for data in databases}
        preferred = [f"feat_{_RULE}_compressed", f"feat_{_RULE}", "all_compressed", "all"]
        chosen = [by_name[name] for name in preferred if name in by_name] or databases
        if len(chosen) > 1 and chosen is databases:
            names = ", ".join(map(repr, sorted(by_name)))
            raise file_error(path, f"holds several databases ({names})", "pass the path of one of them")
        self.data = chosen[0]

    @cached_property
    def entries(self) -> Mapping[str, bytes]:
        with _environment(self.data).begin() as transaction:
            keys = [bytes(key) for key in transaction.cursor().iternext(values=False)]
        return {key.decode(errors="replace"): key for key in keys if key not in _KEYS}

    def value(self, image_id: str) -> bytes:
        with _environment(self.data).begin() as transaction:
            return bytes(transaction.get(self.entries[image_id]))

    def digest(self, *more: object) -> str:
        """Of the last commit, the last page and the number of entries."""
        environment = _environment(self.data)
        info, entries = environment.info(), environment.stat()["entries"]
        return f"lmdb-{_digest(info['last_txnid'], info['last_pgno'], entries, *more)}"


def _environment(data: Path) -> Any:
    """The LMDB of a data file. Raises FileError: to read behind the end of one would kill the process."""
    path, status = os.path.realpath(data), data.stat()
    state = status.st_ino, status.st_size, status.st_mtime_ns
    with _OPENING:
        before, environment = _OPENED.get(path, (None, None))
        if before != state:
            if environment is not None:
                _OPENED.pop(path)[1].close()
            _OPENED[path] = state, _opened(path, status.st_size)
        return _OPENED[path][1]


def _opened(path: str, size: int) -> Any:
    import lmdb

    try:
        environment = lmdb.open(path, subdir=False, readonly=True, lock=False, create=False, readahead=False)
    except lmdb.Error as error:
        raise file_error(path, f"is no LMDB, or cut off ({error})", _AGAIN) from None
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < needed:
        environment.close()
        raise file_error(path, f"is cut off: it has {size:,} of {needed:,} bytes", _AGAIN)
    return environment


class _UniterDatabase(_Database):
    """An LMDB of https://github.com/ChenRocks/UNITER: by name of an image's `.npz` that file, or a map in
    msgpack (also in a frame of lz4) whose arrays, in float16, are maps with `type`, `shape` and `data`.

    Where the number of boxes of an image is given beside the database, or in its name, that many are read and
    no more chosen: scores are rounded, and could choose others.
    """

    def __init__(self, path: Path, databases: list[Path]) -> None:
        super().__init__(path, databases)
        self.rule, self.counts = _read_counts(self.data.parent)
        self.selection = self.rule if self.counts else None

    @cached_property
    def entries(self) -> Mapping[str, bytes]:
        names, counted = super().entries, self.counts if isinstance(self.counts, dict) else {}
        if counted and counted.keys().isdisjoint(names):
            found = f"the numbers of boxes beside it are of other images: {next(iter(counted))!r}"
            raise file_error(self.data, found, "expected UNITER's image database")
        if twice := [name for name in names if f"{name}{EXTENSION}" in names]:
            found = f"the id {twice[0]!r} comes twice"
            raise file_error(self.data, found, "expected UNITER's image database")
        return {name.removesuffix(EXTENSION): key for name, key in names.items()}

    @cached_property
    def fingerprint(self) -> str:
        return self.digest(self.counts)

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        data = self.value(image_id)
        if data[:1] == b"\x80" and len(data) > 1:
            fix = "convert them once: capeval convert box-features DATABASE --out FOLDER"
            raise refused("its entry is a pickle, as 12-in-1 releases features", fix)
        arrays = npz_arrays(data, "its entry") if data.startswith(b"PK\x03\x04") else _unpacked(data)
        name = self.entries[image_id].decode()
        n = self.counts if isinstance(self.counts, int) else self.counts.get(name)
        if n is None:
            return arrays
        cut = {name: array[:n] for name, array in arrays.items() if name in PER_BOX and array.ndim}
        return {**arrays, **cut, "selection": np.array(self.rule)}


def _read_counts(folder: Path) -> tuple[str, dict[str, int] | int]:
    """The rule in a database's name, and the boxes per image: all the same, or by key in a file beside it."""
    if fixed := _FIXED.fullmatch(folder.name):
        return f"first {fixed[1]}", int(fixed[1])
    counted = _COUNTED.fullmatch(folder.name)
    rule = counted[1] if counted else _RULE
    name, published = f"nbb_{rule}.json", _PUBLISHED if rule == _RULE else rule
    for path in (folder.parent / name, folder / name):
        if path.is_file():
            counts = load_json(path, once="keep one of them")
            numbers = counts.values() if isinstance(counts, dict) else [None]
            if not all(type(n) is int and 1 <= n <= MOST_BOXES for n in numbers):
                fix = f"expected {{name: number of boxes}}, from 1 to {MOST_BOXES:,}"
                raise file_error(path, "holds something else than numbers of boxes", fix)
            return published, counts
    return published, {}


def _unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a map in msgpack; what is no array of numbers is not looked into."""
    import lz4.frame
    import msgpack.fallback

    if data.startswith(b"\x04\x22\x4d\x18"):
        data = lz4.frame.decompress(data)
    # Not `msgpack.unpackb`: `msgpack_numpy.patch()` has that decode arrays, and unpickle.
    content = msgpack.fallback.unpackb(data, raw=True)
    arrays = {}
    for name in NAMES:
        if (packed := content.get(name.encode())) is not None:
            try:
                dtype = np.dtype(packed[b"type"].decode())
                arrays[name] = np.frombuffer(packed[b"data"], dtype).reshape(packed[b"shape"])
            except Exception as error:  # numpy raises whatever the damaged part trips over
                raise refused(f"is damaged ({short_reason(error)})", _AGAIN, index=(name,)) from None
    return arrays


# ---- a .tsv of bottom-up attention: one line per image, arrays of float32 in base64

_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_SAMPLE = 1 << 16


class _Lines(BoxFeatureStore):
    """A `.tsv` file as https://github.com/peteanderson80/bottom-up-attention writes it, or LXMERT."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with path.open("rb") as file:
            first = file.readline()
        forms = {len(columns): columns for columns in (_BOTTOM_UP, _LXMERT)}
        count = first.count(b"\t") + 1
        if count not in forms:
            fix = f"expected {' or '.join(', '.join(form) for form in forms.values())}, separated by tabs"
            raise file_error(path, f"has {count if first else 'no'} columns", fix)
        self.columns = forms[count]

    @cached_property
    def fingerprint(self) -> str:
        with self.path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            ends = [file.seek(start) or file.read(_SAMPLE) for start in (0, max(0, size - _SAMPLE))]
        return f"tsv-{_digest(size, *ends)}"

    @cached_property
    def entries(self) -> Mapping[str, tuple[int, int]]:
        status = self.path.stat()
        return _lines_of(self.path.absolute(), self.columns, status.st_size, status.st_mtime_ns)

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        offset, length = self.entries[image_id]
        with self.path.open("rb") as file:
            file.seek(offset)
            values = file.read(length).rstrip(b"\r\n").split(b"\t")
        if values[0].strip() != image_id.encode():
            raise refused("its line is no longer there", "open the file again, which has changed")
        columns = dict(zip(self.columns, values, strict=True))
        sides = [int(columns[name]) for suffix in "wh" for name in columns if name.endswith(f"_{suffix}")]
        arrays: dict[str, Any] = {"size": sides}
        for name in {"boxes", "features", "objects_conf"} & columns.keys():
            with within("", name):
                arrays[name] = _from_base64(columns[name].strip(), int(columns["num_boxes"]))
        if "objects_conf" in arrays:
            arrays["scores"] = arrays.pop("objects_conf")[:, 0]
        return arrays


@lru_cache(maxsize=4)
def _lines_of(path: Path, columns: tuple[str, ...], size: int, time: int) -> Mapping[str, tuple[int, int]]:
    """By id, where its line begins, and its length; kept while the file is the same: it has gigabytes."""
    lines: dict[str, tuple[int, int]] = {}
    offset = 0
    with path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, start=1):
            image_id, wrong = line.split(b"\t", 1)[0].strip().decode(errors="replace"), ""
            if number == 1 and image_id == columns[0]:
                names = [name.strip() for name in line.decode(errors="replace").split("\t")]
                if names != list(columns):  # such as the height before the width
                    wrong = f"has the columns {ascii(', '.join(names))[1:201]}"
            elif line.strip(b"\r\n"):
                if not image_id or "\ufffd" in image_id:
                    wrong = f"line {number} is not a line of an image, which begins with its id"
                elif image_id in lines:
                    wrong = f"the id {image_id[:200]!r} comes twice"
                lines[image_id] = offset, len(line)
            if wrong:
                raise file_error(path, wrong, f"expected one line of {', '.join(columns)} each")
            offset += len(line)
    return lines


def _from_base64(value: bytes | str, rows: int | None = None) -> NDArray[np.float32]:
    try:
        array = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
        return array if rows is None else array.reshape(rows, -1)
    except ValueError as error:
        raise refused(f"the base64 is damaged, or of another number of boxes ({error})", _AGAIN) from None


# ---- 12-in-1's pickles, of which every name stands for a function of this file or of NumPy's arrays

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
    """For pickles of plain data; nothing that they name is run."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in _OF_NUMPY:
            return _OF_NUMPY[name]
        if (module, name) in _OTHERS:
            return _OTHERS[module, name]
        shown = ascii(f"{module[:60]}.{name[:60]}")[1:-1]  # without control characters of a terminal
        raise refused(f"the pickle names {shown}", "expected NumPy arrays, dicts, texts and numbers only")


class _ReleasedDatabase(_Database):
    @cached_property
    def fingerprint(self) -> str:
        return self.digest()

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        return _released(image_id, BytesIO(self.value(image_id)))


class _ReleasedFiles(BoxFeatureStore):
    @cached_property
    def entries(self) -> Mapping[str, Path]:
        if self.path.is_dir():
            return _files_in(self.path, ".npy")
        return {self.path.stem: self.path} if self.path.suffix == ".npy" else {}

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        file = BytesIO(read_file(str(self.entries[image_id])))
        version = np.lib.format.read_magic(file)
        getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")(file)
        return _released(image_id, file)

    @cached_property
    def fingerprint(self) -> str:
        files = sorted(self.entries.values())
        return f"npy-{_digest([(file.name, file.stat().st_size) for file in files])}"


def released_boxes(path: Path) -> BoxFeatureStore:
    """Features of https://github.com/facebookresearch/vilbert-multi-task: `extract_features.py` writes an
    `.npy` per image, which is a dict, `convert_to_lmdb.py` an LMDB of pickled dicts; older ones hold
    base64."""
    with _readable(path, _RELEASED):
        databases = _databases_at(path)
        store = _ReleasedDatabase(path, databases) if databases else _ReleasedFiles(path)
        if store.entries:
            return store
    raise file_error(path, "holds no such features", f"expected {_RELEASED}")


def _released(image_id: str, file: IO[bytes]) -> Mapping[str, Any]:
    """The arrays of a pickle: all boxes, also those behind `num_boxes`, which the release's networks read."""
    if not image_id.isprintable() or set(image_id) & set("/\\\ufffd") or image_id[:1] in ("", "."):
        raise refused("its id can name no file", "give the image another id")
    content = _Unpickler(file, encoding="latin-1").load()
    if isinstance(content, np.ndarray) and content.dtype == object:
        content = content.item()
    if not isinstance(content, dict):
        raise refused(f"the pickle is {described(content)}", "expected a dict of box features")

    def one_of(*names: str) -> Any:
        for name in names:
            if name in content:
                return content[name]
        raise refused(f"there is no {' or '.join(names)}", f"expected {_RELEASED}")

    boxes, features = (
        np.asarray(_from_base64(value) if isinstance(value, (str, bytes)) else value)
        for value in (one_of("boxes", "bbox"), one_of("features"))
    )
    boxes = boxes.reshape(-1, 4) if boxes.ndim == 1 else boxes
    features = features.reshape(len(boxes), -1) if features.ndim == 1 else features
    size = one_of("image_w", "image_width"), one_of("image_h", "image_height")
    return {"boxes": boxes, "features": features, "size": size}
