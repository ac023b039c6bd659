"""Box features in the image database of UNITER and UMIC: an LMDB with an entry per image.

https://github.com/ChenRocks/UNITER: the key is the name of the image's `.npz`; the value is that file, or a
map in msgpack whose arrays are maps with `nd`, `type`, `kind`, `shape` and `data` (also in a frame of lz4).
Arrays that were float32 are in float16. A database of the name `feat_th0.2_max100_min10` has beside it the
number of boxes of each image, which were counted before that rounding.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.box_arrays import EXTENSION, MOST_BOXES, MOST_BYTES, NAMES, PER_BOX, npz_arrays
from capeval_core.inputs.box_stores import BoxFeatureStore, digest, refuse_repeated
from capeval_core.inputs.decoding import Refused, within
from capeval_core.inputs.json_files import load_json
from capeval_core.project import install_command
from capeval_core.values import described

DATA = "data.mdb"
RULE = "th0.2_max100_min10"
_PUBLISHED = "bua10_100"
"""Of the published model, in the database's name and in ours: boxes of a score above 0.2, from 10 to 100."""
_KEYS = b"__keys__"
"""An entry that lists all keys."""
_COUNTED = re.compile(r"feat_(th.+?)(?:_compressed)?")
_FIXED = re.compile(r"feat_numbb([1-9][0-9]{0,3})(?:_compressed)?")
_NUMBERS = re.compile(rb"[<>|=]?(?:f[248]|[iu][1248])")
_META = struct.Struct("<16xI20xI92xQQ")
"""Of the first two pages of an LMDB: magic number, size of a page, number of the last one, commit."""
_MAGIC = 0xBEEFC0DE
_ZIP, _LZ4, _PICKLE = b"PK\x03\x04", b"\x04\x22\x4d\x18", b"\x80"
_MOST_UNPACKED = 4 * MOST_BYTES
_OPENED: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Databases by path: LMDB opens each once per process."""
_OPENING = threading.Lock()


def databases_in(folder: Path) -> list[Path]:
    """The data files of the database that a folder is, or of those in its subfolders."""
    own = folder / DATA
    return [own] if own.is_file() else sorted(folder.glob(f"*/{DATA}"))


def is_lmdb(path: Path) -> bool:
    """Whether a file is the data file of an LMDB."""
    with path.open("rb") as file:
        return file.read(20)[16:] == _MAGIC.to_bytes(4, "little")


class BoxLmdb(BoxFeatureStore):
    """An LMDB of box features; of several in a folder that of the published rule.

    Where the number of boxes of an image is given beside the database, or in its name, that many are read and
    no more chosen: scores are rounded, and could choose others.
    """

    def __init__(self, path: Path, databases: Sequence[Path]) -> None:
        super().__init__(path)
        for package in ("lmdb", "lz4.frame", "msgpack"):  # now, not at the first entry that needs one
            _imported(package)
        self.data = _chosen(path, databases)
        self._rule, self._counts = _read_counts(self.data.parent)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_environment"}

    @cached_property
    def _environment(self) -> Any:
        return opened(self.data)

    @cached_property
    def fingerprint(self) -> str:
        environment = self._environment
        with self._damage_named():
            return f"lmdb-{digest(*state_of(environment), self._counts)}"

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        """Image id -> key."""
        with self._damage_named(), self._environment.begin() as transaction:
            keys = [bytes(key) for key in transaction.cursor().iternext(values=False) if key != _KEYS]
        try:
            ids = [key.decode().removesuffix(EXTENSION) for key in keys]
        except UnicodeDecodeError as error:
            found = f"has the key {error.object[:40]!r}, which is no name of an image"
            raise FileError(file_problem(self.data, found, "expected UNITER's image database")) from None
        refuse_repeated(self.data, ids)
        counts = self._counts
        if isinstance(counts, Mapping) and counts and not any(key.decode() in counts for key in keys):
            found = f"the numbers of boxes beside it are of other images, such as {next(iter(counts))!r}"
            fix = "expected the names of its entries: take that file away, or correct it"
            raise FileError(file_problem(self.data, found, fix))
        return dict(zip(ids, keys, strict=True))

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Let errors of LMDB name the file."""
        try:
            yield
        except _imported("lmdb").Error as error:
            fix = "it is damaged: write or download it again"
            raise FileError(file_problem(self.data, f"cannot be read ({error})", fix)) from None

    @property
    def selection(self) -> str | None:
        return self._rule if self._counts else None

    def _ids(self) -> Iterable[str]:
        return self._keys

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image, or Refused."""
        key = self._keys[image_id]
        data = entry(self._environment, key)
        if data[:1] == _PICKLE and len(data) > 1:
            fix = "convert them once: capeval convert box-features DATABASE --out FOLDER"
            raise Refused("its entry is a pickle, as 12-in-1 releases features", fix)
        arrays = npz_arrays(data, "its entry") if data.startswith(_ZIP) else _unpacked(data)
        n = self._counts if isinstance(self._counts, int) else self._counts.get(key.decode())
        if n is None:
            return arrays
        cut = {name: array[:n] for name, array in arrays.items() if name in PER_BOX and array.ndim}
        return {**arrays, **cut, "selection": np.array(self._rule)}


def opened(data: Path) -> Any:
    """The database of a data file, read only. Raises FileError."""
    lmdb = _imported("lmdb")
    real = os.path.realpath(data)
    with _OPENING:
        environment = _OPENED.get(real)
        if environment is None:
            _refuse_cut(data)
            try:
                environment = lmdb.open(
                    real, subdir=False, readonly=True, lock=False, create=False, readahead=False
                )
            except lmdb.Error as error:
                raise FileError(file_problem(data, f"cannot be opened ({error})")) from None
            _OPENED[real] = environment
    return environment


def _refuse_cut(data: Path) -> None:
    """Refuse a data file that is cut off, behind whose end LMDB would read, which kills the process."""
    size = data.stat().st_size
    with data.open("rb") as file:
        pages = [file.read(_META.size)]
        if len(pages[0]) == _META.size:
            file.seek(_META.unpack(pages[0])[1])
            pages.append(file.read(_META.size))
    metas = [_META.unpack(page) for page in pages if len(page) == _META.size]
    whole = [(commit, (last + 1) * page) for magic, page, last, commit in metas if magic == _MAGIC]
    if not whole:
        raise FileError(file_problem(data, "is not an LMDB", "write or download it again"))
    if size < max(whole)[1]:
        found = f"has {size:,} of {max(whole)[1]:,} bytes"
        raise FileError(file_problem(data, found, "it is cut off: write or download it again"))


def state_of(environment: Any) -> tuple[int, int, int]:
    """Number of the last commit, number of the last page, and entries of a database."""
    info = environment.info()
    return info["last_txnid"], info["last_pgno"], environment.stat()["entries"]


def entry(environment: Any, key: bytes) -> bytes:
    """The value of a key, or Refused."""
    try:
        with environment.begin(buffers=True) as transaction:
            value = transaction.get(key)
            if value is None or len(value) > _MOST_UNPACKED:
                found = "is gone" if value is None else f"has {len(value):,} bytes"
                raise Refused(f"its entry {found}", "open the database again, or write it again")
            return bytes(value)
    except _imported("lmdb").Error as error:
        raise Refused(f"its entry cannot be read ({error})", "write the database again") from None


def _unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a map in msgpack, or Refused; what is no array of numbers is not looked into."""
    try:
        if data.startswith(_LZ4):
            frame = _imported("lz4.frame").LZ4FrameDecompressor()
            data = frame.decompress(data, max_length=_MOST_UNPACKED)
            if not frame.eof:
                raise Refused(f"its entry is cut off, or has more than {_MOST_UNPACKED:,} bytes")
        # Not `msgpack.unpackb`: `msgpack_numpy.patch()` has that decode arrays, and unpickle.
        content = _imported("msgpack.fallback").unpackb(
            data, raw=True, max_map_len=1_000, max_array_len=1_000, max_ext_len=1_000
        )
        if not isinstance(content, dict):
            raise Refused(f"its entry is {described(content)}", "expected a map of arrays")
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Refused(f"its entry is damaged ({reason})", "write it again") from None
    return {name: _array(name, content[key]) for name in NAMES if (key := name.encode()) in content}


def _array(name: str, packed: Any) -> NDArray[Any]:
    with within(name):
        if not isinstance(packed, dict) or packed.get(b"nd") is not True:
            raise Refused(described(packed), "expected an array, as msgpack-numpy packs it", verb="is")
        kind, type_, shape = packed.get(b"kind"), packed.get(b"type"), packed.get(b"shape")
        data: Any = packed.get(b"data")
        if kind not in (None, b"") or not isinstance(type_, bytes) or not _NUMBERS.fullmatch(type_):
            what = ascii(type_.decode(errors="replace"))[:40] if isinstance(type_, bytes) else "objects"
            raise Refused(f"an array of {what}", "expected numbers; nothing is unpickled", verb="is")
        axes = shape if isinstance(shape, list) and len(shape) <= 4 else [None]
        if not isinstance(data, bytes) or not all(type(axis) is int and axis >= 0 for axis in axes):
            raise Refused("the array is damaged", "write it again")
        dtype = np.dtype(type_.decode())
        if len(data) > MOST_BYTES or math.prod(axes) * dtype.itemsize != len(data):
            found = f"the header says shape {tuple(axes)} of {dtype}, which {len(data):,} bytes are not"
            raise Refused(found, "write it again")
        try:
            array: NDArray[Any] = np.frombuffer(data, dtype).reshape(tuple(axes))
        except ValueError:  # no bytes, and axes beyond what numpy can count
            raise Refused(f"the array has shape {tuple(axes)}", "write it again") from None
        return array


def _chosen(path: Path, databases: Sequence[Path]) -> Path:
    by_name = {data.parent.name: data for data in databases}
    preferred = [f"feat_{RULE}_compressed", f"feat_{RULE}", "all_compressed", "all"]
    for name in preferred if len(databases) > 1 else by_name:
        if name in by_name:
            return by_name[name]
    names = ", ".join(map(repr, sorted(by_name)))
    raise FileError(file_problem(path, f"holds several databases ({names})", "pass the path of one of them"))


def _read_counts(folder: Path) -> tuple[str, Mapping[str, int] | int]:
    """The rule in a database's name, and the boxes per image: all the same, or by key in a file beside it."""
    if fixed := _FIXED.fullmatch(folder.name):
        return f"first {fixed[1]}", int(fixed[1])
    counted = _COUNTED.fullmatch(folder.name)
    rule = counted[1] if counted else RULE
    name = f"nbb_{rule}.json"
    path = next((path for path in (folder.parent / name, folder / name) if path.is_file()), None)
    counts = {} if path is None else load_json(path, once="keep one of them")
    if not isinstance(counts, dict):
        raise FileError(file_problem(str(path), "is no object", "expected {name: number of boxes}"))
    for key, n in counts.items():
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MOST_BOXES:
            found = f"{key!r} has {described(n, none='null')}"
            raise FileError(file_problem(str(path), found, f"expected 1 to {MOST_BOXES:,} boxes"))
    return (_PUBLISHED if rule == RULE else rule), counts


def _imported(name: str) -> ModuleType:
    """A package of the extra."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        found = f"an LMDB of box features needs the package {package}: {install_command('lmdb')}"
        raise FileError(found) from None
