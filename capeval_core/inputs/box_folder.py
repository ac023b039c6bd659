"""Box features in a folder of `.npz` files, one per image, and the manifest of `capeval regions`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.box_arrays import EXTENSION, OPTIONAL, REQUIRED, npz_arrays
from capeval_core.inputs.box_stores import BoxFeatureStore, digest
from capeval_core.inputs.boxes import BoxFeatures, checked
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.folder import names_in
from capeval_core.inputs.json_files import load_json
from capeval_core.inputs.sources import read_file

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
        """The manifest in a folder, None where there is none.

        Raises:
            FileError: the file is something else.
        """
        path = folder / MANIFEST
        if not path.exists():
            return None
        content = load_json(path)
        names = [spec.name for spec in fields(cls)]
        if not isinstance(content, dict) or not all(isinstance(content.get(name), str) for name in names):
            found = f"is not a file that `capeval regions` wrote (expected {', '.join(names)})"
            raise FileError(file_problem(path, found, "name another folder, or delete that file"))
        if content.get("format") != 1:
            found = f"is of format {content.get('format')!r}, which another version of capeval wrote"
            raise FileError(file_problem(path, found, "use that version, or another folder"))
        return cls(*(content[name] for name in names))


class NpzFolder(BoxFeatureStore):
    """A folder of `.npz` files whose names are image ids.

    Keys are those of `InputBoxes`, also as releases call them: `norm_bb`, `features`, `conf`.
    """

    def _ids(self) -> Iterable[str]:
        return [name.removesuffix(EXTENSION) for name in names_in(self.path) if name.endswith(EXTENSION)]

    @cached_property
    def manifest(self) -> Manifest | None:
        """What `capeval regions` wrote of itself, if it made the folder."""
        return Manifest.read(self.path)

    @property
    def selection(self) -> str | None:
        return None if self.manifest is None else self.manifest.selection

    @cached_property
    def fingerprint(self) -> str:
        sizes = [(image_id, file_of(self.path, image_id).stat().st_size) for image_id in self]
        return f"npz-{digest(self.manifest, sizes)}"

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image, or Refused."""
        return npz_arrays(read_file(str(file_of(self.path, image_id)), "file of boxes"), "its file")


def file_of(folder: Path, image_id: str) -> Path:
    """The file of an image's box features."""
    return folder / f"{image_id}{EXTENSION}"


def npz_bytes(found: BoxFeatures, image_key: str) -> bytes:
    """The content of that file, exact, with the content key of the image that the boxes are of.

    >>> found = BoxFeatures(np.ones((2, 4), np.float32), np.ones((2, 8), np.float32), size=(40, 30))
    >>> list(npz_arrays(npz_bytes(found, "file:1f3c"), ""))
    ['boxes', 'features', 'size']
    """
    given = {name: getattr(found, name) for name in (*REQUIRED, *OPTIONAL)}
    arrays: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    arrays[_IMAGE] = np.array(image_key)
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def is_whole(path: Path, image_key: str) -> bool:
    """Whether a file has box features that can be read, and they are of the image of that content key."""
    try:
        data = read_file(str(path), "file of boxes")
        checked(npz_arrays(data, ""))
        return str(npz_arrays(data, "", [_IMAGE])[_IMAGE]) == image_key
    except (Refused, KeyError):
        return False
