"""Paths of images in a shard, relative to a folder that may lie in an object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from capeval_core.inputs.images import URL
from capeval_core.integrations.shards.places import Place, reason_of


class ImageFolder:
    """The folder that paths of images are relative to.

    used: whether a relative path was looked up in it.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.used = False

    def resolve(self, visuals: list[Any], errors: list[str | None], name: str) -> None:
        """Replace paths by those in the folder, or by the files' bytes where it lies in an object store.

        Bytes stay as they are, and so do addresses: what a shard names is not fetched.

        visuals: values of the column `name`. errors: why rows fail, to be added to.
        """
        fetched: dict[str, list[int]] = {}
        for i, value in enumerate(visuals):
            path = value
            if isinstance(value, Mapping):
                path = value.get("path") if value.get("bytes") is None else None
            if not isinstance(path, str) or not path or URL.match(path):
                continue
            self.used |= not (self._place.is_local and os.path.isabs(path))  # noqa: PTH117
            if self._place.is_local:
                visuals[i] = os.path.join(self._place.path, path)  # noqa: PTH118  (absolute ones stay)
            else:
                fetched.setdefault(f"{self._place.path.rstrip('/')}/{path.lstrip('/')}", []).append(i)
        for path, content in self._contents(list(fetched)).items():
            for i in fetched[path]:
                if isinstance(content, bytes):
                    visuals[i] = {"bytes": content, "path": path}
                elif isinstance(content, FileNotFoundError):
                    visuals[i], errors[i] = None, f"{name}: there is no file {path!r}"
                else:
                    visuals[i], errors[i] = None, f"{name}: cannot read {path!r} ({reason_of(content)})"

    def _contents(self, paths: list[str]) -> dict[str, Any]:
        """The bytes of files, or the error of each."""
        # Not `cat`, which sorts paths and takes `*` and `[` in them for patterns.
        found = self._place.filesystem.cat_ranges(paths, None, None, on_error="return") if paths else []
        return dict(zip(paths, found, strict=True))
