"""Images in a folder, found by their ids.

An id is looked up among the names of the folder's files (see `names`). It may also be a path, `dogs/42.jpg`,
from the folder of images or from where that folder lies; its last part is looked up in the same way.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from capeval_core.inputs.names import NAMED, Names, bare, only_matches
from capeval_core.inputs.problems import FileError, Problems, has_nul, nul_in
from capeval_core.inputs.texts import valid_unicode


def find_images(folder: str | os.PathLike[str], ids: Iterable[str] | None = None) -> dict[str, Path]:
    """The image of every id in a folder of images; its subfolders are looked into for ids that are paths.

    With `ids=None` the ids are the files' stems, for files with an image's extension. With `ids` each is
    looked up as this module says (`42` finds `COCO_val2014_000000000042.jpg`), and all that are missing or
    ambiguous are reported at once.

    Raises FileError.
    """
    folder = Path(folder)
    names = Names(names_in(folder))
    if ids is None:
        images = [name for name in names.entries if bare(name) != name]
        if not images:
            raise FileError(f"{folder}: holds no image{_examples(names.entries)}")
        ids = dict.fromkeys(bare(name) for name in images)
    problems = Problems()
    found = match_images(folder, names, list(ids), problems)
    problems.raise_if_any()
    return found


def match_images(
    folder: Path,
    names: Names,
    ids: Sequence[str],
    problems: Problems,
    file_names: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """The image of every id; note what is missing or ambiguous.

    file_names: the file that an id, of these or others, was said to mean. It counts and not the id, unless
        none of these files is there: then the images were renamed, and a warning says that ids are used.
    """
    paths = _Paths(folder)

    def find(name: str) -> list[str]:
        return names.find(name) or paths.find(name)

    by_file = {
        image_id: names.find(PurePosixPath(name).name) or paths.find(name)
        for image_id, name in (file_names or {}).items()
    }
    used = [image_id for image_id in ids if image_id in by_file]
    renamed = bool(used) and not any(by_file.values())
    if not renamed:
        absent = [image_id for image_id in used if not by_file[image_id]]
        _refuse_absent(folder, names, absent, len(used), file_names or {}, problems)
        ids = [image_id for image_id in ids if by_file.get(image_id) != []]
    matches = {
        image_id: by_file[image_id] if image_id in by_file and not renamed else find(image_id)
        for image_id in ids
    }
    lacking = (
        f"no image{_examples(names.entries)}. An id is an image's file name, with or without its "
        "extension, its path from that folder, or its COCO number"
    )
    before = len(problems)
    found = only_matches(folder, matches, lacking, problems)
    if renamed and len(problems) == before:
        warnings.warn(
            f"{folder}: none of the file_names that {len(used):,} of {len(ids):,} ids are given, such as "
            f"{(file_names or {})[used[0]]!r}, is there: the images of these ids themselves are used",
            stacklevel=3,
        )
    for name in found.values():
        if not valid_unicode(name):  # it could not be written into any file of results
            problems.add(f"{folder}: the name of {name!a} is not UTF-8: rename that file", kind=FileError)
    return {image_id: folder / name for image_id, name in found.items()}


def _refuse_absent(
    folder: Path, names: Names, ids: list[str], total: int, file_names: Mapping[str, str], problems: Problems
) -> None:
    """Note file names that are not in a folder which has others of them."""
    if ids:
        shown = ", ".join(f"{file_names[image_id]!r} of id {image_id!r}" for image_id in ids[:NAMED])
        more = ", ..." if len(ids) > NAMED else ""
        problems.add(
            f"{folder}: {len(ids):,} of {total:,} file_names ({shown}{more}) "
            f"{'is' if len(ids) == 1 else 'are'} not there{_examples(names.entries)}: put these images "
            "there, correct the file_name, or leave it out to have the id used",
            kind=FileError,
        )


class _Paths:
    """Images of ids that are paths, from a folder or from where it lies; each subfolder is listed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._below: dict[str, tuple[str, Names] | None] = {}

    def find(self, image_id: str) -> list[str]:
        """The files that the id can mean, as paths from the folder."""
        place, _, name = image_id.rpartition("/")
        if not place:
            return []
        if place not in self._below:
            self._below[place] = self._listed(PurePosixPath(place))
        listed = self._below[place]
        return [] if listed is None else [f"{listed[0]}/{entry}" for entry in listed[1].find(name)]

    def _listed(self, place: PurePosixPath) -> tuple[str, Names] | None:
        if place.is_absolute() or ".." in place.parts:
            return None
        known = [place]
        if place.parts[:1] == (self.folder.absolute().name,):
            known.append(PurePosixPath(*place.parts[1:]))
        below = next((path for path in known if (self.folder / path).is_dir()), None)
        return None if below is None else (str(below), Names(names_in(self.folder / below)))


def names_in(folder: Path) -> list[str]:
    """The names of the visible files directly in a folder."""
    if has_nul(folder):
        raise FileError(nul_in(None, folder))
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    except FileNotFoundError:
        raise FileError(f"{folder}: there is no such folder") from None
    except NotADirectoryError:
        raise FileError(f"{folder}: is a file, expected a folder of images") from None
    except OSError as error:
        raise FileError(f"{folder}: cannot be read ({error.strerror})") from None


def _examples(names: list[str]) -> str:
    if not names:
        return "; it holds no files (its subfolders are looked into for ids that are paths)"
    return f"; it holds files like {', '.join(map(repr, names[:3]))}"
