"""What conversions of detectors share: settings that no tensor shows, from the YAML file of a release."""

from __future__ import annotations

import ast
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from capeval_core.errors import described, file_error, wrong_option
from capeval_core.options import option
from capeval_core.weights.conversion import Conversion, Empty, Release


@dataclass(frozen=True, kw_only=True)
class DetectorConversion(Conversion, ABC):
    """A checkpoint of a detector, with the file of settings that lies beside it."""

    yaml: ClassVar[str]
    """That file's name."""
    released: ClassVar[Mapping[str, Any]]
    """Settings that are read, by their dotted names, with the values of the release."""
    fixed: ClassVar[Mapping[str, Any]]
    """Settings of which the network here knows one value only."""
    partial: ClassVar[bool] = False
    """Whether the file leaves out settings whose value is the default."""

    release_config: str | PathLike[str] | None = option(
        None,
        "the release's file of settings; None: the one beside CHECKPOINT, or if there is none the released "
        "values",
    )

    def read(self, path: Path, empty: Empty) -> Release:
        beside = path.with_name(self.yaml)
        if self.release_config is None and beside.is_file():
            return replace(self, release_config=beside).read(path, empty)
        if self.release_config is not None:
            self.settings([])  # before the checkpoint, which takes longer
        return super().read(path, empty)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        content, files = super().load(path)
        return content, files if self.release_config is None else [*files, Path(self.release_config)]

    def settings(self, notes: list[str]) -> dict[str, Any]:
        """The values of `released` that hold, and a note that says where they come from."""
        if self.release_config is None:
            notes.append(f"sizes, thresholds and means: as released, since there is no {self.yaml}")
            return dict(self.released)
        path = Path(self.release_config)
        found = self._read_settings(path)
        notes.append(f"sizes, thresholds and means: of {path.name}")
        return found

    def _read_settings(self, path: Path) -> dict[str, Any]:
        import yaml

        if not path.is_file():
            fix = f"pass the {self.yaml} of the release, which lies beside its checkpoint"
            raise wrong_option("release_config", str(path), "no file", fix)
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            found = f"no {self.yaml} of a release ({' '.join(str(error).split())[:200]})"
            raise file_error(path, found, verb="is") from error
        values = {name: _value(content, name) for name in (*self.released, *self.fixed)}
        lacking = [name for name in self.released if values[name] is None and not self.partial]
        other = [name for name, known in self.fixed.items() if values[name] not in (None, known)]
        fix = "pass the one that lies beside this checkpoint"
        if lacking:
            raise file_error(path, f"{lacking[0]} is missing", fix)
        if other:
            found = f"{other[0]} is {described(values[other[0]])}, but only {self.fixed[other[0]]!r} is known"
            raise file_error(path, found, fix)
        return {
            name: default if values[name] is None else values[name] for name, default in self.released.items()
        }


def _value(content: Any, name: str) -> Any:
    """The value under a dotted name, None where there is none; a tuple in text is a list.

    >>> _value({"MODEL": {"STRIDES": "(4, 8)"}}, "MODEL.STRIDES")
    [4, 8]
    """
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    if isinstance(content, str) and content.startswith("("):
        try:
            value = ast.literal_eval(content)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return content
        return list(value) if isinstance(value, tuple) else content
    return content
