"""The judged sets by name (`sets.toml`): where each comes from, and in which form it lies on disk."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from capeval_core.errors import FileError, did_you_mean, file_problem
from capeval_core.inputs.folder import Names, names_in, some_of
from capeval_core.judgements.protocols import JudgedSet


@dataclass(frozen=True)
class SetEntry:
    """A judged set of the field.

    summary: what people judged, and what is computed. files: that a folder of it must hold. source: where it
    comes from, and under which terms. form: of its files. folders: other names of its folder. settings: of
    its loader that a user may choose, with their values.
    """

    name: str
    title: str
    summary: str
    files: Sequence[str]
    form: str
    source: str = ""
    folders: Sequence[str] = ()
    media: str = "image"
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def advice(self) -> str:
        """Where the set comes from, and in which form it is read."""
        origin = f"{self.title} comes from {self.source}. " if self.source else ""
        return f"{origin}Put it into a folder in this form: {self.form}"


_FILE = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
SETS: dict[str, SetEntry] = {name: SetEntry(name, **entry) for name, entry in _FILE.items()}
"""Every judged set by its name."""


def set_entry(name: str) -> SetEntry:
    """The entry of a set; ValueError where there is none."""
    known = name.lower().replace("-", "_")
    if known not in SETS:
        raise ValueError(f"unknown set {name!r}{did_you_mean(known, SETS)} (known: {', '.join(SETS)})")
    return SETS[known]


def load_set(name: str, data: str | Path, **settings: Any) -> JudgedSet:
    """A judged set from its folder or a folder of such folders, or from a data set repository on the Hub.

    Args:
        name: one of `SETS`.
        data: a folder; where there is none, `NAME/NAME`, maybe `@revision`, of a data set on the Hub.
        settings: of its loader, e.g. `labels="label_fleur_run"` for Pascal-50S.

    Raises:
        ValueError: there is no such set. FileError: the files are missing or damaged.
    """
    from capeval_core.judgements import loaders

    entry, path, text = set_entry(name), Path(data), str(data)
    if not path.exists() and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        path = _downloaded(entry, text)
    elif not path.is_dir():
        found = "is a file, expected a folder" if path.exists() else "there is no such folder"
        raise FileError(file_problem(path, found))
    read: Callable[..., JudgedSet] = getattr(loaders, f"load_{entry.name}")
    return read(folder_of(entry, path), **settings)


def folder_of(entry: SetEntry, data: Path) -> Path:
    """The folder of a set: `data` itself, or the folder of its name in it; not that of another set."""
    candidates = [data, *(data / name for name in (entry.name, *entry.folders))]
    # A folder of sets may hold a file of the same name as one of this set.
    fitting = [path for path in candidates if all((path / file).is_file() for file in entry.files)]
    if not fitting:
        missing = [file for file in entry.files if not (data / file).is_file()]
        found = f"there is no {' and no '.join(missing)} of {entry.title} here, nor in {data / entry.name}"
        raise FileError(file_problem(data, found, entry.advice()))
    folder = fitting[-1]
    name = folder.resolve().name.lower().replace("-", "_")
    other = next((one for one in SETS.values() if name in (one.name, *one.folders)), entry)
    if other is not entry and "own" not in (entry.name, other.name):  # one's own may hold any set
        fix = f"`capeval judge {other.name}` judges it; rename the folder if it holds {entry.title}"
        raise FileError(file_problem(folder, f"is the folder of {other.title}, not of {entry.title}", fix))
    return folder


def _downloaded(entry: SetEntry, dataset: str) -> Path:
    """The folder of a data set repository on the Hub."""
    from huggingface_hub import snapshot_download

    repository, _, revision = dataset.partition("@")
    patterns = [*entry.files, "*.json"]
    try:
        return Path(
            snapshot_download(
                repository, repo_type="dataset", revision=revision or None, allow_patterns=patterns
            )
        )
    except Exception as error:  # the Hub's own errors have no common base
        first = str(error).strip().split("\n")[0]
        found = f"the data set could not be loaded from the Hub ({first or type(error).__name__})"
        fix = "check the id and the connection, or name a folder"
        raise FileError(file_problem(dataset, found, fix)) from None


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
        have = "it is empty" if not listed[""].entries else f"it has {some_of(listed[''].entries)}"
        problem = file_problem(
            folder, f"none of the {len(ids):,} ids ({some_of(ids)}) has a file here; {have}"
        )
        raise FileError(problem)
    return found
