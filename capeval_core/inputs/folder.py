"""Image ids and the files or entries that they mean.

The field writes the same image as `42`, `000000000042`, `COCO_val2014_000000000042`, with or without `.jpg`.
An id means, in this order: the entry of exactly that name, the entry of that name but for an image's
extension, the entry of the same COCO number. Two entries at one step are an ambiguity, never a silent choice.
A picture's id may also be a path, `dogs/42.jpg`, from the folder of images or from where that folder lies;
its last part is looked up in the same way.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from capeval_core.inputs.problems import Problems

EXTENSIONS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
}
COCO_NUMBER = re.compile(r"(?:COCO_[A-Za-z0-9]+_)?([0-9]{1,18})")
NAMED = 5


class FileError(ValueError):
    """A file or a folder cannot be read as what it should be. The message begins with its path."""


class Names:
    """Entries that can be found under the several ways to write an image id.

    >>> names = Names(["COCO_val2014_000000000042.jpg", "a.b.jpg", "c.jpg", "c.png"])
    >>> names.find("42"), names.find("a.b"), names.find("c.png"), names.find("c"), names.find("d")
    (['COCO_val2014_000000000042.jpg'], ['a.b.jpg'], ['c.png'], ['c.jpg', 'c.png'], [])
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = sorted(entries)
        self._exact = set(self.entries)
        self._bare: defaultdict[str, list[str]] = defaultdict(list)
        self._number: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            self._bare[bare(entry)].append(entry)
            number = coco_number(entry)
            if number is not None:
                self._number[number].append(entry)

    def find(self, image_id: str) -> list[str]:
        """The entries that the id can mean: one is a match, none a miss, several an ambiguity."""
        if image_id in self._exact:
            return [image_id]
        for stem in (image_id, bare(image_id)):
            if stem in self._bare:
                return self._bare[stem]
        number = coco_number(image_id)
        return [] if number is None else self._number.get(number, [])


def bare(name: str) -> str:
    """The name without an image's extension; other dots belong to the name."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    return stem if extension.lower() in EXTENSIONS else name


def coco_number(name: str) -> int | None:
    match = COCO_NUMBER.fullmatch(bare(name))
    return int(match[1]) if match else None


def find_pictures(folder: str | os.PathLike[str], ids: Iterable[str] | None = None) -> dict[str, Path]:
    """The picture of every id in a folder of images; its subfolders are looked into for ids that are paths.

    With `ids=None` the ids are the files' stems, for files with an image's extension. With `ids` each is
    looked up as this module says (`42` finds `COCO_val2014_000000000042.jpg`), and all that are missing or
    ambiguous are reported at once.

    Raises FileError.
    """
    folder = Path(folder)
    names = Names(names_in(folder))
    if ids is None:
        pictures = [name for name in names.entries if bare(name) != name]
        if not pictures:
            raise FileError(f"{folder}: holds no picture{examples(names.entries)}")
        ids = dict.fromkeys(bare(name) for name in pictures)
    problems = Problems()
    found = match_pictures(folder, names, {image_id: [image_id] for image_id in ids}, problems)
    problems.raise_if_any()
    return found


def match_pictures(
    folder: Path, names: Names, ids: dict[str, list[str]], problems: Problems
) -> dict[str, Path]:
    """Look up ids, each under the names that it may have; note what is missing or ambiguous."""
    paths = _Paths(folder)
    matches = {
        image_id: next(filter(None, map(names.find, wanted)), []) or paths.find(image_id)
        for image_id, wanted in ids.items()
    }
    lacking = (
        f"no picture{examples(names.entries)}. An id is a picture's file name, with or without its "
        "extension, its path from that folder, or its COCO number"
    )
    found = only_matches(folder, matches, lacking, problems)
    return {image_id: folder / name for image_id, name in found.items()}


def only_matches(
    place: Path, matches: dict[str, list[str]], lacking: str, problems: Problems
) -> dict[str, str]:
    """The one entry that each id means; note ids that mean several, and those that have `lacking`."""
    found: dict[str, str] = {}
    missing: list[str] = []
    for image_id, entries in matches.items():
        if len(entries) == 1:
            found[image_id] = entries[0]
        elif entries:
            several = " and ".join(map(repr, entries))
            problems.add(f"{place}: the id {image_id!r} is ambiguous, it can mean {several}", kind=FileError)
        else:
            missing.append(image_id)
    if missing:
        problems.add(f"{place}: {counted(missing, len(matches))} {lacking}", kind=FileError)
    return found


class _Paths:
    """Pictures of ids that are paths, from a folder or from where it lies; each subfolder is listed once."""

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
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    except FileNotFoundError:
        raise FileError(f"{folder}: there is no such folder") from None
    except NotADirectoryError:
        raise FileError(f"{folder}: is a file, expected a folder of images") from None
    except OSError as error:
        raise FileError(f"{folder}: cannot be read ({error.strerror})") from None


def counted(ids: list[str], total: int) -> str:
    """`2 of 9 ids ('a', 'b') have`"""
    more = ", ..." if len(ids) > NAMED else ""
    have = "has" if len(ids) == 1 else "have"
    return f"{len(ids):,} of {total:,} ids ({', '.join(map(repr, ids[:NAMED]))}{more}) {have}"


def examples(names: list[str]) -> str:
    if not names:
        return "; it holds no files (its subfolders are looked into for ids that are paths)"
    return f"; it holds files like {', '.join(map(repr, names[:3]))}"
