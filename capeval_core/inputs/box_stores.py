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
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from io import SEEK_END, BytesIO
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, described, file_error, refuse_nul
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
    InputImage,
    Source,
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
_EXTENSION = ".npz"
_AGAIN = "write or download it again"


@dataclass(eq=False)
class BoxFeatureStore(Mapping[str, Source[BoxFeatures]]):
    """Image id -> the source of its box features. It may be pickled and used from several threads.

    listed: by id, what `read` makes arrays of. digest: changes with what is stored, as far as sizes and
    samples show. selection: the rule that chose the boxes, where that is known.
    """

    path: Path
    listed: Callable[[], Mapping[str, Any]]
    read: Callable[[str, Any], Mapping[str, Any]]
    digest: Callable[[], str]
    selection: str | None = None

    @staticmethod
    def open(path: str | os.PathLike[str]) -> BoxFeatureStore:
        """The store at a path, whose form shows there. Raises FileError."""
        path = Path(path)
        refuse_nul(path)
        with _readable(path, _FORMS):
            if found := _databases_at(path):
                return _lmdb_store(path, _chosen(path, found))
            if path.is_dir() and any(entry.suffix == _EXTENSION for entry in path.iterdir()):
                manifest = Manifest.read(path)
                digest, selection = partial(_digest_of_folder, path, manifest), None
                if manifest is not None:
                    selection = manifest.selection
                return BoxFeatureStore(path, partial(_files_in, path), _read_npz, digest, selection)
            if path.suffix.lower() == ".tsv" and path.is_file():
                return _tsv_store(path)
        fix = "pass the folder that it lies in" if path.suffix == _EXTENSION else f"expected {_FORMS}"
        known = path.is_dir() or path.is_file()  # a pipe could block for ever
        raise file_error(path, "has no box features of a known form" if known else "is no regular file", fix)

    @property
    def name(self) -> str:
        """In signatures."""
        return f"precomputed:{self.path.name}"

    @cached_property
    def fingerprint(self) -> str:
        return self.digest()

    @cached_property
    def _names(self) -> Names:
        return Names(self._entries)

    @cached_property
    def _entries(self) -> Mapping[str, Any]:
        return self.listed()

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of one of the ids, by name. Raises ImageError."""
        return self.read(image_id, self._entries[image_id])

    def __getitem__(self, image_id: str) -> Source[BoxFeatures]:
        if image_id not in self._names:
            raise KeyError(image_id)
        return _StoredEntry(self, image_id)

    def __len__(self) -> int:
        return len(self._names.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.entries)

    def find(self, image_id: str) -> Source[BoxFeatures]:
        """The source of an id, however it is written; a path is looked up by its last part."""
        last = image_id.replace("\\", "/").rpartition("/")[2]
        matches = self._names.find(image_id) or self._names.find(last)
        if len(matches) == 1:
            return self[matches[0]]
        if matches:
            several = " and ".join(map(repr, matches[:3]))
            found = f"the id {quoted(image_id)} is ambiguous, it can mean {several}"
            raise refused(found, "write it in full")
        ids = self._names.entries
        at = bisect(ids, last)
        near = ", ".join(map(repr, ids[max(0, at - 1) : at + 1]))
        found = f"there are no box features of {quoted(image_id)} among the {len(ids):,} of {self.path}"
        raise refused(found + f", the nearest: {near}" * bool(ids), "compute them, or correct the id")


def id_of(image: Any) -> str:
    """The id that a value is, or the path that it has. Raises ImageError."""
    if isinstance(image, InputImage) and isinstance(image.source, File) and image.source.on_disk:
        return image.source.path
    if isinstance(image, (str, os.PathLike)):
        if name := os.fsdecode(image):
            return name
        raise refused("is an empty id", "write the image's id")
    if isinstance(image, Integral) and not isinstance(image, bool):
        return str(int(image))
    value = image.name if isinstance(image, InputImage) else described(image)
    raise refused(f"is {value}", "with precomputed box features, images are ids or paths", kind=TypeError)


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
            raise file_error(path, found, "name another folder, or delete that file")
        return cls(*(content[name] for name in names))


def _files_in(folder: Path) -> dict[str, Path]:
    ids = [name.removesuffix(_EXTENSION) for name in names_in(folder) if name.endswith(_EXTENSION)]
    return {image_id: file_of(folder, image_id) for image_id in ids}


def _read_npz(image_id: str, path: Path) -> Mapping[str, Any]:
    return npz_arrays(read_file(str(path), "file of boxes"), "its file")


def _digest_of_folder(folder: Path, manifest: Manifest | None) -> str:
    sizes = [(image_id, path.stat().st_size) for image_id, path in sorted(_files_in(folder).items())]
    return f"npz-{_digest(manifest, sizes)}"


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
_OPENED: dict[str, tuple[object, Any]] = {}
"""Databases by path, each with the state of its file: LMDB opens a file once per process."""
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


def _environment(data: Path) -> Any:
    """The LMDB of a data file, read only. Raises FileError, also where it is cut off: LMDB would read behind
    its end, which kills the process."""
    lmdb, real, status = _imported("lmdb"), os.path.realpath(data), data.stat()
    state = status.st_ino, status.st_size, status.st_mtime_ns
    settings = {"subdir": False, "readonly": True, "lock": False, "create": False, "readahead": False}
    with _OPENING:
        before, environment = _OPENED.get(real, (None, None))
        if before != state:
            if environment is not None:
                del _OPENED[real]
                environment.close()
            try:
                environment = lmdb.open(real, **settings)
            except lmdb.Error as error:
                raise file_error(data, f"is no LMDB, or cut off ({error})", _AGAIN) from None
            needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            if status.st_size < needed:
                environment.close()
                raise file_error(data, f"is cut off: it has {status.st_size:,} of {needed:,} bytes", _AGAIN)
            _OPENED[real] = state, environment
        return environment


def _keys_in(data: Path) -> list[bytes]:
    try:
        with _environment(data).begin() as transaction:
            keys = transaction.cursor().iternext(values=False)
            return [bytes(key) for key in keys if key not in _KEYS]
    except _imported("lmdb").Error as error:
        raise file_error(data, f"cannot be read ({error})", _AGAIN) from None


def _digest_of_lmdb(data: Path, *more: object) -> str:
    """Of the last commit, the last page and the number of entries."""
    environment = _environment(data)
    info, entries = environment.info(), environment.stat()["entries"]
    return f"lmdb-{_digest(info['last_txnid'], info['last_pgno'], entries, *more)}"


def _value_of(data: Path, key: bytes) -> bytes:
    """The value of a key. Raises ImageError."""
    try:
        with _environment(data).begin() as transaction:
            value = transaction.get(key)
    except _imported("lmdb").Error as error:
        raise refused(f"its entry cannot be read ({error})", "write the database again") from None
    if value is None:
        raise refused("its entry is gone", "open the database again")
    return bytes(value)


def _lmdb_store(path: Path, data: Path) -> BoxFeatureStore:
    """An LMDB of box features; of several in a folder that of the published rule.

    https://github.com/ChenRocks/UNITER: the key is the name of the image's `.npz`; the value is that file, or
    a map in msgpack whose arrays are maps with `nd`, `type`, `shape` and `data` (also in a frame of lz4).
    Arrays that were float32 are in float16. Where the number of boxes of an image is given beside the
    database, or in its name, that many are read and no more chosen: scores are rounded, and could choose
    others.
    """
    for package in ("lmdb", "lz4.frame", "msgpack"):  # now, not at the first entry that needs one
        _imported(package)
    rule, counts = _read_counts(data.parent)
    listed, read = partial(_keys_by_id, data, counts), partial(_read_entry, data, rule, counts)
    digest, selection = partial(_digest_of_lmdb, data, counts), rule if counts else None
    return BoxFeatureStore(path, listed, read, digest, selection)


def _keys_by_id(data: Path, counts: dict[str, int] | int) -> dict[str, bytes]:
    keys = _keys_in(data)
    names = [key.decode(errors="replace") for key in keys]
    found = {name.removesuffix(_EXTENSION): key for name, key in zip(names, keys, strict=True)}
    wrong = ""
    if odd := [name for name in names if "\ufffd" in name]:
        wrong = f"has the key {odd[0][:40]!r}, which is no name of an image"
    elif isinstance(counts, dict) and counts and not counts.keys() & set(names):
        wrong = f"the numbers of boxes beside it are of other images: {next(iter(counts))!r}"
    elif len(found) < len(names):
        twice = next(name for name in names if f"{name}{_EXTENSION}" in names)
        wrong = f"the id {twice!r} comes twice"
    if wrong:
        raise file_error(data, wrong, "expected UNITER's image database")
    return found


def _read_entry(
    path: Path, rule: str, counts: dict[str, int] | int, image_id: str, key: bytes
) -> Mapping[str, Any]:
    data = _value_of(path, key)
    if data[:1] == b"\x80" and len(data) > 1:
        fix = "convert them once: capeval convert box-features DATABASE --out FOLDER"
        raise refused("its entry is a pickle, as 12-in-1 releases features", fix)
    arrays = npz_arrays(data, "its entry") if data.startswith(b"PK\x03\x04") else _unpacked(data)
    n = counts if isinstance(counts, int) else counts.get(key.decode())
    if n is None:
        return arrays
    cut = {name: array[:n] for name, array in arrays.items() if name in PER_BOX and array.ndim}
    return {**arrays, **cut, "selection": np.array(rule)}


def _unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a map in msgpack; what is no array of numbers is not looked into."""
    index: tuple[str, ...] = ()
    try:
        if data.startswith(b"\x04\x22\x4d\x18"):
            data = _imported("lz4.frame").decompress(data)
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
        raise refused(f"its entry is damaged ({short_reason(error)})", _AGAIN, index=index) from None


def _chosen(path: Path, databases: list[Path]) -> Path:
    by_name = {data.parent.name: data for data in databases}
    preferred = [f"feat_{_RULE}_compressed", f"feat_{_RULE}", "all_compressed", "all"]
    for name in preferred if len(databases) > 1 else by_name:
        if name in by_name:
            return by_name[name]
    names = ", ".join(map(repr, sorted(by_name)))
    raise file_error(path, f"holds several databases ({names})", "pass the path of one of them")


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
        raise file_error(str(path), "holds something else than numbers of boxes", fix)
    return (_PUBLISHED if rule == _RULE else rule), counts


# ---- a .tsv of bottom-up attention: one line per image, arrays of float32 in base64

_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LXMERT = (
    *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
_COLUMNS = {len(columns): columns for columns in (_BOTTOM_UP, _LXMERT)}
_LONGEST_ID = 1_000
_SAMPLE = 1 << 16


def _tsv_store(path: Path) -> BoxFeatureStore:
    """A `.tsv` file as https://github.com/peteanderson80/bottom-up-attention writes it, or LXMERT."""
    with path.open("rb") as file:
        first = file.readline()
        size = file.seek(0, SEEK_END)
        ends = [file.seek(start) or file.read(_SAMPLE) for start in (0, max(0, size - _SAMPLE))]
    count = first.count(b"\t") + 1
    if count not in _COLUMNS:
        fix = f"expected {' or '.join(', '.join(form) for form in _COLUMNS.values())}, separated by tabs"
        raise file_error(path, f"has {count if first else 'no'} columns", fix)
    columns = _COLUMNS[count]
    status, digest = path.stat(), partial(str, f"tsv-{_digest(size, *ends)}")
    listed = partial(_lines_of, path.absolute(), columns, status.st_size, status.st_mtime_ns)
    return BoxFeatureStore(path, listed, partial(_read_line, path, columns), digest)


def _read_line(path: Path, names: tuple[str, ...], image_id: str, place: tuple[int, int]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            file.seek(place[0])
            values = file.read(place[1]).rstrip(b"\r\n").split(b"\t")
    except OSError as error:
        raise refused(f"it cannot be read ({error.strerror})") from None
    if values[0].strip() != image_id.encode():
        raise refused("its line is no longer there", "open the file again, which has changed")
    if len(values) != len(names):
        raise refused(f"its line has {len(values)} columns", f"expected {', '.join(names)}; {_AGAIN}")
    columns = dict(zip(names, values, strict=True))
    whole = {name: _whole(columns[name], name) for name in columns if name.endswith(("_w", "_h", "_boxes"))}
    n = whole.pop("num_boxes")
    if not 1 <= n <= MOST_BOXES:
        raise refused(f"is {n}", f"expected 1 to {MOST_BOXES:,}", index=("num_boxes",))
    arrays: dict[str, Any] = {"size": [whole[name] for name in sorted(whole, reverse=True)]}
    for name in {"boxes", "features", "objects_conf"} & columns.keys():
        with within("", name):
            numbers = _from_base64(columns[name].strip())
            if numbers.size % n:
                found = f"the array has {numbers.nbytes:,} bytes"
                raise refused(found, f"expected float32 of shape ({n}, d)")
            arrays[name] = numbers.reshape(n, -1)
    if "objects_conf" in arrays:
        arrays["scores"] = arrays.pop("objects_conf")[:, 0]
    return arrays


def _whole(value: bytes, name: str) -> int:
    if not re.fullmatch(rb"\s*[0-9]{1,7}\s*", value):
        shown = ascii(value[:20].decode(errors="replace"))
        raise refused(f"is {shown}", "expected a whole number", index=(name,))
    return int(value)


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
                if not 0 < len(image_id) <= _LONGEST_ID or "\ufffd" in image_id:
                    wrong = f"line {number} is not a line of an image, which begins with its id"
                elif image_id in lines:
                    wrong = f"the id {image_id!r} comes twice"
                lines[image_id] = offset, len(line)
            if wrong:
                raise file_error(path, wrong, f"expected one line of {', '.join(columns)} each")
            offset += len(line)
    return lines


def _from_base64(value: bytes | str) -> NDArray[np.float32]:
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    except ValueError as error:
        raise refused(f"the base64 is damaged ({error})", _AGAIN) from None


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
    """What a pickle of plain data holds; nothing that it names is run."""
    try:
        value = _Unpickler(BytesIO(data), encoding="latin-1").load()
        return value.item() if isinstance(value, np.ndarray) and value.dtype == object else value
    except ImageError:
        raise
    except Exception as error:  # a damaged file may trip over anything
        raise refused(f"the pickle is damaged ({short_reason(error)})", _AGAIN) from None


def released_store(path: Path) -> BoxFeatureStore:
    """Features that 12-in-1 released: https://github.com/facebookresearch/vilbert-multi-task, whose
    `extract_features.py` writes an `.npy` per image, which is a dict, and `convert_to_lmdb.py` an LMDB of
    pickled dicts; older ones hold base64.
    """
    entries: dict[str, Callable[[], bytes]] = {}
    with _readable(path, _RELEASED):
        if databases := _databases_at(path):
            data = _chosen(path, databases)
            for key in _keys_in(data):
                entries[key.decode(errors="replace")] = partial(_value_of, data, key)
            digest = _digest_of_lmdb(data)
        else:
            files = sorted(path.glob("*.npy")) if path.is_dir() else [path] * (path.suffix == ".npy")
            entries = {file.stem: partial(_pickle_in, file) for file in files}
            digest = f"npy-{_digest([(file.name, file.stat().st_size) for file in files])}"
    if not entries:
        raise file_error(path, "holds no such features", f"expected {_RELEASED}")
    return BoxFeatureStore(path, partial(dict, entries), _read_pickle, partial(str, digest))


def _read_pickle(image_id: str, stored: Callable[[], bytes]) -> dict[str, Any]:
    """All boxes, also those behind `num_boxes`: the release's networks read them too."""
    if not image_id.isprintable() or set(image_id) & set("/\\\ufffd") or image_id[:1] in ("", "."):
        raise refused("its id can name no file", "give the image another id")
    content = _load_plain(stored())
    if not isinstance(content, dict):
        raise refused(f"the pickle is {described(content)}", "expected a dict of box features")
    given = {name: next((content[k] for k in keys if k in content), None) for name, keys in _ALIASES.items()}
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
        raise refused(f"it is not an .npy file, or damaged ({short_reason(error)})", _AGAIN) from None
    return data[file.tell() :]
