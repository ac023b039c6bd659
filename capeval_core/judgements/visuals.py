"""The images or videos of a judged set, found in a folder by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.folder import Names, names_in, some_of


def find_visuals(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    """The file of each id that has one in a folder, or in the folder inside it that a path names.

    An id is a file's name, with or without its extension, a path from that folder, or a COCO number.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     Path(name, "dog.jpg").touch()
    ...     {key: path.name for key, path in find_visuals(Path(name), ["dog.jpg", "8k/dog", "cat"]).items()}
    {'dog.jpg': 'dog.jpg', '8k/dog': 'dog.jpg'}
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
