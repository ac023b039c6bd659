"""Joining: what an image id means among the files of a folder, or among the ids of another file.

Step three of reading a file, and the only matcher of ids: for images, videos, references and features. The
field writes the same image as `42`, `000000000042`, `COCO_val2014_000000000042`,
`val2014/COCO_val2014_000000000042.jpg`, `C:\\data\\val2014\\42.jpg` or `https://host/42.jpg?size=1`. A name
is compared from its end, part by part:

    1. the last parts: equal, or equal but for an extension, or the same number of COCO, in this order;
    2. the folders before them, as far as both names have some: where they differ, it is another image. The
       folder of images that is passed counts among them where the last parts are mere numbers.

Of several entries that fit alike, those count whose folders agree furthest. If several are left, the id is
ambiguous.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from capeval_core.errors import Problems, counted, file_error, valid_unicode
from capeval_core.inputs import names
from capeval_core.inputs.files import EXTENSIONS, bare, reading, some_of
from capeval_core.inputs.images import image_error, quoted

_COCO_NUMBER = re.compile(r"(?:(?:COCO|coco)_[A-Za-z0-9]+_)?([0-9]{1,18})(?:\.0)?")
_NUMBER = re.compile(r"(?:(?:frame|image|img|im|photo|picture|pic)[_ -]?)?[0-9]{1,6}", re.IGNORECASE)
"""A name that images of many folders have; COCO's and Flickr's numbers are longer."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class NameParts(NamedTuple):
    """A name as it is compared: its folders from the outermost, and its last part."""

    folders: tuple[str, ...]
    last: str


def parts_of(name: str) -> NameParts:
    """The parts of a name: Unicode composed, `\\` as `/`, of an address its path, without `.` and `..`."""
    if _ADDRESS.match(name):
        with suppress(ValueError):  # an address that is none stays a name
            name = unquote(urlsplit(name).path)
    # macOS lists names decomposed (e and its accent), files of captions hold them composed.
    if not name.isascii():
        name = unicodedata.normalize("NFC", name)
    if "/" not in name and "\\" not in name:
        return NameParts((), name)  # most names, of which there are millions
    parts = []
    for part in re.split(r"[/\\]+", name):
        if part not in ("", ".", ".."):
            parts.append(part)
    return NameParts(tuple(parts[:-1]), parts[-1]) if parts else NameParts((), name)


def agreement(folders: Sequence[str], entry_folders: Sequence[str]) -> int | None:
    """In how many folders, from the innermost, two names agree; None where one differs."""
    # From the end: the same set lies in /data on one machine and in C:\coco on another.
    shared = min(len(folders), len(entry_folders))
    if folders[len(folders) - shared :] != entry_folders[len(entry_folders) - shared :]:
        return None
    return shared


def coco_number(stem: str) -> int | None:
    """The number of COCO that a name without its extension is."""
    if not stem[-1:].isdecimal():  # faster than the pattern, which most names of other sets would fail
        return None
    match = _COCO_NUMBER.fullmatch(stem)
    return int(match[1]) if match else None


class Names:
    """Entries that can be found under the several ways to write an image id."""

    # The tables below for the entry `val2014/COCO_val2014_000000000042.jpg`:
    #
    #     _folders     the whole entry               -> ("val2014",)
    #     _by_last     COCO_val2014_000000000042.jpg -> [entry]
    #     _by_stem     COCO_val2014_000000000042     -> [entry]
    #     _by_number   42                            -> [entry]
    #
    # One pass over the entries instead of one per id: both may be a million.

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = sorted(entries)  # a folder is listed in any order, messages are not to depend on it
        self._folders: dict[str, tuple[str, ...]] = {}
        self._by_last: defaultdict[str, list[str]] = defaultdict(list)
        self._by_stem: defaultdict[str, list[str]] = defaultdict(list)
        self._by_number: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            if entry.isdecimal() and entry.isascii() and len(entry) < 19:
                # Most sets number their images: nothing of such a name needs to be taken apart.
                self._folders[entry] = ()
                self._by_stem[entry].append(entry)
                self._by_number[int(entry)].append(entry)
                continue
            parts = parts_of(entry)
            stem = bare(parts.last)
            self._folders[entry] = parts.folders
            self._by_last[parts.last].append(entry)
            self._by_stem[stem].append(entry)
            number = coco_number(stem)
            if number is not None:
                self._by_number[number].append(entry)

    def find(self, name: str) -> list[str]:
        """The entries that a name can mean: one is a match, none a miss, several an ambiguity."""
        return self.find_closely(name)[0]

    def find_closely(self, name: str) -> tuple[list[str], int]:
        """The entries that a name can mean, and how far their last parts are from it; 0: they are equal."""
        if name in self._folders:
            return [name], 0
        parts = parts_of(name)
        stem = bare(parts.last)
        number = coco_number(stem)
        # The closest first, and the first that has any counts: `42.jpg` is the file of that name, though
        # `42.png` has its stem and `000042.jpg` its number.
        similar = (
            self._by_last.get(parts.last, []),
            self._by_stem.get(parts.last, []),
            self._by_stem.get(stem, []),
            [] if number is None else self._by_number.get(number, []),
        )
        for distance, entries in enumerate(similar):
            matches = self._in_same_folder(parts.folders, entries)
            if matches:
                return matches, distance
        return [], len(similar)

    def _in_same_folder(self, folders: Sequence[str], entries: Sequence[str]) -> list[str]:
        """The entries whose folders do not differ, and among them those that agree furthest."""
        if not folders and len(entries) < 2:
            return list(entries)
        agreements: dict[str, int] = {}
        for entry in entries:
            shared = agreement(folders, self._folders[entry])
            if shared is not None:
                agreements[entry] = shared
        furthest = max(agreements.values(), default=0)
        nearest = [entry for entry, shared in agreements.items() if shared == furthest]
        # Without a folder in the id, an entry that lies in none is meant before those below.
        outermost = []
        if not folders:
            outermost = [entry for entry in nearest if not self._folders[entry]]
        return outermost or nearest

    def only(self, image_id: str, what: str) -> str:
        """The entry that an id means; ImageError: several, or none has `what`."""
        matches = self.find(image_id)
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = " and ".join(map(repr, matches[:3]))
            raise image_error(
                f"the id {quoted(image_id)} is ambiguous, it can mean {several}",
                "write it in full",
                sentence=True,
            )
        present = ""
        if self.entries:
            have = "has" if len(self.entries) == 1 else "have"
            present = f"; {counted(len(self.entries), 'image')} {have} ({some_of(self.entries)})"
        raise image_error(
            f"{quoted(image_id)} has no {what}{present}", "add them, or correct the id", sentence=True
        )


class Folder:
    """The images, or videos, of a folder and of those below it, by ids. Raises FileError."""

    def __init__(self, path: str | os.PathLike[str], medium: str = "image") -> None:
        self.path = Path(path)
        self.medium = medium
        self.names = Names(names_in(self.path, medium))
        self._deep: Names | None = None

    @property
    def deep(self) -> Names:
        """All entries, with those of folders below; listed when they are needed first."""
        # A flat folder of a million images next to others is not walked in vain.
        if self._deep is None:
            below = [name for name in names_below(self.path, self.medium) if "/" in name]
            self._deep = Names([*self.names.entries, *below]) if below else self.names
        return self._deep

    def find(self, name: str) -> list[str]:
        """The files that an id, a file name, or a path from somewhere, can mean."""
        parts = parts_of(name)
        if not parts.folders:
            return self.names.find(name) or self.deep.find(name)
        entries = self.deep.find(name)
        if self.is_elsewhere(parts):
            return [entry for entry in entries if "/" in entry]
        return entries

    def is_elsewhere(self, parts: NameParts) -> bool:
        """Whether a name is a number in another folder than this one: `train/1` is not `val/1`.

        Names that are more than a number are compared alone, as images are moved to folders of other names.
        """
        if not parts.folders or not _NUMBER.fullmatch(bare(parts.last)):
            return False
        folder = parts.folders[-1]
        # `images/1` says nothing against a folder `val`, nor `val/1` against one that is called `images`.
        return (
            folder not in self._own_names and _says_which(folder) and all(map(_says_which, self._own_names))
        )

    @cached_property
    def _own_names(self) -> set[str]:
        """The name of this folder, as it was passed and behind links."""
        return {parts_of(str(self.path.absolute())).last, parts_of(str(self.path.resolve())).last}

    def match(
        self, names_of_ids: Mapping[str, str], problems: Problems, *, absent_too: bool = False
    ) -> dict[str, Path]:
        """The image, or video, of every id by the name that is looked for; note what is missing or ambiguous.

        absent_too: unless all are missing, give those that are not there the path where nothing is.
        """
        matches = {image_id: self.find(name) for image_id, name in names_of_ids.items()}
        nowhere: dict[str, Path] = {}
        if absent_too and any(matches.values()):
            for image_id, entries in list(matches.items()):
                if entries:
                    continue
                # A name without folders, as the path of a file elsewhere could be one that is there.
                nowhere[image_id] = self.path / names_of_ids[image_id].replace("/", "\N{DIVISION SLASH}")
                del matches[image_id]
        like = some_of(self.names.entries[:3]) or some_of(self.deep.entries[:3])
        content = f"files like {like}" if like else "no files"
        lacking = f"no {self.medium}; it holds {content}"
        fix = f"an id is the {self.medium}'s file name, its path, or its COCO number"
        for image_id, entries in matches.items():
            parts = parts_of(names_of_ids[image_id])
            if not entries and self.is_elsewhere(parts):
                place = f"{image_id!r} is in the folder {parts.folders[-1]!r}"
                fix = f"{place}: pass that one; if this one holds the same images, write ids without a folder"
                break
        matched = only_matches(self.path, matches, lacking, problems, fix)
        refuse_names(self.path, matched.values(), problems)
        return {image_id: self.path / name for image_id, name in matched.items()} | nowhere

    def other_folders(self, names_of_ids: Mapping[str, str], matched: Mapping[str, Path]) -> dict[str, int]:
        """How many ids name a folder in which the file that was taken does not lie, by that folder."""
        counts: defaultdict[str, int] = defaultdict(int)
        root = parts_of(str(self.path.absolute()))
        for image_id, path in matched.items():
            folders = parts_of(names_of_ids[image_id]).folders
            entry = parts_of(str(path.relative_to(self.path)))
            folders_of_file = (*root.folders, root.last, *entry.folders)
            if folders and folders[-1] != folders_of_file[-1]:
                counts[folders[-1]] += 1
        return dict(counts)


def _says_which(folder: str) -> bool:
    """Whether the name of a folder may say which images are in it, as `val` and `beach` do."""
    return not any(word in folder.lower() for word in names.listed("folders", "general"))


def only_matches(
    source: Path, matches: Mapping[str, list[str]], lacking: str, problems: Problems, fix: str = ""
) -> dict[str, str]:
    """The one entry that each id means; note ids that mean several, or none, which have `lacking`."""
    entry_of_id: dict[str, str] = {}
    missing: list[str] = []
    for image_id, entries in matches.items():
        if not entries:
            missing.append(image_id)
        elif len(entries) == 1:
            entry_of_id[image_id] = entries[0]
        else:
            several = " and ".join(map(repr, entries[:4]))
            if len(entries) > 4:
                several = f"{several} and more"
            problem = f"the id {image_id!r} is ambiguous, it can mean {several}"
            problems.add(file_error(source, problem, "write its path", sentence=True))
    if missing:
        # In one problem: with the wrong folder all ids are missing, for one reason.
        have = "has" if len(missing) == 1 else "have"
        problem = f"{len(missing):,} of {len(matches):,} ids ({some_of(missing)}) {have} {lacking}"
        problems.add(file_error(source, problem, fix, sentence=True))
    return entry_of_id


# ---- names in folders


def names_in(folder: Path, medium: str = "image") -> list[str]:
    """The names of the visible files directly in a folder, and of its folders where one may be a video."""
    listed = []
    with reading(folder, "folder"), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # a link to itself, as broken as one to nothing
                may_be_video = medium == "video" and entry.is_dir()
                if not entry.name.startswith(".") and (entry.is_file() or may_be_video):
                    listed.append(entry.name)
    return listed


def names_below(folder: Path, medium: str = "image") -> Iterator[str]:
    """The paths of the visible files below a folder; of videos also folders of frames."""
    visited: set[str] = set()
    for place, folders, files_here in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:  # a link to a folder above
            folders.clear()
            continue
        visited.add(real)
        relative = Path(place).relative_to(folder).as_posix()
        # In place, which is how `os.walk` is told not to go into folders such as .git and .ipynb_checkpoints.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        holds_frames = any(bare(name, "image") != name for name in files_here)
        if medium == "video" and holds_frames and relative != ".":
            folders.clear()
            yield relative
            continue
        for name in sorted(files_here):
            if not name.startswith("."):
                yield name if relative == "." else f"{relative}/{name}"


def refuse_names(folder: Path, entries: Iterable[str], problems: Problems) -> None:
    """Note names of files that no file of results could hold."""
    for name in entries:
        if not valid_unicode(name):
            problems.add(
                file_error(folder, f"the name of {name!a} is not UTF-8", "rename that file", sentence=True)
            )


def paths_by_id(folder: Path, problems: Problems) -> dict[str, Path]:
    """The images directly in a folder by their names without the extension; note names that collide."""
    by_id: defaultdict[str, list[str]] = defaultdict(list)
    # A name whose extension is that of an image; notes and thumbnails' databases lie in such folders, too.
    images = [name for name in sorted(names_in(folder)) if bare(name, "image") != name]
    refuse_names(folder, images, problems)
    for name in images:
        by_id[bare(name)].append(name)
    for image_id, files_of_id in by_id.items():
        if len(files_of_id) > 1:
            problem = f"{' and '.join(map(repr, files_of_id))} would both be {image_id!r}"
            fix = "rename one of them, or run for each in a folder of its own"
            problems.add(file_error(folder, problem, fix, sentence=True))
    if not by_id:
        fix = f"expected files with the extension {', '.join(sorted(EXTENSIONS['image']))}"
        problems.add(file_error(folder, "holds no images", fix))
    return {image_id: folder / files_of_id[0] for image_id, files_of_id in by_id.items()}
