"""Image ids, and the images of a folder or other entries that they mean.

The field writes the same image as `42`, `000000000042`, `COCO_val2014_000000000042`, with or without `.jpg`.
An id means, in this order: the entry of exactly that name, the entry of that name but for an image's
extension, the entry of the same COCO number. Two entries at one step are an ambiguity, never a silent choice.

Among images an id may also be a path, `dogs/42.jpg`, from the folder of images or from where that folder
lies; its last part is looked up in the same way.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from capeval_core.errors import FileError, Problems, Text, file_problem, refuse_nul, warn
from capeval_core.inputs.texts import valid_unicode

EXTENSIONS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
}
VIDEO_EXTENSIONS = {".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif"}
COCO_NUMBER = re.compile(r"(?:(?:COCO|coco)_[A-Za-z0-9]+_)?([0-9]{1,18})")
NAMED = 5


@dataclass(frozen=True)
class Kind:
    """What a folder holds one of for each id.

    article, noun: in messages. extensions: of its files. folders: whether it may be a folder of its
    frames.
    """

    article: str
    noun: str
    extensions: AbstractSet[str]
    folders: bool = False


KINDS = {
    "image": Kind("an", "image", EXTENSIONS),
    "video": Kind("a", "video", VIDEO_EXTENSIONS, folders=True),
}
"""By the medium, as in `CaptionMetric.media`."""


class Names:
    """Entries that can be found under the several ways to write an image id.

    >>> names = Names(["COCO_val2014_000000000042.jpg", "a.b.jpg", "c.jpg", "c.png"])
    >>> names.find("42"), names.find("a.b"), names.find("c.png"), names.find("c"), names.find("d")
    (['COCO_val2014_000000000042.jpg'], ['a.b.jpg'], ['c.png'], ['c.jpg', 'c.png'], [])
    """

    def __init__(self, entries: Iterable[str], extensions: AbstractSet[str] = EXTENSIONS) -> None:
        self.entries = sorted(entries)
        self._extensions = extensions
        self._exact = set(self.entries)
        self._bare: defaultdict[str, list[str]] = defaultdict(list)
        self._number: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            self._bare[bare(entry, extensions)].append(entry)
            number = coco_number(entry, extensions)
            if number is not None:
                self._number[number].append(entry)

    def find(self, image_id: str) -> list[str]:
        """The entries that the id can mean: one is a match, none a miss, several an ambiguity."""
        if image_id in self._exact:
            return [image_id]
        for stem in (image_id, bare(image_id, self._extensions)):
            if stem in self._bare:
                return self._bare[stem]
        number = coco_number(image_id, self._extensions)
        return [] if number is None else self._number.get(number, [])


def bare(name: str, extensions: AbstractSet[str] = EXTENSIONS) -> str:
    """The name without such an extension, by default an image's; other dots belong to the name."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    return stem if extension.lower() in extensions else name


def coco_number(name: str, extensions: AbstractSet[str] = EXTENSIONS) -> int | None:
    match = COCO_NUMBER.fullmatch(bare(name, extensions))
    return int(match[1]) if match else None


def only_matches(
    source: Path, matches: dict[str, list[str]], lacking: str, problems: Problems, fix: Text = ""
) -> dict[str, str]:
    """The one entry that each id means, of those that it can mean; note ids that mean several, or none.

    source: the file or folder of the entries. lacking: what ids without one have, e.g. `no image`. fix: for
        them.
    """
    matched: dict[str, str] = {}
    missing: list[str] = []
    for image_id, entries in matches.items():
        if len(entries) == 1:
            matched[image_id] = entries[0]
        elif entries:
            several = " and ".join(map(repr, entries))
            found = f"the id {image_id!r} is ambiguous, it can mean {several}"
            problems.add(file_problem(source, found))
        else:
            missing.append(image_id)
    if missing:
        have = "has" if len(missing) == 1 else "have"
        found = f"{len(missing):,} of {len(matches):,} ids ({some_of(missing)}) {have} {lacking}"
        problems.add(file_problem(source, found, fix))
    return matched


def some_of(names: Sequence[str]) -> str:
    """
    >>> some_of("ab"), some_of("abcdefg")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e', ...")
    """
    return ", ".join(map(repr, names[:NAMED])) + (", ..." if len(names) > NAMED else "")


def match_images(
    folder: Path,
    names: Names,
    ids: Sequence[str],
    problems: Problems,
    file_names: Mapping[str, str] | None = None,
    kind: Kind = KINDS["image"],
    *,
    absent_too: bool = False,
) -> dict[str, Path]:
    """The image, or video, of every id; note what is missing or ambiguous.

    absent_too: unless all are missing, give those that are a path where nothing is.

    file_names: the file that an id, of these or others, means by an annotation. It counts and not the id,
        unless none of these files is there: then the images were renamed, and a warning says so.
    """
    find_path, find_file = _path_finder(folder, kind), file_finder(folder, names, kind)
    by_file = {image_id: find_file(name) for image_id, name in (file_names or {}).items()}
    used = [image_id for image_id in ids if image_id in by_file]
    renamed = bool(used) and not any(by_file.values())
    nowhere: dict[str, Path] = {}
    if not renamed:
        absent = [image_id for image_id in used if not by_file[image_id]]
        if absent_too:
            nowhere = {image_id: _nowhere(folder, (file_names or {})[image_id]) for image_id in absent}
        else:
            _refuse_absent(folder, names, absent, len(used), file_names or {}, problems)
        ids = [image_id for image_id in ids if by_file.get(image_id) != []]
    matches = {
        image_id: by_file[image_id]
        if image_id in by_file and not renamed
        else names.find(image_id) or find_path(image_id)
        for image_id in ids
    }
    absent = [image_id for image_id, entries in matches.items() if not entries]
    if absent_too and (nowhere or len(absent) < len(matches)):
        nowhere |= {image_id: _nowhere(folder, image_id) for image_id in absent}
        matches = {image_id: entries for image_id, entries in matches.items() if entries}
    lacking = (
        f"no {kind.noun}{_examples(names.entries)}{_subfolder_of(folder, kind, absent)}. "
        f"An id is {kind.article} {kind.noun}'s file name, with or without its extension, its path from that "
        "folder, or its COCO number"
    )
    before = len(problems)
    matched = only_matches(folder, matches, lacking, problems)
    if renamed and len(problems) == before:
        warn(
            f"{folder}: none of the file_names that {len(used):,} of {len(ids):,} ids are given, such as "
            f"{(file_names or {})[used[0]]!r}, is there: the {kind.noun}s of these ids themselves are used"
        )
    for name in matched.values():
        if not valid_unicode(name):  # it could not be written into any file of results
            problems.add(file_problem(folder, f"the name of {name!a} is not UTF-8", "rename that file"))
    return {image_id: folder / name for image_id, name in matched.items()} | nowhere


def _nowhere(folder: Path, name: str) -> Path:
    """A path in a folder where nothing is, be the name that of a file elsewhere."""
    return folder / name.replace("/", "\N{DIVISION SLASH}")


def file_finder(folder: Path, names: Names, kind: Kind = KINDS["image"]) -> Callable[[str], list[str]]:
    """Finds what a file name, or a path from somewhere, means in a folder with these names."""
    find_path = _path_finder(folder, kind)
    return lambda name: names.find(PurePosixPath(name).name) or find_path(name)


def _path_finder(folder: Path, kind: Kind) -> Callable[[str], list[str]]:
    """Finds what a path means below a folder."""
    below = cache(partial(_names_below, folder, kind))  # each subfolder is listed once

    def find(image_id: str) -> list[str]:
        parent, _, name = image_id.rpartition("/")
        listed = below(parent) if parent else None
        return [f"{listed[0]}/{entry}" for entry in listed[1].find(name)] if listed else []

    return find


def _subfolder_of(folder: Path, kind: Kind, ids: Sequence[str]) -> str:
    """Where the image of the first of these ids is instead: the folder's folders, a hundred at most."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(
                entry.name for entry, _ in zip(entries, range(100), strict=False) if entry.is_dir()
            )
        for name in below if ids else ():
            if Names(names_in(folder / name, kind), kind.extensions).find(ids[0]):
                return f"; that of {ids[0]!r} is in its folder {name!r}"
    except (OSError, FileError):
        pass
    return ""


def _refuse_absent(
    folder: Path, names: Names, ids: list[str], total: int, file_names: Mapping[str, str], problems: Problems
) -> None:
    """Note file names that are not in a folder which has others of them."""
    if ids:
        examples = ", ".join(f"{file_names[image_id]!r} of id {image_id!r}" for image_id in ids[:NAMED])
        more = ", ..." if len(ids) > NAMED else ""
        found = (
            f"{len(ids):,} of {total:,} file_names ({examples}{more}) "
            f"{'is' if len(ids) == 1 else 'are'} not there{_examples(names.entries)}"
        )
        fix = "put these images there, correct the file_name, or leave it out to have the id used"
        problems.add(file_problem(folder, found, fix))


def _names_below(folder: Path, kind: Kind, parent: str) -> tuple[str, Names] | None:
    """The subfolder that a path names, from a folder or from where it lies, and the names in it."""
    path = PurePosixPath(parent)
    if path.is_absolute() or ".." in path.parts:
        return None
    candidates = [path]
    if path.parts[:1] == (folder.absolute().name,):
        candidates.append(PurePosixPath(*path.parts[1:]))
    below = next((path for path in candidates if (folder / path).is_dir()), None)
    return None if below is None else (str(below), Names(names_in(folder / below, kind), kind.extensions))


def names_in(folder: Path, kind: Kind = KINDS["image"]) -> list[str]:
    """The names of the visible files directly in a folder, and of its folders where one may be a video."""
    refuse_nul(folder)
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name for entry in entries if not entry.name.startswith(".") and _is_one(entry, kind)
            ]
    except FileNotFoundError:
        raise FileError(file_problem(folder, "there is no such folder")) from None
    except NotADirectoryError:
        raise FileError(file_problem(folder, f"is a file, expected a folder of {kind.noun}s")) from None
    except OSError as error:
        raise FileError(file_problem(folder, f"cannot be read ({error.strerror})")) from None


def paths_by_id(folder: Path, problems: Problems, ending: str = "") -> dict[str, Path]:
    """The images directly in a folder by their ids: their names without the extension.

    Notes that there are none, or that several would share an id, which with `ending` is a file's name.
    """
    by_id: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names_in(folder)):
        if Path(name).suffix.lower() in EXTENSIONS:
            by_id[bare(name)].append(name)
            if not valid_unicode(name):
                problems.add(file_problem(folder, f"the name of {name!a} is not UTF-8", "rename that file"))
    for image_id, names in by_id.items():
        if len(names) > 1:
            found = f"{' and '.join(map(repr, names))} would both be {image_id + ending!r}"
            fix = "rename one of them, or run for each in a folder of its own"
            problems.add(file_problem(folder, found, fix))
    if not by_id:
        below = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        found = f"holds no images, but folders ({', '.join(below[:3])})" if below else "holds no images"
        kinds = f"expected files with the extension {', '.join(sorted(EXTENSIONS))}"
        fix = "name one of them, with an --out of its own" if below else kinds
        problems.add(file_problem(folder, found, fix))
    return {image_id: folder / names[0] for image_id, names in by_id.items()}


def _is_one(entry: os.DirEntry[str], kind: Kind) -> bool:
    try:
        return entry.is_file() or (kind.folders and entry.is_dir())
    except OSError:  # a link to itself, which is as broken as one to nothing
        return False


def _examples(names: list[str]) -> str:
    if not names:
        return "; it holds no files (its subfolders are looked into for ids that are paths)"
    return f"; it holds files like {', '.join(map(repr, names[:3]))}"
