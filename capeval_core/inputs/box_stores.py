"""Precomputed box features of many images, on the disk in one of the forms that the field has.

    a folder of .npz files    one per image, named by its id: `capeval regions` writes these, and releases too
    an LMDB                   the image database of UNITER and UMIC
    a .tsv file               of bottom-up attention, or of LXMERT

Ids are listed without reading features, and features of an image are read when they are needed. An id is
matched as among images (see `folder`): a file name with or without folder and extension, or a COCO number.
A new form is a class here below and a line in `open_store`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from numbers import Integral
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, file_problem, refuse_nul
from capeval_core.inputs.boxes import BoxFeatures, StoredBoxes
from capeval_core.inputs.decoding import Refused, quoted
from capeval_core.inputs.folder import Names
from capeval_core.inputs.sources import OnDisk, Source
from capeval_core.inputs.visual import InputImage
from capeval_core.values import described

FORMS = (
    "a folder of .npz files (one per image, named by its id), UNITER's LMDB, or a bottom-up-attention .tsv"
)


class BoxFeatureStore(ABC, Mapping[str, Source[BoxFeatures]]):
    """Image id -> the source of its box features, which reads them when they are needed.

    path: where they lie. name: in signatures. Stores may be pickled and used from several threads.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/COCO_val2014_000000000042.npz"
    ...     np.savez(path, boxes=np.ones((2, 4)), features=np.ones((2, 8)))
    ...     store = BoxFeatureStore.open(folder)
    ...     list(store), store.find("42").decode().features.shape
    (['COCO_val2014_000000000042'], (2, 8))
    """

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
        return open_store(Path(path))

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes with what is stored, as far as sizes and samples show; features are keyed by content."""

    @property
    @abstractmethod
    def selection(self) -> str | None:
        """The rule that chose the boxes, where one did and that is known."""

    @abstractmethod
    def _ids(self) -> Iterable[str]:
        """The image ids. Raises FileError."""

    @abstractmethod
    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of one of the ids, by name, or Refused."""

    @cached_property
    def names(self) -> Names:
        """The ids under the several ways to write them."""
        return Names(self._ids())

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names.entries)

    def __getitem__(self, image_id: str) -> Source[BoxFeatures]:
        if image_id not in self._known:
            raise KeyError(image_id)
        return StoredEntry(self, image_id)

    def __len__(self) -> int:
        return len(self.names.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.entries)

    def find(self, image_id: str) -> Source[BoxFeatures]:
        """The source of an id, however it is written; a path is looked up by its last part.

        Raises:
            Refused: no such id, or several that it can mean.
        """
        last = image_id.replace("\\", "/").rpartition("/")[2]
        for name in dict.fromkeys([image_id, last]):
            matches = self.names.find(name)
            if len(matches) == 1:
                return self[matches[0]]
            if matches:
                several = " and ".join(map(repr, matches[:3]))
                raise Refused(
                    f"the id {quoted(image_id)} is ambiguous, it can mean {several}", "write it in full"
                )
        ids = self.names.entries
        at = bisect(ids, last)
        near = ", ".join(map(repr, ids[max(0, at - 1) : at + 1]))
        many = (
            f"{len(ids):,} {'image' if len(ids) == 1 else 'images'}{', the nearest: ' if ids else ''}{near}"
        )
        found = f"there are no box features of {quoted(image_id)} in {self.path}, which has those of {many}"
        raise Refused(found, "compute them, or correct the id")


def id_of(image: Any) -> str:
    """The id that a value is, or the path that it has; Refused otherwise."""
    if isinstance(image, InputImage) and isinstance(image.source, OnDisk):
        return image.source.path
    if isinstance(image, (str, os.PathLike)):
        name = os.fsdecode(image)
        if not name:
            raise Refused("an empty id", "write the image's id", verb="is")
        return name
    if isinstance(image, Integral) and not isinstance(image, bool):
        return str(int(image))
    value = image.name if isinstance(image, InputImage) else described(image)
    fix = "with precomputed box features, images are ids or paths"
    raise Refused(value, fix, verb="is", kind=TypeError)


@dataclass(eq=False, slots=True)
class StoredEntry(StoredBoxes):
    """One image's box features in a store. What is wrong with them names the image's id and the store."""

    store: Any
    image_id: str

    @property
    def name(self) -> str:
        return f"{self.image_id!r} of {self.store.path}"

    def read(self) -> Mapping[str, Any]:
        arrays: Mapping[str, Any] = self.store.arrays(self.image_id)
        return arrays

    def decode(self, reduced: bool = False) -> BoxFeatures:
        try:
            return StoredBoxes.decode(self, reduced)
        except Refused as refused:
            refused._problem = replace(refused._problem, source=self.name)
            raise


def open_store(path: Path) -> BoxFeatureStore:
    """`BoxFeatureStore.open`."""
    from capeval_core.inputs.box_folder import NpzFolder
    from capeval_core.inputs.box_lmdb import BoxLmdb, databases_in, is_lmdb
    from capeval_core.inputs.box_tsv import BoxTsv

    refuse_nul(path)
    try:
        if path.is_dir():
            if found := databases_in(path):
                return BoxLmdb(path, found)
            if any(entry.suffix == ".npz" for entry in path.iterdir()):
                return NpzFolder(path)
            below = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
            listed = f"holds files like {', '.join(map(repr, below[:3]))}" if below else "is empty"
            raise FileError(file_problem(path, f"{listed}: expected {FORMS}"))
        if not path.exists():
            raise FileError(file_problem(path, "there is no such file or folder", f"expected {FORMS}"))
        if not path.is_file():  # it could block for ever
            fix = "write its content to a file first"
            raise FileError(file_problem(path, "is a pipe, a socket or a device", fix))
        if path.suffix.lower() == ".tsv":
            return BoxTsv(path)
        if is_lmdb(path):
            return BoxLmdb(path, [path])
    except OSError as error:
        raise FileError(file_problem(path, f"cannot be read ({error.strerror})")) from None
    fix = "pass the folder that it lies in" if path.suffix == ".npz" else f"expected {FORMS}"
    raise FileError(file_problem(path, "is a file of another form", fix))


def digest(*parts: object) -> str:
    """A short digest of texts and bytes, for fingerprints."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def refuse_repeated(path: Path, ids: Iterable[str]) -> None:
    """Raise FileError if an id comes twice."""
    once: set[str] = set()
    twice = list(dict.fromkeys(image_id for image_id in ids if image_id in once or once.add(image_id)))  # type: ignore[func-returns-value]
    if twice:
        more = f" and {len(twice) - 3:,} more" if len(twice) > 3 else ""
        listed = ", ".join(map(repr, twice[:3]))
        raise FileError(file_problem(path, f"the id {listed}{more} comes twice", "keep one of each"))
