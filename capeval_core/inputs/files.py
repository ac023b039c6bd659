"""The user's files: their bytes and JSON; image ids, and the images of a folder or other entries they mean.

The field writes the same image as `42`, `000000000042`, `COCO_val2014_000000000042`, with or without `.jpg`.
An id means, in this order: the entry of exactly that name, of that name but for the extension, of the same
COCO number. Two entries at one step are an ambiguity. Among images an id may also be a path.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from capeval_core.errors import FileError, Problems, did_you_mean, file_error, warn
from capeval_core.inputs.images import quoted, refused

EXTENSIONS: Mapping[str, AbstractSet[str]] = {
    "image": {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        *(".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
    },
    "video": {".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".gif"},
}
"""By the medium, as in `CaptionMetric.media`. A video may also be a folder of its frames."""
_COCO_NUMBER = re.compile(r"(?:(?:COCO|coco)_[A-Za-z0-9]+_)?([0-9]{1,18})")


class Names:
    """Entries that can be found under the several ways to write an image id."""

    def __init__(self, entries: Iterable[str], medium: str = "image") -> None:
        self.entries = sorted(entries)
        self._medium = medium
        self._exact = set(self.entries)
        self._bare: defaultdict[str, list[str]] = defaultdict(list)
        self._number: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            stem = bare(entry, medium)
            self._bare[stem].append(entry)
            if match := _COCO_NUMBER.fullmatch(stem):
                self._number[int(match[1])].append(entry)

    def find(self, image_id: str) -> list[str]:
        """The entries that the id can mean: one is a match, none a miss, several an ambiguity."""
        if image_id in self._exact:
            return [image_id]
        stem = bare(image_id, self._medium)
        match = _COCO_NUMBER.fullmatch(stem)
        numbered = self._number.get(int(match[1]), []) if match else []
        return self._bare.get(image_id) or self._bare.get(stem) or numbered

    def only(self, image_id: str, what: str) -> str:
        """The entry that an id means, or the last part of a path; ImageError: several, or none has `what`."""
        matches = self.find(image_id) or self.find(re.split(r"[/\\]", image_id)[-1])
        if len(matches) == 1:
            return matches[0]
        if matches:
            several = " and ".join(map(repr, matches[:3]))
            raise refused(
                f"the id {quoted(image_id)} is ambiguous, it can mean {several}", "write it in full"
            )
        others = f"; {len(self.entries):,} images have ({some_of(self.entries)})" if self.entries else ""
        raise refused(f"{quoted(image_id)} has no {what}{others}", "add them, or correct the id")


def bare(name: str, medium: str = "image") -> str:
    """The name without the extension of such a file; other dots belong to the name."""
    stem, extension = os.path.splitext(name)  # noqa: PTH122
    return stem if extension.lower() in EXTENSIONS[medium] else name


class Folder:
    """The images, or videos, of a folder, by ids. Raises FileError where it cannot be read."""

    def __init__(self, path: str | os.PathLike[str], medium: str = "image") -> None:
        self.path = Path(path)
        self.medium = medium
        self.names = Names(names_in(self.path, medium), medium)
        self._below: dict[str, Names] = {}

    def find(self, name: str) -> list[str]:
        """The files that a file name, or a path from somewhere, can mean."""
        return self._find_path(name) or self.names.find(PurePosixPath(name).name)

    def match(
        self,
        ids: Sequence[str],
        problems: Problems,
        file_names: Mapping[str, str] | None = None,
        *,
        absent_too: bool = False,
    ) -> dict[str, Path]:
        """The image, or video, of every id; note what is missing or ambiguous.

        file_names: the file that an id means by an annotation, which counts unless no such file is there.
        absent_too: unless all are missing, give those that are a path where nothing is.
        """
        file_names = file_names or {}
        by_file = {one: self.find(name) for one, name in file_names.items()}
        used = by_file if any(by_file.values()) else {}
        matches = {
            one: used[one] if one in used else self.names.find(one) or self._find_path(one) for one in ids
        }
        nowhere: dict[str, Path] = {}
        if absent_too and any(matches.values()):  # where nothing is, be the name that of a file elsewhere
            absent = {one: file_names[one] if one in used else one for one in ids if not matches[one]}
            nowhere = {
                one: self.path / name.replace("/", "\N{DIVISION SLASH}") for one, name in absent.items()
            }
            matches = {one: found for one, found in matches.items() if found}
        own = some_of(self.names.entries[:3])
        lacking = f"no {self.medium}; it holds {f'files like {own}' if own else 'no files itself'}"
        fix = f"an id is the {self.medium}'s file name, its path from that folder, or its COCO number"
        matched = only_matches(self.path, matches, lacking, problems, fix)
        if not used and by_file.keys() & matches.keys() and len(matched) == len(matches):
            such = f"none of the {len(by_file):,} file_names, such as {next(iter(file_names.values()))!r}"
            warn(f"{self.path}: {such}, is there: the {self.medium}s of their ids are used")
        _refuse_names(self.path, matched.values(), problems)
        return {image_id: self.path / name for image_id, name in matched.items()} | nowhere

    def _find_path(self, image_id: str) -> list[str]:
        """What a path means below the folder, from there or from where the folder lies."""
        path = PurePosixPath(image_id)
        parents = [path.parent] * ("/" in image_id and not path.is_absolute() and ".." not in path.parts)
        if parents and path.parts[0] == self.path.absolute().name:
            parents.append(PurePosixPath(*path.parts[1:]).parent)
        for parent in parents:
            if (self.path / parent).is_dir():
                if str(parent) not in self._below:  # a subfolder is listed once
                    self._below[str(parent)] = Names(names_in(self.path / parent, self.medium), self.medium)
                return [f"{parent}/{entry}" for entry in self._below[str(parent)].find(path.name)]
        return []


def only_matches(
    source: Path, matches: Mapping[str, list[str]], lacking: str, problems: Problems, fix: str = ""
) -> dict[str, str]:
    """The one entry that each id means; note ids that mean several, or none, which have `lacking`."""
    for image_id, entries in matches.items():
        if len(entries) > 1:
            several = " and ".join(map(repr, entries))
            problems.add(file_error(source, f"the id {image_id!r} is ambiguous, it can mean {several}"))
    if missing := [image_id for image_id, entries in matches.items() if not entries]:
        have = "has" if len(missing) == 1 else "have"
        found = f"{len(missing):,} of {len(matches):,} ids ({some_of(missing)}) {have} {lacking}"
        problems.add(file_error(source, found, fix))
    return {image_id: entries[0] for image_id, entries in matches.items() if len(entries) == 1}


def some_of(given: Iterable[str]) -> str:
    """The first five of these names."""
    names = list(given)
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def names_in(folder: Path, medium: str = "image") -> list[str]:
    """The names of the visible files directly in a folder, and of its folders where one may be a video."""
    names = []
    with reading(folder, "folder"), os.scandir(folder) as entries:
        for one in entries:
            with suppress(OSError):  # a link to itself, as broken as one to nothing
                if not one.name.startswith(".") and (one.is_file() or (medium == "video" and one.is_dir())):
                    names.append(one.name)
    return names


def _refuse_names(folder: Path, names: Iterable[str], problems: Problems) -> None:
    for name in [name for name in names if not valid_unicode(name)]:  # no file of results could hold it
        problems.add(file_error(folder, f"the name of {name!a} is not UTF-8", "rename that file"))


def paths_by_id(folder: Path, problems: Problems) -> dict[str, Path]:
    """The images directly in a folder by their names without the extension; note names that collide."""
    by_id: defaultdict[str, list[str]] = defaultdict(list)
    images = [name for name in sorted(names_in(folder)) if bare(name) != name]
    _refuse_names(folder, images, problems)
    for name in images:
        by_id[bare(name)].append(name)
    for image_id, names in by_id.items():
        if len(names) > 1:
            found = f"{' and '.join(map(repr, names))} would both be {image_id!r}"
            fix = "rename one of them, or run for each in a folder of its own"
            problems.add(file_error(folder, found, fix))
    if not by_id:
        fix = f"expected files with the extension {', '.join(sorted(EXTENSIONS['image']))}"
        problems.add(file_error(folder, "holds no images", fix))
    return {image_id: folder / names[0] for image_id, names in by_id.items()}


# ---- bytes, text and JSON of a file


@contextmanager
def reading(path: Path, kind: str = "file", fix: str = "") -> Iterator[None]:
    """Let a path that is not there, or that cannot be read, be a FileError."""
    try:
        path.lstat()
        yield
    except FileError:
        raise
    except (FileNotFoundError, ValueError):  # no path has a NUL character
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise file_error(path, f"there is no such {kind}{did_you_mean(path.name, beside)}", fix) from None
    except OSError as error:
        raise file_error(path, f"cannot be read ({error.strerror})") from None


def contents(path: Path) -> bytes:
    """The bytes of a regular file. Raises FileError, also for pipes and devices, which may never end."""
    with reading(path):
        if stat.S_ISREG(path.stat().st_mode):
            return path.read_bytes()
    raise file_error(path, "is a folder, a pipe or a device", "name a file, or - for standard input")


def decoded(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark. Raises FileError."""
    try:
        return data.decode(encoding_of(data))
    except UnicodeDecodeError as error:
        found = f"is not a text in {error.encoding.upper()} ({error.reason} at position {error.start})"
        raise file_error(path, found, "convert it") from None


def encoding_of(data: bytes) -> str:
    """UTF-16 is what Excel and PowerShell write."""
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def load_json(path: Path) -> Any:
    """The content of a JSON file. Raises FileError."""
    return parsed(path, decoded(path, contents(path)))


def parsed(path: Path, text: str, first_line: int = 1) -> Any:
    """JSON in which a repeated key is an error: `json` would silently keep the last."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return result

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        found = f"not JSON (line {first_line + error.lineno - 1}, column {error.colno}: {error.msg})"
        fix = "it may be truncated; if each line is an object, name it .jsonl"
        raise file_error(path, found, fix) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise file_error(path, f"JSON that cannot be read ({error})") from None
    if repeated:
        fix = "write it once, with a list where it has several values"
        raise file_error(path, f"the key {some_of([*dict.fromkeys(repeated)])} comes twice", fix)
    return content


def valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; file names that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
