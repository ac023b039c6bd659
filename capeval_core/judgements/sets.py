"""The judged sets by name (`sets.toml`): where each comes from, and in which form it lies on disk."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from capeval_core.errors import did_you_mean, file_error
from capeval_core.inputs.folder import Names, names_in, some_of


class SetEntry(NamedTuple):
    """A judged set of the field, as `sets.toml` has it."""

    name: str
    title: str
    summary: str
    files: Sequence[str]
    form: str
    source: str = ""
    fields: Mapping[str, str] = {}
    folders: Sequence[str] = ()
    media: str = "image"
    loader: str = ""
    rating: str = "rating"
    references: Sequence[int] = ()
    columns: Mapping[str, Mapping[str, Any]] = {}
    settings: Mapping[str, Sequence[str]] = {}

    def advice(self) -> str:
        """Where the set comes from, and in which form it is read."""
        origin = f"{self.title} comes from {self.source}. " if self.source else ""
        return f"{origin}Put it into a folder in this form: {self.form}"


_FILE = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
SETS: dict[str, SetEntry] = {name: SetEntry(name, **entry) for name, entry in _FILE.items()}


def set_entry(name: str) -> SetEntry:
    """The entry of a set; ValueError where there is none."""
    known = name.lower().replace("-", "_")
    if known not in SETS:
        raise ValueError(f"unknown set {name!r}{did_you_mean(known, SETS)} (known: {', '.join(SETS)})")
    return SETS[known]


def folder_of(entry: SetEntry, data: str | Path) -> Path:
    """The folder of a set: `data`, or the folder of its name in it, not that of another set.

    Where there is no such folder, `NAME/NAME`, maybe `@revision`, is a data set on the Hub.
    """
    path, text = Path(data), str(data)
    if not path.exists() and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        path = _downloaded(entry, text)
    elif not path.is_dir():
        found = "is a file, expected a folder" if path.exists() else "there is no such folder"
        raise file_error(path, found)
    candidates = [path, *(path / name for name in (entry.name, *entry.folders))]
    # A folder of sets may hold a file of the same name as one of this set.
    fitting = [one for one in candidates if all((one / file).is_file() for file in entry.files)]
    if not fitting:
        missing = [file for file in entry.files if not (path / file).is_file()]
        found = f"there is no {' and no '.join(missing)} of {entry.title} here, nor in {path / entry.name}"
        raise file_error(path, found, entry.advice())
    folder = fitting[-1]
    name = folder.resolve().name.lower().replace("-", "_")
    other = next((one for one in SETS.values() if name in (one.name, *one.folders)), entry)
    if other is not entry and "own" not in (entry.name, other.name):  # one's own may hold any set
        fix = f"`capeval judge {other.name}` judges it; rename the folder if it holds {entry.title}"
        raise file_error(folder, f"is the folder of {other.title}, not of {entry.title}", fix)
    return folder


def _downloaded(entry: SetEntry, dataset: str) -> Path:
    """The folder of a data set repository on the Hub."""
    from huggingface_hub import snapshot_download

    name, _, revision = dataset.partition("@")
    wanted: Any = {"revision": revision or None, "allow_patterns": [*entry.files, "*.json"]}
    try:
        return Path(snapshot_download(name, repo_type="dataset", **wanted))
    except Exception as error:  # the Hub's own errors have no common base
        first = str(error).strip().split("\n")[0]
        found = f"the data set could not be loaded from the Hub ({first or type(error).__name__})"
        fix = "check the id and the connection, or name a folder"
        raise file_error(dataset, found, fix) from None


def find_visuals(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    """The file of each id that has one in a folder, or in the folder inside it that a path names.

    An id is a file's name, with or without its extension, a path from that folder, or a COCO number.
    """
    listed: dict[str, Names] = {"": Names(names_in(folder))}
    found = {}
    for visual in ids:
        path = PurePosixPath(visual)
        parent = "" if path.is_absolute() or ".." in path.parts else str(path.parent).removeprefix(".")
        if parent not in listed:
            inner = folder / parent
            listed[parent] = Names(names_in(inner) if inner.is_dir() else [])
        for place in dict.fromkeys((parent, "")):
            entries = listed[place].find(path.name)
            if len(entries) == 1:
                found[visual] = folder / place / entries[0]
                break
    if not found:
        entries = listed[""].entries
        have = f"it has {some_of(entries)}" if entries else "it is empty"
        nothing = f"none of the {len(ids):,} ids ({some_of(ids)}) has a file here; {have}"
        raise file_error(folder, nothing)
    return found
