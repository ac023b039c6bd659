"""Box features in a folder of `.npz` files, one per image, and the manifest of `capeval regions`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.box_arrays import EXTENSION, npz_arrays
from capeval_core.inputs.box_stores import BoxFeatureStore, digest
from capeval_core.inputs.folder import names_in
from capeval_core.inputs.json_files import load_json
from capeval_core.inputs.sources import read_file

MANIFEST = "regions.json"


@dataclass(frozen=True)
class Manifest:
    """What made the files of a folder.

    encoder: the region encoder's name. selection: its rule of which boxes are kept. fingerprint: of the
        encoder with its settings.
    """

    encoder: str
    selection: str
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
        names = ("encoder", "selection", "fingerprint")
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
    def fingerprint(self) -> str:
        manifest = Manifest.read(self.path)
        sizes = [(image_id, (self.path / f"{image_id}{EXTENSION}").stat().st_size) for image_id in self]
        return f"npz-{digest(manifest, sizes)}"

    def arrays(self, image_id: str) -> Mapping[str, Any]:
        """The arrays of an image, or Refused."""
        path = self.path / f"{image_id}{EXTENSION}"
        return npz_arrays(read_file(str(path), "file of boxes"), "its file")
